"""The dashboard as a command has it: in front of a supervisor of its own, or attached to a server elsewhere.

Owns signals, where the supervisor's lines go while the dashboard has the terminal, and that the two end together. The supervisor knows
nothing of it: it writes to an output whose streams lead to the log view and a log file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from ryusen_cli.dev.hangup import watch_terminal
from ryusen_cli.exits import CliError, Exit
from ryusen_cli.output import Output
from ryusen_tui.app import Dashboard
from ryusen_tui.head import Failure
from ryusen_tui.logs import LogBook

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ryusen_cli.dev.supervisor import Plan

LOG_NAME: Final = "dev.log"
LOG_BYTES_MAX: Final = 4 * 2**20
"""A log file that is larger begins anew; the one before is kept beside it."""


def attach(url: str, *, workspace: str, token: str | None) -> tuple[int, bool]:
    """The dashboard of a server that somebody else runs. Returns the exit code, and whether plain lines are wanted."""

    async def run() -> tuple[int, bool]:
        _heed_the_terminal()
        app = Dashboard(url, workspace=workspace, token=token, unicode=is_utf8())
        watch_terminal(sys.stdin.fileno(), lambda: app.exit(return_code=128 + signal.SIGHUP))
        with _signals(lambda number: app.exit(return_code=128 + number)), _outliving_terminal():
            end = await app.run_async()
        return app.return_code or 0, end == "plain"

    return asyncio.run(run())


def supervise(plan: Plan, url: str, output: Output, folder: Path) -> int:
    """Server, workers and the dashboard in front of them. Returns the exit code; raises `CliError` as the supervisor does."""
    return asyncio.run(_supervise(plan, url, output, folder))


async def _supervise(plan: Plan, url: str, output: Output, folder: Path) -> int:
    from ryusen_cli.dev.supervisor import Supervisor

    book = LogBook()
    sink = Sink(book, folder / LOG_NAME)
    supervisor = Supervisor(plan, Output(stdout=cast("TextIO", sink), stderr=cast("TextIO", sink)))
    work: asyncio.Task[int] | None = None

    early = contextlib.ExitStack()

    def start() -> None:
        nonlocal work
        early.close()  # from here on the supervisor hears signals
        work = asyncio.create_task(supervisor.run())
        work.add_done_callback(ended)
        supervisor.listening = app.server_is_at

    def ended(task: asyncio.Task[int]) -> None:
        if task.cancelled() or not app.is_running:
            return
        error = task.exception()
        match error:
            case None:
                app.exit("quit", return_code=task.result())
            case CliError():
                sink.write(f"ryusen | {error.message}\n")
                app.failed(Failure(error.message, error.hint))
            case _:
                app.failed(Failure(f"a defect of the supervisor: {type(error).__name__}: {error}"))

    def gone() -> None:
        if work is None or work.done():
            app.exit(return_code=128 + signal.SIGHUP)
        else:
            supervisor.finish(Exit.TERMINATED)

    _heed_the_terminal()
    app = Dashboard(url, workspace="default", token=plan.worker.token, logs=book, owns_server=True, unicode=is_utf8(), started=start)
    watch_terminal(sys.stdin.fileno(), gone)
    try:
        early.enter_context(_signals(lambda number: app.exit(return_code=128 + number)))
        with _outliving_terminal():
            end = await app.run_async()
        if end == "plain" and work is not None and not work.done():
            sink.show(output)
            output.note("the dashboard is closed and everything goes on; Ctrl+C ends it, `ryusen tui` shows it again")
            return await work
    finally:
        early.close()
        supervisor.finish(Exit.OK)
        code = await _outcome(work)
        sink.close()
    return app.return_code or code


async def _outcome(work: asyncio.Task[int] | None) -> int:
    """How the supervisor ended. What it failed by was shown already."""
    if work is None:
        return 0
    with contextlib.suppress(CliError):
        return await work
    return int(Exit.ERROR)


class Sink(io.TextIOBase):
    """A stream whose lines go to the log view and a file, and to the terminal once the dashboard has left it."""

    def __init__(self, book: LogBook, file: Path) -> None:
        super().__init__()
        self._book = book
        self._rest = ""
        self._output: Output | None = None
        self._file = _open(file)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The log is UTF-8, whatever the terminal is."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Any text; whole lines go on."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._book.write(line)
            if self._file is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._file.write(line + "\n")
                    self._file.flush()
            if self._output is not None:
                self._output.note(line)
        return len(text)

    def show(self, output: Output) -> None:
        """From now on lines are printed too."""
        self._output = output

    def close(self) -> None:
        """The file is complete."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def _open(file: Path) -> io.TextIOWrapper | None:
    """The log file, 0600 because it holds what workers print; none where it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > LOG_BYTES_MAX:
            file.replace(file.with_suffix(".log.1"))
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        return None
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123 - a descriptor, closed by the sink


def _heed_the_terminal() -> None:
    """How large the terminal is, it says itself: what an environment says of that is of another moment, or of another terminal."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


class _Outliving:
    """A stream to a terminal that may go away: what is written to it then is lost, and no error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._until_it_is_gone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._until_it_is_gone():
            self._stream.flush()

    @contextlib.contextmanager
    def _until_it_is_gone(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def _outliving_terminal() -> Generator[None]:
    """The dashboard's writer would end with the first error, and the loop wait for it without end as soon as its queue is full."""
    stream = sys.__stderr__
    names: dict[str, Any] = sys.__dict__
    names["__stderr__"] = None if stream is None else _Outliving(stream)
    try:
        yield
    finally:
        names["__stderr__"] = stream


def is_utf8() -> bool:
    """Whether the terminal shows the glyphs, or needs the ASCII ones."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and os.environ.get("TERM") != "linux"


@contextlib.contextmanager
def _signals(ended: Callable[[int], Any]) -> Generator[None]:
    """SIGTERM and SIGHUP leave by the door that restores the terminal."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, ended, int(number))
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
