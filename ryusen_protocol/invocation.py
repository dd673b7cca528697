"""What the server asks a worker to do: one discovery pass, or one targeted execution (`protocol` 3)."""

from __future__ import annotations

from typing import Literal

import msgspec

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import EventId, FunctionId, OperationId, RequestId, RunId, StepId
from ryusen_protocol.limits import Int53
from ryusen_protocol.scope import Scope

StepKind = Literal["run", "timer", "event_wait", "child", "emission"]
Phase = Literal["forward", "compensation"]


class RecordedOutcome(msgspec.Struct, frozen=True):
    """What a completed step came to: exactly one of the two members is there."""

    success: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    failure: ErrorRecord | msgspec.UnsetType = msgspec.UNSET


class HistoryEntry(msgspec.Struct, frozen=True):
    """One completed step."""

    step_id: StepId
    kind: StepKind
    outcome: RecordedOutcome


class HistoryBase(msgspec.Struct, frozen=True):
    """What a delta builds on: how many entries the worker already holds, and the digest that stands for them."""

    count: Int53
    digest: str


class FullHistory(msgspec.Struct, frozen=True, tag_field="mode", tag="full"):
    """Every completed step in completion order. `digest` stands for exactly these; a worker only compares it."""

    digest: str
    steps: list[HistoryEntry]


class DeltaHistory(msgspec.Struct, frozen=True, tag_field="mode", tag="delta"):
    """The entries after `base`, for a worker that holds the base (capability `history_delta`)."""

    digest: str
    base: HistoryBase
    steps: list[HistoryEntry]


History = FullHistory | DeltaHistory


class EventInput(msgspec.Struct, frozen=True, tag_field="kind", tag="event"):
    """The event a run was created for. `payload` is a portable bytes value."""

    event_id: EventId
    name: str
    payload: msgspec.Raw
    metadata: dict[str, str]
    received_at_ms: Int53


class ChildInput(msgspec.Struct, frozen=True, tag_field="kind", tag="child"):
    """The value a parent run invoked this run with."""

    parent_run_id: RunId
    parent_step_id: StepId
    value: msgspec.Raw


RunInput = EventInput | ChildInput


class RunFailure(msgspec.Struct, frozen=True):
    """Why a failed run is being compensated."""

    category: str
    message: str


class RunFacts(msgspec.Struct, frozen=True):
    """What a worker may know of the run. Instants are epoch milliseconds of the server's clock."""

    run_id: RunId
    function: FunctionId
    created_at_ms: Int53
    deadline_at_ms: Int53 | None = None
    failure: RunFailure | None = None


class DiscoveryTarget(msgspec.Struct, frozen=True, tag_field="mode", tag="discovery"):
    """Repeatable: run the body up to its first unresolved boundary."""

    pass_: Int53 = msgspec.field(name="pass")


class ForwardTarget(msgspec.Struct, frozen=True, tag_field="mode", tag="forward"):
    """An effect: run exactly this step's callback."""

    step_id: StepId
    operation_id: OperationId
    attempt: Int53
    attempt_generation: Int53


class CompensationTarget(msgspec.Struct, frozen=True, tag_field="mode", tag="compensation"):
    """An effect: run exactly this step's compensator with the recorded forward result."""

    step_id: StepId
    operation_id: OperationId
    attempt: Int53
    attempt_generation: Int53
    forward_result: msgspec.Raw


Target = DiscoveryTarget | ForwardTarget | CompensationTarget


class Invocation(msgspec.Struct, frozen=True, tag_field="type", tag="invocation"):
    """One request to a worker. Every dispatch has a fresh `request_id`. A delta leaves `input` out."""

    protocol_version: Int53
    request_id: RequestId
    scope: Scope
    run: RunFacts
    history: History
    target: Target
    input: RunInput | None = None
