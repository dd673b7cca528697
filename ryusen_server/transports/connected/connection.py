"""Moves bytes between one worker's socket, its session and the engine. Decides nothing a test would want without a socket.

Received frames are handed on at once, on the loop thread, before anything else is read: none is lost at a close, and nothing commits in
a task that a close could cancel. What is sent during one turn of the loop leaves in one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, assert_never, cast

import msgspec
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.frames import Draining, Heartbeat, Log, Register, Registered, RegistrationRejected, SessionError
from ryusen_protocol.ids import RequestId, SessionId
from ryusen_protocol.limits import MIB, REQUEST_BYTES_MAX
from ryusen_protocol.outcome import Outcome
from ryusen_server.ports.store import StorageUnavailable
from ryusen_server.ports.worker import WorkerChannel
from ryusen_server.transports.connected import session as s
from ryusen_server.transports.connected.liveness import Liveness

_log = logging.getLogger(__name__)

GOING_AWAY = 1001
INTERNAL_ERROR = 1011


class ConnectedConfig(msgspec.Struct, frozen=True):
    """Bounds of a connection. `unread_bytes_max`: what may wait for a worker that does not read before it is given up."""

    frame_bytes_max: int = REQUEST_BYTES_MAX
    unread_bytes_max: int = 64 * MIB
    register_within_ms: int = 5_000
    ping_after_ms: int = 10_000
    silent_after_ms: int = 25_000
    linger_ms: int = 2_000
    """How long a peer has to take the last bytes and close in its turn."""


class WorkersSide(Protocol):
    """What of the engine a connection calls. All but `register` answer at once; see the engine for what they mean."""

    async def register(self, frame: Register, channel: WorkerChannel, /) -> Registered | RegistrationRejected: ...
    def outcome(self, session_id: SessionId, outcome: Outcome, /) -> None: ...
    def unreadable_outcome(self, session_id: SessionId, request_id: RequestId, why: str, /) -> None: ...
    def heartbeat(self, session_id: SessionId, request_ids: list[RequestId], /) -> None: ...
    def log(self, session_id: SessionId, frame: Log, /) -> None: ...
    def loop_reported(self, session_id: SessionId, frame: SessionError, /) -> None: ...
    def draining(self, session_id: SessionId, /) -> None: ...
    def disconnected(self, session_id: SessionId, reason: str, /) -> None: ...


class WorkerConnection:
    """One worker's socket after the upgrade. It is the `WorkerChannel` the engine sends through. Loop thread only."""

    def __init__(
        self,
        *,
        transport: asyncio.Transport,
        websocket: ServerProtocol,
        engine: WorkersSide,
        config: ConnectedConfig,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[WorkerConnection], None],
        may_execute: s.MayExecute = s.anybody,
    ) -> None:
        self.lost: asyncio.Future[None] = loop.create_future()
        self._transport = transport
        self._websocket = websocket
        self._engine = engine
        self._config = config
        self._loop = loop
        self._on_lost = on_lost
        self._session = s.Session(may_execute)
        self._liveness = Liveness(
            self._now_ms(),
            register_within_ms=config.register_within_ms,
            ping_after_ms=config.ping_after_ms,
            silent_after_ms=config.silent_after_ms,
        )
        self._message = bytearray()
        self._message_is_text = True
        self._held: list[bytes] | None = []
        """What the engine sends before the worker has been told that it is registered."""
        self._flush_due = False
        self._stalled_since_ms: int | None = None
        self._closing = False
        self._gone_because = "the connection was lost"
        self._registration: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    def begin(self, received: bytes) -> None:
        """Start reading. `received` is what came in behind the handshake."""
        self._watch()
        if received:
            self.data_received(received)

    @property
    def registered(self) -> bool:
        """Whether its session is open."""
        return self._session.phase == "open"

    # --- the engine's side -------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """See `WorkerChannel`."""
        if self._held is not None:
            self._held.append(frame)
        else:
            self._write(frame)

    def close(self, code: int, reason: str) -> None:
        """See `WorkerChannel`."""
        if self._closing or self.lost.done():
            return
        self._closing = True
        self._session.closed_here()
        self._gone_because = f"the server closed the session: {reason}"
        self._release()
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(code, reason)
        self._schedule_flush()
        self._linger_on()

    # --- the socket's side -------------------------------------------------------------------------------------------

    def access_changed(self) -> None:
        """Who may do what has changed."""
        self._perform(self._session.access_changed())

    def data_received(self, data: bytes) -> None:
        """Bytes from the worker."""
        self._liveness.heard(self._now_ms())
        self._websocket.receive_data(data)
        for event in self._websocket.events_received():
            self._frame_received(cast("Frame", event))  # a server's events are frames
        if self._websocket.parser_exc is not None and not self._closing:
            self._closing = True
            self._session.closed_here()
            self._gone_because = f"the connection failed: {self._websocket.parser_exc}"
            _log.warning("a worker's connection failed: %s", s.printable(str(self._websocket.parser_exc)))
        self._schedule_flush()

    def eof_received(self) -> None:
        """The worker sends no more; the transport closes itself then."""
        self._websocket.receive_eof()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        if self.lost.done():
            return
        self.lost.set_result(None)
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._held = None
        reason = self._gone_because if error is None else f"{self._gone_because} ({error})"
        self._perform(self._session.lost(reason))
        self._on_lost(self)

    def pause_writing(self) -> None:
        """The worker reads more slowly than it is sent to."""
        self._stalled_since_ms = self._now_ms()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stalled_since_ms = None

    def abort(self, reason: str) -> None:
        """End it without a word."""
        if not self.lost.done():
            self._gone_because = reason
            self._transport.abort()

    # --- in between --------------------------------------------------------------------------------------------------

    def _frame_received(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._message_is_text = frame.opcode is Opcode.TEXT
                self._part_received(frame.data, fin=frame.fin)
            case Opcode.CONT:
                self._part_received(frame.data, fin=frame.fin)
            case Opcode.CLOSE:
                received = self._websocket.close_rcvd
                self._gone_because = f"the worker closed the session ({received})"
            case Opcode.PING | Opcode.PONG:
                pass  # the library answers a ping, and either is a sign of life

    def _part_received(self, data: bytes | bytearray | memoryview, *, fin: bool) -> None:
        if not fin or self._message:
            self._message += data
            if not fin:
                return
            message = bytes(self._message)
            self._message.clear()
        else:
            message = bytes(data)
        self._perform(self._session.frame_received(message) if self._message_is_text else self._session.binary_received())

    def _perform(self, actions: list[s.Action]) -> None:
        for action in actions:
            try:
                self._do(action)
            except Exception:  # noqa: BLE001 - one worker's frame must not take the others down; the log says what is wrong here
                _log.exception("a worker's frame could not be handled")
                self.close(INTERNAL_ERROR, "the server failed to handle a frame")

    def _do(self, action: s.Action) -> None:  # noqa: C901, PLR0912 - one branch an action
        session_id = self._session.session_id
        match action:
            case Outcome():
                self._engine.outcome(_known(session_id), action)
            case Heartbeat():
                self._engine.heartbeat(_known(session_id), action.request_ids)
            case s.Send():
                self._write(action.frame)
            case s.Unreadable():
                self._engine.unreadable_outcome(_known(session_id), action.request_id, action.why)
            case Log():
                self._engine.log(_known(session_id), action)
            case SessionError():
                self._engine.loop_reported(_known(session_id), action)
            case Draining():
                self._engine.draining(_known(session_id))
            case s.Begin():
                self._liveness.registered()
                self._transport.pause_reading()
                self._registration = self._loop.create_task(self._register(action.frame))
            case s.Opened():
                self._release()
            case s.Close():
                self.close(action.code, action.reason)
            case s.Reported():
                _log.warning("%s", action.text)
            case s.Ended():
                self._engine.disconnected(action.session_id, action.reason)
            case _:
                assert_never(action)

    async def _register(self, frame: Register) -> None:
        try:
            answer = await self._engine.register(frame, self)
        except StorageUnavailable as refused:
            answer = RegistrationRejected(PROTOCOL_VERSION, "unavailable", f"the database cannot be written: {refused.reason}")
        except Exception:  # noqa: BLE001 - as above
            _log.exception("a registration could not be handled")
            answer = RegistrationRejected(PROTOCOL_VERSION, "unavailable", "the server failed to handle the registration")
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._perform(self._session.registration_answered(answer))

    def _release(self) -> None:
        held, self._held = self._held, None
        for frame in held or ():
            self._write(frame)

    def _write(self, frame: bytes) -> None:
        try:
            self._websocket.send_text(frame)
        except InvalidState:  # the worker has closed; what it did not get is asked for again or proven not begun
            return
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        chunks = self._websocket.data_to_send()
        if not chunks or self._transport.is_closing():
            return
        ends = chunks[-1] == b""
        self._transport.write(b"".join(chunks))
        unread = self._transport.get_write_buffer_size()
        if unread > self._config.unread_bytes_max:
            _log.warning("a worker does not read: %d bytes wait for it; its connection is given up", unread)
            self.abort(f"the worker does not read: {unread} bytes wait for it")
        elif ends:
            self._linger_on()
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _linger_on(self) -> None:
        """A close at once would throw away what the peer has not read yet; a peer that does not close gets a bound."""
        if self._linger is None:
            self._linger = self._loop.call_later(self._config.linger_ms / 1000, self._transport.abort)

    def _watch(self) -> None:
        if self.lost.done():
            return
        now_ms = self._now_ms()
        verdict = self._liveness.verdict(now_ms)
        if self._stalled_since_ms is not None and now_ms - self._stalled_since_ms >= self._config.silent_after_ms:
            verdict = "silent"
        match verdict:
            case "wait":
                pass
            case "ping":
                if self._websocket.state is State.OPEN:
                    self._websocket.send_ping(b"")
                    self._schedule_flush()
            case "unregistered":
                self._liveness.registered()
                self._perform(self._session.unregistered())
            case "silent":
                _log.warning("a worker has been silent for %d ms; its connection is given up", self._config.silent_after_ms)
                self.abort("the worker fell silent")
                return
            case _:
                assert_never(verdict)
        self._timer = self._loop.call_later(self._liveness.look_again_in_ms(now_ms) / 1000, self._watch)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _known(session_id: SessionId | None) -> SessionId:
    assert session_id is not None, "a frame reaches the engine only under an open session"  # noqa: S101 - an invariant of Session
    return session_id
