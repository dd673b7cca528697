"""Frames of the connected transport (`protocol` 6): one JSON document a WebSocket text frame."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ryusen_protocol.ids import FunctionId, InstanceId, ReleaseId, RequestId, RunId, SessionId
from ryusen_protocol.invocation import Invocation
from ryusen_protocol.limits import Int53, Limits
from ryusen_protocol.outcome import LogLine, Outcome
from ryusen_protocol.scope import Scope

SUBPROTOCOL: Final = "ryusen.v1.json"
CONNECT_PATH: Final = "/v1/connect"
HISTORY_DELTA: Final = "history_delta"
"""Capability: an invocation may send only the completed steps that this worker process does not hold."""

LOOP_BLOCKED: Final = "loop_blocked"
"""Code of a worker's `error` frame: its user loop does not turn, so that its coroutines do not go on. The message says where it is."""
LOOP_FREE: Final = "loop_free"
"""It turns again."""

Disposition = Literal["accepted", "replayed", "stale", "discarded", "malformed"]


class Software(msgspec.Struct, frozen=True):
    """Name and version of an SDK or a language runtime."""

    name: str
    version: str


class ExecutionContract(msgspec.Struct, frozen=True):
    """What a worker can run mechanically: protocol major, value codec, declared features."""

    protocol_version: Int53
    value_codec: Int53
    features: list[str] = []


class HeldAttempt(msgspec.Struct, frozen=True):
    """An invocation the worker has read and is executing or has not had acknowledged. Discovery has no attempt."""

    request_id: RequestId
    run_id: RunId
    attempt: Int53 | None = None
    attempt_generation: Int53 | None = None


class Register(msgspec.Struct, frozen=True, tag_field="type", tag="register"):
    """The first frame of a session. `connection` counts this instance's connections from 1."""

    protocol_version: Int53
    scope: Scope
    instance_id: InstanceId
    connection: Int53
    manifest_digest: str
    functions: list[FunctionId]
    contract: ExecutionContract
    capacity: Int53
    sdk: Software
    runtime: Software
    previous_session: SessionId | None = None
    release_id: ReleaseId | None = None
    capabilities: list[str] = []
    draining: bool = False
    held: list[HeldAttempt] = []


class Registered(msgspec.Struct, frozen=True, tag_field="type", tag="registered"):
    """The session is open. `wanted` names the held attempts whose outcome the server still waits for."""

    protocol_version: Int53
    session_id: SessionId
    capabilities: list[str]
    limits: Limits
    heartbeat_ms: Int53
    lease_ms: Int53
    wanted: list[RequestId]


class RegistrationRejected(msgspec.Struct, frozen=True, tag_field="type", tag="registration_rejected"):
    """The session is refused. Every code but `unavailable` is final: the worker stops, visibly."""

    protocol_version: Int53
    code: str
    message: str


class Invoke(msgspec.Struct, frozen=True, tag_field="type", tag="invoke"):
    """Carries an invocation to the worker."""

    protocol_version: Int53
    invocation: Invocation


class OutcomeAck(msgspec.Struct, frozen=True, tag_field="type", tag="outcome_ack"):
    """Final word on an effect's outcome, sent only after the commit. Discovery outcomes are never acknowledged."""

    protocol_version: Int53
    request_id: RequestId
    disposition: Disposition
    message: str | None = None


class Log(msgspec.Struct, frozen=True, tag_field="type", tag="log"):
    """Lines of a callback that is still running. Best effort."""

    protocol_version: Int53
    request_id: RequestId
    lines: list[LogLine]


class Heartbeat(msgspec.Struct, frozen=True, tag_field="type", tag="heartbeat"):
    """Names every request the worker is executing, discovery too; renews their leases."""

    protocol_version: Int53
    request_ids: list[RequestId]


class Draining(msgspec.Struct, frozen=True, tag_field="type", tag="draining"):
    """The worker takes no new work; it finishes, awaits every acknowledgement, then closes."""

    protocol_version: Int53


class Drain(msgspec.Struct, frozen=True, tag_field="type", tag="drain"):
    """The server stops leasing and will close."""

    protocol_version: Int53


class SessionError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """Something was wrong with a frame. Only `replaced` ends the worker."""

    protocol_version: Int53
    code: str
    message: str


WorkerFrame = Register | Outcome | Log | Heartbeat | Draining | SessionError
ServerFrame = Registered | RegistrationRejected | Invoke | OutcomeAck | Drain | SessionError
