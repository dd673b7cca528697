"""The records of a run: what a transaction appends to its history, and the only thing that changes a run.

`Record` is the closed union of durable records; folding them gives the stored state. `Note` is its volatile counterpart: facts of this
server's life, such as which worker a discovery pass is out at, that a restart rightly forgets. An absent portable value is `UNSET`, since
none would be read as the JSON null that a value never is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ryusen_protocol.declarations import Declaration, Location
from ryusen_protocol.errors import ErrorRecord
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
from ryusen_protocol.invocation import Phase
from ryusen_protocol.outcome import BlockReason, MissingReason

Outcome = Literal["succeeded", "failed", "cancelled", "timed_out"]
Recovery = Literal["not_required", "fully_compensated", "partially_compensated", "compensation_failed"]
RecoveryReason = Literal["succeeded", "empty_unwind"]
StopReason = Literal["cancelled", "timed_out"]
DeadlineSource = Literal["function", "policy", "invoke", "parent"]
SettledState = Literal["succeeded", "failed", "retry_authorized", "fenced", "obsolete", "skipped"]
AttemptState = Literal["queued", "authorized", "unknown", "succeeded", "failed", "retry_authorized", "fenced", "obsolete", "skipped"]
TargetState = Literal["pending", "succeeded", "failed", "skipped"]


class Deadline(msgspec.Struct, frozen=True):
    """The instant a run stops at, fixed from the server's clock at creation, and what asked for it."""

    at_ms: int
    source: DeadlineSource


class WorkerRef(msgspec.Struct, frozen=True):
    """The worker an effect was authorized for. Metadata of the attempt, never an affinity of the run."""

    instance_id: InstanceId
    session_id: SessionId
    release_id: ReleaseId | None
    transport: Literal["connected", "http"]


class ParentRef(msgspec.Struct, frozen=True):
    """The step that invoked a run. `depth` counts the runs that stand above the child: 1 for one whose parent an event started."""

    run_id: RunId
    step_id: StepId
    depth: int


class RunCreated(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="run_created"):
    """The run exists, for one trigger binding of one event, or for one step of a parent, whose value is its `input`."""

    run_id: RunId
    workspace: Workspace
    application: Application
    function: FunctionId
    event_id: EventId | None
    trigger_id: TriggerId | None
    manifest_generation: ManifestGeneration | None
    routing_generation: RoutingGeneration | None
    deadline: Deadline | None
    parent: ParentRef | None = None
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class DiscoveryQueued(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="discovery_queued"):
    """The body is to be run again up to its first unresolved boundary, at once or, when paced, from `due_at_ms` on."""

    pass_: int = msgspec.field(name="pass")
    due_at_ms: int = 0


class StepDeclared(msgspec.Struct, frozen=True, tag_field="kind", tag="step_declared"):
    """The pass met a step without an outcome. `operation_id` names its forward operation over all attempts.

    In the same transaction follows a `run` step's attempt, a timer's or wait's instant, or a child's identity; an emission completes.
    """

    declaration: Declaration
    operation_id: OperationId


class TimerArmed(msgspec.Struct, frozen=True, tag_field="kind", tag="timer_armed"):
    """The timer settles at `due_at_ms` (any i64) and no earlier; never before the instant it was accepted at."""

    step_id: StepId
    due_at_ms: int


class WaitRegistered(msgspec.Struct, frozen=True, tag_field="kind", tag="wait_registered"):
    """The wait takes the first matching event accepted after this record's commit and before `timeout_at_ms` (any i64)."""

    step_id: StepId
    timeout_at_ms: int


class ChildInvoked(msgspec.Struct, frozen=True, tag_field="kind", tag="child_invoked"):
    """The child run exists: it was created in this very transaction."""

    step_id: StepId
    child_run_id: RunId


class AttemptQueued(msgspec.Struct, frozen=True, tag_field="kind", tag="attempt_queued"):
    """A physical attempt exists and may be authorized from `due_at_ms` on."""

    attempt_id: AttemptId
    step_id: StepId
    phase: Phase
    attempt: int
    attempt_generation: int
    operation_id: OperationId
    due_at_ms: int


class AttemptAuthorized(msgspec.Struct, frozen=True, tag_field="kind", tag="attempt_authorized"):
    """The attempt may begin. `answer_by_ms` is when it turns Unknown without an answer, whatever its contact."""

    attempt_id: AttemptId
    request_id: RequestId
    worker: WorkerRef
    lease_until_ms: int
    answer_by_ms: int | None


class AttemptSettled(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="attempt_settled"):
    """The attempt has its one outcome. `answer_digest` identifies the submission that settled it; `operator` names who did instead."""

    attempt_id: AttemptId
    state: SettledState
    failure: ErrorRecord | None = None
    reason: str | None = None
    answer_digest: str | None = None
    operator: str | None = None


class AttemptUnknown(msgspec.Struct, frozen=True, tag_field="kind", tag="attempt_unknown"):
    """Nobody can establish what the attempt did."""

    attempt_id: AttemptId
    reason: str


class AttemptRequeued(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="attempt_requeued"):
    """The attempt provably never began: the same ordinal and generation is queued again.

    `answer_digest` identifies the worker's rejection, where that was the proof.
    """

    attempt_id: AttemptId
    reason: str
    due_at_ms: int
    answer_digest: str | None = None


class StepCompleted(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="step_completed"):
    """The step has its one outcome and its place in the completion order, counted from 1."""

    step_id: StepId
    completion_order: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    failure: ErrorRecord | None = None
    diagnostic: str | None = None


class StepObsolete(msgspec.Struct, frozen=True, tag_field="kind", tag="step_obsolete"):
    """The current code no longer reaches the pending step; a later pass may declare it again."""

    step_id: StepId
    reason: MissingReason
    hidden_by: StepId | None


class StepStopped(msgspec.Struct, frozen=True, tag_field="kind", tag="step_stopped"):
    """A stop fenced the step before its effect could begin, or dropped its timer or wait."""

    step_id: StepId


class SubmissionStale(msgspec.Struct, frozen=True, tag_field="kind", tag="submission_stale"):
    """An answer that counts for nothing any more, kept as a diagnostic."""

    attempt_id: AttemptId
    request_id: RequestId
    answer: str
    answer_digest: str
    instance_id: InstanceId
    reason: str


class RunBlocked(msgspec.Struct, frozen=True, tag_field="kind", tag="run_blocked"):
    """The current code contradicts itself; new forward effects wait for a fix. A repeat of the same blocker updates it."""

    reason: BlockReason
    step_id: StepId
    first: Location | None
    duplicate: Location | None
    release_id: ReleaseId | None
    message: str


class StopRequested(msgspec.Struct, frozen=True, tag_field="kind", tag="stop_requested"):
    """Durable stop intent. The first reason stays."""

    reason: StopReason
    by: str


class OutcomeDecided(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="outcome_decided"):
    """Why forward execution ended. Written once."""

    outcome: Outcome
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    failure: ErrorRecord | None = None


class UnwindTarget(msgspec.Struct, frozen=True):
    """One completed step that is to be undone, with the identity of its compensation."""

    step_id: StepId
    operation_id: OperationId


class CompensationStarted(msgspec.Struct, frozen=True, tag_field="kind", tag="compensation_started"):
    """The unwind plan, in the order it is walked."""

    targets: tuple[UnwindTarget, ...]


class TargetSettled(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="target_settled"):
    """One unwind target has its durable outcome; no later deployment reopens it."""

    step_id: StepId
    state: Literal["succeeded", "failed", "skipped"]
    reason: MissingReason | None = None
    hidden_by: StepId | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    failure: ErrorRecord | None = None
    diagnostic: str | None = None


class RunEnded(msgspec.Struct, frozen=True, tag_field="kind", tag="run_ended"):
    """Nothing of the run is left to do."""

    recovery: Recovery
    recovery_reason: RecoveryReason | None


Record = (
    RunCreated
    | DiscoveryQueued
    | StepDeclared
    | TimerArmed
    | WaitRegistered
    | ChildInvoked
    | AttemptQueued
    | AttemptAuthorized
    | AttemptSettled
    | AttemptUnknown
    | AttemptRequeued
    | StepCompleted
    | StepObsolete
    | StepStopped
    | SubmissionStale
    | RunBlocked
    | StopRequested
    | OutcomeDecided
    | CompensationStarted
    | TargetSettled
    | RunEnded
)


class DiscoveryDispatched(msgspec.Struct, frozen=True):
    """The pass is out at a worker of this server's life."""

    request_id: RequestId
    worker: WorkerRef
    preferred_release: ReleaseId | None


class DiscoveryReturned(msgspec.Struct, frozen=True):
    """The pass is no longer out; it is to be repeated from `due_at_ms` on."""

    due_at_ms: int


Note = DiscoveryDispatched | DiscoveryReturned
