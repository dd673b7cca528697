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

from ryusen_protocol.declarations import CompensationPolicy, Declaration, RetryPolicy
from ryusen_protocol.ids import AttemptId, ReleaseId, RequestId, RunId, StepId
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
from ryusen_server.core.agenda import Agenda, agenda
from ryusen_server.core.children import ChildEnd
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel, DeadlineReached, ParentStopped
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt
from ryusen_server.core.commands.settle_child import ChildEnded
from ryusen_server.core.commands.settle_timer import TimerDue
from ryusen_server.core.commands.settle_wait import EventMatched, WaitTimedOut
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.decide import Command
from ryusen_server.core.decision import Decision, SendAttempt
from ryusen_server.core.records import Outcome, ParentRef, Record, Recovery, StepCompleted
from tests.core.driving import (
    LEASE_MS,
    START_MS,
    WORKER,
    Driver,
    Transition,
    child,
    digest_of,
    emission,
    error,
    event_wait,
    raw,
    step,
    timer,
    timer_until,
)
from tests.core.invariants import Matched, Responded, Started, Submitted, Watch, check_all

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
        parent = ParentRef(RunId("rn_parent"), StepId("call"), 1) if seed % 3 == 1 else None
        self.driver = Driver(deadline_ms=deadline_ms, parent=parent, seed=seed, jitter=None)
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
        if answer.records:
            self.watch.decided[seen.position] = answer
        if isinstance(command, EventMatched) and any(isinstance(record, StepCompleted) for record in answer.records):
            word = Matched(seen.position, command.accepted_at_ms, command.accepted_position, command.registered_position)
            self.watch.matched[seen.position] = word
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
        need = agenda(run)
        match need.need:
            case "discovery":
                self.driver.until(run.discovery_due_at_ms)
                self.send(StartDiscovery(WORKER, self.driver.preferred))
            case "attempt":
                self.driver.until(self.driver.attempt.due_at_ms)
                self.send(AuthorizeAttempt(WORKER, LEASE_MS))
            case "answer" if run.dispatch is not None:
                step_id = StepId(f"s{len(run.steps)}")
                fresh = self._other_kind(step_id, number // 4) if number % 4 == 3 else step(step_id, retry=POLICIES[number % 3])
                self._respond(Declared(fresh), run.dispatch.request_id, assign=number % 2 == 0)
            case "answer":
                undoing = run.status == "compensating"
                self._answer(self._result(number) if undoing else Succeeded(VALUES[number % 3]), self.driver.request)
            case "probe":
                self.driver.until(need.due_at_ms)
                self.rediscover(number)
            case "timer" | "event" | "child":
                self._end_the_wait(need, number)
            case "nothing":
                self.rediscover(number)

    def _end_the_wait(self, need: Agenda, number: int) -> None:
        waiting = self.driver.waiting
        if waiting.child_run_id is not None:
            self._child_ended(waiting.child_run_id, number)
        elif need.need == "event" and number % 2:
            self.match(number)
        else:
            self.driver.until(need.due_at_ms)
            self.send(TimerDue(waiting.step_id) if need.need == "timer" else WaitTimedOut(waiting.step_id))

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
            lambda: Declared(self._other_kind(step_id, number // 16)),
            lambda: Declared(self._other_kind(StepId(f"new{len(self.driver.run.steps)}"), number // 16)),
            lambda: Declared(step("x", retry=RetryPolicy(max_attempts=0))),
            lambda: DefinitionBlocked("duplicate_step_id", step_id),
            lambda: RejectedBeforeStart("busy"),
            lambda: Uncaught(error()),
            lambda: Completed(VALUES[number % len(VALUES)]),
        )
        # The last two end the run, so they come seldom.
        seldom = number % 16 >= 14
        return responses[-1 - number % 2 if seldom else number % (len(responses) - 2)]()

    def _other_kind(self, step_id: StepId, number: int) -> Declaration:
        kinds: Sequence[Callable[[], Declaration]] = (
            lambda: timer(step_id, number % 3 * 1_000),
            lambda: timer_until(step_id, START_MS + (number % 3 - 1) * 5_000),
            lambda: event_wait(step_id, number % 3 * 2_000, order="7"),
            lambda: child(step_id, ("pack", "gone")[number % 7 == 6], timeout_ms=(None, 0, 4_000)[number % 3]),
            lambda: emission(step_id, order="7"),
        )
        return kinds[number % len(kinds)]()

    def _respond(self, outcome: DiscoveryOutcome | RejectedBeforeStart, request: RequestId, *, assign: bool) -> None:
        assignee = AuthorizeAttempt(WORKER, LEASE_MS) if assign else None
        self.send(AnswerDiscovery(request, outcome, WORKER.release_id, self.driver.preferred, assignee, self.driver.child_target(outcome)))

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

    def _waiting(self, number: int) -> StepId:
        """The step that waits, or seldom any other one."""
        run = self.driver.run
        steps = [StepId("none"), *run.steps]
        return run.pending if run.pending is not None and number % 8 else steps[number % len(steps)]

    def timer_due(self, number: int) -> None:
        self.send(TimerDue(self._waiting(number)))

    def timed_out(self, number: int) -> None:
        self.send(WaitTimedOut(self._waiting(number)))

    def match(self, number: int) -> None:
        """An event: mostly one that may match, else one from before the registration or from after the timeout."""
        step_id = self._waiting(number)
        waiting = self.driver.run.steps.get(step_id)
        due_at_ms = self.driver.now_ms if waiting is None or waiting.due_at_ms is None else waiting.due_at_ms
        accepted_at_ms = due_at_ms + (-1, -1, 0, 7)[number // 8 % 4]
        payload = (b"{}", b"\x00\xff", b"")[number % 3]
        self.send(EventMatched(step_id, payload, accepted_at_ms, 100 if number % 5 else 3, 10))

    def child_ended(self, number: int) -> None:
        """The end of the child that is waited for, or of another one."""
        children = [step.child_run_id for step in self.driver.run.steps.values() if step.child_run_id is not None]
        if not children:
            return
        self._child_ended(children[number % len(children)] if number % 7 == 0 else children[-1], number)

    def _child_ended(self, child_run_id: RunId, number: int) -> None:
        outcome: Outcome = ("succeeded", "succeeded", "failed", "cancelled", "timed_out")[number % 5]
        result = VALUES[number % len(VALUES)] if outcome == "succeeded" else None
        self.send(ChildEnded(ChildEnd(child_run_id, outcome, result, error() if outcome == "failed" else None)))

    def parent_stopped(self, number: int) -> None:
        if number % 5 == 0:
            self.send(ParentStopped(RunId("rn_parent"), "cancelled" if number % 2 else "timed_out"))

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
    *(Life.timer_due, Life.timed_out, Life.match, Life.child_ended) * 2,
    Life.parent_stopped,
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
