"""What a command comes to: a decision or a refusal, both values.

`Draft` gathers a decision while it is being made. Effects are performed by the engine once the records are durable; a discovery alone may
leave earlier, since it is repeatable and its response can only commit after them.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from ryusen_protocol.frames import Disposition
from ryusen_protocol.ids import AttemptId, EventId, RequestId, RunId, StepId
from ryusen_server.core.records import Note, Record, RunCreated, StopReason, WorkerRef


class Entropy(Protocol):
    """The randomness a decision may use."""

    def request_id(self) -> RequestId:
        """A fresh request id."""
        ...

    def jitter(self) -> float:
        """Uniform in [-1, 1)."""
        ...


class Moment(msgspec.Struct, frozen=True):
    """When and with what chance a decision is taken. `now_ms` is the server's clock in epoch milliseconds."""

    now_ms: int
    entropy: Entropy


class SendDiscovery(msgspec.Struct, frozen=True):
    """Invoke the current pass at a worker. May leave before the commit."""

    request_id: RequestId
    worker: WorkerRef


class SendAttempt(msgspec.Struct, frozen=True):
    """Invoke an authorized attempt at its worker. Leaves only after the commit."""

    attempt_id: AttemptId
    request_id: RequestId
    worker: WorkerRef


Effect = SendDiscovery | SendAttempt


class Birth(msgspec.Struct, frozen=True):
    """A child run that is to be created in the same unit as the decision's records: the record that makes it, and all of its first ones."""

    created: RunCreated
    records: tuple[Record, ...]


class EmittedEvent(msgspec.Struct, frozen=True):
    """An event that is to be accepted in the same unit as the decision's records, as a submitted one is, at the decision's instant."""

    event_id: EventId
    name: str
    payload: bytes
    metadata: dict[str, str]


class SettleParent(msgspec.Struct, frozen=True):
    """A child has ended: its parent's step is to be completed with what became of it."""

    child_run_id: RunId
    parent_run_id: RunId
    parent_step_id: StepId


class StopChild(msgspec.Struct, frozen=True):
    """A parent is stopping: the child it waits for is to be stopped for the same reason, by the parent."""

    child_run_id: RunId
    parent_run_id: RunId
    reason: StopReason


Obligation = SettleParent | StopChild
"""What one run owes another: durable with the decision that causes it, and gone with the one that carries it out."""

RefusalCode = Literal["not_cancellable", "not_blocked", "not_ready", "stale", "retry_forbidden", "deadline_elapsed", "limit_exceeded"]


class Refusal(msgspec.Struct, frozen=True):
    """The command cannot be obeyed; nothing changed. `message` says why and what to do."""

    code: RefusalCode
    message: str


class Decision(msgspec.Struct):
    """Records to commit, notes to remember for this life, effects to perform, and the word to give back.

    `birth`, `emitted` and `obligations` commit in one unit with the records: all of it or nothing.
    `disposition` answers a worker's submission; `replayed` marks a command that had been obeyed before.
    """

    records: list[Record] = []
    notes: list[Note] = []
    effects: list[Effect] = []
    birth: Birth | None = None
    emitted: EmittedEvent | None = None
    obligations: tuple[Obligation, ...] = ()
    disposition: Disposition | None = None
    replayed: bool = False

    def add(self, *records: Record) -> None:
        """Append records, in the order they will be folded."""
        self.records.extend(records)
