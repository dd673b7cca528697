"""Which worker gets a piece of work.

The caller offers workers of exactly the run's (workspace, application) that can run its function and speak its contract. Of these:

| in order | rule |
|---|---|
| 1 | not draining, connected, and with free capacity |
| 2 | the newest release, by the durable order of first registration; any release before every unversioned group |
| 3 | the least loaded, by the share of its capacity in use |
| 4 | of equals the worker that asked, else the one that registered first |

Nobody left: the work stays queued.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

UNVERSIONED_POSITION = -1
"""Stands before every release's position, so that any release is newer."""


class Candidate(Protocol):
    """What the choice looks at. `release_position` is `UNVERSIONED_POSITION` without a release."""

    @property
    def available(self) -> bool:
        """Connected and not draining."""
        ...

    @property
    def release_position(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def registered_order(self) -> int: ...


C = TypeVar("C", bound=Candidate)


def choose(candidates: Iterable[C], asking: C | None = None) -> C | None:
    """The worker that gets the work, if anybody does."""
    best: C | None = None
    best_rank: tuple[int, float, bool, int] | None = None
    for candidate in candidates:
        if not candidate.available or candidate.in_flight >= candidate.capacity:
            continue
        load = candidate.in_flight / candidate.capacity
        rank = (-candidate.release_position, load, candidate is not asking, candidate.registered_order)
        if best_rank is None or rank < best_rank:
            best, best_rank = candidate, rank
    return best
