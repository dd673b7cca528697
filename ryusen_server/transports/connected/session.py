"""The session of one connected worker without its socket: frames in, actions out.

```
awaiting_register --register--> registering --registered--> open
        |                            |                        |
        +------ anything else -------+------ rejected --------+--- closed here ---> closed
```
Owns which frame is allowed when, what an unreadable frame is answered with, and that the end of a session is told once. Knows no socket,
no clock and no engine. Frames that arrive while the registration is being decided are kept and follow it in order. Repeated members of a
frame are taken as JSON readers commonly take them (the last one counts): only this codec is that lenient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import MalformedDocument, UnknownVariant, UnsupportedProtocolVersion, decode_worker_frame, encode
from ryusen_protocol.frames import (
    LOOP_BLOCKED,
    LOOP_FREE,
    Draining,
    Heartbeat,
    Log,
    Register,
    Registered,
    RegistrationRejected,
    SessionError,
    WorkerFrame,
)
from ryusen_protocol.ids import RequestId, SessionId
from ryusen_protocol.outcome import Outcome
from ryusen_protocol.scope import Scope
from ryusen_protocol.submission import identifier_problem
from ryusen_protocol.words import printable

POLICY_VIOLATION = 1008
TRY_AGAIN_LATER = 1013
_SHOWN_CHARACTERS_MAX = 200


class Begin(msgspec.Struct, frozen=True):
    """Ask for the registration to be decided."""

    frame: Register


class Opened(msgspec.Struct, frozen=True):
    """The session is open under this id; what was sent meanwhile may follow."""

    session_id: SessionId


class Send(msgspec.Struct, frozen=True):
    """Send an encoded frame."""

    frame: bytes


class Close(msgspec.Struct, frozen=True):
    """Close the connection once everything is sent."""

    code: int
    reason: str


class Unreadable(msgspec.Struct, frozen=True):
    """An outcome came that cannot be read but for its request."""

    request_id: RequestId
    why: str


class Reported(msgspec.Struct, frozen=True):
    """Something worth a line in the log, fit to print."""

    text: str


class Ended(msgspec.Struct, frozen=True):
    """The session is over. Told once, and only for a session that had begun."""

    session_id: SessionId
    reason: str


Action = Begin | Opened | Send | Close | Unreadable | Reported | Ended | Outcome | Heartbeat | Log | Draining | SessionError
"""What the neighbour is to do. A worker's frame stands for itself: it goes to the engine as it is."""

Phase = Literal["awaiting_register", "registering", "open", "closed"]


class _Head(msgspec.Struct):
    """What can be read of a frame that cannot be read."""

    type: str
    request_id: str = ""


_HEADS = msgspec.json.Decoder(_Head)


MayExecute = Callable[[Scope], bool]
"""Whether who opened a connection may run work of a scope, by what counts when it is asked."""


def anybody(scope: Scope) -> bool:
    """Of a server without credentials."""
    del scope
    return True


class Session:
    """One connection's session. Feed it what happens; do what it answers, in order."""

    def __init__(self, may_execute: MayExecute = anybody) -> None:
        self._may_execute = may_execute
        self._scope: Scope | None = None
        self.phase: Phase = "awaiting_register"
        self.session_id: SessionId | None = None
        self._waiting: list[bytes] = []
        self._lost: str | None = None
        self._ended = False

    def frame_received(self, data: bytes) -> list[Action]:
        """A text frame arrived."""
        match self.phase:
            case "open":
                return self._worker_frame(data)
            case "registering":
                self._waiting.append(data)
                return []
            case "awaiting_register":
                return self._first_frame(data)
            case "closed":
                return []

    def binary_received(self) -> list[Action]:
        """A binary frame arrived."""
        if self.phase == "closed":
            return []
        return [_error("malformed_frame", "frames are text; a binary frame was not read")]

    def registration_answered(self, answer: Registered | RegistrationRejected) -> list[Action]:
        """The engine decided the registration."""
        if isinstance(answer, RegistrationRejected):
            return self._reject(answer)
        self.session_id = answer.session_id
        if self._lost is not None:
            return self._end(self._lost)
        if self.phase == "closed":
            return []
        if not self._is_allowed():  # any more
            return self._reject(_FORBIDDEN)
        self.phase = "open"
        actions: list[Action] = [Send(encode(answer)), Opened(answer.session_id)]
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            actions += self._worker_frame(data)
        return actions

    def access_changed(self) -> list[Action]:
        """Who may do what has changed: a session that would not be opened now does not go on."""
        if self.phase != "open" or self._is_allowed():
            return []
        return [_error(_FORBIDDEN.code, _FORBIDDEN.message), Close(POLICY_VIOLATION, "the token no longer allows this session")]

    def _is_allowed(self) -> bool:
        return self._scope is None or self._may_execute(self._scope)

    def unregistered(self) -> list[Action]:
        """The time for the first frame is over."""
        if self.phase != "awaiting_register":
            return []
        self.phase = "closed"
        return [Close(POLICY_VIOLATION, "no register frame came in time")]

    def closed_here(self) -> None:
        """This side closes the connection: what still arrives is not read, and comes again under the next session."""
        self.phase = "closed"
        self._waiting.clear()

    def lost(self, reason: str) -> list[Action]:
        """The connection is gone."""
        self.phase = "closed"
        self._waiting.clear()
        self._lost = reason
        return [] if self.session_id is None else self._end(reason)

    def _end(self, reason: str) -> list[Action]:
        if self._ended or self.session_id is None:
            return []
        self._ended = True
        return [Ended(self.session_id, reason)]

    def _first_frame(self, data: bytes) -> list[Action]:
        try:
            frame = _decode(data)
        except UnsupportedProtocolVersion as refused:
            return self._reject(_rejection("unsupported_version", refused.why))
        except UnknownVariant as refused:
            return self._not_register(refused.variant) if refused.at == "$.type" else self._reject(_rejection("malformed", refused.why))
        except MalformedDocument as refused:
            head = _head(data)
            if head is not None and head.type != "register":
                return self._not_register(head.type)
            return self._reject(_rejection("malformed", refused.why))
        if not isinstance(frame, Register):
            return self._not_register(frame.__struct_config__.tag)
        # Before anything of the frame is looked up: its scope selects what it is about, and grants nothing.
        self._scope = frame.scope
        if not self._is_allowed():
            return self._reject(_FORBIDDEN)
        self.phase = "registering"
        return [Begin(frame)]

    def _not_register(self, found: object) -> list[Action]:
        self.phase = "closed"
        shown = _shown(str(found))
        return [
            _error("not_registered", f"the first frame of a session is register, not {shown}"),
            Close(POLICY_VIOLATION, "the first frame was not register"),
        ]

    def _reject(self, rejection: RegistrationRejected) -> list[Action]:
        if self._lost is not None:
            return []
        self.phase = "closed"
        self._waiting.clear()
        code = TRY_AGAIN_LATER if rejection.code == "unavailable" else POLICY_VIOLATION
        return [
            Reported(f"a worker was refused ({_shown(rejection.code)}): {_shown(rejection.message)}"),
            Send(encode(rejection)),
            Close(code, "registration rejected"),
        ]

    def _worker_frame(self, data: bytes) -> list[Action]:
        try:
            frame = _decode(data)
        except MalformedDocument as refused:
            return _unreadable(data, refused)
        match frame:
            case Register():
                return [_error("already_registered", "this session is registered; open another connection to register again")]
            case SessionError() if frame.code in {LOOP_BLOCKED, LOOP_FREE}:
                return [frame]
            case SessionError():
                return [Reported(f"a worker reports {_shown(frame.code)}: {_shown(frame.message)}")]
            case _:
                return [frame]


_FORBIDDEN = RegistrationRejected(PROTOCOL_VERSION, "forbidden", "The token does not allow to run this application's work.")


def _decode(data: bytes) -> WorkerFrame:
    """WebSocket text is UTF-8 by contract, which nothing below checks where a value is kept as raw text."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as broken:
            raise MalformedDocument(f"not valid UTF-8 at byte {broken.start}") from None
    return decode_worker_frame(data)


def _unreadable(data: bytes, refused: MalformedDocument) -> list[Action]:
    head = _head(data)
    if head is not None and head.type == "outcome" and identifier_problem("request id", head.request_id, "$.request_id") is None:
        return [Unreadable(RequestId(head.request_id), refused.why)]
    if isinstance(refused, UnsupportedProtocolVersion):
        return [_error("unsupported_version", refused.why)]
    if isinstance(refused, UnknownVariant) and refused.at == "$.type":
        return [_error("unknown_frame", f"this server knows no {_shown(refused.variant)} frame; it was passed over")]
    return [_error("malformed_frame", f"the frame was not read: {_shown(refused.why)}")]


def _head(data: bytes) -> _Head | None:
    """Type and request of a frame whose rest may be anything, if even these can be read."""
    try:
        return _HEADS.decode(data.decode(errors="replace"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _error(code: str, message: str) -> Send:
    return Send(encode(SessionError(PROTOCOL_VERSION, code, message)))


def _rejection(code: str, why: str) -> RegistrationRejected:
    return RegistrationRejected(PROTOCOL_VERSION, code, f"the register frame was not read: {_shown(why)}")


def _shown(text: str) -> str:
    return printable(text[:_SHOWN_CHARACTERS_MAX])
