"""What a store counts of itself while it works, and what it can count when asked."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec

COMMIT_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
COMMIT_UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Histogram:
    """How often values fell at or below each bound. One thread observes; another may read meanwhile."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """By bound, not added up; the last one is what lies beyond all."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class StoreMeasures:
    """Counted since the store was opened."""

    def __init__(self) -> None:
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.commit_units = Histogram(COMMIT_UNITS)
        self.commits_failed = 0
        self.attempts: Counter[str] = Counter()
        """Committed attempts by the state a commit left them in. Each attempt is left in a settled state by one commit."""
        self.runs_ended: Counter[str] = Counter()
        """Committed ends of runs by outcome."""


class Tallies(msgspec.Struct, frozen=True):
    """How much the store holds now of what is open."""

    runs: dict[str, int]
    """Runs that have not ended, by status."""
    attempts: dict[str, int]
    """Attempts that are not settled, by state."""
    events_expanding: int


class MeasuredStore(Protocol):
    """A store that tells how it does."""

    @property
    def measures(self) -> StoreMeasures: ...

    @property
    def queued_units(self) -> int:
        """Units that wait for a commit."""
        ...

    async def tallies(self) -> Tallies: ...
