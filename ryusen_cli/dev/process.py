"""The parent's end of one child process: hears it on a loop, and ends it.

Owns process group and line splitting. Knows no role: what a child is for stands in the order it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import IO, TYPE_CHECKING, Final

import msgspec

from ryusen_cli.dev.messages import Connect, Fact, Order, decode_fact, encode
from ryusen_cli.dev.spawn import Role, Spawned, child_command, spawn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_CHUNK: Final = 65_536
_LINE_BYTES_MAX: Final = 65_536


class Child:
    """One running child process. Callbacks come on the loop that started it."""

    def __init__(self, name: str, *, said: Callable[[Child, Fact], None], printed: Callable[[Child, str], None]) -> None:
        self.name = name
        self.on_fact: Callable[[Fact], None] = lambda _: None
        """Where a child that changed hands is heard now; `said` decides whether that counts."""
        self._said = said
        self._printed = printed
        self._process: subprocess.Popen[bytes] | None = None
        self._code: asyncio.Future[int] | None = None
        self._control_fd: int | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._pipes: list[asyncio.BaseTransport] = []

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    async def start(self, role: Role, command: Callable[[str, int, int], list[str]] = child_command) -> None:
        """Starts the process; it waits for its order."""
        await self.adopt(spawn(role, command))

    async def adopt(self, spawned: Spawned) -> None:
        """Takes over a process that was started already."""
        self._process = spawned.process
        self._control_fd = spawned.control_fd
        self._code = _ended(spawned.process)
        await self._hear(os.fdopen(spawned.facts_fd, "rb", 0), self._heard_fact)
        if spawned.process.stdout is not None:
            await self._hear(spawned.process.stdout, self._heard_text)

    async def _hear(self, pipe: IO[bytes], heard: Callable[[bytes], None]) -> None:
        reader = asyncio.StreamReader(limit=2**20)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._pipes.append(transport)
        self._readers.append(asyncio.create_task(self._read(reader, heard)))

    def order(self, order: Order | Connect) -> None:
        """Tells the child what to do. A child that has ended meanwhile is found out by `ended`."""
        if self._control_fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._control_fd, encode(order))

    async def ended(self) -> int:
        """The exit code, once everything the child said has been heard; minus a number for a signal."""
        if self._code is None:
            raise RuntimeError("the child was not started")
        code = await asyncio.shield(self._code)  # others may wait for it too
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
        if self.is_running and self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Lets go of the pipes. A child that still runs takes this as the end of its parent."""
        if self._control_fd is not None:
            os.close(self._control_fd)
            self._control_fd = None
        for reader in self._readers:
            reader.cancel()
        for pipe in self._pipes:
            pipe.close()

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


def _ended(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """The exit code, minus a number for a signal. A thread waits for it: the one way that every platform has."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def tell(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(tell, code)

    threading.Thread(target=wait, name=f"ryusen-child-{process.pid}", daemon=True).start()
    return ended


def how_ended(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"exit code {code}"
