"""The engine: what transports, the API and timers call, on the event loop's thread.

Each call decides in memory and returns; what it came to leaves for a worker, or is acknowledged, when it is durable.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import encode
from ryusen_protocol.frames import Disposition, Drain, Log, OutcomeAck, Register, Registered, RegistrationRejected
from ryusen_protocol.ids import FunctionId, ReleaseId, RequestId, RoutingGeneration, RunId, SessionId, Workspace
from ryusen_protocol.manifest import Publication
from ryusen_protocol.operator import RefusalEnvelope, ResolveCommand
from ryusen_protocol.outcome import (
    CallbackFailed,
    Completed,
    Declared,
    DefinitionBlocked,
    Outcome,
    OutcomeBody,
    RejectedBeforeStart,
    Succeeded,
    TargetNotFound,
    Uncaught,
)
from ryusen_protocol.problems import Problem
from ryusen_protocol.scope import Scope
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel, DeadlineReached
from ryusen_server.core.decide import Command
from ryusen_server.core.decision import Refusal, SendAttempt, SendDiscovery
from ryusen_server.core.rows import WAKE_NOW, ManifestRow, ReleaseRow
from ryusen_server.core.settlement import past_deadline
from ryusen_server.core.state import Attempt, Run
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.control import Control
from ryusen_server.engine.dispatcher import HORIZON_MS, Dispatcher
from ryusen_server.engine.fleet import Fleet, Flight, Instance, request_ids
from ryusen_server.engine.leases import Leases
from ryusen_server.engine.operations import Operations
from ryusen_server.engine.registration import Opened, Registrar
from ryusen_server.engine.runs import LiveRun, Outgoing, Runs
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest, ContactView, StoppedRun, WorkerView
from ryusen_server.engine.waiting import Waiters
from ryusen_server.ports.store import StorageUnavailable, Store, WakeRow
from ryusen_server.ports.time import Clock, Entropy, Handle
from ryusen_server.ports.worker import WorkerChannel

log = logging.getLogger(__name__)

LOST_INSTANCE_SHOWN_MS = 60_000
"""How long a lost worker that holds nothing stays in the list."""

_DISCOVERY_BODIES = (Declared, Completed, Uncaught, DefinitionBlocked)
_EFFECT_BODIES = (Succeeded, CallbackFailed, TargetNotFound)


class Engine:
    """One server's engine. Everything runs on one event loop; nothing here blocks."""

    def __init__(self, *, store: Store, clock: Clock, entropy: Entropy, config: EngineConfig) -> None:
        self.config = config
        self.waiters = Waiters()
        self._store = store
        self._clock = clock
        self._fleet = Fleet()
        self._leases = Leases(config.lease_ms, config.heartbeat_ms)
        self._runs = Runs(
            store=store,
            clock=clock,
            entropy=entropy,
            waiters=self.waiters,
            early=config.early,
            in_memory_max=config.runs_in_memory,
        )
        self._runs.performer = self
        self._dispatcher = Dispatcher(runs=self._runs, fleet=self._fleet, clock=clock, config=config, wake=self._wake)
        self._control = Control(
            store=store,
            runs=self._runs,
            dispatcher=self._dispatcher,
            clock=clock,
            entropy=entropy,
            config=config,
            waiters=self.waiters,
        )
        self._operations = Operations(store=store, runs=self._runs, dispatcher=self._dispatcher, clock=clock)
        self._registrar = Registrar(
            config=config,
            disconnect=self.disconnected,
            fleet=self._fleet,
            leases=self._leases,
            control=self._control,
            runs=self._runs,
            clock=clock,
            entropy=entropy,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick_handle: Handle | None = None
        self._scanned_until: WakeRow | None = None
        self._dropped: dict[RunId, list[Command]] = {}
        """Runs to be loaded again once the store answers, with the commands that were lost with their memory."""
        self._retrying = False
        self._landed = asyncio.Event()
        self._stopped = False
        self._ticks = 0
        self._scan_at_tick = SCAN_EVERY_TICKS
        self._scanning = False
        self._ticked_at_ms = 0

    # life

    async def start(self) -> None:
        """Recover: heads, everything authorized with its lease, fan-outs, then what moves and what is due soon."""
        await self._control.load()
        for run_id in await self._store.authorized_runs():
            await self._resume(run_id)
        self._spawn("scan", self._scan())
        self._tick()

    async def drain(self, bound_ms: int) -> None:
        """Stop leasing, tell the workers, and wait until nothing is out, at most for the bound."""
        self._dispatcher.leasing = False
        farewell = encode(Drain(PROTOCOL_VERSION))
        for instance in self._fleet.all():
            if instance.channel is not None:
                instance.channel.send(farewell)
        over = asyncio.Event()

        def expire() -> None:
            over.set()
            self._landed.set()

        bound = self._clock.call_later(bound_ms, expire)
        while self._fleet.in_flight() and not over.is_set():
            self._landed.clear()
            await self._landed.wait()
        bound.cancel()
        if self._fleet.in_flight():
            log.warning("stopping with %d invocations still out; their results are accepted after a restart", self._fleet.in_flight())
        await self._store.flush()

    async def stop(self) -> None:
        """No more timers and tasks. The store is the caller's to close."""
        self._stopped = True
        self._dispatcher.stop()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runs.stop()

    @property
    def leasing(self) -> bool:
        """Whether new work goes out."""
        return self._dispatcher.leasing

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

    # workers

    async def register(self, frame: Register, channel: WorkerChannel) -> Registered | RegistrationRejected:
        """Open a session for a worker, or say why not."""
        if not self.leasing:
            return RegistrationRejected(PROTOCOL_VERSION, "unavailable", "The server is shutting down. Connect again once it is back.")
        try:
            opened = await self._registrar.register(frame, channel)
        except StorageUnavailable as error:
            return RegistrationRejected(PROTOCOL_VERSION, "unavailable", f"The server cannot use its database: {error.reason}")
        if isinstance(opened, RegistrationRejected):
            return opened
        # The answer has to reach the worker before its first invocation: the transport sends it in the step this call returns in.
        asyncio.get_running_loop().call_soon(self._registered, opened)
        return opened.answer

    def _registered(self, opened: Opened) -> None:
        instance = opened.instance
        for run_id, proof in opened.never_began:
            self._command(run_id, proof)
        self._dispatcher.hurry(instance.scope, instance.frame.functions)
        self._dispatcher.pump(instance)
        release_id = instance.frame.release_id
        if release_id is not None:
            self._spawn("wake blocked runs", self._wake_blocked(instance, release_id))

    async def _wake_blocked(self, instance: Instance, release_id: ReleaseId) -> None:
        scope = instance.scope
        preferred = [function for function in instance.frame.functions if self._fleet.preferred_release(scope, function) == release_id]
        try:
            for run_id in await self._store.blocked_runs(scope.workspace, scope.application, preferred):
                live = await self._runs.load(run_id)
                if live is not None and live.run.status == "definition_blocked":
                    self._move(live, Rediscover(f"release {release_id}"))
        except StorageUnavailable:
            # No wake may be lost: a run that was woken already is at most asked once more.
            again = self._wake_blocked
            self._clock.call_later(self.config.storage_retry_ms, lambda: self._spawn("wake blocked runs", again(instance, release_id)))
            raise

    def outcome(self, session_id: SessionId, outcome: Outcome) -> None:
        """A worker's answer. Effects are acknowledged through the session's channel once the disposition is durable."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        instance.last_contact_at_ms = self._clock.now_ms()
        flight = self._land(outcome.request_id, instance)
        body = outcome.outcome
        if isinstance(body, RejectedBeforeStart) and body.reason == "unsupported_target" and flight is not None:
            instance.refused.add(flight.function)
        lease = self._leases.of_scope(outcome.request_id, instance.scope)
        out = flight or lease
        if out is not None and out.run_id != outcome.run_id:
            self._unreadable(instance, outcome.request_id, flight, "it names another run than its invocation did")
        elif flight.discovery if flight is not None else lease is None and _answers_discovery(body):
            self._discovery_answered(instance, outcome)
        else:
            self._effect_answered(instance, flight, outcome)
        self._dispatcher.pump(instance)

    def _effect_answered(self, instance: Instance, flight: Flight | None, outcome: Outcome) -> None:
        body = outcome.outcome
        if isinstance(body, _DISCOVERY_BODIES):
            self._unreadable(instance, outcome.request_id, flight, "an effect was answered as a discovery")
            return
        if body.attempt is None or body.attempt_generation is None:
            why = "the outcome of an effect names its attempt and attempt_generation"
            self._unreadable(instance, outcome.request_id, flight, why)
            return
        live = self._runs.get(outcome.run_id)
        if live is not None:
            self._attempt_answered(live, instance, outcome)
        else:
            self._spawn("late outcome", self._load_and_answer(instance, outcome))

    def _discovery_answered(self, instance: Instance, outcome: Outcome) -> None:
        live = self._runs.get(outcome.run_id)
        if live is None:
            return  # a pass that is out keeps its run in memory, so this one is no longer wanted
        run = live.run
        scope = Scope(run.workspace, run.application)
        if scope != instance.scope:
            return
        body = outcome.outcome
        if isinstance(body, _EFFECT_BODIES):
            self._apply(live, LoseDiscovery(outcome.request_id))
            return
        assignee: AuthorizeAttempt | None = None
        if isinstance(body, Declared) and self.config.merge and self.leasing:
            chosen = self._fleet.choose(scope, run.function, asking=instance)
            if chosen is instance:
                assignee = AuthorizeAttempt(instance.ref, self.config.lease_ms)
        preferred = self._fleet.preferred_release(scope, run.function)
        command = AnswerDiscovery(outcome.request_id, body, instance.frame.release_id, preferred, assignee)
        self._apply(live, command)

    async def _load_and_answer(self, instance: Instance, outcome: Outcome) -> None:
        live = await self._runs.load(outcome.run_id)
        if live is None:
            self._acknowledge(instance, outcome.request_id, "discarded", None)
        else:
            self._attempt_answered(live, instance, outcome)

    def _attempt_answered(self, live: LiveRun, instance: Instance, outcome: Outcome) -> None:
        body = outcome.outcome
        if isinstance(body, _DISCOVERY_BODIES):
            raise AssertionError("a discovery outcome settles no attempt")
        run = live.run
        if Scope(run.workspace, run.application) != instance.scope:
            self._acknowledge(instance, outcome.request_id, "discarded", None)
            return
        command = AnswerAttempt(outcome.request_id, body, _digest(outcome), instance.instance_id)
        decision = self._runs.apply(live, command, rides=True)
        if isinstance(decision, Refusal):
            raise AssertionError("an answer is never refused")
        self._dispatcher.offer(live)
        disposition = decision.disposition or "discarded"

        def acknowledge(error: StorageUnavailable | None) -> None:
            if error is None:
                self._acknowledge(instance, outcome.request_id, disposition, None)

        self._runs.when_durable(live, acknowledge)

    def _acknowledge(self, instance: Instance, request_id: RequestId, disposition: Disposition, message: str | None) -> None:
        if instance.channel is not None:
            instance.channel.send(encode(OutcomeAck(PROTOCOL_VERSION, request_id, disposition, message)))

    def unreadable_outcome(self, session_id: SessionId, request_id: RequestId, why: str) -> None:
        """An answer nobody can read: loss of contact. A readable one under the same request still counts, late."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        self._unreadable(instance, request_id, self._land(request_id, instance), why)
        self._dispatcher.pump(instance)

    def _unreadable(self, instance: Instance, request_id: RequestId, flight: Flight | None, why: str) -> None:
        log.warning("worker %s sent an unreadable outcome for %s: %s", instance.instance_id, request_id, why)
        out = flight or self._leases.of_scope(request_id, instance.scope)
        live = None if out is None else self._runs.get(out.run_id)
        if out is not None and live is None and not (flight is not None and flight.discovery):
            return  # the run is on its way back into memory; the worker asks again until it is answered
        if live is not None and flight is not None and flight.discovery:
            self._apply(live, LoseDiscovery(request_id))
        elif live is not None:
            self._move(live, LoseContact(request_id, f"its outcome could not be read: {why}"))

        def acknowledge(error: StorageUnavailable | None) -> None:
            if error is None:
                self._acknowledge(instance, request_id, "malformed", why)

        if live is None:
            acknowledge(None)
        else:
            self._runs.when_durable(live, acknowledge)

    def heartbeat(self, session_id: SessionId, named: list[RequestId]) -> None:
        """The worker lives and executes these. A discovery that two heartbeats in a row do not name is repeated."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        now_ms = self._clock.now_ms()
        instance.last_contact_at_ms = now_ms
        for request_id in named:
            self._leases.renew(request_id, instance, now_ms)
        executing = set(named)
        for request_id in request_ids(flight for flight in instance.flights.values() if flight.discovery):
            flight = instance.flights[request_id]
            flight.missed = 0 if request_id in executing else flight.missed + 1
            if flight.missed >= MISSED_HEARTBEATS_MAX:
                self._lose_discovery(flight)
        self._dispatcher.pump(instance)

    def log(self, session_id: SessionId, frame: Log) -> None:
        """Lines of a callback that is still running. Not kept yet."""

    def draining(self, session_id: SessionId) -> None:
        """The worker takes no new work."""
        instance = self._fleet.at(session_id)
        if instance is not None:
            instance.draining = True

    def disconnected(self, session_id: SessionId, reason: str) -> None:
        """The session is gone: discoveries are repeated, effects keep their leases."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        self._fleet.close(instance, reason)
        self._leases.lose_contact(instance)
        for request_id in request_ids(flight for flight in instance.flights.values() if flight.discovery):
            self._lose_discovery(instance.flights[request_id])
        self._landed.set()

    def _lose_discovery(self, flight: Flight) -> None:
        self._land(flight.request_id, flight.instance)
        live = self._runs.get(flight.run_id)
        if live is not None:
            self._apply(live, LoseDiscovery(flight.request_id))

    def _land(self, request_id: RequestId, instance: Instance) -> Flight | None:
        flight = self._fleet.flight(request_id)
        if flight is None or flight.instance is not instance:
            return None
        self._landed.set()
        return self._fleet.land(request_id)

    def _give_back(self, request_id: RequestId) -> None:
        """Free the slot of something that will not be answered, and let what waits have it."""
        flight = self._fleet.land(request_id)
        if flight is not None:
            self._landed.set()
            # Not now: this may be in the middle of another decision.
            asyncio.get_running_loop().call_soon(self._dispatcher.pump, flight.instance)

    # effects of decisions

    def decided(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> None:
        """An invocation is decided: it takes a slot of its worker at once."""
        instance = self._fleet.at(effect.worker.session_id)
        if instance is not None:
            self._fleet.take_off(
                instance, effect.request_id, live.run.run_id, live.run.function, discovery=isinstance(effect, SendDiscovery)
            )

    def send(self, live: LiveRun, outgoing: Outgoing) -> None:
        """An invocation may leave. One whose session is gone never left, which is proof that its effect never began."""
        effect = outgoing.effect
        instance = self._fleet.at(effect.worker.session_id)
        if instance is not None and instance.channel is not None:
            instance.channel.send(outgoing.frame)
            return
        self._give_back(effect.request_id)
        if isinstance(effect, SendDiscovery):
            self._apply(live, LoseDiscovery(effect.request_id))
        else:
            self._move(live, NeverBegan(effect.request_id, "the worker was gone before the invocation left the server"))

    def withdraw(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> None:
        """An invocation may not leave: what it was built on is lost."""
        del live
        self._give_back(effect.request_id)

    def attempt_changed(self, run: Run, attempt: Attempt) -> None:
        """Leases follow attempts: one exactly while an attempt is authorized."""
        if attempt.state == "authorized":
            self._leases.begin(run, attempt, floor_ms=0, in_contact=True)
        elif attempt.request_id is not None:
            self._leases.end(attempt.request_id)
            self._give_back(attempt.request_id)

    def run_dropped(self, live: LiveRun) -> None:
        """A failed commit took the run's memory with it: load it again once the store answers."""
        for request_id in live.run.requests:
            self._leases.end(request_id)
        self._owe(live.run.run_id)

    def run_ended(self, live: LiveRun) -> None:
        """A run's end is durable and it has left the memory."""
        self._dispatcher.forget(live)

    def _owe(self, run_id: RunId, *commands: Command) -> None:
        """Go on with a run, and with what was to become of it, once the store answers."""
        self._dropped.setdefault(run_id, []).extend(commands)
        self._retry_soon()

    def _retry_soon(self) -> None:
        if not self._retrying and not self._stopped:
            self._retrying = True
            self._clock.call_later(self.config.storage_retry_ms, lambda: self._spawn("recovery", self._retry()))

    async def _retry(self) -> None:
        self._retrying = False
        try:
            await self._control.retry_fan_outs()
            for run_id in list(self._dropped):
                live = await self._resume_alone(run_id)
                for command in self._dropped.pop(run_id, ()):
                    if live is not None:
                        self._move(live, command)
        except StorageUnavailable:
            self._retry_soon()

    # moving runs

    def _apply(self, live: LiveRun, command: Command) -> None:
        self._runs.apply(live, command)
        self._dispatcher.offer(live)

    def _move(self, live: LiveRun, command: Command) -> None:
        """Apply what nobody would say again: when its commit fails, it is said again here."""
        run_id = live.run.run_id
        decision = self._runs.apply(live, command)
        if not isinstance(decision, Refusal) and decision.records:
            self._runs.when_durable(live, lambda error: None if error is None else self._owe(run_id, command))
        self._dispatcher.offer(live)

    def _command(self, run_id: RunId, command: Command) -> None:
        live = self._runs.get(run_id)
        if live is not None:
            self._move(live, command)
        else:
            self._spawn("command", self._load_and_move(run_id, command))

    async def _load_and_move(self, run_id: RunId, command: Command) -> None:
        try:
            live = await self._runs.load(run_id)
        except StorageUnavailable:
            self._owe(run_id, command)
            raise
        if live is not None:
            self._move(live, command)

    def _wake(self, run_id: RunId) -> None:
        """A run's moment has come, or a worker is free for it."""
        live = self._runs.get(run_id)
        if live is None:
            self._spawn("wake", self._load_and_look(run_id))
            return
        try:
            self._look(live)
        except Exception:  # one run's defect must not keep the others from their timers
            log.exception("run %s could not be woken", run_id)

    async def _load_and_look(self, run_id: RunId) -> None:
        try:
            await self._resume(run_id)
        except StorageUnavailable:
            self._owe(run_id)
            raise

    def _look(self, live: LiveRun) -> None:
        if past_deadline(live.run, self._clock.now_ms()):
            self._runs.apply(live, DeadlineReached())
        self._dispatcher.offer(live)

    async def _resume_alone(self, run_id: RunId) -> LiveRun | None:
        """As `_resume`; a defect of this run is told and keeps no other run from going on."""
        try:
            return await self._resume(run_id)
        except StorageUnavailable:
            raise
        except Exception:
            log.exception("run %s could not be resumed", run_id)
            return None

    async def _resume(self, run_id: RunId) -> LiveRun | None:
        """Load a run and go on with it as its state says: the one path of a restart, a failed commit and a wake-up."""
        live = await self._runs.load(run_id)
        if live is None:
            return None
        attempt = live.run.current_attempt()
        if (
            attempt is not None
            and attempt.state == "authorized"
            and attempt.request_id is not None
            and self._leases.get(attempt.request_id) is None
        ):
            in_contact = self._fleet.flight(attempt.request_id) is not None
            floor_ms = self._clock.now_ms() + self.config.reconnect_grace_ms
            self._leases.begin(live.run, attempt, floor_ms=floor_ms, in_contact=in_contact)
        self._look(live)
        return live

    async def _scan(self) -> None:
        """Walk the wake index some way ahead; what lies beyond is met by a later walk."""
        if self._scanning:
            return
        self._scanning = True
        try:
            while page := await self._store.wakes(until_ms=self._scan_until_ms(), after=self._scanned_until, limit=SCAN_PAGE):
                for row in page:
                    if row.wake_at_ms == WAKE_NOW:
                        await self._resume_alone(row.run_id)
                    else:
                        self._dispatcher.schedule(row.run_id, row.wake_at_ms)
                    self._scanned_until = row
        except StorageUnavailable:
            self._scan_at_tick = self._ticks + 1
            raise
        finally:
            self._scanning = False

    def _scan_until_ms(self) -> int:
        until_ms = self._clock.now_ms() + SCAN_AHEAD_MS
        if self._scanned_until is not None and self._scanned_until.wake_at_ms > until_ms:
            # The clock went back: what has been set since then may stand before what was met.
            self._scanned_until = WakeRow(RunId(""), WAKE_NOW + 1)
        return until_ms

    def _tick(self) -> None:
        """What has no instant of its own: leases, timers after a jump of the clock, lost workers, the wake index."""
        try:
            self._sweep()
        except Exception:  # without the next tick no lease would ever end
            log.exception("a tick failed")
        self._tick_handle = self._clock.call_later(self.config.tick_ms, self._tick)

    def _sweep(self) -> None:
        now_ms = self._clock.now_ms()
        for lease in self._leases.elapsed(now_ms):
            overdue = lease.answer_by_ms is not None and now_ms >= lease.answer_by_ms
            reason = "no answer came after its timeout" if overdue else "its worker was out of contact for its whole lease"
            self._leases.end(lease.request_id)
            self._give_back(lease.request_id)
            self._command(lease.run_id, LoseContact(lease.request_id, reason))
        for instance in list(self._fleet.all()):
            gone = instance.channel is None and not instance.flights
            if gone and now_ms - instance.last_contact_at_ms > LOST_INSTANCE_SHOWN_MS:
                self._fleet.forget(instance)
        self._dispatcher.fire()
        self._ticks += 1
        jumped = not 0 <= now_ms - self._ticked_at_ms <= JUMP_MS
        self._ticked_at_ms = now_ms
        if jumped or self._ticks >= self._scan_at_tick:
            self._scan_at_tick = self._ticks + SCAN_EVERY_TICKS
            self._spawn("scan", self._scan())

    def _spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._guarded(what, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before its first step has not begun its work

    async def _guarded(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except StorageUnavailable as error:
            log.warning("%s waits for the database: %s", what, error.reason)
            self._retry_soon()
        except Exception:
            log.exception("%s failed", what)


MISSED_HEARTBEATS_MAX = 2
SCAN_PAGE = 500
SCAN_EVERY_TICKS = 120
SCAN_AHEAD_MS = HORIZON_MS - 10_000
"""Less than what the dispatcher takes itself: a wait just beyond its horizon is durable before a walk comes by."""

JUMP_MS = 5_000
"""A clock that moved this far between two ticks has jumped."""


def _answers_discovery(body: OutcomeBody) -> bool:
    """Whether a body under a request nobody waits for any more is that of a discovery, which is never acknowledged."""
    rejected = isinstance(body, RejectedBeforeStart) and body.attempt is None and body.attempt_generation is None
    return rejected or isinstance(body, _DISCOVERY_BODIES)


def _digest(outcome: Outcome) -> str:
    return "sha256:" + hashlib.sha256(msgspec.json.encode(outcome.outcome)).hexdigest()
