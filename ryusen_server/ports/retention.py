"""What removing old runs and events asks of a store: what may go, the removal itself, and the space it gives back."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ryusen_protocol.ids import AttemptId, EventId, RunId, Workspace

FamilyKey = tuple[int, RunId]
"""(ended_at_ms, run_id) of the run at the top."""
EventKey = tuple[int, EventId]
"""(received_at_ms, event_id)."""


class OldRun(msgspec.Struct, frozen=True):
    """One run that has ended, with whatever stands under its name. `last_position` is that of its last transaction."""

    run_id: RunId
    attempt_ids: tuple[AttemptId, ...]
    last_position: int


class OldEvent(msgspec.Struct, frozen=True):
    """One event that no stored run belongs to."""

    event_id: EventId
    position: int


class FamilyPage(msgspec.Struct, frozen=True):
    """Runs that an event started, each with every run below it; all have ended. `after` is where the next page begins, if there is one."""

    families: list[tuple[OldRun, ...]]
    after: FamilyKey | None


class EventPage(msgspec.Struct, frozen=True):
    """Events that may go. `after` is where the next page begins, if there is one."""

    events: list[OldEvent]
    after: EventKey | None


class PruneWrite(msgspec.Struct, frozen=True):
    """The removal of runs and events, told in the history by `records`. Keys of events and of operator commands stay."""

    workspace: Workspace
    at_ms: int
    runs: tuple[OldRun, ...]
    events: tuple[OldEvent, ...]
    records: bytes


class ReclaimWrite(msgspec.Struct, frozen=True):
    """Give up to so many free pages of the file back to the file system."""

    pages_max: int


class Space(msgspec.Struct, frozen=True):
    """How large the database is, and how much of that is free."""

    bytes: int
    free_pages: int


class RetentionStore(Protocol):
    """Finds what is old."""

    async def old_families(self, workspace: Workspace, *, before_ms: int, after: FamilyKey | None, limit: int) -> FamilyPage:
        """Of so many top runs that ended before an instant, by their end, those whose whole family ended before it and owes nothing."""
        ...

    async def old_events(self, workspace: Workspace, *, before_ms: int, after: EventKey | None, limit: int) -> EventPage:
        """Of so many events received before an instant, those that are expanded and whose runs are gone."""
        ...

    async def space(self) -> Space: ...
