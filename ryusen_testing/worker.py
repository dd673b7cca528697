"""A worker process of the harness: the SDK's own session and host, with calls in place of a socket.

Owns the way between a session and the engine, frame by frame in both directions, and what the death of the process means: what it was
doing is cut, what it had not delivered is lost, and the server is told that the connection is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ryusen_protocol.codec import decode_worker_frame, encode
from ryusen_protocol.frames import Draining, Heartbeat, Log, Register, Registered, Software
from ryusen_protocol.ids import InstanceId, ReleaseId, SessionId
from ryusen_protocol.invocation import DiscoveryTarget, Invocation
from ryusen_protocol.outcome import Completed, Declared, DefinitionBlocked, Outcome, Uncaught
from ryusen_sdk.app import Ryusen
from ryusen_sdk.host import Answer, Host, Stopped
from ryusen_sdk.session import Begin, Note, Opened, Refused, Replaced, Send, Session, WorkerFacts
from ryusen_sdk.threads import ThreadPool
from ryusen_server.bootstrap.embedded import EmbeddedServer
from ryusen_testing.clock import VirtualClock
from ryusen_testing.watching import Watch, WatchedEffects

SOFTWARE = Software("ryusen-testing", "1")


class _Channel:
    """Implements `ryusen_server.ports.worker.WorkerChannel`. Frames arrive in a later turn of the loop, in order."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive
        self.is_open = True

    def send(self, frame: bytes) -> None:
        if self.is_open:
            asyncio.get_running_loop().call_soon(self._arrive, frame)

    def _arrive(self, frame: bytes) -> None:
        if self.is_open:
            self._receive(frame)

    def close(self, code: int, reason: str) -> None:
        del code, reason
        self.is_open = False


class HarnessWorker:
    """One worker process. `moved` is set whenever an invocation has been answered."""

    def __init__(
        self,
        app: Ryusen,
        server: EmbeddedServer,
        *,
        name: str,
        release: str,
        capacity: int,
        clock: VirtualClock,
        watch: Watch,
        moved: asyncio.Event,
        differs: Callable[[str], None] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.app = app
        self.name = name
        self.manifest = app.manifest()
        self._server = server
        self._clock = clock
        self._watch = watch
        self._moved = moved
        self._differs = differs
        self._loop = loop
        self._pool = ThreadPool(capacity)
        self._host = Host(app.registry, loop, self._pool, WatchedEffects(loop, self._pool, watch))
        self._host.check()
        self._session = Session(
            WorkerFacts(
                scope=app.scope,
                instance_id=InstanceId(name),
                release_id=ReleaseId(release),
                manifest_digest=self.manifest.digest,
                functions=[function.id for function in self.manifest.functions],
                capacity=capacity,
                sdk=SOFTWARE,
                runtime=SOFTWARE,
            )
        )
        self._channel: _Channel | None = None
        self._session_id: SessionId | None = None
        self._running: dict[str, Invocation] = {}
        self.stopped_by: BaseException | None = None
        """KeyboardInterrupt or SystemExit that user code raised."""
        self.is_alive = True

    @property
    def is_executing(self) -> bool:
        """Whether user code is running, or an answer of it is on its way."""
        return bool(self._running)

    @property
    def executing(self) -> list[str]:
        """What is running, for people."""
        return [_told(invocation) for invocation in self._running.values()]

    # the connection

    async def connect(self) -> None:
        """Open a session. Raises `RuntimeError` if the server refuses it."""
        channel = _Channel(self._received)
        frame = decode_worker_frame(self._session.opening())
        if not isinstance(frame, Register):
            raise AssertionError("a session opens with its registration")
        answer = await self._server.engine.register(frame, channel)
        if not isinstance(answer, Registered):
            raise RuntimeError(f"the worker of {self.app!r} was refused ({answer.code}): {answer.message}")
        self._channel = channel
        self._session_id = answer.session_id
        self._received(encode(answer))

    def cut(self) -> None:
        """The server is gone; this process lives on and goes on with what it read."""
        if self._channel is not None:
            self._channel.is_open = False
        self._channel = None
        self._session_id = None
        self._session.closed()

    def die(self) -> None:
        """The process is gone."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._host.abandon()
        self._pool.close()
        self._running.clear()
        session_id = self._session_id
        self.cut()
        if session_id is not None and not self._server.is_dead:
            self._server.engine.disconnected(session_id, "the worker died")

    def drain(self) -> None:
        """Take no new work; `die` once nothing is left."""
        for frame in self._session.drain():
            self._to_server(frame)

    @property
    def is_drained(self) -> bool:
        return self._session.is_drained

    def beat(self) -> None:
        """The heartbeat, and what is due to be sent again."""
        if self._channel is not None:
            for frame in self._session.tick(self._clock.now_ms()):
                self._to_server(frame)

    # frames

    def _received(self, frame: bytes) -> None:
        for action in self._session.received(frame, self._clock.now_ms()):
            match action:
                case Begin(invocation):
                    self._begin(invocation)
                case Send(sent):
                    self._to_server(sent)
                case Opened() | Note():
                    pass
                case Refused() | Replaced():
                    raise AssertionError(f"the server ended the worker's session: {action}")

    def _to_server(self, data: bytes) -> None:
        session_id, engine = self._session_id, self._server.engine
        if session_id is None or self._server.is_dead:
            return
        match decode_worker_frame(data):
            case Outcome() as outcome:
                engine.outcome(session_id, outcome)
            case Heartbeat(request_ids=named):
                engine.heartbeat(session_id, list(named))
            case Log() as lines:
                engine.log(session_id, lines)
            case Draining():
                engine.draining(session_id)
            case other:
                raise AssertionError(f"a session sent {other}")

    # invocations

    def _begin(self, invocation: Invocation) -> None:
        self._running[invocation.request_id] = invocation
        self._host.start([invocation], self._answered)

    def _answered(self, invocation: Invocation, answer: Answer) -> None:
        self._loop.call_soon_threadsafe(self._finish, invocation, answer)

    def _finish(self, invocation: Invocation, answer: Answer) -> None:
        if not self.is_alive:
            return
        if isinstance(answer, Stopped):
            self._session.abandoned(invocation)
            self.stopped_by = answer.error
            self._moved.set()
            self.die()
            return
        target = invocation.target
        if isinstance(target, DiscoveryTarget):
            if self._differs is not None:
                self._replay(invocation, answer)
                return
        elif target.operation_id in self._watch.lost:
            self._watch.lost.discard(target.operation_id)
            self._moved.set()
            self.die()
            return
        self._deliver(invocation, answer)

    def _replay(self, invocation: Invocation, first: bytes) -> None:
        def answered(_: Invocation, again: Answer) -> None:
            self._loop.call_soon_threadsafe(self._compare, invocation, first, again)

        self._host.start([invocation], answered)

    def _compare(self, invocation: Invocation, first: bytes, again: Answer) -> None:
        if not self.is_alive or self._differs is None:
            return
        one, other = _boundary(first), _boundary(again) if isinstance(again, bytes) else "a stop of the worker"
        if one != other:
            self._differs(f"{_told(invocation)}: the body went on to {one}, and when it was replayed to {other}")
        self._deliver(invocation, first)

    def _deliver(self, invocation: Invocation, answer: bytes) -> None:
        del self._running[invocation.request_id]
        self._moved.set()
        for frame in self._session.finished(invocation, answer, self._clock.now_ms()):
            self._to_server(frame)


def _told(invocation: Invocation) -> str:
    target = invocation.target
    if isinstance(target, DiscoveryTarget):
        return f"the body of {invocation.run.function!r}"
    what = "callback" if target.__struct_config__.tag == "forward" else "compensator"
    return f"the {what} of step {target.step_id!r} of {invocation.run.function!r}"


def _boundary(answer: bytes) -> str:
    """Where a pass ended, without what may differ from one call to the next and mean nothing."""
    frame = decode_worker_frame(answer)
    match frame.outcome if isinstance(frame, Outcome) else None:
        case Declared(declaration):
            return f"step {declaration.step_id!r} ({declaration.__struct_config__.tag})"
        case Completed(result):
            return f"its end with {bytes(result).decode()}"
        case Uncaught(failure):
            return f"an uncaught {failure.category}: {failure.message}"
        case DefinitionBlocked() as blocked:
            return f"the blocker {blocked.reason} at {blocked.step_id!r}"
        case other:
            return str(other)
