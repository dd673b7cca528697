"""The connection's side of a connected worker: one thread with one loop, whose connections come one after the other.

Owns publication at start, reconnecting for ever, heartbeats and the end of a worker. What the frames mean is the session's, what runs is
the host's. Nothing of user code runs on this thread but the `on_status` callback.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ryusen_sdk import status
from ryusen_sdk.connection import Connection, Refusal, connect
from ryusen_sdk.errors import RegistrationRejected, RequestRefused, ServerUnreachable, WorkerReplaced
from ryusen_sdk.host import Answer, Host, Stopped
from ryusen_sdk.loop_watch import LoopWatch
from ryusen_sdk.publish import publish
from ryusen_sdk.session import Action, Begin, Note, Opened, Refused, Replaced, Send, Session

if TYPE_CHECKING:
    from ryusen_protocol.invocation import Invocation
    from ryusen_sdk.capture import Lines
    from ryusen_sdk.manifest import Manifest
    from ryusen_sdk.status import OnStatus, WorkerStatus

_log: Final = logging.getLogger("ryusen.worker")
_STOP_SECONDS: Final = 2.0
_PRINT_SECONDS: Final = 0.1
"""How long printed lines wait for more."""
_RETRYABLE_STATUS: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Timings:
    """The waits of a worker, in seconds. `silence_heartbeats` without a byte from the server mean that it is gone."""

    backoff_first: float = 0.1
    backoff_max: float = 10.0
    handshake: float = 10.0
    silence_heartbeats: float = 2.5


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is. `gateway` is the address of its WebSocket."""

    url: str
    gateway: str
    token: str | None
    publishes: bool


class Line:
    """The connection's thread: its loop, its connections one after the other, and the session over all of them."""

    def __init__(self, server: Server, session: Session, manifest: Manifest, host: Host, on_status: OnStatus, timings: Timings) -> None:
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._server = server
        self._session = session
        self._manifest = manifest
        self._host = host
        self._on_status = on_status
        self._timings = timings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ryusen-connection", daemon=True)
        self._connection: Connection | None = None
        self._connections = 0
        self._failures = 0
        """Tries without a registration since the last one; sets the pace of the next."""
        self._is_stopped = False
        self._final: BaseException | None = None
        """Why this worker must end: no further connection is opened."""
        self._asked_to_stop: BaseException | None = None
        """SystemExit or KeyboardInterrupt from user code, to be raised once the rest has drained."""
        self._silence_s = timings.handshake
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._answers: deque[tuple[Invocation, Answer]] = deque()
        self._is_flush_due = False
        self._context = contextvars.Context()
        """What callers bring along, such as the callback that a signal interrupted, has no business on this thread."""
        self._printing: deque[Lines] = deque()
        self._is_print_due = False
        self._watch = LoopWatch(host.loop)
        host.on_lines = self.printed

    # From any thread.

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        self._call(self._drain)

    def stop(self) -> None:
        """Ends at once, and returns when the thread has ended; one that waits for a hanging server is left to itself."""
        self._call(self._stop)
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def finished(self, invocation: Invocation, answer: Answer) -> None:
        """An answer of the host. Those that come close together go out in one write."""
        self._answers.append((invocation, answer))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call(self._flush)

    def printed(self, lines: Lines) -> None:
        """A callback that runs has printed something: told a little later, with what it prints meanwhile, if it still runs then."""
        self._printing.append(lines)
        if not self._is_print_due:
            self._is_print_due = True
            self._call(self._print_soon)

    def _call(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call, context=self._context)
        except RuntimeError:
            return  # the loop has ended, and with it what the call was for

    # On the connection's thread.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._run())
        except BaseException as raised:  # noqa: BLE001 - carried to the thread that called serve
            error = raised
        self._loop.close()
        self._tell(status.Stopped(None if error is None else str(error) or type(error).__name__))
        if self.ended.set_running_or_notify_cancel():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)

    async def _run(self) -> None:
        if self._server.publishes:
            await self._publish()
        while not self._is_over():
            reason = await self._connect_once()
            if self._is_over():
                break
            await self._pause(reason)
        error = self._final or self._asked_to_stop
        if error is not None:
            raise error

    def _is_over(self) -> bool:
        return self._is_stopped or self._final is not None or self._session.is_drained

    async def _publish(self) -> None:
        """Activates the manifest; a server that is not up yet is waited for, visibly."""
        scope = self._session.scope
        while not self._is_over():
            try:
                receipt = publish(scope, self._manifest, self._server.url, self._server.token)
            except ServerUnreachable as error:
                await self._pause(str(error))
            except RequestRefused as refused:
                if refused.status < 500 and refused.status not in _RETRYABLE_STATUS:
                    raise
                await self._pause(str(refused))
            else:
                self._failures = 0
                self._tell(status.Published(self._manifest.digest, is_new=receipt is not None))
                return

    async def _connect_once(self) -> str:
        """One connection from its opening to its end, and why it ended."""
        self._connections += 1
        self._tell(status.Connecting(self._server.url, self._connections))
        handshake = self._loop.call_later(self._timings.handshake, self._give_up)
        try:
            async with asyncio.timeout(self._timings.handshake):
                connection = await connect(self._server.gateway, self._server.token, self, self._adopt)
            reason = await connection.closed
        except OSError as error:
            reason = error
        finally:
            handshake.cancel()
            self._disown()
        if isinstance(reason, Refusal) and 400 <= reason.status < 500 and reason.status not in _RETRYABLE_STATUS:
            code = {401: "unauthorized", 403: "forbidden"}.get(reason.status, f"http_{reason.status}")
            self._reject(code, str(reason))
        return "the server closed the connection" if reason is None else str(reason) or type(reason).__name__

    def _adopt(self, connection: Connection) -> None:
        self._connection = connection

    def _disown(self) -> None:
        if self._connection is not None:
            self._connection.abort(None)
        self._connection = None
        self._session.closed()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._connection is not None and not self._session.is_open:
            self._connection.abort(TimeoutError(f"no registration within {self._timings.handshake:g} s"))

    async def _pause(self, reason: str) -> None:
        """Waits before the next try, longer each time; a drain or stop ends the wait."""
        pace = min(self._timings.backoff_max, self._timings.backoff_first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        delay = pace * random.uniform(0.5, 1.0)  # noqa: S311 - spreads reconnecting workers, guards nothing
        self._tell(status.Disconnected(reason, round(delay * 1000)))
        self._wake.clear()
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            return

    def opened(self) -> None:
        """The connection's handshake is done: registers."""
        if self._connection is not None:
            self._connection.send([self._session.opening()])

    def messages(self, batch: list[bytes]) -> None:
        """All frames of one read: what begins goes to the host together, what is answered leaves in one write."""
        now_ms = self._now_ms()
        begun: list[Invocation] = []
        frames: list[bytes] = []
        for data in batch:
            for action in self._session.received(data, now_ms):
                self._perform(action, begun, frames)
        if frames and self._connection is not None:
            self._connection.send(frames)
        if begun:
            self._host.start(begun, self.finished)
        self._close_if_drained()

    def _perform(self, action: Action, begun: list[Invocation], frames: list[bytes]) -> None:
        match action:
            case Begin(invocation):
                begun.append(invocation)
            case Send(frame):
                frames.append(frame)
            case Opened(session_id, heartbeat_ms, _):
                self._failures = 0
                self._silence_s = self._timings.silence_heartbeats * heartbeat_ms / 1000
                self._arm()
                self._tell(status.Connected(session_id, tuple(self._session.functions), self._session.capacity))
            case Refused(code, message, is_final):
                if is_final:
                    self._reject(code, message)
                else:
                    self._abort(ConnectionError(f"the server is not ready ({code}): {message}"))
            case Replaced(message):
                self._final = WorkerReplaced(f"another process took this worker's place: {message}")
                self._tell(status.Rejected("replaced", message))
                self._abort(None)
            case Note(text):
                self._tell(status.Noted(text))

    def _reject(self, code: str, message: str) -> None:
        self._final = RegistrationRejected(code, message)
        self._tell(status.Rejected(code, message))
        self._abort(None)

    def _abort(self, why: Exception | None) -> None:
        if self._connection is not None:
            self._connection.abort(why)

    def _flush(self) -> None:
        self._is_flush_due = False
        now_ms = self._now_ms()
        frames: list[bytes] = []
        while self._answers:
            invocation, answer = self._answers.popleft()
            if isinstance(answer, Stopped):
                self._session.abandoned(invocation)
                self._final_after_drain(answer.error)
            else:
                frames.extend(self._session.finished(invocation, answer, now_ms))
        if frames and self._connection is not None:
            self._connection.send(frames)
        self._close_if_drained()

    def _print_soon(self) -> None:
        self._loop.call_later(_PRINT_SECONDS, self._print)

    def _print(self) -> None:
        self._is_print_due = False
        frames: list[bytes] = []
        while self._printing:
            lines = self._printing.popleft()
            frames.extend(self._session.printed(lines.request_id, lines.untold()))
        if frames and self._connection is not None:
            self._connection.send(frames)

    def _final_after_drain(self, error: BaseException) -> None:
        self._asked_to_stop = self._asked_to_stop or error
        self._drain()

    def _drain(self) -> None:
        if not self._session.is_draining:
            frames = self._session.drain()
            self._tell(status.DrainStarted(self._session.executing, self._session.unacknowledged))
            if frames and self._connection is not None:
                self._connection.send(frames)
        self._wake.set()
        self._close_if_drained()

    def _stop(self) -> None:
        self._is_stopped = True
        self._wake.set()
        self._abort(None)

    def _close_if_drained(self) -> None:
        if self._session.is_drained and self._connection is not None:
            self._connection.close()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, (self._session.due_ms - self._now_ms()) / 1000), self._tick)

    def _tick(self) -> None:
        connection = self._connection
        if connection is None:
            return
        silent = self._loop.time() - connection.received_at
        if silent > self._silence_s:
            connection.abort(TimeoutError(f"not a byte from the server for {silent:.0f} s"))
            return
        connection.send(self._session.tick(self._now_ms()))
        connection.ping()
        self._look_at_loop(connection)
        self._arm()

    def _look_at_loop(self, connection: Connection) -> None:
        change = self._watch.look()
        if change is None:
            return
        code, message = change
        self._tell(status.Noted(message))
        connection.send(self._session.reports(code, message))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tell(self, change: WorkerStatus) -> None:
        try:
            self._on_status(change)
        except Exception:  # noqa: BLE001 - user code runs here, and must not end the connection
            _log.exception("the on_status callback failed")
