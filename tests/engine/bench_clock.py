"""A clock that only the test moves, and whose wall time can be set apart from what elapses."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """A wake-up on the virtual timeline."""

    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """Wall time and elapsed time move together, until `jump` parts them."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.elapsed_ms = 0
        self._wall_ms = start_ms
        self._timers: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self._wall_ms + self.elapsed_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.elapsed_ms + max(0, delay_ms), callback)
        heapq.heappush(self._timers, (timer.at_ms, next(self._order), timer))
        return timer

    def jump(self, ms: int) -> None:
        """Set the wall clock, as an administrator or NTP would; nothing elapses."""
        self._wall_ms += ms

    def forget_timers(self) -> None:
        """The process that armed them is gone."""
        self._timers.clear()

    @property
    def armed(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def next_within(self, until_ms: int) -> Timer | None:
        """Take the next timer due at or before an elapsed instant, and move there."""
        while self._timers and self._timers[0][0] <= until_ms:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                self.elapsed_ms = max(self.elapsed_ms, timer.at_ms)
                return timer
        return None
