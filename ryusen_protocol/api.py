"""Documents of the HTTP API: what a request body holds and what each route answers.

Shapes only. How a document travels, who may see it and how its facts come about is known elsewhere. Instants are epoch
milliseconds of the server's clock (`_at_ms`), durations are milliseconds (`_ms`), positions are workspace-wide commit positions.

A portable value stays its exact wire text (`msgspec.Raw`). Where a value may be missing it is `JSON_NULL`, the text `null`: a
portable null is a tagged object, so the two never meet. Requests carry their bounds; responses carry none, so that a client
reads what a newer server sends.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec

from ryusen_protocol.declarations import Location
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.frames import ExecutionContract, Software
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
from ryusen_protocol.invocation import Phase, StepKind
from ryusen_protocol.limits import ID_BYTES_MAX, METADATA_BYTES_MAX, METADATA_PAIRS_MAX, Limits
from ryusen_protocol.manifest import FunctionDeclaration, TriggerDeclaration
from ryusen_protocol.outcome import LogLine

T = TypeVar("T")

JSON_NULL: Final = msgspec.Raw(b"null")
"""Stands where a document has no portable value."""

RunStatus = Literal["running", "definition_blocked", "stopping", "compensating", "ended"]
RunOutcome = Literal["succeeded", "failed", "cancelled", "timed_out"]
StopReason = Literal["cancelled", "timed_out"]
Recovery = Literal["not_required", "fully_compensated", "partially_compensated", "compensation_failed"]
RecoveryReason = Literal["succeeded", "empty_unwind"]
StepState = Literal["pending", "succeeded", "failed", "obsolete", "stopped"]
AttemptState = Literal["queued", "authorized", "unknown", "succeeded", "failed", "retry_authorized", "fenced", "obsolete", "skipped"]
TargetState = Literal["pending", "succeeded", "failed", "skipped"]
Attention = Literal["unknown", "blocked", "no_worker"]
DeadlineSource = Literal["function", "policy", "invoke", "parent"]
Expansion = Literal["pending", "complete"]
SubmissionStatus = Literal["created", "replayed"]
CommandStatus = Literal["applied", "replayed"]
SettledBy = Literal["worker", "server", "operator"]
OperatorCommand = Literal["supply_success", "declare_failure", "authorize_retry"]
Transport = Literal["connected", "http"]
HealthStatus = Literal["ok", "starting", "draining", "storage_unavailable"]

# NUL is refused in every identifier: it ends the string in too many of the places an id is handed on to. The byte bound is
# checked by `submission` and `manifests`; `max_length` counts characters, and no text has fewer bytes than characters.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_BYTES_MAX, pattern=r"\A[^\x00]+\Z")]
MetadataKey = Annotated[str, msgspec.Meta(min_length=1, max_length=METADATA_BYTES_MAX, pattern=r"\A[^\x00]+\Z")]
MetadataValue = Annotated[str, msgspec.Meta(max_length=METADATA_BYTES_MAX)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], msgspec.Meta(max_length=METADATA_PAIRS_MAX)]


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of any list. `next_cursor` is opaque; `None` means there is no more.

    `position` is there for lists that the change stream moves: everything that committed up to it is in the page, so that the stream behind
    it tells whatever the page may lack.
    """

    items: list[T]
    next_cursor: str | None = None
    position: int | msgspec.UnsetType = msgspec.UNSET


# --- The server ------------------------------------------------------------------------------------------------------


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Liveness. Anything but `ok` says why new work is not taken."""

    status: HealthStatus
    protocol_version: int
    product_version: str


class DatabaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where the state is. `ephemeral` state is gone with the server."""

    path: str
    schema_version: int
    ephemeral: bool = False


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is now, over all workspaces the reader may see. `moving` are runs that have not ended."""

    events: int
    runs: int
    moving: int
    unknown: int
    blocked: int
    workers: int


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is and how it is set up. `addresses` are base URLs it listens on."""

    product_version: str
    protocol_version: int
    addresses: list[str]
    database: DatabaseInfo
    limits: Limits
    heartbeat_ms: int
    lease_ms: int
    reconnect_grace_ms: int
    default_run_timeout_ms: int | None
    max_run_timeout_ms: int | None
    started_at_ms: int
    counts: ServerCounts


# --- Events ----------------------------------------------------------------------------------------------------------


class EventSubmission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event to accept: exactly one of `data` (any JSON, kept as its exact text) and `payload_base64`."""

    name: Name
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | None = None
    metadata: Metadata = {}
    idempotency_key: Name | None = None


class EventRun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run of an event, for a caller that waits."""

    run_id: RunId
    status: RunStatus
    outcome: RunOutcome | None
    recovery: Recovery | None
    result: msgspec.Raw = JSON_NULL
    failure: ErrorRecord | None = None


class EventReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The acknowledgement: the event is durable. `matched` counts trigger bindings; `runs` is there when the caller waited."""

    event_id: EventId
    status: SubmissionStatus
    routing_generation: RoutingGeneration
    matched: int
    expansion: Expansion
    runs: list[EventRun] | msgspec.UnsetType = msgspec.UNSET


class EventSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One event in a list, without its payload."""

    event_id: EventId
    name: str
    metadata: dict[str, str]
    received_at_ms: int
    routing_generation: RoutingGeneration
    matched: int
    expansion: Expansion


class EventMatch(msgspec.Struct, frozen=True, kw_only=True):
    """One trigger binding the event matched. `run_id` is `None` until fan-out has created the run."""

    application: Application
    trigger_id: TriggerId
    function: FunctionId
    manifest_generation: ManifestGeneration
    run_id: RunId | None


class EventDetail(EventSummary, frozen=True, kw_only=True):
    """One event with payload and matches, and whatever else committed up to `position`. `runs` is there when the caller waited."""

    payload_base64: str
    matches: list[EventMatch]
    position: int | msgspec.UnsetType = msgspec.UNSET
    runs: list[EventRun] | msgspec.UnsetType = msgspec.UNSET


# --- Runs ------------------------------------------------------------------------------------------------------------


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The one recorded stop intent of a run."""

    reason: StopReason
    requested_at_ms: int


class Deadline(msgspec.Struct, frozen=True, kw_only=True):
    """The effective deadline of a run and where it came from."""

    at_ms: int
    source: DeadlineSource


class ParentStep(msgspec.Struct, frozen=True, kw_only=True):
    """The run and step that invoked a run."""

    run_id: RunId
    step_id: StepId


class UnwindCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How the targets of an unwind stand. All zero when nothing is or was undone."""

    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run without payloads. Status, outcome and recovery are three facts; none follows from another.

    `attention_run_id` names the run to act on when it is not this one: a child whose outcome is unknown.
    """

    run_id: RunId
    status: RunStatus
    stop: Stop | None
    outcome: RunOutcome | None
    recovery: Recovery | None
    recovery_reason: RecoveryReason | None
    function: FunctionId
    application: Application
    event_id: EventId | None
    trigger_id: TriggerId | None
    manifest_generation: ManifestGeneration | None
    routing_generation: RoutingGeneration | None
    parent: ParentStep | None
    deadline: Deadline | None
    attention: Attention | None
    attention_run_id: RunId | None
    created_at_ms: int
    ended_at_ms: int | None
    steps_declared: int
    steps_completed: int
    unwind_counts: UnwindCounts


class AttemptWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Who an attempt was authorized for. Kept after that worker is gone."""

    instance_id: InstanceId
    session_id: SessionId | None
    release_id: ReleaseId | None
    transport: Transport


class ForbiddenCommand(msgspec.Struct, frozen=True, kw_only=True):
    """An operator command the server would refuse now, with the code and the words of that refusal."""

    command: OperatorCommand
    code: str
    reason: str


class AttemptDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a physical attempt.

    `due_at_ms` is when a queued attempt may start. `out_of_contact` is an authorized attempt whose worker is away;
    `unknown_at_ms` is the instant it becomes Unknown, or became so, and `unknown_reason` why it did, in words.
    """

    attempt_id: AttemptId
    run_id: RunId
    step_id: StepId
    phase: Phase
    attempt: int
    attempt_generation: int
    operation_id: OperationId
    request_id: RequestId | None
    state: AttemptState
    worker: AttemptWorker | None
    out_of_contact: bool
    due_at_ms: int | None
    authorized_at_ms: int | None
    unknown_at_ms: int | None
    unknown_reason: str | None = None
    settled_at_ms: int | None
    settled_by: SettledBy | None
    error: ErrorRecord | None
    allowed_commands: list[OperatorCommand]
    forbidden_commands: list[ForbiddenCommand]


class StepDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One declared step with its forward attempts. `result` and `failure` are the accepted outcome.

    What only some kinds have: `due_at_ms`, the instant a timer settles or a wait times out (cut at 2**53 - 1); the `event_name` waited for
    or emitted, with the `correlation` or metadata; the `event_id` that was emitted; the `function` invoked and its `child_run_id`.
    """

    step_id: StepId
    kind: StepKind
    name: str | None
    location: Location | None
    state: StepState
    has_compensation: bool
    declared_at_ms: int
    completed_at_ms: int | None
    result: msgspec.Raw = JSON_NULL
    failure: ErrorRecord | None = None
    attempts: list[AttemptDocument] = []
    due_at_ms: int | None = None
    event_name: str | None = None
    correlation: dict[str, str] | None = None
    event_id: EventId | None = None
    function: FunctionId | None = None
    child_run_id: RunId | None = None


class UnwindTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One step to undo. `reason` says why it was skipped, `hidden_by` which new step stood in the way."""

    step_id: StepId
    state: TargetState
    reason: str | None
    hidden_by: StepId | None
    error: ErrorRecord | None
    attempts: list[AttemptDocument]


class UnwindDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What is undone, in the order it is undone in. No targets: nothing is or was."""

    targets: list[UnwindTarget]


class Blocker(msgspec.Struct, frozen=True, kw_only=True):
    """Why the current code cannot go on, and what to change. `first` and `duplicate` are places in the source."""

    reason: str
    step_id: StepId
    message: str
    first: Location | None
    duplicate: Location | None
    count: int
    first_seen_at_ms: int
    last_seen_at_ms: int
    release_id: ReleaseId | None


class ChildRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run this run invoked, and the step that did."""

    run_id: RunId
    step_id: StepId
    function: FunctionId
    status: RunStatus
    outcome: RunOutcome | None


class RunDetail(RunSummary, frozen=True, kw_only=True):
    """Everything of a run at `position`. `input` is the wire document of the run's input.

    `no_worker_reason` tells a person why no worker can run it, where that is so.
    """

    input: msgspec.Raw
    result: msgspec.Raw = JSON_NULL
    failure: ErrorRecord | None = None
    steps: list[StepDocument]
    unwind: UnwindDocument
    blocker: Blocker | None
    children: list[ChildRun]
    position: int
    no_worker_reason: str | None = None


class HistoryEntryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One committed transaction of a run: its records, in order, each a tagged object."""

    position: int
    at_ms: int
    records: list[msgspec.Raw]


class AttemptLogDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What the callback of one attempt printed and logged, oldest first, at most 64 KiB. Best effort, and no part of the history.

    A line's `level` is the logging level's name in lower case, `stdout` or `stderr`; `cut` marks where lines are missing.
    """

    attempt_id: AttemptId
    run_id: RunId
    step_id: StepId
    phase: Phase
    attempt: int
    attempt_generation: int
    lines: list[LogLine]


class CancelReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The stop intent is durable. `replayed`: it already was."""

    status: CommandStatus
    run: RunSummary


class RediscoverReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The blocked run asks its current code again. `replayed`: it was about to already."""

    status: CommandStatus
    run: RunSummary


class PruneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Remove what ended longer ago than `older_than_ms`."""

    older_than_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]


class PruneReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What is gone: runs that ended, and events that were received, before `before_ms`. `complete`: nothing more can go.

    `freed_bytes` is by how much the database has become smaller; what runs wrote meanwhile counts against it.
    """

    before_ms: int
    runs: int
    events: int
    freed_bytes: int
    complete: bool


# --- Deployment and workers ------------------------------------------------------------------------------------------


class WorkerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One worker instance as the server sees it. `in_flight` counts invocations, discovery too.

    An HTTP endpoint is one too: its `instance_id` is its URL, and it is `connected` unless its last exchange could not connect. Only an
    endpoint has a `last_success_at_ms`, the last exchange that was answered, and it tells neither `sdk` nor `runtime`.
    """

    instance_id: InstanceId
    application: Application
    session_id: SessionId | None
    release_id: ReleaseId | None
    transport: Transport
    connected: bool
    functions: list[FunctionId]
    capacity: int
    in_flight: int
    draining: bool
    manifest_digest: str | None
    contract: ExecutionContract
    capabilities: list[str]
    sdk: Software | None
    runtime: Software | None
    connected_at_ms: int | None
    last_contact_at_ms: int
    last_failure: str | None
    last_failure_at_ms: int | None = None
    last_success_at_ms: int | None = None


class ReleaseDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One release in durable first-seen order. `instances` are those connected now."""

    application: Application
    release_id: ReleaseId
    first_seen_position: int
    first_seen_at_ms: int
    contract: ExecutionContract
    instances: list[InstanceId]


class FunctionTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """What starts a function."""

    trigger_id: TriggerId
    event_name: str


class FunctionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One function of an active manifest, and the instances that can run it now."""

    application: Application
    function: FunctionId
    timeout_ms: int | None
    triggers: list[FunctionTrigger]
    manifest_generation: ManifestGeneration
    workers: list[InstanceId]


class ApplicationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The head of one application: its active manifest. An application exists from its first publication."""

    application: Application
    manifest_generation: ManifestGeneration
    digest: str
    routing_generation: RoutingGeneration
    functions: int
    triggers: int
    activated_at_ms: int
    activated_position: int


class ManifestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable manifest generation. `contents` is base64; `routing_generation` is what its activation created."""

    application: Application
    manifest_generation: ManifestGeneration
    expected_parent: ManifestGeneration | None
    digest: str
    functions: list[FunctionDeclaration]
    triggers: list[TriggerDeclaration]
    contents: str
    routing_generation: RoutingGeneration
    active: bool
    activated_at_ms: int
    activated_position: int


class RoutingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable routing generation: the manifest each application routes by.

    Every workspace starts from the generation that routes nothing; it has no parent, position 0 and no instant.
    """

    workspace: Workspace
    routing_generation: RoutingGeneration
    expected_parent: RoutingGeneration | None
    content_digest: str
    applications: dict[Application, ManifestGeneration]
    active: bool
    activated_at_ms: int | None
    activated_position: int
