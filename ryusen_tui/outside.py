"""The person's own programs: an editor for a text, a browser for a page. Owns that neither spoils the screen nor holds up what runs here.

An editor gets the terminal, and everything else goes on beside it; a browser gets none of the terminal. Both say what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

from textual.app import SuspendNotSupported

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from textual.app import App

BROWSER_S: Final = 3.0
"""A browser that runs for longer has opened the page: some stay until their window is closed."""
GRACE_S: Final = 2.0
"""How long an editor has to end when the dashboard does."""
_OPEN: Final = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"


class NotThere(Exception):
    """The program is not there, or did not do it. The text says so and what to do."""


def editor_of(environment: Mapping[str, str]) -> list[str]:
    """The person's editor and its arguments: `VISUAL`, `EDITOR`, or `vi`. Raises `NotThere`."""
    named = environment.get("VISUAL") or environment.get("EDITOR")
    try:
        words = shlex.split(named or "vi")
    except ValueError as error:
        raise NotThere(f"EDITOR cannot be read as a command ({error}): {named}") from error
    if not words or shutil.which(words[0], path=environment.get("PATH")) is None:
        which = f"{words[0]!r} " if named and words else ""
        raise NotThere(f"no editor {which}here; set EDITOR to one that there is")
    return words


async def edit(app: App[Any], document: str) -> None:
    """Give the terminal to the editor until it ends; what is changed there is not kept. Raises `NotThere`.

    The document is in a file that only this person can read, and that is gone afterwards.
    """
    words = editor_of(os.environ)
    code = 0
    with (
        contextlib.suppress(FileNotFoundError),  # the editor may have removed it
        tempfile.NamedTemporaryFile("w", suffix=".json", prefix="ryusen-", encoding="utf-8") as file,
    ):
        file.write(document)
        file.flush()
        code = await _in_front(app, [*words, file.name])
    if code:
        raise NotThere(f"{words[0]} ended with {code}" if code > 0 else f"{words[0]} was ended by signal {-code}")


async def _in_front(app: App[Any], command: list[str]) -> int:
    """Run a program that has the terminal, and then take it back, however the program ended. Returns its code."""
    trouble: BaseException | None = None
    code = 0
    try:
        # Nothing may raise inside: the terminal would not be taken back.
        with app.batch_update(), app.suspend(), _interrupts_are_its_own():
            try:
                code = await _run(command)
            except (OSError, asyncio.CancelledError) as error:
                trouble = error
    except SuspendNotSupported as error:
        raise NotThere("this terminal cannot make room for an editor") from error
    match trouble:
        case None:
            return code
        case OSError():
            raise NotThere(f"{command[0]} could not be started: {trouble}") from trouble
        case _:
            raise trouble


async def _run(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), GRACE_S)
            except TimeoutError:
                process.kill()
        await process.wait()
        raise


@contextlib.contextmanager
def _interrupts_are_its_own() -> Generator[None]:
    """Ctrl+C reaches everything in front of the terminal; while another program is there it is not meant for this one."""

    def pass_over(number: int, frame: object) -> None:
        """Unlike ignoring, this is not inherited by the other program."""

    before = signal.signal(signal.SIGINT, pass_over)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def browse(url: str) -> None:
    """Open a page. Raises `NotThere` with the address where there is no browser, or none that opens it."""
    # Without a display only a text browser would be found, which needs a terminal.
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        raise NotThere(f"no browser here; the address is {url}")
    nothing = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _OPEN, url, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )
        code = await asyncio.wait_for(process.wait(), BROWSER_S)
    except TimeoutError:
        return
    except OSError as error:
        raise NotThere(f"no browser could be started: {error}; the address is {url}") from error
    if code:
        raise NotThere(f"no browser opened it; the address is {url}")
