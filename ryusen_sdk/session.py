"""The worker's half of a session without I/O: frames in, frames and actions out, time as an argument.

Owns what the worker holds over reconnects: what it is executing, outcomes not acknowledged yet, whether it drains, and the numbering
of its connections. Knows no socket, clock, thread or user code. Times are milliseconds of one monotonic clock.

An effect's outcome is kept until its acknowledgement and sent again after every reconnect and each 10 s; a discovery's is sent once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from ryusen_protocol import PROTOCOL_VERSION, VALUE_CODEC_VERSION
from ryusen_protocol.codec import MalformedDocument, UnknownVariant, decode_server_frame, encode
from ryusen_protocol.frames import (
    HISTORY_DELTA,
    Drain,
    Draining,
    ExecutionContract,
    Heartbeat,
    HeldAttempt,
    Invoke,
    Log,
    OutcomeAck,
    Register,
    Registered,
    RegistrationRejected,
    ServerFrame,
    SessionError,
    Software,
)
from ryusen_protocol.ids import FunctionId, InstanceId, ReleaseId, RequestId, RunId, SessionId
from ryusen_protocol.invocation import DiscoveryTarget, Invocation
from ryusen_protocol.outcome import LogLine, Outcome, RejectedBeforeStart, RejectionReason
from ryusen_protocol.scope import Scope
from ryusen_sdk.histories import Histories

RESEND_MS: Final = 10_000
RETRYABLE_REJECTION: Final = "unavailable"
REPLACED: Final = "replaced"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself in every registration."""

    scope: Scope
    instance_id: InstanceId
    release_id: ReleaseId | None
    manifest_digest: str
    functions: list[FunctionId]
    capacity: int
    sdk: Software
    runtime: Software


@dataclass(frozen=True, slots=True)
class Opened:
    """The server registered this worker."""

    session_id: SessionId
    heartbeat_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Run this invocation; there is room for it."""

    invocation: Invocation


@dataclass(frozen=True, slots=True)
class Send:
    """A frame to send."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The registration was rejected. `is_final` says that trying again would not help."""

    code: str
    message: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another process took this instance's place; this one stops."""

    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should see; nothing else follows from it."""

    text: str


Action = Opened | Begin | Send | Refused | Replaced | Note


class _Unacknowledged:
    __slots__ = ("frame", "held", "sent_at_ms")

    def __init__(self, frame: bytes, held: HeldAttempt, sent_at_ms: int | None) -> None:
        self.frame = frame
        self.held = held
        self.sent_at_ms = sent_at_ms


class Session:
    """One worker's conversation with the server, over all its connections."""

    def __init__(self, facts: WorkerFacts, histories: Histories | None = None) -> None:
        self._facts = facts
        self._histories = histories or Histories()
        self._connection = 0
        self._session_id: SessionId | None = None
        self._is_open = False
        self._is_draining = False
        self._executing: dict[RequestId, HeldAttempt] = {}
        self._unacknowledged: dict[RequestId, _Unacknowledged] = {}
        self._unsent: dict[RequestId, tuple[bytes, HeldAttempt]] = {}
        """Outcomes of discoveries that ended between two connections."""
        self._heartbeat_ms = RESEND_MS
        self._heartbeat_due_ms = 0

    @property
    def scope(self) -> Scope:
        return self._facts.scope

    @property
    def functions(self) -> list[FunctionId]:
        return self._facts.functions

    @property
    def capacity(self) -> int:
        return self._facts.capacity

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def is_drained(self) -> bool:
        """Draining, and nothing is left to run or to be acknowledged."""
        return self._is_draining and not self._executing and not self._unacknowledged

    @property
    def executing(self) -> int:
        return len(self._executing)

    @property
    def unacknowledged(self) -> int:
        return len(self._unacknowledged)

    def opening(self) -> bytes:
        """A new connection is up: the registration to send on it. Nothing of the one before may be given to `received` any more."""
        self._connection += 1
        self._is_open = False
        facts = self._facts
        return encode(
            Register(
                protocol_version=PROTOCOL_VERSION,
                scope=facts.scope,
                instance_id=facts.instance_id,
                connection=self._connection,
                manifest_digest=facts.manifest_digest,
                functions=facts.functions,
                contract=ExecutionContract(PROTOCOL_VERSION, VALUE_CODEC_VERSION),
                capacity=facts.capacity,
                sdk=facts.sdk,
                runtime=facts.runtime,
                previous_session=self._session_id,
                release_id=facts.release_id,
                draining=self._is_draining,
                capabilities=[HISTORY_DELTA],
                held=[
                    *self._executing.values(),
                    *(kept.held for kept in self._unacknowledged.values()),
                    *(held for _, held in self._unsent.values()),
                ],
            )
        )

    def closed(self) -> None:
        """The connection is gone. What is held stays held."""
        self._is_open = False

    def received(self, data: bytes, now_ms: int) -> list[Action]:
        """What follows from one frame of the server. Never raises for what a server may send."""
        try:
            frame = decode_server_frame(data)
        except MalformedDocument as refused:
            return self._unreadable(data, refused, now_ms)
        return self._follow(frame, data, now_ms)

    def _follow(self, frame: ServerFrame, data: bytes, now_ms: int) -> list[Action]:
        match frame:
            case Registered():
                return self._registered(frame, now_ms)
            case RegistrationRejected():
                return [Refused(frame.code, frame.message, is_final=frame.code != RETRYABLE_REJECTION)]
            case Invoke():
                return self._invoked(frame.invocation, len(data), now_ms)
            case OutcomeAck():
                return self._acknowledged(frame)
            case Drain():
                return [Note("the server is draining: it gives no new work and will close the connection")]
            case SessionError():
                is_replaced = frame.code == REPLACED
                return [Replaced(frame.message) if is_replaced else Note(f"the server reports {frame.code}: {frame.message}")]

    def finished(self, invocation: Invocation, outcome: bytes, now_ms: int) -> list[bytes]:
        """An invocation has its answer: the frames to send now, if any."""
        held = self._executing.pop(invocation.request_id, None)
        if held is None:
            return []
        return self._answer(held, outcome, now_ms)

    def printed(self, request_id: RequestId, lines: list[LogLine]) -> list[bytes]:
        """Lines of a callback that runs: the frames to send now. What cannot be sent is told by its outcome."""
        if not lines or not self._is_open or request_id not in self._executing:
            return []
        return [encode(Log(PROTOCOL_VERSION, request_id, lines))]

    def reports(self, code: str, message: str) -> list[bytes]:
        """Something of this process that a reader of the server's list of workers should see: the frames to send now."""
        return [encode(SessionError(PROTOCOL_VERSION, code, message))] if self._is_open else []

    def abandoned(self, invocation: Invocation) -> None:
        """An invocation that will never be answered: user code asked the process to stop."""
        self._executing.pop(invocation.request_id, None)

    def drain(self) -> list[bytes]:
        """Takes no new work from now on, over reconnects too."""
        if self._is_draining:
            return []
        self._is_draining = True
        return [encode(Draining(PROTOCOL_VERSION))] if self._is_open else []

    @property
    def due_ms(self) -> int:
        """When `tick` has something to do next."""
        sent = (kept.sent_at_ms for kept in self._unacknowledged.values() if kept.sent_at_ms is not None)
        return min(self._heartbeat_due_ms, min(sent, default=self._heartbeat_due_ms) + RESEND_MS)

    def tick(self, now_ms: int) -> list[bytes]:
        """The heartbeat and the outcomes to send again, as far as they are due."""
        if not self._is_open:
            return []
        frames = [kept.frame for kept in self._unacknowledged.values() if kept.sent_at_ms is None or now_ms - kept.sent_at_ms >= RESEND_MS]
        if frames:
            for kept in self._unacknowledged.values():
                if kept.sent_at_ms is None or now_ms - kept.sent_at_ms >= RESEND_MS:
                    kept.sent_at_ms = now_ms
        if now_ms >= self._heartbeat_due_ms:
            self._heartbeat_due_ms = now_ms + self._heartbeat_ms
            frames.append(encode(Heartbeat(PROTOCOL_VERSION, [*self._executing, *self._unacknowledged])))
        return frames

    def _registered(self, frame: Registered, now_ms: int) -> list[Action]:
        self._is_open = True
        self._session_id = frame.session_id
        self._heartbeat_ms = frame.heartbeat_ms
        self._heartbeat_due_ms = now_ms + frame.heartbeat_ms
        actions: list[Action] = [Opened(frame.session_id, frame.heartbeat_ms, frame.lease_ms)]
        for kept in self._unacknowledged.values():
            kept.sent_at_ms = now_ms
            actions.append(Send(kept.frame))
        actions.extend(Send(outcome) for outcome, _ in self._unsent.values())
        self._unsent.clear()
        return actions

    def _invoked(self, invocation: Invocation, size: int, now_ms: int) -> list[Action]:
        request_id = invocation.request_id
        if request_id in self._executing:
            return []
        kept = self._unacknowledged.get(request_id)
        if kept is not None:
            kept.sent_at_ms = now_ms
            return [Send(kept.frame)]
        held = _held(invocation)
        reason = self._refusal(invocation)
        if reason is not None:
            return self._rejected(held, reason, now_ms)
        whole = self._histories.completed(invocation, size)
        if whole is None:
            return self._rejected(held, "history_missing", now_ms)
        self._executing[request_id] = held
        return [Begin(whole)]

    def _refusal(self, invocation: Invocation) -> RejectionReason | None:
        if invocation.scope != self._facts.scope:
            return "unsupported_target"
        if self._is_draining:
            return "draining"
        if len(self._executing) >= self._facts.capacity:
            return "busy"
        return None

    def _answer(self, held: HeldAttempt, outcome: bytes, now_ms: int) -> list[bytes]:
        is_effect = held.attempt is not None
        if is_effect:
            self._unacknowledged[held.request_id] = _Unacknowledged(outcome, held, now_ms if self._is_open else None)
        elif not self._is_open:
            self._unsent[held.request_id] = (outcome, held)
        return [outcome] if self._is_open else []

    def _acknowledged(self, frame: OutcomeAck) -> list[Action]:
        kept = self._unacknowledged.pop(frame.request_id, None)
        if kept is None or frame.disposition in {"accepted", "replayed"}:
            return []
        attempt = f"attempt {kept.held.attempt} of run {kept.held.run_id}"
        why = f": {frame.message}" if frame.message else ""
        return [Note(f"the server answered the outcome of {attempt} with {frame.disposition}{why}")]

    def _unreadable(self, data: bytes, refused: MalformedDocument, now_ms: int) -> list[Action]:
        """Answers what it can: an invocation of an unknown mode is rejected by its request, anything else by an `error` frame."""
        note = Note(f"a frame of the server could not be read: {refused.why}")
        if isinstance(refused, UnknownVariant) and refused.at.startswith("$.invocation."):
            try:
                asked = _asked.decode(data).invocation
            except msgspec.MsgspecError:
                asked = None
            if asked is not None:
                held = HeldAttempt(asked.request_id, asked.run.run_id, asked.target.attempt, asked.target.attempt_generation)
                return [*self._rejected(held, "unsupported_target", now_ms), note]
        code = "unknown_frame" if isinstance(refused, UnknownVariant) and refused.at in {"$", "$.type"} else "malformed"
        return [Send(encode(SessionError(PROTOCOL_VERSION, code, refused.why))), note]

    def _rejected(self, held: HeldAttempt, reason: RejectionReason, now_ms: int) -> list[Action]:
        rejected = RejectedBeforeStart(reason, held.attempt, held.attempt_generation)
        outcome = encode(Outcome(PROTOCOL_VERSION, held.request_id, held.run_id, rejected))
        return [Send(frame) for frame in self._answer(held, outcome, now_ms)]


class _AskedTarget(msgspec.Struct):
    attempt: int | None = None
    attempt_generation: int | None = None


class _AskedRun(msgspec.Struct):
    run_id: RunId


class _AskedInvocation(msgspec.Struct):
    request_id: RequestId
    run: _AskedRun
    target: _AskedTarget


class _Asked(msgspec.Struct):
    """As much of an `invoke` frame as a rejection needs."""

    invocation: _AskedInvocation


_asked: Final = msgspec.json.Decoder(_Asked)


def _held(invocation: Invocation) -> HeldAttempt:
    target = invocation.target
    if isinstance(target, DiscoveryTarget):
        return HeldAttempt(invocation.request_id, invocation.run.run_id)
    return HeldAttempt(invocation.request_id, invocation.run.run_id, target.attempt, target.attempt_generation)
