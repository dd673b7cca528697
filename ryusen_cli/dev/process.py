"""The parent's end: starts one child process, hears it, and ends it.

Owns pipes, process group and line splitting. Knows no role: what a child is for stands in the order it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import ryusen_cli
from ryusen_cli.dev.messages import Fact, Order, decode_fact, encode

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK: Final = 65_536
_LINE_BYTES_MAX: Final = 65_536
_BOOT: Final = "import sys; sys.path.append({root!r}); from ryusen_cli.dev.child import main; sys.exit(main(sys.argv[1:]))"


def child_command(role: str, control_fd: int, facts_fd: int) -> list[str]:
    """The command of a child: this interpreter and this very code, wherever it was imported from.

    `-P` keeps the current folder out of the child's own imports; a target finds it by its own rule.
    """
    root = str(Path(ryusen_cli.__file__).parent.parent)
    return [sys.executable, "-P", "-c", _BOOT.format(root=root), role, str(control_fd), str(facts_fd)]


class Child:
    """One running child process. Callbacks come on the loop that started it."""

    def __init__(self, name: str, *, said: Callable[[Child, Fact], None], printed: Callable[[Child, str], None]) -> None:
        self.name = name
        self.on_fact: Callable[[Fact], None] = lambda _: None
        """Where a child that changed hands is heard now; `said` decides whether that counts."""
        self._said = said
        self._printed = printed
        self._process: asyncio.subprocess.Process | None = None
        self._control_fd: int | None = None
        self._readers: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self, role: str, command: Callable[[str, int, int], list[str]] = child_command) -> None:
        """Starts the process in a session of its own: Ctrl+C reaches only the parent, and no child can draw on its terminal. It waits for
        its order."""
        control_read, control_write = os.pipe()
        facts_read, facts_write = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command(role, control_read, facts_write),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(control_read, facts_write),
                start_new_session=True,
            )
        except BaseException:
            os.close(control_write)
            os.close(facts_read)
            raise
        finally:
            os.close(control_read)
            os.close(facts_write)
        self._control_fd = control_write
        facts = await _pipe_reader(facts_read)
        self._readers = [asyncio.create_task(self._read(facts, self._heard_fact))]
        if self._process.stdout is not None:
            self._readers.append(asyncio.create_task(self._read(self._process.stdout, self._heard_text)))

    def order(self, order: Order) -> None:
        """Tells the child what to do. A child that has ended meanwhile is found out by `ended`."""
        if self._control_fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._control_fd, encode(order))

    async def ended(self) -> int:
        """The exit code, once everything the child said has been heard; minus a number for a signal."""
        if self._process is None:
            raise RuntimeError("the child was not started")
        code = await self._process.wait()
        # A grandchild may hold the output open; what the child itself said is there by now.
        await asyncio.wait(self._readers, timeout=0.5)
        self.close()
        return code

    def drain(self) -> None:
        """Asks the child to finish what it runs and end."""
        if self.is_running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """Ends the child and all that it started, at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Lets go of the pipes. A child that still runs takes this as the end of its parent."""
        if self._control_fd is not None:
            os.close(self._control_fd)
            self._control_fd = None
        for reader in self._readers:
            reader.cancel()

    async def _read(self, stream: asyncio.StreamReader, heard: Callable[[bytes], None]) -> None:
        rest = b""
        while piece := await stream.read(_CHUNK):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                heard(line)
            while heard == self._heard_text and len(rest) > _LINE_BYTES_MAX:
                heard(rest[:_LINE_BYTES_MAX])
                rest = rest[_LINE_BYTES_MAX:]
        if rest:
            heard(rest)

    def _heard_text(self, line: bytes) -> None:
        self._printed(self, line.decode("utf-8", "replace").rstrip("\r"))

    def _heard_fact(self, line: bytes) -> None:
        try:
            fact = decode_fact(line)
        except msgspec.DecodeError:
            self._printed(self, line.decode("utf-8", "replace"))
            return
        self._said(self, fact)


async def _pipe_reader(fd: int) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0))
    return reader
