"""The process under test: a worker's command, started against a fake server and ended again.

Owns the process group, what it printed last, and how it is asked to stop. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from typing import Final

from ryusen_conformance.report import Impossible
from ryusen_conformance.transcript import StageFailed

_TAIL_LINES: Final = 20


class Subject:
    """One started process. `{url}` in its command, and `RYUSEN_URL` in its environment, are the fake server's address."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: list[str], url: str) -> Subject:
        """Raises `Impossible` when there is no such program."""
        words = [word.replace("{url}", url) for word in command]
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                env={**os.environ, "RYUSEN_URL": url},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise Impossible(f"{words[0]} cannot be started: {error.strerror}") from error
        return cls(process)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def last_words(self) -> str:
        """What it printed last, for people."""
        return "\n".join(self._tail)

    def stop(self) -> None:
        """Asks it to end, as a supervisor does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def ended(self, within_s: float) -> None:
        """Waits for its end. Raises `StageFailed`."""
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            raise StageFailed(f"the process still runs after {within_s:g} s") from None

    async def kill(self) -> None:
        """Ends it and whatever it started, now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        stream = self._process.stdout
        while stream is not None:
            try:
                line = await stream.readline()
            except ValueError:  # a line without an end
                continue
            if not line:
                return
            self._tail.append(line.decode("utf-8", "replace").rstrip())
