"""What the change stream carries: documents of its events. How they travel is known to `sse`, what to show of them to each reader.

A `change` is one committed transaction. Its records say what happened and to what, never with which payload: a reader that needs more asks
for the run, the event or the history. Positions are those of snapshots (`position`), so a reader that starts the stream after its
snapshot's position sees whatever committed since, each change once and in commit order.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ryusen_protocol.ids import (
    Application,
    AttemptId,
    EventId,
    FunctionId,
    InstanceId,
    ManifestGeneration,
    ReleaseId,
    RoutingGeneration,
    RunId,
    StepId,
    TriggerId,
)

CHANGE: Final = "change"
RESYNC: Final = "resync"
HEARTBEAT: Final = "heartbeat"
NOTICE: Final = "notice"
"""The names of the stream's events. A reader passes over any other."""

ResyncReason = Literal["unknown_position", "pruned", "slow"]
"""Why the changes since the reader's position cannot be given: no such position was ever told by this database, some of them were removed,
or the reader took them more slowly than they came."""


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened. `kind` decides which other members there are; a reader passes over kinds it does not know."""

    kind: str
    run_id: RunId | None = None
    event_id: EventId | None = None
    name: str | None = None
    matched: int | None = None
    application: Application | None = None
    function: FunctionId | None = None
    trigger_id: TriggerId | None = None
    parent_run_id: RunId | None = None
    child_run_id: RunId | None = None
    step_id: StepId | None = None
    step_kind: str | None = None
    attempt_id: AttemptId | None = None
    phase: str | None = None
    attempt: int | None = None
    attempt_generation: int | None = None
    instance_id: InstanceId | None = None
    state: str | None = None
    outcome: str | None = None
    recovery: str | None = None
    recovery_reason: str | None = None
    reason: str | None = None
    manifest_generation: ManifestGeneration | None = None
    routing_generation: RoutingGeneration | None = None
    release_id: ReleaseId | None = None
    before_ms: int | None = None
    runs: int | None = None
    events: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One committed transaction of a run, an event, a deployment, a release or a removal. `position` is also the event's SSE id."""

    position: int
    at_ms: int
    records: list[ChangeRecord]


class Resync(msgspec.Struct, frozen=True, kw_only=True):
    """Take a new snapshot of whatever is shown: what lies between the reader's position and `position` is not told.

    The stream goes on with what commits after `position`.
    """

    position: int
    reason: ResyncReason


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The stream lives, and everything up to `position` has been told."""

    position: int


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something of the present has changed that no history keeps: ask for it again. `workers`: who is connected, or how."""

    kind: Literal["workers"]
