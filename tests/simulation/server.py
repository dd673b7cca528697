"""The simulated server's process: the real engine and the real connections of its gateway, over a simulated disk, socket and clock.

It is started, drained and stopped as `bootstrap` does it, and killed at any point. Each life is a new engine over what the last one had
made durable.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from ryusen_protocol.codec import decode_server_frame
from ryusen_protocol.frames import Invoke, OutcomeAck, ServerFrame
from ryusen_protocol.identity import attempt_id
from ryusen_protocol.invocation import DiscoveryTarget, Invocation
from ryusen_protocol.invocation import ForwardTarget as _Forward
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.engine import Engine
from ryusen_server.ports.store import StorageUnavailable
from ryusen_server.transports.connected.connection import ConnectedConfig, WorkerConnection
from tests.simulation.auditing import Auditor
from tests.simulation.durable import Disk, SimulatedStore
from tests.simulation.endpoints import Site
from tests.simulation.network import Conditions, End, FramedProtocol, Wire
from tests.simulation.scheduling import CountedEntropy, Process, SimulatedLoop, Wall
from tests.simulation.workers import Worker

log = logging.getLogger("ryusen_server.simulation")


class WatchedConnection(WorkerConnection):
    """The gateway's connection. Everything the engine sends through it is shown to the auditor first."""

    auditor: Auditor
    early: bool

    def send(self, frame: bytes) -> None:
        sent = decode_server_frame(frame)
        _audit(self.auditor, sent, early=self.early)
        if isinstance(sent, OutcomeAck) and sent.disposition == "stale" and sent.request_id in self.auditor.misspoken:
            self.auditor.misspoken.remove(sent.request_id)
        else:
            super().send(frame)


def audit_invocation(auditor: Auditor, invocation: Invocation, *, early: bool) -> None:
    """An invocation leaves the server, whatever carries it."""
    target = invocation.target
    run_id = invocation.run.run_id
    if isinstance(target, DiscoveryTarget):
        auditor.sent(run_id, invocation.request_id, None)
        if not early:
            audit = auditor.runs.get(run_id)
            durable = audit is not None and audit.shadow.history_digest == invocation.history.digest
            assert durable, f"a pass of {run_id} left before what it is built on was durable"
        return
    phase = "forward" if isinstance(target, _Forward) else "compensation"
    auditor.sent(run_id, invocation.request_id, attempt_id(run_id, target.step_id, phase, target.attempt_generation))


def _audit(auditor: Auditor, sent: ServerFrame, *, early: bool) -> None:
    match sent:
        case Invoke():
            audit_invocation(auditor, sent.invocation, early=early)
        case OutcomeAck():
            auditor.acknowledged(sent.request_id, sent.disposition)
        case _:
            pass


class ServerLife:
    """One process of the server, from its start to its end."""

    def __init__(self, number: int, disk: Disk, loop: SimulatedLoop, clock: Any, entropy: CountedEntropy, config: EngineConfig) -> None:
        self.process = Process(f"server-{number}")
        self.connections: list[WorkerConnection] = []
        self.wires: list[Wire] = []
        self.store: SimulatedStore
        self.engine: Engine
        self.is_ready = False
        self.is_closing = False
        self._clock = clock
        self._entropy = entropy
        self._config = config
        self._disk = disk

    def build(self, crash: Callable[[str], None]) -> None:
        """In its process."""
        self.store = SimulatedStore(self._disk, crash)
        self.engine = Engine(store=self.store, clock=self._clock, entropy=self._entropy, config=self._config)


class SimulatedServer:
    """The server over all its lives."""

    def __init__(
        self,
        *,
        loop: SimulatedLoop,
        wall: Wall,
        entropy: CountedEntropy,
        disk: Disk,
        config: EngineConfig,
        auditor: Auditor,
        conditions: Conditions,
        trace: Callable[[str], None],
        fail: Callable[[str, str], None],
    ) -> None:
        self._fail = fail
        self.loop = loop
        self.wall = wall
        self.disk = disk
        self.config = config
        self.auditor = auditor
        self.conditions = conditions
        self.life: ServerLife | None = None
        self.lives = 0
        self.starts_failed = 0
        self.sites: list[Site] = []
        """Configured endpoints."""
        self._entropy = entropy
        self._trace = trace

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self.life is not None and self.life.is_ready

    # its life

    def start(self) -> None:
        """Begin a life, if there is none."""
        if self.life is not None:
            return
        self.lives += 1
        self.auditor.check_all()
        life = ServerLife(self.lives, self.disk, self.loop, self.wall, self._entropy, self.config)
        self.life = life
        self._trace(f"{life.process.name} starts")
        self.loop.spawn(life.process, self._begin(life))

    async def _begin(self, life: ServerLife) -> None:
        life.build(self.kill)
        try:
            await life.engine.start()
        except StorageUnavailable as error:
            self.starts_failed += 1
            self.kill(f"at its start: {error.reason}")
            return
        if life.process.alive:
            for site in self.sites:
                life.engine.attach_endpoint(site.scope, site.address, site, site.capacity)
            life.is_ready = True
            self.disk.faults.server_is_ready(self.loop)
            self._trace(f"{life.process.name} is ready")

    def kill(self, why: str) -> None:
        """SIGKILL: what is not durable is lost, every connection is reset."""
        life = self.life
        if life is None:
            return
        self._trace(f"{life.process.name} dies {why}")
        life.process.end()
        self.life = None
        self.auditor.server_died()
        for wire in life.wires:
            if wire.is_open and not wire.is_silent:
                wire.worker.told_lost(ConnectionResetError("the server died"))

    def stop(self, bound_ms: int) -> None:
        """SIGTERM: drain, close every connection, stop."""
        life = self.life
        if life is not None and life.is_ready and not life.is_closing:
            life.is_closing = True
            self._trace(f"{life.process.name} drains")
            self.loop.spawn(life.process, self._stop(life, bound_ms))

    async def _stop(self, life: ServerLife, bound_ms: int) -> None:
        await life.engine.drain(bound_ms)
        for connection in life.connections:
            connection.close(1001, "the server is stopping")
        waiting = [connection.lost for connection in life.connections if not connection.lost.done()]
        for lost in waiting:
            await lost
        await life.engine.stop()
        await life.store.flush()
        self.kill("after its drain")

    # its sockets

    def is_listening(self) -> bool:
        """Whether somebody may connect."""
        life = self.life
        return life is not None and life.is_ready and not life.is_closing

    def open_wire(self, worker: Worker) -> End:
        """A worker connects. Raises `OSError` when nobody listens."""
        life = self.life
        if life is None or not life.is_ready or life.is_closing:
            raise ConnectionRefusedError("nobody listens")
        wire = Wire(self.loop, self.conditions, worker.process, life.process)
        worker.end = wire.worker
        life.wires.append(wire)
        self.loop.call_soon(self._accept, life, wire, context=life.process.context)
        return wire.worker

    def _accept(self, life: ServerLife, wire: Wire) -> None:
        connection = WatchedConnection(
            transport=wire.server,
            websocket=FramedProtocol(),  # type: ignore[arg-type]
            engine=life.engine,
            config=ConnectedConfig(),
            loop=self.loop,
            on_lost=life.connections.remove,
        )
        connection.auditor = self.auditor
        connection.early = self.config.early
        wire.server.receiver = connection
        life.connections.append(connection)
        connection.begin(b"")

    # its API

    async def ask(self, request: Callable[[Engine], Awaitable[Any]], *, lose_answer: bool = False, wait_ms: int = 4_000) -> Any:
        """One request of a client outside, and its answer. Raises `Lost` when none comes, `StorageUnavailable` for a 503."""
        await asyncio.sleep(self.conditions.delay_s())
        life = self.life
        if life is None or not life.is_ready:
            raise Lost("nobody listens")
        answered: asyncio.Future[Any] = self.loop.create_future()

        async def handle() -> None:
            answer: Any
            try:
                answer = await request(life.engine)
            except StorageUnavailable as error:
                answer = error
            except Exception as error:  # whatever else comes out of the engine is a defect
                self._fail(f"a request failed: {error!r}", traceback.format_exc())
                raise
            if not answered.done():
                answered.set_result(answer)

        self.loop.spawn(life.process, handle())
        timer = self.loop.call_later(wait_ms / 1000, _give_up, answered)
        answer = await answered
        timer.cancel()
        await asyncio.sleep(self.conditions.delay_s())
        if lose_answer or answer is _NOTHING:
            raise Lost("the answer was lost")
        if isinstance(answer, StorageUnavailable):
            raise answer
        return answer


class Lost(Exception):
    """No answer came: the request may have been obeyed or not."""


_NOTHING = object()


def _give_up(answered: asyncio.Future[Any]) -> None:
    if not answered.done():
        answered.set_result(_NOTHING)
