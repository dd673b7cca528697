"""The workers' side of the engine: what each frame of a session comes to, and what leaves for a worker.

Owns which answer belongs to what, slots and leases following attempts, and that an effect's outcome is acknowledged only when its
disposition is durable. What an answer comes to is the core's.
"""

from __future__ import annotations

import asyncio
import logging

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import encode
from ryusen_protocol.declarations import ChildDeclaration, RunDeclaration
from ryusen_protocol.frames import LOOP_BLOCKED, Disposition, Log, OutcomeAck, Register, Registered, RegistrationRejected, SessionError
from ryusen_protocol.ids import ReleaseId, RequestId, SessionId
from ryusen_protocol.invocation import HistoryBase
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
from ryusen_protocol.scope import Scope
from ryusen_protocol.words import printable
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.decision import Refusal, SendAttempt, SendDiscovery
from ryusen_server.core.state import Attempt, Run
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.control import Control
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.exchanges import Exchanges, answer_digest
from ryusen_server.engine.fleet import Fleet, Flight, Instance, request_ids
from ryusen_server.engine.leases import Leases
from ryusen_server.engine.logs import AttemptLogs
from ryusen_server.engine.moving import Mover
from ryusen_server.engine.registration import Opened, Registrar
from ryusen_server.engine.runs import LiveRun, Outgoing, Runs
from ryusen_server.ports.store import StorageUnavailable, Store
from ryusen_server.ports.time import Clock
from ryusen_server.ports.worker import WorkerChannel

log = logging.getLogger(__name__)

MISSED_HEARTBEATS_MAX = 2
_TOLD_CHARACTERS_MAX = 300

_DISCOVERY_BODIES = (Declared, Completed, Uncaught, DefinitionBlocked)
_EFFECT_BODIES = (Succeeded, CallbackFailed, TargetNotFound)


class Sessions:
    """Every worker session, on the loop's thread. Carries out the effects that runs decide (`Performer`)."""

    def __init__(
        self,
        *,
        store: Store,
        runs: Runs,
        fleet: Fleet,
        leases: Leases,
        dispatcher: Dispatcher,
        control: Control,
        mover: Mover,
        logs: AttemptLogs,
        clock: Clock,
        config: EngineConfig,
    ) -> None:
        self._logs = logs
        self._store = store
        self._runs = runs
        self._fleet = fleet
        self._leases = leases
        self._dispatcher = dispatcher
        self._control = control
        self._mover = mover
        self._clock = clock
        self._config = config
        self.registrar: Registrar
        """Set once by the engine: registering replaces sessions, and sessions begin with registering."""
        self.exchanges: Exchanges
        """Set once by the engine: what leaves for an endpoint leaves through it, and what comes back goes the same way as here."""

    async def register(self, frame: Register, channel: WorkerChannel) -> Registered | RegistrationRejected:
        """Open a session for a worker, or say why not."""
        if not self._dispatcher.leasing:
            return RegistrationRejected(PROTOCOL_VERSION, "unavailable", "The server is shutting down. Connect again once it is back.")
        try:
            opened = await self.registrar.register(frame, channel)
        except StorageUnavailable as error:
            return RegistrationRejected(PROTOCOL_VERSION, "unavailable", f"The server cannot use its database: {error.reason}")
        if isinstance(opened, RegistrationRejected):
            return opened
        # The answer has to reach the worker before its first invocation: the transport sends it in the step this call returns in.
        asyncio.get_running_loop().call_soon(self._registered, opened)
        return opened.answer

    def _registered(self, opened: Opened) -> None:
        instance = opened.instance
        log.info("worker %s of %s is connected", instance.instance_id, instance.scope.application, extra=_about(instance))
        for run_id, proof in opened.never_began:
            self._mover.command(run_id, proof)
        self._dispatcher.hurry(instance.scope, instance.frame.functions)
        self._dispatcher.pump(instance)
        release_id = instance.frame.release_id
        if release_id is not None:
            self._mover.spawn("wake blocked runs", self._wake_blocked(instance, release_id))

    async def _wake_blocked(self, instance: Instance, release_id: ReleaseId) -> None:
        scope = instance.scope
        preferred = [function for function in instance.frame.functions if self._fleet.preferred_release(scope, function) == release_id]
        try:
            for run_id in await self._store.blocked_runs(scope.workspace, scope.application, preferred):
                live = await self._mover.load_alone(run_id)
                if live is not None and live.run.status == "definition_blocked":
                    self._mover.move(live, Rediscover(f"release {release_id}"))
        except StorageUnavailable:
            # No wake may be lost: a run that was woken already is at most asked once more.
            again = self._wake_blocked
            self._clock.call_later(
                self._config.storage_retry_ms, lambda: self._mover.spawn("wake blocked runs", again(instance, release_id))
            )
            raise

    def outcome(self, session_id: SessionId, outcome: Outcome) -> None:
        """A worker's answer. Effects are acknowledged through the session's channel once the disposition is durable."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        instance.last_contact_at_ms = self._clock.now_ms()
        flight = self._mover.land(outcome.request_id, instance)
        body = outcome.outcome
        if isinstance(body, RejectedBeforeStart):
            instance.held.forget(outcome.run_id)  # what is rejected need not have been kept
            if body.reason == "unsupported_target" and flight is not None:
                instance.refused.add(flight.function)
        lease = self._leases.of_scope(outcome.request_id, instance.scope)
        out = flight or lease
        if out is not None and out.run_id != outcome.run_id:
            self._unreadable(instance, outcome.request_id, flight, "it names another run than its invocation did")
        elif flight.discovery if flight is not None else lease is None and _answers_discovery(body):
            self.discovery_answered(instance, outcome)
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
            self._mover.spawn("late outcome", self._load_and_answer(instance, outcome))

    def discovery_answered(self, instance: Instance, outcome: Outcome) -> None:
        """A pass came back from a worker of whatever transport."""
        live = self._runs.get(outcome.run_id)
        if live is None:
            return  # a pass that is out keeps its run in memory, so this one is no longer wanted
        run = live.run
        scope = Scope(run.workspace, run.application)
        if scope != instance.scope:
            return
        body = outcome.outcome
        if isinstance(body, _EFFECT_BODIES):
            self._mover.apply(live, LoseDiscovery(outcome.request_id))
            return
        assignee: AuthorizeAttempt | None = None
        declaration = body.declaration if isinstance(body, Declared) else None
        if isinstance(declaration, RunDeclaration) and self._config.merge and self._dispatcher.leasing:
            chosen = self._fleet.choose(scope, run.function, asking=instance)
            if chosen is instance:
                assignee = AuthorizeAttempt(instance.ref, self._config.lease_ms)
        preferred = self._fleet.preferred_release(scope, run.function)
        child = self._control.child_target(scope, declaration.function) if isinstance(declaration, ChildDeclaration) else None
        command = AnswerDiscovery(outcome.request_id, body, instance.frame.release_id, preferred, assignee, child)
        self._mover.apply(live, command)

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
        command = AnswerAttempt(outcome.request_id, body, answer_digest(outcome), instance.instance_id)
        decision = self._runs.apply(live, command, rides=True)
        if isinstance(decision, Refusal):
            raise AssertionError("an answer is never refused")
        disposition = decision.disposition or "discarded"

        def acknowledge(error: StorageUnavailable | None) -> None:
            if error is None:
                self._acknowledge(instance, outcome.request_id, disposition, None)
                if disposition in {"accepted", "stale"}:
                    self._logs.answered(run, outcome.request_id, outcome.logs, late=disposition == "stale")

        self._runs.when_durable(live, acknowledge)
        self._dispatcher.offer(live)  # after it, so that a retry that is due at once does not overtake the acknowledgement

    def printed(self, session_id: SessionId, frame: Log) -> None:
        """Lines of a callback that runs. Those of an attempt nobody knows of are nobody's."""
        instance = self._fleet.at(session_id)
        if instance is None or self._logs.goes_on(instance.scope, frame.request_id, frame.lines):
            return
        lease = self._leases.of_scope(frame.request_id, instance.scope)
        live = None if lease is None else self._runs.get(lease.run_id)
        attempt_id = None if live is None else live.run.requests.get(frame.request_id)
        if live is not None and attempt_id is not None:
            self._logs.printed(live.run, live.run.attempts[attempt_id], frame.request_id, frame.lines)

    def loop_reported(self, session_id: SessionId, frame: SessionError) -> None:
        """A worker's user loop does not turn, or does again: shown with the worker, and nothing else follows from it."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        if frame.code == LOOP_BLOCKED:
            instance.last_failure = f"{LOOP_BLOCKED}: {printable(frame.message[:_TOLD_CHARACTERS_MAX])}"
            instance.last_failure_at_ms = self._clock.now_ms()
            log.warning("worker %s: %s", instance.instance_id, instance.last_failure, extra=_about(instance))
        elif instance.last_failure is not None and instance.last_failure.startswith(LOOP_BLOCKED):
            instance.last_failure = instance.last_failure_at_ms = None

    def _acknowledge(self, instance: Instance, request_id: RequestId, disposition: Disposition, message: str | None) -> None:
        if instance.channel is not None:
            instance.channel.send(encode(OutcomeAck(PROTOCOL_VERSION, request_id, disposition, message)))

    def unreadable_outcome(self, session_id: SessionId, request_id: RequestId, why: str) -> None:
        """An answer nobody can read: loss of contact. A readable one under the same request still counts, late."""
        instance = self._fleet.at(session_id)
        if instance is None:
            return
        self._unreadable(instance, request_id, self._mover.land(request_id, instance), why)
        self._dispatcher.pump(instance)

    def _unreadable(self, instance: Instance, request_id: RequestId, flight: Flight | None, why: str) -> None:
        log.warning("worker %s sent an unreadable outcome for %s: %s", instance.instance_id, request_id, why, extra=_about(instance))
        out = flight or self._leases.of_scope(request_id, instance.scope)
        live = None if out is None else self._runs.get(out.run_id)
        if out is not None and live is None and not (flight is not None and flight.discovery):
            return  # the run is on its way back into memory; the worker asks again until it is answered
        if live is None:
            self._mover.spawn("an unreadable outcome", self._nobodys(instance, request_id, why))
            return
        if flight is not None and flight.discovery:
            self._mover.apply(live, LoseDiscovery(request_id))
        else:
            self._mover.move(live, LoseContact(request_id, f"its outcome could not be read: {why}"))

        def acknowledge(error: StorageUnavailable | None) -> None:
            if error is None:
                self._acknowledge(instance, request_id, "malformed", why)

        self._runs.when_durable(live, acknowledge)

    async def _nobodys(self, instance: Instance, request_id: RequestId, why: str) -> None:
        """Say that it was not readable, once it is durable that nobody waits for it.

        A failed commit may make it wanted again. Told before that, the worker would forget the result it holds under the same request and
        come back without it: proof that nothing ever began.
        """
        await self._store.flush()
        if not self._mover.owed and self._leases.of_scope(request_id, instance.scope) is None:
            self._acknowledge(instance, request_id, "malformed", why)

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
        log.info("worker %s of %s is away: %s", instance.instance_id, instance.scope.application, reason, extra=_about(instance))
        self._fleet.close(instance, reason, self._clock.now_ms())
        self._leases.lose_contact(instance)
        for request_id in request_ids(flight for flight in instance.flights.values() if flight.discovery):
            self._lose_discovery(instance.flights[request_id])
        self._mover.landed.set()

    def _lose_discovery(self, flight: Flight) -> None:
        self._mover.land(flight.request_id, flight.instance)
        flight.instance.held.forget(flight.run_id)  # it may never have arrived
        live = self._runs.get(flight.run_id)
        if live is not None:
            self._mover.apply(live, LoseDiscovery(flight.request_id))

    # effects of decisions

    def decided(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> HistoryBase | None:
        """An invocation is decided: it takes a slot of its worker at once. Returns what the worker holds of the run's history."""
        instance = self._fleet.at(effect.worker.session_id)
        if instance is None:
            return None
        self._fleet.take_off(instance, effect.request_id, live.run.run_id, live.run.function, discovery=isinstance(effect, SendDiscovery))
        return instance.held.base(live.run.run_id)

    def send(self, live: LiveRun, outgoing: Outgoing) -> None:
        """An invocation may leave. One whose session is gone never left, which is proof that its effect never began."""
        effect = outgoing.effect
        instance = self._fleet.at(effect.worker.session_id)
        if instance is not None and instance.endpoint is not None:
            self.exchanges.begin(instance, instance.endpoint, live, outgoing)
            return
        if instance is not None and instance.channel is not None:
            instance.channel.send(outgoing.frame)
            instance.held.sent(live.run.run_id, outgoing.held)
            return
        self._mover.give_back(effect.request_id)
        if isinstance(effect, SendDiscovery):
            self._mover.apply(live, LoseDiscovery(effect.request_id))
        else:
            self._mover.move(live, NeverBegan(effect.request_id, "the worker was gone before the invocation left the server"))

    def withdraw(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> None:
        """An invocation may not leave: what it was built on is lost."""
        del live
        self._mover.give_back(effect.request_id)

    def attempt_changed(self, run: Run, attempt: Attempt) -> None:
        """Leases follow attempts: one exactly while an attempt is authorized."""
        if attempt.state == "unknown":
            about = {"run_id": run.run_id, "attempt_id": attempt.attempt_id, "step_id": attempt.step_id}
            log.warning("attempt %s of run %s is Unknown: nobody can tell what it did", attempt.attempt_id, run.run_id, extra=about)
        if attempt.state == "authorized":
            self._leases.begin(run, attempt, floor_ms=0, in_contact=True)
        elif attempt.request_id is not None:
            self._leases.end(attempt.request_id)
            self._mover.give_back(attempt.request_id)

    def run_dropped(self, live: LiveRun) -> None:
        """A failed commit took the run's memory with it: load it again once the store answers."""
        for request_id in live.run.requests:
            self._leases.end(request_id)
        self._fleet.forget_history(live.run.run_id)  # a pass may have left with what is lost now
        # Else a worker with room would have it at once, and runs whose commits fail would push each other there without a pause.
        self._dispatcher.dequeue(live.run.run_id)
        self._mover.owe(live.run.run_id)

    def run_ended(self, live: LiveRun) -> None:
        """A run's end is durable and it has left the memory."""
        self._fleet.forget_history(live.run.run_id)
        self._dispatcher.forget(live)

    def run_born(self, live: LiveRun) -> None:
        """A run has begun with another one's decision: it needs a worker."""
        self._dispatcher.offer(live)

    def run_rests(self, live: LiveRun) -> None:
        """A run that waits has left the memory."""
        self._dispatcher.rest(live)


def _about(instance: Instance) -> dict[str, str]:
    return {"instance_id": instance.instance_id, "workspace": instance.scope.workspace, "application": instance.scope.application}


def _answers_discovery(body: OutcomeBody) -> bool:
    """Whether a body under a request nobody waits for any more is that of a discovery, which is never acknowledged."""
    rejected = isinstance(body, RejectedBeforeStart) and body.attempt is None and body.attempt_generation is None
    return rejected or isinstance(body, _DISCOVERY_BODIES)
