"""The state of a run, as folding its records gives it.

`evolve` alone changes these objects, in place: the engine owns each run and a copy a step would cost more than everything else it does.
Members named under "volatile" come from notes; a restarted server begins without them.
"""

from __future__ import annotations

from typing import Literal, assert_never

import msgspec

from ryusen_protocol.declarations import (
    ChildDeclaration,
    Declaration,
    EmissionDeclaration,
    EventWaitDeclaration,
    Location,
    RunDeclaration,
    TimerDeclaration,
)
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import (
    Application,
    AttemptId,
    EventId,
    FunctionId,
    ManifestGeneration,
    OperationId,
    ReleaseId,
    RequestId,
    RoutingGeneration,
    RunId,
    StepId,
    TriggerId,
    Workspace,
)
from ryusen_protocol.invocation import Phase, StepKind
from ryusen_protocol.outcome import BlockReason, MissingReason
from ryusen_server.core.records import (
    AttemptState,
    Deadline,
    DiscoveryDispatched,
    Outcome,
    ParentRef,
    Recovery,
    RecoveryReason,
    StopReason,
    TargetState,
    WorkerRef,
)

Status = Literal["running", "definition_blocked", "stopping", "compensating", "ended"]
StepState = Literal["pending", "succeeded", "failed", "obsolete", "stopped"]

UNRESOLVED: frozenset[AttemptState] = frozenset(("authorized", "unknown"))
"""States of an attempt that has begun, or may have, and has no outcome."""


def kind_of(declaration: Declaration) -> StepKind:
    """The kind a declaration names."""
    match declaration:
        case RunDeclaration():
            return "run"
        case TimerDeclaration():
            return "timer"
        case EventWaitDeclaration():
            return "event_wait"
        case ChildDeclaration():
            return "child"
        case EmissionDeclaration():
            return "emission"
        case _:
            assert_never(declaration)


class Stop(msgspec.Struct, frozen=True):
    """Durable stop intent: the first reason, when, and who."""

    reason: StopReason
    requested_at_ms: int
    by: str


class Blocker(msgspec.Struct, frozen=True):
    """Why a run is `definition_blocked`."""

    reason: BlockReason
    step_id: StepId
    first: Location | None
    duplicate: Location | None
    release_id: ReleaseId | None
    message: str
    count: int
    first_seen_at_ms: int
    last_seen_at_ms: int


class Attempt(msgspec.Struct):
    """One physical attempt."""

    attempt_id: AttemptId
    step_id: StepId
    phase: Phase
    attempt: int
    attempt_generation: int
    operation_id: OperationId
    state: AttemptState
    queued_at_ms: int
    due_at_ms: int
    request_id: RequestId | None = None
    worker: WorkerRef | None = None
    authorized_at_ms: int | None = None
    lease_until_ms: int | None = None
    answer_by_ms: int | None = None
    unknown_at_ms: int | None = None
    unknown_reason: str | None = None
    settled_at_ms: int | None = None
    failure: ErrorRecord | None = None
    answer_digest: str | None = None
    settled_by_operator: str | None = None
    never_began: int = 0
    """How often in a row it provably never began; paces the next dispatch."""


class Step(msgspec.Struct):
    """One logical step. `failures` counts reported failures of its forward operation.

    `due_at_ms` is when a timer settles or a wait times out, `child_run_id` the run a child step invoked.
    """

    step_id: StepId
    declaration: Declaration
    operation_id: OperationId
    state: StepState
    declared_at_ms: int
    attempts: list[AttemptId]
    due_at_ms: int | None = None
    child_run_id: RunId | None = None
    failures: int = 0
    obsolete_count: int = 0
    completion_order: int | None = None
    completed_at_ms: int | None = None
    result: msgspec.Raw | None = None
    failure: ErrorRecord | None = None
    diagnostic: str | None = None

    @property
    def kind(self) -> StepKind:
        """What kind of step it was declared as."""
        return kind_of(self.declaration)


class Target(msgspec.Struct):
    """One step of the unwind plan. `failures` counts reported failures of its compensation."""

    step_id: StepId
    operation_id: OperationId
    state: TargetState
    attempts: list[AttemptId]
    failures: int = 0
    reason: MissingReason | None = None
    hidden_by: StepId | None = None
    settled_at_ms: int | None = None
    result: msgspec.Raw | None = None
    failure: ErrorRecord | None = None
    diagnostic: str | None = None


class Run(msgspec.Struct):
    """One durable execution. Every instant is epoch milliseconds of the server's clock."""

    run_id: RunId
    workspace: Workspace
    application: Application
    function: FunctionId
    event_id: EventId | None
    trigger_id: TriggerId | None
    manifest_generation: ManifestGeneration | None
    routing_generation: RoutingGeneration | None
    deadline: Deadline | None
    created_at_ms: int
    parent: ParentRef | None = None
    input: msgspec.Raw | None = None
    """The value a parent invoked this run with; a run of an event reads the event."""
    status: Status = "running"
    outcome: Outcome | None = None
    recovery: Recovery | None = None
    recovery_reason: RecoveryReason | None = None
    stop: Stop | None = None
    result: msgspec.Raw | None = None
    failure: ErrorRecord | None = None
    blocker: Blocker | None = None
    ended_at_ms: int | None = None
    steps: dict[StepId, Step] = {}
    """In declaration order."""
    attempts: dict[AttemptId, Attempt] = {}
    requests: dict[RequestId, AttemptId] = {}
    """Every request an effect was authorized under."""
    stale_answers: set[tuple[RequestId, str]] = set()
    rejections: set[tuple[RequestId, str]] = set()
    """Answers that were accepted as proof that an attempt never began; such an answer settles nothing, yet may be sent again."""
    completed: list[StepId] = []
    """In completion order."""
    history_entries: list[bytes] = []
    """One encoded history entry a completed step, as invocations carry them."""
    history_digest: str = ""
    """Chains the entries, so that a step costs the same however long the history is."""
    replay_bytes: int = 0
    passes: int = 0
    discovery_pass: int | None = None
    """The pass that is queued or out, if one is."""
    discovery_due_at_ms: int = 0
    """When the queued pass may leave."""
    pending: StepId | None = None
    """The one unresolved forward step, if there is one."""
    unwind: list[Target] = []
    unwind_index: int = 0
    unwind_counts: dict[TargetState, int] = {}
    """How many targets are in each state, so that a row costs the same however long the plan is."""
    last_record_at_ms: int = 0
    position: int = 0

    # volatile
    dispatch: DiscoveryDispatched | None = None
    discovery_repeats: int = 0
    """How often in a row the pass came back without a response; paces the next dispatch."""

    def pending_step(self) -> Step | None:
        """The one unresolved forward step, if there is one."""
        return None if self.pending is None else self.steps[self.pending]

    def current_attempt(self) -> Attempt | None:
        """The one attempt that is queued or unresolved, if there is one."""
        operation: Step | Target | None = None
        if self.pending is not None:
            operation = self.steps[self.pending]
        elif self.status == "compensating":
            operation = self.unwind[self.unwind_index]
        if operation is None or not operation.attempts:
            return None
        attempt = self.attempts[operation.attempts[-1]]
        return attempt if attempt.state == "queued" or attempt.state in UNRESOLVED else None
