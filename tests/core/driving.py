"""Drives one run as the engine does: decide, commit, fold, annotate, with a clock and entropy that the test owns.

Every transition is held to what must be true of any: deciding leaves the run untouched, records survive their encoding, folding the stored
history gives the live state, a refusal leaves the history as it was, and the projections can always be read.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from ryusen_protocol.declarations import (
    ChildDeclaration,
    CompensationPolicy,
    Declaration,
    EmissionDeclaration,
    EventWaitDeclaration,
    RetryPolicy,
    RunDeclaration,
    TimerDeclaration,
)
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import run_id_for_event
from ryusen_protocol.ids import (
    Application,
    EventId,
    FunctionId,
    InstanceId,
    ManifestGeneration,
    ReleaseId,
    RequestId,
    RoutingGeneration,
    RunId,
    SessionId,
    StepId,
    TriggerId,
    Workspace,
)
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, SupplySuccess
from ryusen_protocol.outcome import (
    BlockReason,
    CallbackFailed,
    Completed,
    Declared,
    DefinitionBlocked,
    DiscoveryOutcome,
    EffectOutcome,
    MissingReason,
    RejectedBeforeStart,
    RejectionReason,
    Succeeded,
    TargetNotFound,
    Uncaught,
)
from ryusen_protocol.values import Value, encode
from ryusen_server.core import evolve as folding
from ryusen_server.core.agenda import agenda, wake_at_ms
from ryusen_server.core.children import ChildEnd, ChildTarget
from ryusen_server.core.commands import create_run
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel, DeadlineReached, ParentStopped
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt
from ryusen_server.core.commands.settle_child import ChildEnded
from ryusen_server.core.commands.settle_timer import TimerDue
from ryusen_server.core.commands.settle_wait import EventMatched, WaitTimedOut
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.decide import Command, decide
from ryusen_server.core.decision import Decision, Moment, Refusal, SendAttempt, SendDiscovery
from ryusen_server.core.projection import attempt_row, run_row, touched_attempts
from ryusen_server.core.records import Deadline, DeadlineSource, Note, Outcome, ParentRef, Record, StopReason, WaitRegistered, WorkerRef
from ryusen_server.core.rows import HistoryRow
from ryusen_server.core.state import Attempt, Run, Step, Target

START_MS = 1_700_000_000_000
LEASE_MS = 30_000
WORKER = WorkerRef(InstanceId("wk_one"), SessionId("ses_one"), ReleaseId("r1"), "connected")
NO_RETRY = RetryPolicy(max_attempts=1)
STEADY = RetryPolicy(max_attempts=3, initial_ms=1_000, multiplier=2.0, maximum_ms=60_000, jitter=0.0)
"""Three attempts, one and two seconds apart."""
STEADY_COMPENSATION = CompensationPolicy(retry=STEADY)
PACK = ChildTarget(ManifestGeneration("mg_two"), RoutingGeneration("rg_two"), None, None)
"""What the active manifest has under `pack`: a function without a timeout."""

_snapshot = msgspec.json.Encoder(order="deterministic").encode
_R = TypeVar("_R")


class SeededEntropy:
    """The entropy of a decision, the same for the same seed. `jitter_is` pins the jitter."""

    def __init__(self, seed: int = 0, jitter_is: float | None = None) -> None:
        self._random = random.Random(seed)
        self._requests = 0
        self.jitter_is = jitter_is

    def request_id(self) -> RequestId:
        self._requests += 1
        return RequestId(f"rq_{self._requests:05d}")

    def jitter(self) -> float:
        return self._random.uniform(-1, 1) if self.jitter_is is None else self.jitter_is


def raw(value: Value) -> msgspec.Raw:
    """A portable value as a worker sends it."""
    return msgspec.Raw(encode(value))


def error(message: str = "card declined", *, retryable: bool = False, category: str = "payment.declined") -> ErrorRecord:
    return ErrorRecord(category, message, retryable)


def step(
    step_id: str,
    *,
    retry: RetryPolicy = STEADY,
    timeout_ms: int | None = None,
    has_compensation: bool = True,
    compensation: CompensationPolicy | None = STEADY_COMPENSATION,
) -> RunDeclaration:
    """The declaration of a `step.run`."""
    return RunDeclaration(
        StepId(step_id), has_compensation=has_compensation, retry=retry, attempt_timeout_ms=timeout_ms, compensation=compensation
    )


def timer(step_id: str, delay_ms: int = 5_000) -> TimerDeclaration:
    return TimerDeclaration(StepId(step_id), delay_ms=str(delay_ms))


def timer_until(step_id: str, deadline_ms: int) -> TimerDeclaration:
    return TimerDeclaration(StepId(step_id), deadline_ms=str(deadline_ms))


def event_wait(step_id: str, timeout_ms: int = 5_000, **correlation: str) -> EventWaitDeclaration:
    """A wait for `paid`."""
    return EventWaitDeclaration(StepId(step_id), "paid", correlation, str(timeout_ms))


def child(step_id: str, function: str = "pack", value: Value = 7, timeout_ms: int | None = None) -> ChildDeclaration:
    return ChildDeclaration(StepId(step_id), FunctionId(function), raw(value), None if timeout_ms is None else str(timeout_ms))


def emission(step_id: str, payload: bytes = b"{}", name: str = "shipped", **metadata: str) -> EmissionDeclaration:
    return EmissionDeclaration(StepId(step_id), name, raw(payload), metadata)


def digest_of(outcome: EffectOutcome | RejectedBeforeStart) -> str:
    return "sha256:" + hashlib.sha256(msgspec.json.encode(outcome)).hexdigest()


def only(records: Iterable[Record], kind: type[_R]) -> _R:
    """The one record of that kind."""
    (found,) = [record for record in records if isinstance(record, kind)]
    return found


def kinds(decision: Decision | Refusal) -> list[str]:
    """The kinds of a decision's records, in order."""
    assert isinstance(decision, Decision), decision
    return [str(record.__struct_config__.tag) for record in decision.records]


def snapshot(run: Run) -> bytes:
    """Everything a run is, as bytes: two runs in the same state give the same."""
    orders = (list(run.steps), list(run.attempts), list(run.requests))
    return _snapshot((run, orders))


def durable_snapshot(run: Run) -> bytes:
    """The part of a run that its records alone give."""
    members: dict[str, Any] = {name: getattr(run, name) for name in run.__struct_fields__}
    if run.discovery_repeats:
        members["discovery_due_at_ms"] = 0  # a note moved it
    members["dispatch"] = None
    members["discovery_repeats"] = 0
    return _snapshot((members, list(run.steps), list(run.attempts), list(run.requests)))


class Transition(msgspec.Struct):
    """One command and what came of it. `before` is the snapshot the decision was taken on."""

    command: Command
    at_ms: int
    status_before: str
    open_request: RequestId | None
    """The request an unresolved attempt was out under when the command arrived."""
    open_pass: RequestId | None
    """The request the pass was out under when the command arrived."""
    answer: Decision | Refusal
    position_before: int
    position: int
    before: bytes
    after: bytes


class Driver:
    """One run and its committed history. Commands go in by name, or whole through `send`."""

    def __init__(
        self,
        *,
        deadline_ms: int | None = None,
        source: DeadlineSource = "function",
        parent: ParentRef | None = None,
        seed: int = 0,
        jitter: float | None = 0.0,
        checked: bool = True,
    ) -> None:
        self.now_ms = START_MS
        self.entropy = SeededEntropy(seed, jitter)
        self.rows: list[HistoryRow] = []
        self.transitions: list[Transition] = []
        self.preferred: ReleaseId | None = WORKER.release_id
        self.functions = {FunctionId("pack"): PACK}
        """The active manifest."""
        self._checked = checked
        event_id = EventId("ev_one")
        application, trigger_id = Application("shop"), TriggerId("on-order")
        deadline = None if deadline_ms is None else Deadline(START_MS + deadline_ms, source)
        command = create_run.CreateRun(
            run_id=run_id_for_event(event_id, application, trigger_id) if parent is None else RunId("rn_child"),
            workspace=Workspace("default"),
            application=application,
            function=FunctionId("fulfil"),
            event_id=event_id if parent is None else None,
            trigger_id=trigger_id if parent is None else None,
            manifest_generation=ManifestGeneration("mg_one"),
            routing_generation=RoutingGeneration("rg_one"),
            deadline=deadline,
            parent=parent,
            input=msgspec.UNSET if parent is None else raw("order"),
        )
        created, records = create_run.decide(command)
        self.run = folding.begin(created, self.now_ms)
        self._commit(records)
        self.check()

    # time and restarts

    def wait(self, ms: int) -> None:
        """Let the server's clock go on, or back."""
        self.now_ms += ms

    def until(self, at_ms: int) -> None:
        """Let the clock reach an instant, if it has not."""
        self.now_ms = max(self.now_ms, at_ms)

    def restart(self) -> None:
        """Forget everything but the stored history."""
        run = folding.fold(self.rows)
        assert run is not None
        self.run = run

    # commands

    def send(self, command: Command) -> Decision | Refusal:
        """Decide, commit, fold, check."""
        before = snapshot(self.run) if self._checked else b""
        position, status = self.position, self.run.status
        attempt = self.run.current_attempt()
        open_request = attempt.request_id if attempt is not None and attempt.state in ("authorized", "unknown") else None
        open_pass = None if self.run.dispatch is None else self.run.dispatch.request_id
        answer = decide(self.run, command, Moment(self.now_ms, self.entropy))
        if self._checked:
            assert snapshot(self.run) == before, f"deciding {command} changed the run"
        if isinstance(answer, Decision):
            if answer.records:
                self._commit(answer.records)
            self._annotate(answer.notes)
        if self._checked:
            after = snapshot(self.run)
            self.transitions.append(
                Transition(command, self.now_ms, status, open_request, open_pass, answer, position, self.position, before, after)
            )
            self.check()
        return answer

    def decided(self, command: Command) -> Decision:
        """As `send`, where a refusal is a failure of the test."""
        answer = self.send(command)
        assert isinstance(answer, Decision), answer
        return answer

    def refused(self, command: Command) -> Refusal:
        """As `send`, where anything but a refusal is a failure of the test."""
        answer = self.send(command)
        assert isinstance(answer, Refusal), answer
        return answer

    def start(self, *, hurry: bool = False) -> RequestId:
        """Send the queued pass to a worker."""
        decision = self.decided(StartDiscovery(WORKER, self.preferred, hurry))
        (effect,) = decision.effects
        assert isinstance(effect, SendDiscovery)
        return effect.request_id

    def respond(
        self, outcome: DiscoveryOutcome | RejectedBeforeStart, *, request: RequestId | None = None, assign: bool = False
    ) -> Decision:
        """Answer the pass that is out; `assign` authorizes in the same transaction what it may declare."""
        if request is None:
            assert self.run.dispatch is not None
            request = self.run.dispatch.request_id
        assignee = AuthorizeAttempt(WORKER, LEASE_MS) if assign else None
        return self.decided(AnswerDiscovery(request, outcome, WORKER.release_id, self.preferred, assignee, self.child_target(outcome)))

    def child_target(self, outcome: DiscoveryOutcome | RejectedBeforeStart) -> ChildTarget | None:
        """What the active manifest says of the function that a response invokes, if it does."""
        declared = outcome.declaration if isinstance(outcome, Declared) else None
        return self.functions.get(declared.function) if isinstance(declared, ChildDeclaration) else None

    def discover(self, outcome: DiscoveryOutcome, *, assign: bool = False) -> Decision:
        """Send the pass once it is due, and answer it."""
        self.until(self.run.discovery_due_at_ms)
        self.start()
        return self.respond(outcome, assign=assign)

    def declare(self, declaration: Declaration | str, *, assign: bool = False) -> Decision:
        """A whole pass that meets a step."""
        return self.discover(Declared(step(declaration) if isinstance(declaration, str) else declaration), assign=assign)

    def complete(self, value: Value = None) -> Decision:
        """A whole pass that returns."""
        return self.discover(Completed(raw(value)))

    def uncaught(self, failure: ErrorRecord | None = None) -> Decision:
        """A whole pass that a failure escapes from."""
        return self.discover(Uncaught(failure or error()))

    def block(self, step_id: str = "a", reason: BlockReason = "duplicate_step_id") -> Decision:
        """A whole pass that finds the code contradicting itself."""
        return self.discover(DefinitionBlocked(reason, StepId(step_id)))

    def authorize(self, *, hurry: bool = False) -> RequestId:
        """Authorize the queued attempt once it is due."""
        if not hurry:
            self.until(self.attempt.due_at_ms)
        decision = self.decided(AuthorizeAttempt(WORKER, LEASE_MS, hurry))
        (effect,) = decision.effects
        assert isinstance(effect, SendAttempt)
        return effect.request_id

    def answer(self, outcome: EffectOutcome | RejectedBeforeStart, *, request: RequestId | None = None) -> Decision:
        """Submit an effect's answer, by default for the attempt that is out; an answer that names no attempt is given the request's."""
        request = request or self.request
        attempt = self.run.attempts[self.run.requests[request]]
        if outcome.attempt is None:
            outcome = msgspec.structs.replace(outcome, attempt=attempt.attempt, attempt_generation=attempt.attempt_generation)
        return self.decided(AnswerAttempt(request, outcome, digest_of(outcome), WORKER.instance_id))

    def succeed(self, value: Value = "done", *, request: RequestId | None = None) -> Decision:
        return self.answer(Succeeded(raw(value)), request=request)

    def fail(self, message: str = "card declined", *, retryable: bool = False, request: RequestId | None = None) -> Decision:
        return self.answer(CallbackFailed(error(message, retryable=retryable)), request=request)

    def missing(self, reason: MissingReason = "not_met", *, hidden_by: str | None = None, request: RequestId | None = None) -> Decision:
        return self.answer(TargetNotFound(reason, None if hidden_by is None else StepId(hidden_by)), request=request)

    def reject(self, reason: RejectionReason = "busy", *, request: RequestId | None = None) -> Decision:
        return self.answer(RejectedBeforeStart(reason), request=request)

    def lose(self, reason: str = "lease elapsed") -> Decision:
        return self.decided(LoseContact(self.request, reason))

    def lose_pass(self) -> Decision:
        assert self.run.dispatch is not None
        return self.decided(LoseDiscovery(self.run.dispatch.request_id))

    def never_began(self, *, request: RequestId | None = None) -> Decision:
        return self.decided(NeverBegan(request or self.request, "the invocation never left"))

    def cancel(self, by: str = "operator") -> Decision | Refusal:
        return self.send(Cancel(by))

    def deadline(self) -> Decision:
        return self.decided(DeadlineReached())

    def rediscover(self, by: str = "operator") -> Decision | Refusal:
        return self.send(Rediscover(by))

    # timers, waits and children

    def timer_due(self) -> Decision:
        """The clock reports the pending timer, now."""
        return self.decided(TimerDue(self.waiting.step_id))

    def timed_out(self) -> Decision:
        """The clock reports the pending wait's timeout, now."""
        return self.decided(WaitTimedOut(self.waiting.step_id))

    def match(self, payload: bytes = b"{}", *, accepted_at_ms: int | None = None, after: bool = True) -> Decision:
        """An event that was accepted `after` the pending wait's registration, or before it."""
        accepted_at_ms = self.now_ms if accepted_at_ms is None else accepted_at_ms
        registered = self.registered_position
        return self.decided(EventMatched(self.waiting.step_id, payload, accepted_at_ms, registered + (1 if after else -1), registered))

    def child_ended(self, outcome: Outcome = "succeeded", value: Value = "packed", failure: ErrorRecord | None = None) -> Decision:
        """The pending child's end."""
        child_run_id = self.waiting.child_run_id
        assert child_run_id is not None
        failure = failure or (error() if outcome == "failed" else None)
        return self.decided(ChildEnded(ChildEnd(child_run_id, outcome, raw(value) if outcome == "succeeded" else None, failure)))

    def parent_stopped(self, reason: StopReason = "cancelled") -> Decision:
        return self.decided(ParentStopped(RunId("rn_parent"), reason))

    def resolve(
        self,
        resolution: SupplySuccess | DeclareFailure | AuthorizeRetry,
        *,
        attempt: Attempt | None = None,
        attempt_generation: int | None = None,
    ) -> Decision | Refusal:
        """An operator's word on an attempt, by default on the unresolved one."""
        attempt = attempt or self.attempt
        generation = attempt.attempt_generation if attempt_generation is None else attempt_generation
        return self.send(ResolveAttempt(attempt.attempt_id, generation, resolution, "kim"))

    def supply(self, value: Value = "done") -> Decision | Refusal:
        return self.resolve(SupplySuccess(raw(value)))

    def declare_failure(self, *, retryable: bool = False) -> Decision | Refusal:
        return self.resolve(DeclareFailure(error("the operator says so", retryable=retryable)))

    def authorize_retry(self) -> Decision | Refusal:
        return self.resolve(AuthorizeRetry())

    # what a test wants to see

    @property
    def position(self) -> int:
        return self.rows[-1].position

    @property
    def waiting(self) -> Step:
        """The pending step."""
        step = self.run.pending_step()
        assert step is not None, f"{self.run.status}: no step is pending"
        return step

    @property
    def registered_position(self) -> int:
        """Where the pending wait was registered."""
        (found,) = [
            row.position
            for row in self.rows
            for record in folding.decode_records(row.records)
            if isinstance(record, WaitRegistered) and record.step_id == self.run.pending
        ]
        return found

    @property
    def attempt(self) -> Attempt:
        """The attempt that is queued or unresolved."""
        attempt = self.run.current_attempt()
        assert attempt is not None, f"{self.run.status}: no attempt"
        return attempt

    @property
    def request(self) -> RequestId:
        """The request the unresolved attempt is out under."""
        request = self.attempt.request_id
        assert request is not None
        return request

    def step(self, step_id: str) -> Step:
        return self.run.steps[StepId(step_id)]

    def target(self, step_id: str) -> Target:
        (found,) = [target for target in self.run.unwind if target.step_id == step_id]
        return found

    def run_step(self, declaration: RunDeclaration | str, value: Value = "done") -> RequestId:
        """Declare a step and have it succeed."""
        self.declare(declaration)
        request = self.authorize()
        self.succeed(value)
        return request

    def records(self) -> list[Record]:
        """Every committed record."""
        return [record for row in self.rows for record in folding.decode_records(row.records)]

    # what is true of every transition

    def check(self) -> None:
        """Hold the live run against its stored history, and read every projection."""
        if not self._checked:
            return
        folded = folding.fold(self.rows)
        assert folded is not None
        assert durable_snapshot(folded) == durable_snapshot(self.run), "folding the history does not give the live state"
        row = run_row(self.run)
        assert row.wake_at_ms == wake_at_ms(folded), "a restart would look at the run at another instant"
        assert (row.unwind_pending, row.unwind_succeeded, row.unwind_failed, row.unwind_skipped) == tuple(
            sum(target.state == state for target in self.run.unwind) for state in ("pending", "succeeded", "failed", "skipped")
        )
        agenda(self.run)
        for attempt_id in touched_attempts(folding.decode_records(self.rows[-1].records)):
            attempt_row(self.run, self.run.attempts[attempt_id])

    def _commit(self, records: list[Record]) -> None:
        stored = folding.encode_records(records)
        if self._checked:
            assert folding.encode_records(folding.decode_records(stored)) == stored
            assert [type(record) for record in folding.decode_records(stored)] == [type(record) for record in records]
        # Positions are the store's: they grow, and leave gaps.
        position = self.position + self._gap() if self.rows else 1
        self.rows.append(HistoryRow(position, self.now_ms, stored))
        folding.evolve(self.run, records, self.now_ms, position)

    def _gap(self) -> int:
        return 1 + len(self.rows) % 3

    def _annotate(self, notes: list[Note]) -> None:
        for note in notes:
            folding.annotate(self.run, note)
