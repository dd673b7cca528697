"""When a quiet connection is asked for a sign of life, and when it is given up. Pure: instants come in, verdicts go out.

A network that swallows packets without a word looks like a quiet worker; only a deadline tells them apart. Any bytes count as a sign.
"""

from __future__ import annotations

from typing import Literal

Verdict = Literal["wait", "ping", "unregistered", "silent"]


class Liveness:
    """The deadlines of one connection, in milliseconds of any clock that does not jump."""

    def __init__(self, now_ms: int, *, register_within_ms: int, ping_after_ms: int, silent_after_ms: int) -> None:
        self._ping_after_ms = ping_after_ms
        self._silent_after_ms = silent_after_ms
        self._register_by_ms: int | None = now_ms + register_within_ms
        self._heard_at_ms = now_ms
        self._pinged_at_ms: int | None = None

    def heard(self, now_ms: int) -> None:
        """Bytes arrived."""
        self._heard_at_ms = now_ms
        self._pinged_at_ms = None

    def registered(self) -> None:
        """The first frame came in time."""
        self._register_by_ms = None

    def verdict(self, now_ms: int) -> Verdict:
        """What to do now. `ping` is answered once for each silence."""
        if self._register_by_ms is not None and now_ms >= self._register_by_ms:
            return "unregistered"
        quiet_ms = now_ms - self._heard_at_ms
        if quiet_ms >= self._silent_after_ms:
            return "silent"
        if quiet_ms >= self._ping_after_ms and self._pinged_at_ms is None:
            self._pinged_at_ms = now_ms
            return "ping"
        return "wait"

    def look_again_in_ms(self, now_ms: int) -> int:
        """How long until `verdict` can next say anything but `wait`; at least 1."""
        pinged = self._pinged_at_ms is not None
        due_ms = self._heard_at_ms + (self._silent_after_ms if pinged else self._ping_after_ms)
        if self._register_by_ms is not None:
            due_ms = min(due_ms, self._register_by_ms)
        return max(1, due_ms - now_ms)
