"""The engine: what transports, the API and the wiring call, on the event loop's thread.

Each call decides in memory and returns; what it came to leaves for a worker, or is acknowledged, when it is durable. The work is done by
the parts this puts together: `Control` (heads, events, fan-out), `Sessions` (workers), `Operations` (people), `Mover` and `Sweeper` (time
and faults).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import encode
from ryusen_protocol.frames import Drain, Log, Register, Registered, RegistrationRejected, SessionError
from ryusen_protocol.ids import FunctionId, RequestId, RoutingGeneration, RunId, SessionId, Workspace
from ryusen_protocol.manifest import Publication
from ryusen_protocol.operator import RefusalEnvelope, ResolveCommand
from ryusen_protocol.outcome import Outcome
from ryusen_protocol.problems import Problem
from ryusen_protocol.scope import Scope
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel
from ryusen_server.core.rows import ManifestRow, ReleaseRow
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.control import Control
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.exchanges import Exchanges
from ryusen_server.engine.families import Families
from ryusen_server.engine.feed import Feed
from ryusen_server.engine.fleet import Fleet
from ryusen_server.engine.leases import Leases
from ryusen_server.engine.logs import AttemptLogs
from ryusen_server.engine.matching import Matching
from ryusen_server.engine.moving import Mover
from ryusen_server.engine.operations import Operations
from ryusen_server.engine.pruning import Pruned, Pruner
from ryusen_server.engine.registration import Registrar
from ryusen_server.engine.runs import Runs
from ryusen_server.engine.sessions import Sessions
from ryusen_server.engine.sweeping import Sweeper
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest, ContactView, Present, StoppedRun, WorkerView
from ryusen_server.engine.waited import UnderWay, WaitedNames
from ryusen_server.engine.waiting import Waiters
from ryusen_server.ports.store import Store
from ryusen_server.ports.time import Clock, Entropy
from ryusen_server.ports.worker import Endpoint, WorkerChannel

log = logging.getLogger(__name__)


class Engine:
    """One server's engine. Everything runs on one event loop; nothing here blocks."""

    def __init__(self, *, store: Store, clock: Clock, entropy: Entropy, config: EngineConfig) -> None:
        self.config = config
        self.waiters = Waiters()
        self.feed = Feed(store)
        self._store = store
        self._clock = clock
        self._fleet = fleet = Fleet()
        self._leases = leases = Leases(config.lease_ms, config.heartbeat_ms, config.exchange_ms)
        waited, under_way = WaitedNames(), UnderWay()
        self._runs = runs = Runs(
            store=store,
            clock=clock,
            entropy=entropy,
            waiters=self.waiters,
            waited=waited,
            early=config.early,
            in_memory_max=config.runs_in_memory,
        )
        self._dispatcher = dispatcher = Dispatcher(runs=runs, fleet=fleet, clock=clock, config=config, wake=self._wake)
        matching = Matching(store=store, runs=runs, dispatcher=dispatcher, under_way=under_way)
        self._control = control = Control(
            store=store,
            runs=runs,
            dispatcher=dispatcher,
            clock=clock,
            entropy=entropy,
            config=config,
            waiters=self.waiters,
            waited=waited,
            under_way=under_way,
            matching=matching,
        )
        self._mover = mover = Mover(
            runs=runs, fleet=fleet, leases=leases, dispatcher=dispatcher, control=control, clock=clock, config=config
        )
        self._sweeper = Sweeper(store=store, mover=mover, fleet=fleet, leases=leases, dispatcher=dispatcher, clock=clock, config=config)
        self._operations = Operations(store=store, runs=runs, dispatcher=dispatcher, clock=clock)
        self._logs = logs = AttemptLogs(store=store, mover=mover, clock=clock)
        self._sessions = Sessions(
            store=store,
            runs=runs,
            fleet=fleet,
            leases=leases,
            dispatcher=dispatcher,
            control=control,
            mover=mover,
            logs=logs,
            clock=clock,
            config=config,
        )
        self._sessions.registrar = Registrar(
            config=config,
            disconnect=self._sessions.disconnected,
            fleet=fleet,
            leases=leases,
            control=control,
            runs=runs,
            load=mover.load_alone,
            clock=clock,
            entropy=entropy,
        )
        self._exchanges = exchanges = Exchanges(
            runs=runs,
            fleet=fleet,
            dispatcher=dispatcher,
            mover=mover,
            logs=logs,
            clock=clock,
            config=config,
            pass_answered=self._sessions.discovery_answered,
        )
        self._sessions.exchanges = exchanges
        self._entropy = entropy
        control.on_activated = exchanges.activated
        self._families = families = Families(store=store, runs=runs, dispatcher=dispatcher)
        matching.tasks = families.tasks = mover
        mover.families = families
        control.spawn = mover.spawn
        dispatcher.time_out = matching.time_out
        runs.performer = self._sessions
        self._pruner = Pruner(store=store, runs=runs, clock=clock)
        runs.acceptor = control
        runs.owed = families.owed

    def _wake(self, run_id: RunId) -> None:
        self._mover.wake(run_id)

    # life

    async def start(self) -> None:
        """Recover: heads, fan-outs, what is authorized with its lease, then what runs owe each other, what moves and what is due soon."""
        await self._control.load()
        for run_id in await self._store.authorized_runs():
            await self._mover.resume_alone(run_id)
        self._mover.spawn("obligations", self._families.load())
        self._sweeper.start()

    async def drain(self, bound_ms: int) -> None:
        """Stop leasing, tell the workers, and wait until nothing is out, at most for the bound."""
        self._dispatcher.leasing = False
        farewell = encode(Drain(PROTOCOL_VERSION))
        for instance in self._fleet.all():
            if instance.channel is not None:
                instance.channel.send(farewell)
        landed, over = self._mover.landed, asyncio.Event()

        def expire() -> None:
            over.set()
            landed.set()

        bound = self._clock.call_later(bound_ms, expire)
        while self._fleet.in_flight() and not over.is_set():
            landed.clear()
            await landed.wait()
        bound.cancel()
        if self._fleet.in_flight():
            log.warning("stopping with %d invocations still out; their results are accepted after a restart", self._fleet.in_flight())
        self._logs.stop()
        await self._store.flush()

    async def stop(self) -> None:
        """No more timers and tasks. The store is the caller's to close."""
        self._sweeper.stop()
        self._dispatcher.stop()
        await self._mover.stop()
        await self._runs.stop()

    @property
    def leasing(self) -> bool:
        """Whether new work goes out."""
        return self._dispatcher.leasing

    @property
    def is_idle(self) -> bool:
        """Whether no work of its own is under way; commits, timers and workers are others' to ask."""
        return not self._mover.tasks

    # control plane

    async def submit_event(
        self, workspace: Workspace, *, name: str, payload: bytes, metadata: dict[str, str], key: str | None
    ) -> AcceptedEvent | Problem:
        """Accept an event, once for each key. Raises `StorageUnavailable`, with nothing accepted."""
        return await self._control.submit_event(workspace, name=name, payload=payload, metadata=metadata, key=key)

    async def publish(self, scope: Scope, publication: Publication) -> ActivatedManifest | Problem:
        """Activate an application's complete desired state. Raises `StorageUnavailable`, with no head moved."""
        return await self._control.publish(scope, publication)

    async def cancel(self, workspace: Workspace, run_id: RunId, *, by: str) -> StoppedRun | Problem:
        """Record stop intent. Does not claim that an authorized callback has stopped. Raises `StorageUnavailable`."""
        return await self._operations.cancel_or_rediscover(workspace, run_id, Cancel(by))

    async def rediscover(self, workspace: Workspace, run_id: RunId, *, by: str) -> StoppedRun | Problem:
        """Run a blocked run's current code again. Raises `StorageUnavailable`."""
        return await self._operations.cancel_or_rediscover(workspace, run_id, Rediscover(by))

    async def resolve(self, workspace: Workspace, command: ResolveCommand, *, by: str) -> bytes | RefusalEnvelope:
        """Settle an Unknown attempt: the encoded acknowledgement, or the refusal. Raises `StorageUnavailable`."""
        return await self._operations.resolve(workspace, command, by=by)

    # readers' facts

    def workers(self, workspace: Workspace) -> list[WorkerView]:
        """The workspace's workers, as they are now."""
        return self._fleet.views(workspace)

    def contact(self, request_id: RequestId) -> ContactView | None:
        """The lease of an authorized attempt."""
        return self._leases.view(request_id, self._clock.now_ms())

    def present(self) -> Present:
        """How much is in memory, waits for workers, and is out at them."""
        workers: dict[tuple[str, str], int] = {("connected", "connected"): 0}
        capacity = in_flight = 0
        for instance in self._fleet.all():
            state = "away" if instance.channel is None else "draining" if instance.draining else "connected"
            key = (instance.transport, state)
            workers[key] = workers.get(key, 0) + 1
            capacity += instance.capacity if instance.available else 0
            in_flight += instance.in_flight
        return Present(len(self._runs), self._dispatcher.waiting, workers, capacity, in_flight)

    def can_run(self, scope: Scope, function: FunctionId) -> bool:
        """Whether some connected worker that is not draining can run the function."""
        return self._fleet.can_run(scope, function)

    def routing_head(self, workspace: Workspace) -> RoutingGeneration:
        """What an event accepted now is routed by."""
        return self._control.routing_head(workspace)

    def active_manifests(self, workspace: Workspace) -> list[ManifestRow]:
        """The active manifest generation of every application."""
        return self._control.active_manifests(workspace)

    def releases(self, workspace: Workspace) -> list[ReleaseRow]:
        """The workspace's releases, oldest first."""
        return self._control.releases(workspace)

    async def prune(self, workspace: Workspace, *, older_than_ms: int, bound_ms: int) -> Pruned:
        """Remove what ended so long ago, for as long as the bound. Raises `StorageUnavailable`; what was removed until then is gone."""
        return await self._pruner.prune(workspace, older_than_ms=older_than_ms, bound_ms=bound_ms)

    async def settle_logs(self, run_id: RunId) -> None:
        """Have everything told so far of what a run's callbacks printed in the store, as far as it takes it."""
        await self._logs.settle(run_id)

    # workers

    def attach_endpoint(self, scope: Scope, address: str, endpoint: Endpoint, capacity: int) -> None:
        """Use an endpoint for an application's work until this engine stops. Called after `start`; `address` names it to people."""
        manifests = self._control.active_manifests(scope.workspace)
        manifest = next((row for row in manifests if row.application == scope.application), None)
        self._exchanges.attach(scope, address, SessionId(self._entropy.token("ses")), endpoint, capacity, manifest)

    def permit_endpoints(self, may_execute: Callable[[Scope], bool]) -> None:
        """Give work to those endpoints alone whose application may be run, from now on."""
        self._exchanges.permit(may_execute)

    async def register(self, frame: Register, channel: WorkerChannel) -> Registered | RegistrationRejected:
        """Open a session for a worker, or say why not."""
        answer = await self._sessions.register(frame, channel)
        self.feed.workers_changed(frame.scope.workspace)
        return answer

    def outcome(self, session_id: SessionId, outcome: Outcome) -> None:
        """A worker's answer. Effects are acknowledged through the session's channel once the disposition is durable."""
        self._sessions.outcome(session_id, outcome)

    def unreadable_outcome(self, session_id: SessionId, request_id: RequestId, why: str) -> None:
        """An answer nobody can read: loss of contact. A readable one under the same request still counts, late."""
        self._sessions.unreadable_outcome(session_id, request_id, why)

    def heartbeat(self, session_id: SessionId, named: list[RequestId]) -> None:
        """The worker lives and executes these. A discovery that two heartbeats in a row do not name is repeated."""
        self._sessions.heartbeat(session_id, named)

    def log(self, session_id: SessionId, frame: Log) -> None:
        """Lines of a callback that is still running. Best effort."""
        self._sessions.printed(session_id, frame)

    def loop_reported(self, session_id: SessionId, frame: SessionError) -> None:
        """A worker's user loop does not turn, or does again."""
        self._sessions.loop_reported(session_id, frame)
        self._worker_changed(session_id)

    def draining(self, session_id: SessionId) -> None:
        """The worker takes no new work."""
        self._sessions.draining(session_id)
        self._worker_changed(session_id)

    def disconnected(self, session_id: SessionId, reason: str) -> None:
        """The session is gone: discoveries are repeated, effects keep their leases."""
        self._worker_changed(session_id)
        self._sessions.disconnected(session_id, reason)

    def _worker_changed(self, session_id: SessionId) -> None:
        instance = self._fleet.at(session_id)
        if instance is not None:
            self.feed.workers_changed(instance.scope.workspace)
