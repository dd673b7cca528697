"""Workers that live in the test: a channel that records what it is sent and answers as a small program says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import decode_server_frame
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
from ryusen_protocol.frames import (
    HISTORY_DELTA,
    Drain,
    ExecutionContract,
    HeldAttempt,
    Invoke,
    OutcomeAck,
    Register,
    Registered,
    RegistrationRejected,
    ServerFrame,
    SessionError,
    Software,
)
from ryusen_protocol.ids import FunctionId, InstanceId, ReleaseId, RequestId, RunId, SessionId, StepId
from ryusen_protocol.invocation import CompensationTarget, DiscoveryTarget, ForwardTarget, Invocation
from ryusen_protocol.outcome import (
    CallbackFailed,
    Completed,
    Declared,
    Outcome,
    OutcomeBody,
    RejectedBeforeStart,
    RejectionReason,
    Succeeded,
    TargetNotFound,
    Uncaught,
)
from ryusen_protocol.scope import Scope
from ryusen_protocol.values import Value
from ryusen_protocol.values import encode as encode_value
from ryusen_sdk.histories import Histories

if TYPE_CHECKING:
    from tests.engine.bench import Bench

Answer = Callable[[Invocation], OutcomeBody]
NO_JITTER = RetryPolicy(max_attempts=4, initial_ms=1_000, multiplier=2.0, maximum_ms=60_000, jitter=0.0)


def value(of: Value) -> msgspec.Raw:
    return msgspec.Raw(encode_value(of))


def error(message: str = "no", *, category: str = "Boom", retryable: bool = True) -> ErrorRecord:
    return ErrorRecord(category, message, retryable)


class Step(msgspec.Struct):
    """What one `step.run` of a body does, attempt by attempt; the last entry stands for all later ones. None succeeds."""

    step_id: str
    forward: Sequence[ErrorRecord | None] = (None,)
    undo: Sequence[ErrorRecord | None] | None = None
    retry: RetryPolicy = NO_JITTER
    undo_retry: RetryPolicy = NO_JITTER
    timeout_ms: int | None = None
    handled: bool = False

    @property
    def declaration(self) -> RunDeclaration:
        return RunDeclaration(
            StepId(self.step_id),
            has_compensation=self.undo is not None,
            retry=self.retry,
            attempt_timeout_ms=self.timeout_ms,
            compensation=None if self.undo is None else CompensationPolicy(self.undo_retry),
        )


class Wait(msgspec.Struct):
    """A step of another kind: it has no callback, and its outcome comes from the server."""

    declaration: Declaration
    handled: bool = False

    @property
    def step_id(self) -> str:
        return self.declaration.step_id


def sleep(step_id: str, delay_ms: int) -> Wait:
    return Wait(TimerDeclaration(StepId(step_id), delay_ms=str(delay_ms)))


def wait_for(step_id: str, event_name: str, timeout_ms: int, *, handled: bool = False, **correlation: str) -> Wait:
    return Wait(EventWaitDeclaration(StepId(step_id), event_name, correlation, str(timeout_ms)), handled)


def invoke(step_id: str, function: str, *, given: Value = None, timeout_ms: int | None = None, handled: bool = False) -> Wait:
    timeout = None if timeout_ms is None else str(timeout_ms)
    return Wait(ChildDeclaration(StepId(step_id), FunctionId(function), value(given), timeout), handled)


def emit(step_id: str, event_name: str, payload: bytes = b"{}", **metadata: str) -> Wait:
    return Wait(EmissionDeclaration(StepId(step_id), event_name, value(payload), metadata))


def body(*steps: Step | Wait, fails: ErrorRecord | None = None, answer: Value = "done") -> Answer:
    """A function of these steps in order, as an SDK would answer for it."""
    known = {step.step_id: step for step in steps if isinstance(step, Step)}

    def discovery(invocation: Invocation) -> OutcomeBody:
        outcomes = {entry.step_id: entry.outcome for entry in invocation.history.steps}
        for step in steps:
            if step.step_id not in outcomes:
                return Declared(step.declaration)
            failure = outcomes[step.step_id].failure
            if isinstance(failure, ErrorRecord) and not step.handled:
                return Uncaught(error(failure.message, category="StepFailed", retryable=False))
        return Completed(value(answer)) if fails is None else Uncaught(fails)

    def effect(target: ForwardTarget | CompensationTarget) -> OutcomeBody:
        step = known.get(target.step_id)
        place = (target.attempt, target.attempt_generation)
        if step is None:
            return TargetNotFound("not_met", None, *place)
        script = step.forward if isinstance(target, ForwardTarget) else step.undo
        if script is None:
            return TargetNotFound("no_compensator", None, *place)
        failure = script[min(target.attempt, len(script)) - 1]
        if failure is not None:
            return CallbackFailed(failure, *place)
        return Succeeded(value(f"{target.step_id}#{target.attempt}"), *place)

    def answers(invocation: Invocation) -> OutcomeBody:
        target = invocation.target
        return discovery(invocation) if isinstance(target, DiscoveryTarget) else effect(target)

    return answers


class Channel:
    """One session's channel. What is sent after its end goes nowhere."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker
        self.open = True
        self.session_id: SessionId | None = None
        self.frames: list[ServerFrame] = []
        self.closed_with: tuple[int, str] | None = None

    def send(self, frame: bytes) -> None:
        if not self.open:
            return
        decoded = decode_server_frame(frame)
        self.frames.append(decoded)
        self._worker.received(self, decoded)

    def close(self, code: int, reason: str) -> None:
        self.open = False
        self.closed_with = (code, reason)


class FakeWorker:
    """One worker process. It keeps effects until they are acknowledged, as an SDK does; `deaf` loses what it is sent."""

    def __init__(
        self,
        bench: Bench,
        instance_id: str = "wk_1",
        *,
        functions: dict[str, Answer] | None = None,
        release_id: str | None = None,
        capacity: int = 32,
        application: str = "shop",
        workspace: str = "default",
        contract: ExecutionContract | None = None,
        keeps_histories: bool = True,
    ) -> None:
        self.bench = bench
        self.scope = Scope(workspace, application)  # type: ignore[arg-type]  # ids are text
        self.instance_id = InstanceId(instance_id)
        self.functions = functions if functions is not None else {"f": body()}
        self.release_id = release_id
        self.capacity = capacity
        self.contract = contract or ExecutionContract(1, 1)
        self.keeps_histories = keeps_histories
        self.histories = Histories()
        self.draining = False
        self.deaf = False
        self.strict = True
        """Whether more than the capacity is a violation; else it is rejected, as an SDK does that still runs what the server gave up."""
        self.holds: Callable[[Invocation], bool] = lambda _: False
        self.channel: Channel | None = None
        self.connection = 0
        self.previous_session: SessionId | None = None
        self.executing: dict[RequestId, Invocation] = {}
        """Received and not answered."""
        self.unacknowledged: dict[RequestId, Outcome] = {}
        self.invocations: list[Invocation] = []
        self.acks: list[OutcomeAck] = []
        self.errors: list[SessionError] = []
        self.told_to_drain = False

    # the session

    def frame(self, **changes: object) -> Register:
        frame = Register(
            protocol_version=PROTOCOL_VERSION,
            scope=self.scope,
            instance_id=self.instance_id,
            connection=max(1, self.connection),
            manifest_digest="sha256:d",
            functions=[FunctionId(function) for function in self.functions],
            contract=self.contract,
            capacity=self.capacity,
            sdk=Software("sdk", "1"),
            runtime=Software("python", "3"),
            previous_session=self.previous_session,
            release_id=None if self.release_id is None else ReleaseId(self.release_id),
            draining=self.draining,
            capabilities=[HISTORY_DELTA] if self.keeps_histories else [],
            held=self.held(),
        )
        return msgspec.structs.replace(frame, **changes)

    def held(self) -> list[HeldAttempt]:
        held: list[HeldAttempt] = []
        for invocation in self.executing.values():
            target = invocation.target
            if not isinstance(target, DiscoveryTarget):
                held.append(HeldAttempt(invocation.request_id, invocation.run.run_id, target.attempt, target.attempt_generation))
        for outcome in self.unacknowledged.values():
            answered = outcome.outcome
            assert isinstance(answered, (Succeeded, CallbackFailed, TargetNotFound, RejectedBeforeStart))
            held.append(HeldAttempt(outcome.request_id, outcome.run_id, answered.attempt, answered.attempt_generation))
        return held

    async def register(self, **changes: object) -> Registered | RegistrationRejected:
        """Open a session, and resend what is not acknowledged."""
        self.connection += 1
        channel = Channel(self)
        answer = await self.bench.engine.register(self.frame(**changes), channel)
        if isinstance(answer, Registered):
            self.channel = channel
            channel.session_id = answer.session_id
            self.previous_session = answer.session_id
            for outcome in list(self.unacknowledged.values()):
                self.bench.engine.outcome(answer.session_id, outcome)
        return answer

    async def connect(self, **changes: object) -> Registered:
        answer = await self.register(**changes)
        assert isinstance(answer, Registered), answer
        await self.bench.settle()
        return answer

    @property
    def session_id(self) -> SessionId:
        assert self.channel is not None
        assert self.channel.session_id is not None
        return self.channel.session_id

    def disconnect(self, reason: str = "the test cut it") -> None:
        """The connection is lost; the process lives on and goes on with what it read."""
        channel, self.channel = self.channel, None
        assert channel is not None
        channel.open = False
        if channel.session_id is not None:
            self.bench.engine.disconnected(channel.session_id, reason)

    def forget(self) -> None:
        """Lose what was read: as if it had been in a buffer of the connection."""
        self.executing.clear()

    def heartbeat(self, *request_ids: RequestId) -> None:
        """Name what is executing, or exactly the given requests."""
        self.bench.engine.heartbeat(self.session_id, list(request_ids) or list(self.executing))

    def heartbeat_empty(self) -> None:
        self.bench.engine.heartbeat(self.session_id, [])

    def drain(self) -> None:
        self.draining = True
        self.bench.engine.draining(self.session_id)

    # work

    def received(self, channel: Channel, frame: ServerFrame) -> None:
        match frame:
            case Invoke(invocation=sent):
                self.bench.invoked(self, sent)
                if self.deaf:
                    self.invocations.append(sent)
                    return
                invocation = self.histories.completed(sent, 1_000)
                self.invocations.append(invocation or sent)
                self.executing[sent.request_id] = invocation or sent
                if invocation is not None:
                    self.bench.completed(self, invocation)
                else:
                    self.reject(sent, "history_missing")
                    return
                if len(self.executing) > self.capacity and not self.strict:
                    self.reject(invocation)
                    return
                if len(self.executing) > self.capacity:
                    self.bench.violations.append(f"{self.instance_id} was sent more than its capacity of {self.capacity}")
                if not self.holds(invocation):
                    asyncio.get_running_loop().call_soon(self.finish, invocation.request_id)
            case OutcomeAck():
                self.acks.append(frame)
                self.unacknowledged.pop(frame.request_id, None)
            case SessionError():
                self.errors.append(frame)
            case Drain():
                self.told_to_drain = True
            case _:
                self.bench.violations.append(f"an unexpected frame: {frame}")

    def finish(self, request_id: RequestId, answer: OutcomeBody | None = None) -> None:
        """Answer an invocation that was read; by default as its function's program says."""
        invocation = self.executing.pop(request_id, None)
        if invocation is None:
            return
        if answer is None:
            answer = self.functions[invocation.run.function](invocation)
        effect = not isinstance(invocation.target, DiscoveryTarget)
        if effect and isinstance(answer, (Succeeded, CallbackFailed)):
            self.bench.started(self, invocation)
        outcome = Outcome(PROTOCOL_VERSION, request_id, invocation.run.run_id, answer)
        if effect:
            self.unacknowledged[request_id] = outcome
        if self.channel is not None and self.channel.session_id is not None:
            self.bench.engine.outcome(self.channel.session_id, outcome)

    def reject(self, invocation: Invocation, reason: RejectionReason = "busy") -> None:
        """Answer that nothing was begun."""
        target = invocation.target
        place = (None, None) if isinstance(target, DiscoveryTarget) else (target.attempt, target.attempt_generation)
        asyncio.get_running_loop().call_soon(self.finish, invocation.request_id, RejectedBeforeStart(reason, *place))

    def resend(self) -> None:
        for outcome in list(self.unacknowledged.values()):
            self.bench.engine.outcome(self.session_id, outcome)

    def submit(self, request_id: RequestId, run_id: RunId, answer: OutcomeBody) -> None:
        """Send an outcome whatever the program and the protocol say."""
        self.bench.engine.outcome(self.session_id, Outcome(PROTOCOL_VERSION, request_id, run_id, answer))

    def holding(self, mode: str, step_id: str | None = None) -> None:
        """Keep invocations of a mode, of a step or of any, until the test finishes them."""
        self.holds = lambda invocation: matches(invocation, mode, step_id)

    def release_all(self) -> None:
        """Hold nothing any more, and answer what is held."""
        self.holds = lambda _: False
        for request_id in list(self.executing):
            self.finish(request_id)

    def of(self, mode: str, step_id: str | None = None) -> list[Invocation]:
        """What was received of a mode, of a step or of any."""
        return [invocation for invocation in self.invocations if matches(invocation, mode, step_id)]

    @property
    def dispositions(self) -> list[str]:
        return [ack.disposition for ack in self.acks]


def matches(invocation: Invocation, mode: str, step_id: str | None = None) -> bool:
    target = invocation.target
    if target.__struct_config__.tag != mode:
        return False
    return step_id is None or (not isinstance(target, DiscoveryTarget) and target.step_id == step_id)


def effect_target(invocation: Invocation) -> ForwardTarget | CompensationTarget:
    assert not isinstance(invocation.target, DiscoveryTarget)
    return invocation.target
