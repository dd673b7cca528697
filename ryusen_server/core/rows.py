"""Rows of the tables that readers query: projections of the history, never an authority over it.

Instants are epoch milliseconds. `wake_at_ms` says when the engine must look at a run again: 0 while it moves, an instant while it waits
for one, none while only the outside can move it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ryusen_protocol.ids import (
    Application,
    AttemptId,
    EventId,
    FunctionId,
    InstanceId,
    ManifestGeneration,
    OperationId,
    ReleaseId,
    RequestId,
    RoutingGeneration,
    RunId,
    SessionId,
    StepId,
    TriggerId,
    Workspace,
)

WAKE_NOW: Final = 0
"""`wake_at_ms` of a run that moves: a restart looks at it at once."""


class RunRow(msgspec.Struct, frozen=True):
    """One run as lists show it."""

    run_id: RunId
    workspace: Workspace
    application: Application
    function: FunctionId
    event_id: EventId | None
    trigger_id: TriggerId | None
    parent_run_id: RunId | None
    parent_step_id: StepId | None
    manifest_generation: ManifestGeneration | None
    routing_generation: RoutingGeneration | None
    status: str
    outcome: str | None
    recovery: str | None
    recovery_reason: str | None
    stop_reason: str | None
    stop_requested_at_ms: int | None
    deadline_at_ms: int | None
    deadline_source: str | None
    attention: str | None
    created_at_ms: int
    ended_at_ms: int | None
    wake_at_ms: int | None
    steps_declared: int
    steps_completed: int
    unwind_pending: int
    unwind_succeeded: int
    unwind_failed: int
    unwind_skipped: int
    work_queued: int = 0
    """1 while a pass or an attempt waits for a worker, at once or after its backoff."""
    unknown_below_run_id: RunId | None = None
    """The run further down that is Unknown while this one waits for it. The store carries it up; a fold of this run's history has none."""


class AttemptRow(msgspec.Struct, frozen=True):
    """One physical attempt as lists show it."""

    attempt_id: AttemptId
    workspace: Workspace
    application: Application
    function: FunctionId
    run_id: RunId
    step_id: StepId
    phase: str
    attempt: int
    attempt_generation: int
    operation_id: OperationId
    state: str
    request_id: RequestId | None
    instance_id: InstanceId | None
    session_id: SessionId | None
    release_id: ReleaseId | None
    transport: str | None
    queued_at_ms: int
    due_at_ms: int
    authorized_at_ms: int | None
    lease_until_ms: int | None
    unknown_at_ms: int | None
    settled_at_ms: int | None


class EventRow(msgspec.Struct, frozen=True):
    """One accepted event. `position` is its commit position, which the store gives it.

    `fan_out_next` is the index of the first binding not yet expanded; at their end the waits are due that the event may match; none once
    expansion is complete.
    """

    event_id: EventId
    workspace: Workspace
    name: str
    payload: bytes
    metadata: dict[str, str]
    received_at_ms: int
    routing_generation: RoutingGeneration
    matched: int
    fan_out_next: int | None
    position: int = 0


class WaitRow(msgspec.Struct, frozen=True):
    """A run's registered wait for an event, as long as it is pending; a run has one at most.

    `shape` and `digest` are those of its correlation (`core.correlation`). `position` is the commit position of its registration, which the
    store gives it: only events behind it match, if they were accepted before `timeout_at_ms`.
    """

    run_id: RunId
    workspace: Workspace
    application: Application
    event_name: str
    shape: str
    digest: bytes
    step_id: StepId
    timeout_at_ms: int
    position: int = 0


class EventKeyRow(msgspec.Struct, frozen=True):
    """An idempotency key of the submit operation and the request it stands for, for ever: also when its event is gone.

    So it holds whatever a replay answers.
    """

    workspace: Workspace
    key: str
    fingerprint: str
    event_id: EventId
    routing_generation: RoutingGeneration | None = None
    matched: int = 0


class OperatorCommandRow(msgspec.Struct, frozen=True):
    """An operator command that was applied, under its key, for ever. `acknowledgement` is the answer that is given again."""

    workspace: Workspace
    key: str
    fingerprint: str
    attempt_id: AttemptId
    applied_at_ms: int
    acknowledgement: bytes


class ManifestRow(msgspec.Struct, frozen=True):
    """One immutable manifest generation and the routing generation its activation made. `document` is the canonical manifest JSON."""

    manifest_generation: ManifestGeneration
    workspace: Workspace
    application: Application
    expected_parent: ManifestGeneration | None
    digest: str
    document: bytes
    routing_generation: RoutingGeneration
    activated_at_ms: int


class RoutingRow(msgspec.Struct, frozen=True):
    """One immutable routing generation. `position` is its commit order; `applications` maps application to manifest generation."""

    routing_generation: RoutingGeneration
    workspace: Workspace
    expected_parent: RoutingGeneration | None
    content_hash: str
    applications: dict[Application, ManifestGeneration]
    activated_at_ms: int
    position: int = 0


class ReleaseRow(msgspec.Struct, frozen=True):
    """The first successful registration of a release; `position` orders releases and never changes. `contract` is canonical JSON."""

    workspace: Workspace
    application: Application
    release_id: ReleaseId
    contract: str
    first_seen_at_ms: int
    position: int = 0


class LogRow(msgspec.Struct, frozen=True):
    """What one attempt's callback printed and logged: `lines` is a JSON array. The store gives `number`, which orders a run's attempts."""

    attempt_id: AttemptId
    workspace: Workspace
    application: Application
    run_id: RunId
    step_id: StepId
    phase: str
    attempt: int
    attempt_generation: int
    lines: bytes
    number: int = 0


class HistoryRow(msgspec.Struct, frozen=True):
    """One committed transaction of a run: `records` is a JSON array."""

    position: int
    at_ms: int
    records: bytes
