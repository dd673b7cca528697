"""The real clock and the real randomness behind the ports."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from ryusen_protocol.identity import ENTROPY_BYTES, letters
from ryusen_protocol.ids import RequestId
from ryusen_server.ports.time import Handle

_BUFFERED_BYTES = 4_096
_JITTER_BYTES = 8


class SystemClock:
    """Wall-clock instants of the machine; wake-ups on the running loop's own clock, which does not jump."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """See the port."""
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Handle:
        """See the port."""
        return self._loop.call_later(max(delay_ms, 0) / 1000, callback)


class SystemEntropy:
    """The operating system's randomness, fetched in blocks: a system call for each id would be most of its cost."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0

    def request_id(self) -> RequestId:
        """See the port."""
        return RequestId(self.token("rq"))

    def token(self, prefix: str) -> str:
        """See the port."""
        return f"{prefix}_{letters(self._take(ENTROPY_BYTES))}"

    def jitter(self) -> float:
        """See the port. 53 bits, so that rounding never reaches 1."""
        return (int.from_bytes(self._take(_JITTER_BYTES), "big") >> 11) / 2**52 - 1

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._buffer):
            self._buffer = os.urandom(_BUFFERED_BYTES)
            self._at = 0
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        return taken
