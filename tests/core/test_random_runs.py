"""Random lives of one run: every command in any order, with duplicates, late and stale answers, lost contact, restarts and a clock that
jumps. After each transition every invariant holds; once the faults stop, the run ends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ryusen_protocol.declarations import CompensationPolicy, RetryPolicy, TimerDeclaration
from ryusen_protocol.ids import AttemptId, ReleaseId, RequestId, StepId
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, SupplySuccess
from ryusen_protocol.outcome import (
    CallbackFailed,
    Completed,
    Declared,
    DefinitionBlocked,
    DiscoveryOutcome,
    EffectOutcome,
    RejectedBeforeStart,
    Succeeded,
    TargetNotFound,
    Uncaught,
)
from ryusen_server.core.agenda import agenda
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel, DeadlineReached
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.decide import Command
from ryusen_server.core.decision import Decision, SendAttempt
from ryusen_server.core.records import Record, Recovery
from tests.core.driving import LEASE_MS, WORKER, Driver, Transition, digest_of, error, raw, step
from tests.core.invariants import Responded, Started, Submitted, Watch, check_all

POLICIES = (
    RetryPolicy(max_attempts=1),
    RetryPolicy(max_attempts=2, initial_ms=500, jitter=0.0),
    RetryPolicy(max_attempts=4, initial_ms=1_000, maximum_ms=3_000, jitter=0.5),
)
VALUES = (raw(None), raw(7), raw({"total": 12.5}), msgspec.Raw(b'{"type":"decimal","value":"1"}'), msgspec.Raw(b"[1]"))
"""The last two are no portable values."""


class Life:
    """A run in a hostile world. Each act takes one number, which chooses among what is possible."""

    def __init__(self, seed: int) -> None:
        deadline_ms = (None, 3_000, None, 20_000)[seed % 4]
        self.driver = Driver(deadline_ms=deadline_ms, seed=seed, jitter=None)
        self.watch = Watch(self.driver.run)
        self.watch.commit(self.driver.rows[0])
        self.sent: list[AnswerAttempt] = []
        self.passes: list[RequestId] = []
        self.dispositions: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        check_all(self.watch)

    def send(self, command: Command) -> None:
        driver = self.driver
        self.commands[type(command).__name__] += 1
        if isinstance(command, NeverBegan):
            self.watch.proofs.add(command.request_id)
        if isinstance(command, AnswerAttempt):
            self.sent.append(command)
            if isinstance(command.outcome, RejectedBeforeStart):
                self.watch.proofs.add(command.request_id)
        answer = driver.send(command)
        seen = driver.transitions[-1]
        if seen.position != seen.position_before:
            self.watch.commit(driver.rows[-1])
        if not isinstance(answer, Decision):
            assert seen.position == seen.position_before, "a refusal was recorded"
            assert seen.before == seen.after, "a refusal changed the run"
        else:
            self._witness(command, answer, seen)
        self.statuses[driver.run.status] += 1
        check_all(self.watch)

    def _witness(self, command: Command, answer: Decision, seen: Transition) -> None:
        for effect in answer.effects:
            attempt_id: AttemptId | None = effect.attempt_id if isinstance(effect, SendAttempt) else None
            self.watch.started.append(Started(effect.request_id, attempt_id, self.driver.position))
            if attempt_id is None:
                self.passes.append(effect.request_id)
        if isinstance(command, AnswerAttempt):
            assert answer.disposition is not None
            self.dispositions[answer.disposition] += 1
            self.watch.submitted.append(
                Submitted(
                    command.request_id,
                    command.outcome.attempt_generation,
                    command.answer_digest,
                    answer.disposition,
                    tuple(answer.records),
                    seen.open_request,
                )
            )
        if isinstance(command, ResolveAttempt):
            self.watch.resolved.add(command.attempt_id)
        if isinstance(command, AnswerDiscovery):
            counted = bool(answer.records or answer.notes)
            self.watch.responded.append(Responded(command.request_id, counted, seen.open_pass))
        duplicate = isinstance(command, AnswerDiscovery) and isinstance(command.outcome, DefinitionBlocked)
        if duplicate and answer.disposition == "accepted":
            self.watch.duplicates.add(self.driver.position)

    # acts

    def go_on(self, number: int) -> None:
        """Whatever the run needs next, done well."""
        run = self.driver.run
        match agenda(run).need:
            case "discovery":
                self.driver.until(run.discovery_due_at_ms)
                self.send(StartDiscovery(WORKER, self.driver.preferred))
            case "attempt":
                self.driver.until(self.driver.attempt.due_at_ms)
                self.send(AuthorizeAttempt(WORKER, LEASE_MS))
            case "answer" if run.dispatch is not None:
                fresh = Declared(step(f"s{len(run.steps)}", retry=POLICIES[number % 3]))
                self._respond(fresh, run.dispatch.request_id, assign=number % 2 == 0)
            case "answer":
                undoing = run.status == "compensating"
                self._answer(self._result(number) if undoing else Succeeded(VALUES[number % 3]), self.driver.request)
            case "probe":
                self.driver.until(agenda(run).due_at_ms)
                self.rediscover(number)
            case "nothing":
                self.rediscover(number)

    def start(self, number: int) -> None:
        self.send(StartDiscovery(WORKER, self.driver.preferred, hurry=number % 2 == 0))

    def respond(self, number: int) -> None:
        """Answer the pass that is out, or an older one, with anything."""
        if not self.passes:
            return
        current = self.driver.run.dispatch
        request = current.request_id if current is not None and number % 8 else self.passes[number % len(self.passes)]
        self._respond(self._response(number // 8), request, assign=number % 3 == 0)

    def _response(self, number: int) -> DiscoveryOutcome | RejectedBeforeStart:
        step_id = StepId(f"s{number % 4}")
        policy = POLICIES[number % 3]
        responses: Sequence[Callable[[], DiscoveryOutcome | RejectedBeforeStart]] = (
            lambda: Declared(step(step_id, retry=policy, compensation=CompensationPolicy(retry=policy))),
            lambda: Declared(step(step_id, retry=policy, compensation=None, has_compensation=False)),
            lambda: Declared(step(f"new{len(self.driver.run.steps)}", timeout_ms=1_000)),
            lambda: Declared(TimerDeclaration(step_id, delay_ms="5")),
            lambda: Declared(step("x", retry=RetryPolicy(max_attempts=0))),
            lambda: DefinitionBlocked("duplicate_step_id", step_id),
            lambda: RejectedBeforeStart("busy"),
            lambda: Uncaught(error()),
            lambda: Completed(VALUES[number % len(VALUES)]),
        )
        # The last two end the run, so they come seldom.
        seldom = number % 16 >= 14
        return responses[-1 - number % 2 if seldom else number % (len(responses) - 2)]()

    def _respond(self, outcome: DiscoveryOutcome | RejectedBeforeStart, request: RequestId, *, assign: bool) -> None:
        assignee = AuthorizeAttempt(WORKER, LEASE_MS) if assign else None
        self.send(AnswerDiscovery(request, outcome, WORKER.release_id, self.driver.preferred, assignee))

    def lose_pass(self, number: int) -> None:
        if self.passes:
            self.send(LoseDiscovery(self.passes[-1 - number % min(2, len(self.passes))]))

    def authorize(self, number: int) -> None:
        self.send(AuthorizeAttempt(WORKER, LEASE_MS, hurry=number % 2 == 0))

    def answer(self, number: int) -> None:
        """Answer the open request, or any older one, with anything; sometimes for another generation."""
        requests = list(self.driver.run.requests)
        if requests:
            late = number % 5 == 0
            request = requests[number % len(requests)] if late else requests[-1]
            self._answer(self._result(number // 5), request, shift=1 if number % 19 == 7 else 0)

    def _result(self, number: int) -> EffectOutcome | RejectedBeforeStart:
        results: Sequence[EffectOutcome | RejectedBeforeStart] = (
            Succeeded(VALUES[number % len(VALUES)]),
            CallbackFailed(error(retryable=True)),
            CallbackFailed(error(retryable=True, message="again")),
            CallbackFailed(error()),
            TargetNotFound("not_met"),
            TargetNotFound("hidden", StepId("s0")),
            RejectedBeforeStart("draining"),
        )
        return results[number % len(results)]

    def _answer(self, outcome: EffectOutcome | RejectedBeforeStart, request: RequestId, shift: int = 0) -> None:
        attempt = self.driver.run.attempts[self.driver.run.requests[request]]
        generation = attempt.attempt_generation + shift
        named = msgspec.structs.replace(outcome, attempt=attempt.attempt, attempt_generation=generation)
        self.send(AnswerAttempt(request, named, digest_of(named), WORKER.instance_id))

    def answer_again(self, number: int) -> None:
        """Send an earlier submission once more, to the byte."""
        if self.sent:
            self.send(self.sent[-1 - number % len(self.sent)])

    def lose_contact(self, number: int) -> None:
        requests = list(self.driver.run.requests)
        if requests:
            self.send(LoseContact(requests[-1 - number % min(3, len(requests))], "lease elapsed"))

    def never_began(self, number: int) -> None:
        # Only what is authorized can be proven by a registration; a proof about an older request names that request.
        requests = list(self.driver.run.requests)
        if requests:
            self.send(NeverBegan(requests[-1 - number % min(3, len(requests))], "the invocation never left"))

    def cancel(self, _number: int) -> None:
        self.send(Cancel("operator"))

    def cancel_again(self, _number: int) -> None:
        if self.driver.run.stop is not None:
            self.send(Cancel("somebody else"))

    def deadline(self, _number: int) -> None:
        self.send(DeadlineReached())

    def rediscover(self, _number: int) -> None:
        self.send(Rediscover("operator"))

    def resolve(self, number: int) -> None:
        """An operator's word on the attempt that is Unknown, or on any other, sometimes of another generation."""
        run = self.driver.run
        attempt = run.current_attempt()
        if attempt is None or attempt.state != "unknown" or number % 7 == 0:
            if not run.attempts:
                return
            attempt = list(run.attempts.values())[number % len(run.attempts)]
        words = (SupplySuccess(VALUES[0]), AuthorizeRetry(), DeclareFailure(error(retryable=True)), DeclareFailure(error()))
        generation = attempt.attempt_generation + (number % 11 == 3)
        self.send(ResolveAttempt(attempt.attempt_id, generation, words[number % len(words)], "kim"))

    def release(self, number: int) -> None:
        self.driver.preferred = (ReleaseId("r1"), ReleaseId("r2"), None)[number % 3]

    def clock(self, number: int) -> None:
        self.driver.wait((10, 999, 1_000, 5_000, 61_000, -2_000)[number % 6])

    def restart(self, _number: int) -> None:
        self.driver.restart()
        self.watch.run = self.driver.run
        check_all(self.watch)

    # the end

    def settle(self) -> None:
        """No more faults: workers answer, and an operator rediscovers what is blocked with code that is right."""
        run = self.driver.run
        for _ in range(200):
            match agenda(run).need:
                case _ if run.status == "ended":
                    return
                case "answer" if run.dispatch is not None:
                    self._respond(Completed(VALUES[1]), run.dispatch.request_id, assign=False)
                case "nothing" if run.status != "definition_blocked":
                    assert self.driver.attempt.state == "unknown"
                    self._answer(Succeeded(VALUES[1]), self.driver.request)
                case _:
                    self.go_on(0)
        raise AssertionError(f"the run does not end: {run.status}, {agenda(run)}")


ACTS: tuple[Callable[[Life, int], None], ...] = (
    *(Life.go_on,) * 12,
    *(Life.respond,) * 5,
    *(Life.answer,) * 5,
    *(Life.lose_contact, Life.deadline) * 3,
    *(Life.resolve,) * 3,
    *(Life.start, Life.authorize, Life.answer_again, Life.never_began, Life.clock) * 2,
    Life.cancel_again,
    Life.lose_pass,
    Life.restart,
    Life.rediscover,
    Life.release,
)
AFTERLIFE = 8
"""Acts on a run that has ended: enough for late answers, stops and repeats."""


def live(seed: int, acts: Sequence[tuple[int, int]]) -> Life:
    """One life: the acts, then the end. A third of the lives is cancelled, from some moment on as soon as an effect is out, or queued."""
    life = Life(seed)
    wanted = "answer" if seed % 2 else "attempt"
    cancel_from = seed % 29 if seed % 3 == 0 else len(acts)
    ended = 0
    for index, (act, number) in enumerate(acts):
        if index >= cancel_from and (agenda(life.driver.run).need == wanted or index > cancel_from + 6):
            life.cancel(number)
            cancel_from = len(acts)
        ACTS[act % len(ACTS)](life, number)
        ended += life.driver.run.status == "ended"
        if ended > AFTERLIFE:
            break
    life.settle()
    return life


@pytest.mark.req("SEM-08", "RTY-02", "UNK-08", "UNK-09", "STOP-02", "CMP-04", "CMP-18")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(seed=st.integers(0, 2**16), script=st.binary(min_size=60, max_size=110))
def test_a_run_keeps_its_invariants_whatever_happens_and_ends_once_faults_stop(seed: int, script: bytes) -> None:
    acts = list(zip(script[::2], script[1::2], strict=False))
    note(f"acts: {[(ACTS[act % len(ACTS)].__name__, number) for act, number in acts]}")
    live(seed, acts)


def test_the_random_lives_reach_every_command_record_status_and_word() -> None:
    """Holds the test above to its word: a world that never gets anywhere would keep every invariant."""
    commands: Counter[str] = Counter()
    records: Counter[type] = Counter()
    statuses: Counter[str] = Counter()
    words: Counter[str] = Counter()
    ends: Counter[tuple[str | None, str | None]] = Counter()
    for seed in range(60):
        chance = random.Random(seed)
        life = live(seed, [(chance.randrange(256), chance.randrange(256)) for _ in range(50)])
        commands += life.commands
        records.update(type(entry.record) for entry in life.watch.entries)
        statuses += life.statuses
        words += life.dispositions
        ends[life.driver.run.outcome, life.driver.run.recovery] += 1
    assert set(commands) == {command.__name__ for command in get_args(Command)}
    assert set(records) == set(get_args(Record))
    assert set(statuses) == {"running", "definition_blocked", "stopping", "compensating", "ended"}
    assert set(words) >= {"accepted", "replayed", "stale"}
    assert {outcome for outcome, _ in ends} == {"succeeded", "failed", "cancelled", "timed_out"}
    assert {recovery for _, recovery in ends} == set(get_args(Recovery))
