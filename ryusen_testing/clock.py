"""The harness's clock, which only a test moves, and its entropy, which repeats itself.

Wall time and elapsed time are one here: nothing drifts, and the same test sees the same instants and ids every time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from ryusen_protocol.ids import RequestId

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z, where every harness begins unless told otherwise."""


class WakeUp:
    """A call that is due at an instant."""

    __slots__ = ("at_ms", "callback", "is_cancelled")

    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualClock:
    """Implements `ryusen_server.ports.time.Clock`. Instants are epoch milliseconds."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms
        self._wake_ups: list[tuple[int, int, WakeUp]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> WakeUp:
        wake_up = WakeUp(self._now_ms + max(0, delay_ms), callback)
        heapq.heappush(self._wake_ups, (wake_up.at_ms, next(self._order), wake_up))
        return wake_up

    def move_to(self, at_ms: int) -> list[Callable[[], None]]:
        """Let time pass up to an instant; what fell due on the way, in order. What that arms anew falls due at the next move."""
        self._now_ms = max(self._now_ms, at_ms)
        due: list[Callable[[], None]] = []
        while self._wake_ups and self._wake_ups[0][0] <= self._now_ms:
            wake_up = heapq.heappop(self._wake_ups)[2]
            if not wake_up.is_cancelled:
                due.append(wake_up.callback)
        return due

    def forget_wake_ups(self) -> None:
        """The process that asked for them is gone."""
        self._wake_ups.clear()


class CountedEntropy:
    """Implements `ryusen_server.ports.time.Entropy`: ids are counted, and no delay is spread."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def request_id(self) -> RequestId:
        return RequestId(self.token("rq"))

    def token(self, prefix: str) -> str:
        return f"{prefix}_{next(self._next):022d}"

    def jitter(self) -> float:
        return 0.0
