"""What the engine asks of a store, as narrow record families.

A `Unit` is atomic: all of its writes commit or none does. Units commit in the order they were submitted. `submit` never blocks;
`done` is called on the event loop, after the unit is durable or has been rolled back. A rollback takes every unit submitted after it
along, since those were decided on state that no longer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from ryusen_protocol.ids import (
    Application,
    AttemptId,
    EventId,
    FunctionId,
    ManifestGeneration,
    RoutingGeneration,
    RunId,
    Workspace,
)
from ryusen_server.core.decision import Obligation, SettleParent
from ryusen_server.core.rows import (
    AttemptRow,
    EventKeyRow,
    EventRow,
    HistoryRow,
    ManifestRow,
    OperatorCommandRow,
    ReleaseRow,
    RoutingRow,
    RunRow,
    WaitRow,
)
from ryusen_server.ports.changes import ChangeStore
from ryusen_server.ports.logs import LogStore, LogWrite
from ryusen_server.ports.measures import MeasuredStore
from ryusen_server.ports.retention import PruneWrite, ReclaimWrite, RetentionStore


class RunWrite(msgspec.Struct, frozen=True):
    """A run's transaction: its records, and the rows they project to.

    `base_position` is the position of the run's state the decision was taken on; none for a run that begins. `new_run` inserts `run`,
    else a `run` that is not none replaces the stored row
    (of several in one batch only the last need be written). `attempts` are inserted or replaced by id.

    `wait` is registered by this transaction; `wait_over` removes the run's wait. `unknown_moved` says that the run has become Unknown, or
    has ceased to be: the store shows it on every run above, the chain of `parent_run_id`, in the same commit.
    """

    run_id: RunId
    workspace: Workspace
    base_position: int | None
    at_ms: int
    records: bytes
    new_run: bool
    run: RunRow | None
    attempts: tuple[AttemptRow, ...]
    wait: WaitRow | None = None
    wait_over: bool = False
    unknown_moved: bool = False


class EventWrite(msgspec.Struct, frozen=True):
    """An accepted event with its key, if it has one. `records` is the JSON array shown in the change stream."""

    event: EventRow
    key: EventKeyRow | None
    records: bytes


class FanOutWrite(msgspec.Struct, frozen=True):
    """How far an event's expansion has come; none when it is complete."""

    event_id: EventId
    fan_out_next: int | None


class ManifestWrite(msgspec.Struct, frozen=True):
    """A manifest activation: both generations, and both heads moved to them."""

    manifest: ManifestRow
    routing: RoutingRow
    records: bytes


class OperatorWrite(msgspec.Struct, frozen=True):
    """An operator command beside the `RunWrite` of what it came to."""

    command: OperatorCommandRow


class ReleaseWrite(msgspec.Struct, frozen=True):
    """The first registration of a release."""

    release: ReleaseRow
    records: bytes


class ObligationWrite(msgspec.Struct, frozen=True):
    """What one run owes another of the same application from now on. One of a kind for each child; to write it again changes nothing."""

    obligation: Obligation
    workspace: Workspace
    application: Application


class DischargeWrite(msgspec.Struct, frozen=True):
    """An obligation is carried out. To discharge one that is not there changes nothing."""

    obligation: Obligation


def obligation_key(obligation: Obligation) -> tuple[RunId, str]:
    """What there is one obligation of: the child, and the kind."""
    return obligation.child_run_id, "settle_parent" if isinstance(obligation, SettleParent) else "stop_child"


Write = (
    RunWrite
    | EventWrite
    | FanOutWrite
    | ManifestWrite
    | ReleaseWrite
    | OperatorWrite
    | ObligationWrite
    | DischargeWrite
    | LogWrite
    | PruneWrite
    | ReclaimWrite
)


class Unit(msgspec.Struct, frozen=True):
    """One transaction. `rides`: nobody waits for it, so it may wait a few milliseconds for another unit to share a commit with."""

    writes: tuple[Write, ...]
    rides: bool = False


class StorageUnavailable(Exception):
    """The store could not make something durable or could not read it; nothing was acknowledged. `reason` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Done = Callable[[StorageUnavailable | None], None]
"""Called once for each unit: none when it is durable."""


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs a list shows; every member that is set must match. `q` matches the start of a run id or a function."""

    status: str | None = None
    outcome: str | None = None
    recovery: str | None = None
    function: FunctionId | None = None
    application: Application | None = None
    event_id: EventId | None = None
    attention: str | None = None
    q: str | None = None


class WakeRow(msgspec.Struct, frozen=True):
    """A run the engine must look at, from the wake index."""

    run_id: RunId
    wake_at_ms: int


class WaitedName(msgspec.Struct, frozen=True):
    """An event name somebody waits for, and how many waits there are."""

    workspace: Workspace
    event_name: str
    waits: int


class Heads(msgspec.Struct, frozen=True):
    """What the engine keeps in memory of every workspace: heads, their documents, and the releases in order."""

    routing_heads: dict[Workspace, RoutingGeneration]
    manifests: list[ManifestRow]
    """The active manifest generations."""
    releases: list[ReleaseRow]


class Counts(msgspec.Struct, frozen=True):
    """How much the store holds."""

    events: int
    runs: int
    runs_live: int
    attempts_unknown: int
    runs_blocked: int = 0


class Store(ChangeStore, LogStore, RetentionStore, MeasuredStore, Protocol):
    """Writes in order, reads of committed state. Every read raises `StorageUnavailable` when it cannot answer."""

    def submit(self, unit: Unit, done: Done) -> int:
        """Queue a unit and return the position it will commit at. Loop thread only.

        Each write takes a position of its own, in order: of `n` writes the last commits at the returned one, write `i` (from 0) at
        `returned - (n - 1) + i`. The returned one may stand for all of them: no other unit's lies between. Positions of units that
        failed stay unused. What is submitted before the last `done` of a failure has returned fails with it.
        """
        ...

    async def flush(self) -> None:
        """Return once everything submitted so far is durable or has failed."""
        ...

    async def heads(self) -> Heads: ...

    async def wakes(self, *, until_ms: int, after: WakeRow | None, limit: int) -> list[WakeRow]:
        """Runs with `wake_at_ms <= until_ms`, ordered by (wake_at_ms, run_id), after a row."""
        ...

    async def authorized_runs(self) -> list[RunId]:
        """Runs that own an authorized attempt."""
        ...

    async def pending_fan_outs(self, *, after: EventId | None, limit: int) -> list[EventId]:
        """Events whose expansion is not complete, ordered by id."""
        ...

    async def expanding_events(self, workspace: Workspace, name: str, *, after: int, limit: int) -> list[EventRow]:
        """Events of a name whose expansion is not complete, with `position > after`, oldest first; payloads left empty."""
        ...

    async def waited_names(self) -> list[WaitedName]:
        """Every event name with pending waits."""
        ...

    async def wait(self, run_id: RunId) -> WaitRow | None:
        """The run's pending wait."""
        ...

    async def matching_waits(
        self, workspace: Workspace, event_name: str, metadata: Mapping[str, str], *, before: int, after: WaitRow | None, limit: int
    ) -> list[WaitRow]:
        """Pending waits that ask for nothing but pairs of `metadata`, registered at `position < before`, by (shape, position), after a row.

        Costs a look-up for each shape in use under the name and the rows that are found, however many other waits there are.
        """
        ...

    async def obligations(self, *, after: Obligation | None, limit: int) -> list[Obligation]:
        """What is owed, by (child, kind), after one."""
        ...

    async def blocked_runs(self, workspace: Workspace, application: Application, functions: Sequence[FunctionId]) -> list[RunId]: ...

    async def history(self, run_id: RunId, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        """A run's transactions with `position > after`, oldest first."""
        ...

    async def histories(self, run_ids: Sequence[RunId]) -> dict[RunId, list[HistoryRow]]:
        """The whole history of each of a few runs, oldest first. A run that is not there is left out."""
        ...

    async def run(self, run_id: RunId) -> RunRow | None: ...

    async def runs(self, workspace: Workspace, where: RunFilter, *, before: tuple[int, RunId] | None, limit: int) -> list[RunRow]:
        """Newest first by (created_at_ms, run_id), before a key."""
        ...

    async def attempt(self, attempt_id: AttemptId) -> AttemptRow | None: ...

    async def attempts(
        self, workspace: Workspace, *, state: str | None, after: tuple[int, AttemptId] | None, limit: int
    ) -> list[AttemptRow]:
        """Oldest first by (queued_at_ms, attempt_id)."""
        ...

    async def event(self, event_id: EventId) -> EventRow | None: ...

    async def events(self, workspace: Workspace, *, name: str | None, before: tuple[int, EventId] | None, limit: int) -> list[EventRow]:
        """Newest first by (received_at_ms, event_id); payloads left empty."""
        ...

    async def event_runs(self, event_id: EventId) -> list[RunRow]:
        """Every run created for an event so far."""
        ...

    async def event_key(self, workspace: Workspace, key: str) -> EventKeyRow | None: ...

    async def operator_command(self, workspace: Workspace, key: str) -> OperatorCommandRow | None: ...

    async def manifest(self, workspace: Workspace, manifest_generation: ManifestGeneration) -> ManifestRow | None: ...

    async def routing(self, workspace: Workspace, routing_generation: RoutingGeneration) -> RoutingRow | None: ...

    async def routings(self, workspace: Workspace, *, before: int | None, limit: int) -> list[RoutingRow]:
        """Newest first, before a position."""
        ...

    async def counts(self, workspaces: Sequence[Workspace] | None = None) -> Counts:
        """How much there is, in all workspaces or in those named."""
        ...
