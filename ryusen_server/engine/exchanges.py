"""Endpoints in the engine: each is one unversioned instance that runs the functions of its application's active manifest.

Owns what the end of an exchange comes to, and what is known of an endpoint's health:

| the exchange | a discovery | an effect |
|---|---|---|
| answered with an outcome of its kind | as from a connected worker | as from a connected worker |
| not sent | the pass again, paced | never began |
| anything else | the pass again, paced | contact lost: Unknown at once |

Nobody sends an answer again here, so what an effect came to is kept until the store has taken it. Knows no HTTP.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import assert_never

import msgspec

from ryusen_protocol import PROTOCOL_VERSION, VALUE_CODEC_VERSION
from ryusen_protocol.frames import ExecutionContract, Register, Software
from ryusen_protocol.ids import InstanceId, SessionId
from ryusen_protocol.outcome import CallbackFailed, Outcome, RejectedBeforeStart, Succeeded, TargetNotFound
from ryusen_protocol.scope import Scope
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.decision import SendDiscovery
from ryusen_server.core.invocation import invocation_of
from ryusen_server.core.routing import manifest_content
from ryusen_server.core.rows import ManifestRow
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.fleet import Fleet, Instance
from ryusen_server.engine.logs import AttemptLogs
from ryusen_server.engine.moving import Mover
from ryusen_server.engine.runs import LiveRun, Outgoing, Runs
from ryusen_server.ports.time import Clock
from ryusen_server.ports.worker import Answered, Endpoint, Exchange, ExchangeEnd, Lost, NotSent

log = logging.getLogger(__name__)

_UNTOLD = Software("", "")
"""An endpoint tells nothing of itself."""


class Exchanges:
    """Every endpoint of one server, on the loop's thread. `pass_answered` takes what a discovery came to."""

    def __init__(
        self,
        *,
        runs: Runs,
        fleet: Fleet,
        dispatcher: Dispatcher,
        mover: Mover,
        logs: AttemptLogs,
        clock: Clock,
        config: EngineConfig,
        pass_answered: Callable[[Instance, Outcome], None],
    ) -> None:
        self._runs = runs
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._mover = mover
        self._logs = logs
        self._clock = clock
        self._config = config
        self._pass_answered = pass_answered

    def attach(
        self, scope: Scope, address: str, session_id: SessionId, endpoint: Endpoint, capacity: int, manifest: ManifestRow | None
    ) -> None:
        """Use an endpoint from now on, for what the manifest declares. `address` names it to people."""
        frame = Register(
            protocol_version=PROTOCOL_VERSION,
            scope=scope,
            instance_id=InstanceId(address),
            connection=1,
            manifest_digest="",
            functions=[],
            contract=ExecutionContract(PROTOCOL_VERSION, VALUE_CODEC_VERSION),
            capacity=capacity,
            sdk=_UNTOLD,
            runtime=_UNTOLD,
        )
        instance = self._fleet.attach(frame, session_id, endpoint, self._clock.now_ms())
        if manifest is not None:
            self._describe(instance, manifest)

    def permit(self, may_execute: Callable[[Scope], bool]) -> None:
        """Give work to those endpoints alone whose application may be run. What is out at another stays out."""
        for instance in list(self._fleet.all()):
            if instance.endpoint is None or instance.draining is not may_execute(instance.scope):
                continue
            instance.draining = not instance.draining
            if not instance.draining:
                self._welcome(instance)

    def activated(self, manifest: ManifestRow) -> None:
        """A manifest is active: the application's endpoints run its functions from now on."""
        scope = Scope(manifest.workspace, manifest.application)
        for instance in list(self._fleet.all()):
            if instance.endpoint is not None and instance.scope == scope:
                self._describe(instance, manifest)

    def _describe(self, instance: Instance, manifest: ManifestRow) -> None:
        functions = [function.id for function in manifest_content(manifest).functions]
        frame = msgspec.structs.replace(instance.frame, functions=functions, manifest_digest=manifest.digest)
        self._fleet.redescribe(instance, frame)
        self._welcome(instance)

    def _welcome(self, instance: Instance) -> None:
        """What was paced for the endpoint's functions goes as soon as somebody has room."""
        self._dispatcher.hurry(instance.scope, instance.frame.functions)
        self._dispatcher.pump(instance)

    def begin(self, instance: Instance, endpoint: Endpoint, live: LiveRun, outgoing: Outgoing) -> None:
        """An invocation may leave."""
        effect = outgoing.effect
        attempt = None if isinstance(effect, SendDiscovery) else live.run.attempts[effect.attempt_id]
        within_ms = self._config.exchange_ms
        if attempt is not None and attempt.answer_by_ms is not None:
            # Past its answer's time the attempt is Unknown, and still a late answer counts: the exchange stays open for it.
            within_ms = max(within_ms, attempt.answer_by_ms - self._clock.now_ms())
        exchange = Exchange(
            request_id=effect.request_id,
            run_id=live.run.run_id,
            attempt=None if attempt is None else attempt.attempt,
            attempt_generation=None if attempt is None else attempt.attempt_generation,
            invocation=invocation_of(outgoing.frame),
            within_ms=within_ms,
        )
        endpoint.invoke(exchange, lambda end: self._ended(instance, exchange, end))

    def _ended(self, instance: Instance, exchange: Exchange, end: ExchangeEnd) -> None:
        was_reachable = instance.reachable
        self._note(instance, exchange, end)
        self._mover.land(exchange.request_id, instance)
        if exchange.is_effect:
            self._effect_ended(instance, exchange, end)
        else:
            self._pass_ended(instance, exchange, end)
        if instance.reachable and not was_reachable:
            self._welcome(instance)
        else:
            self._dispatcher.pump(instance)

    def _note(self, instance: Instance, exchange: Exchange, end: ExchangeEnd) -> None:
        now_ms = self._clock.now_ms()
        match end:
            case Answered():
                instance.reachable = True
                instance.last_contact_at_ms = instance.last_success_at_ms = now_ms
                return
            case Lost(why):
                instance.reachable = True
                instance.last_contact_at_ms = now_ms
            case NotSent(why):
                instance.reachable = False
            case _:
                assert_never(end)
        instance.last_failure, instance.last_failure_at_ms = why, now_ms
        log.warning("endpoint %s of %s: %s (run %s)", instance.instance_id, instance.scope.application, why, exchange.run_id)

    def _pass_ended(self, instance: Instance, exchange: Exchange, end: ExchangeEnd) -> None:
        if isinstance(end, Answered):
            self._pass_answered(instance, end.outcome)
            return
        live = self._runs.get(exchange.run_id)
        if live is not None:  # a pass that is out keeps its run in memory, so one of another run is no longer wanted
            self._mover.apply(live, LoseDiscovery(exchange.request_id))

    def _effect_ended(self, instance: Instance, exchange: Exchange, end: ExchangeEnd) -> None:
        match end:
            case Answered(outcome):
                body = outcome.outcome
                if not isinstance(body, Succeeded | CallbackFailed | TargetNotFound | RejectedBeforeStart):
                    raise AssertionError("the transport takes for an answer only what answers the target's kind")
                command = AnswerAttempt(exchange.request_id, body, answer_digest(outcome), instance.instance_id)
                live = self._runs.get(exchange.run_id)  # an attempt that is out keeps its run in memory, unless the store has failed
                self._mover.command(exchange.run_id, command)
                if live is not None:
                    self._logs.answered(live.run, exchange.request_id, outcome.logs, late=False)
            case Lost(why):
                self._mover.command(exchange.run_id, LoseContact(exchange.request_id, why))
            case NotSent(why):
                self._mover.command(exchange.run_id, NeverBegan(exchange.request_id, why))
            case _:
                assert_never(end)


def answer_digest(outcome: Outcome) -> str:
    """What identifies the exact content of an answer."""
    return "sha256:" + hashlib.sha256(msgspec.json.encode(outcome.outcome)).hexdigest()
