"""Answering a discovery pass, row by row."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.declarations import (
    ChildDeclaration,
    CompensationPolicy,
    Declaration,
    EmissionDeclaration,
    EventWaitDeclaration,
    Location,
    RetryPolicy,
    RunDeclaration,
    TimerDeclaration,
)
from ryusen_protocol.identity import attempt_id, operation_id
from ryusen_protocol.ids import FunctionId, ReleaseId, RequestId, StepId
from ryusen_protocol.limits import MIB, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.outcome import BlockReason, Completed, Declared, DefinitionBlocked, DiscoveryOutcome, RejectedBeforeStart, Uncaught
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.decision import SendAttempt
from ryusen_server.core.records import AttemptAuthorized, AttemptQueued, RunBlocked, StepDeclared
from tests.core.driving import NO_RETRY, STEADY, WORKER, Driver, error, kinds, only, raw, step

HERE = Location("orders.py", 12, "charge")
THERE = Location("orders.py", 30, "charge")
RESPONSES: list[DiscoveryOutcome] = [
    Declared(step("late")),
    Completed(raw(1)),
    Uncaught(error()),
    DefinitionBlocked("duplicate_step_id", StepId("late")),
]


# What counts


@pytest.mark.parametrize("outcome", [*RESPONSES, RejectedBeforeStart("busy")])
def test_an_answer_to_another_dispatch_is_discarded(outcome: DiscoveryOutcome | RejectedBeforeStart) -> None:
    driver = Driver()
    assert driver.respond(outcome, request=RequestId("rq_none")).disposition == "discarded"
    old = driver.start()
    driver.lose_pass()
    driver.start()
    position = driver.position
    assert driver.respond(outcome, request=old).disposition == "discarded"
    assert (driver.position, driver.run.dispatch is not None) == (position, True)


@pytest.mark.req("STOP-04")
@pytest.mark.parametrize("outcome", RESPONSES)
def test_an_answer_after_a_stop_is_discarded(outcome: DiscoveryOutcome) -> None:
    driver = Driver()
    driver.run_step("a")
    request = driver.start()
    driver.cancel()
    assert driver.respond(outcome, request=request).disposition == "discarded"
    assert (driver.run.status, driver.run.outcome, list(driver.run.steps)) == ("compensating", "cancelled", ["a"])


@pytest.mark.req("DLN-10")
@pytest.mark.parametrize("outcome", RESPONSES)
@pytest.mark.parametrize("undo", [False, True])
def test_at_the_deadline_the_answer_is_discarded_and_the_run_times_out(outcome: DiscoveryOutcome, undo: bool) -> None:
    driver = Driver(deadline_ms=1_000)
    if undo:
        driver.run_step("a")
    request = driver.start()
    driver.wait(1_000)
    decision = driver.respond(outcome, request=request)
    assert decision.disposition == "discarded"
    end = ["compensation_started", "attempt_queued"] if undo else ["run_ended"]
    assert kinds(decision) == ["stop_requested", "outcome_decided", *end]
    assert (driver.run.outcome, driver.run.result, driver.run.failure) == ("timed_out", None, None)
    assert "late" not in driver.run.steps


@pytest.mark.req("DLN-10")
def test_a_moment_before_the_deadline_it_completes_normally() -> None:
    driver = Driver(deadline_ms=1_000)
    request = driver.start()
    driver.wait(999)
    driver.respond(Completed(raw(1)), request=request)
    driver.wait(5_000)
    assert driver.deadline().records == []
    assert driver.run.outcome == "succeeded"


def test_a_rejection_queues_the_same_pass_again_paced() -> None:
    driver = Driver()
    waits: list[int] = []
    for _ in range(3):
        driver.start(hurry=True)
        assert kinds(driver.respond(RejectedBeforeStart("draining"))) == []
        waits.append(driver.run.discovery_due_at_ms - driver.now_ms)
    assert waits == [0, 1_000, 2_000]
    assert driver.run.passes == 1


# Declarations


@pytest.mark.req("SEM-07", "CMP-14")
@pytest.mark.parametrize("has_compensation", [False, True])
def test_a_new_id_becomes_a_step_with_its_first_attempt_queued(has_compensation: bool) -> None:
    driver = Driver()
    declaration = step("a", has_compensation=has_compensation)
    decision = driver.declare(declaration)
    assert kinds(decision) == ["step_declared", "attempt_queued"]
    operation = operation_id(driver.run.run_id, StepId("a"), "forward")
    assert decision.records == [
        StepDeclared(declaration, operation),
        AttemptQueued(attempt_id(driver.run.run_id, StepId("a"), "forward", 1), StepId("a"), "forward", 1, 1, operation, driver.now_ms),
    ]
    assert (driver.run.pending, driver.run.discovery_pass, driver.run.status) == ("a", None, "running")
    assert decision.effects == []


def test_it_may_be_authorized_in_the_same_transaction() -> None:
    driver = Driver()
    decision = driver.declare("a", assign=True)
    assert kinds(decision) == ["step_declared", "attempt_queued", "attempt_authorized"]
    record = only(decision.records, AttemptAuthorized)
    assert decision.effects == [SendAttempt(driver.attempt.attempt_id, record.request_id, WORKER)]
    assert len(driver.rows) == 2


@pytest.mark.req("SEM-07")
def test_an_obsolete_id_is_pending_again_as_the_next_attempt_of_the_same_operation() -> None:
    driver = Driver()
    driver.declare(step("a", retry=STEADY), assign=True)
    first = driver.attempt
    driver.fail(retryable=True)
    driver.authorize()
    driver.missing()
    assert driver.step("a").state == "obsolete"
    driver.declare(step("a", retry=RetryPolicy(max_attempts=2, jitter=0.0)))
    third = driver.attempt
    assert (third.attempt, third.attempt_generation, third.operation_id) == (3, 3, first.operation_id)
    assert driver.step("a").state == "pending"
    driver.authorize()
    driver.fail(retryable=True)
    assert driver.step("a").state == "failed", "the count of failures goes on, under the new policy"


@pytest.mark.parametrize("name", ["policy before", "policy after"])
def test_a_redeclared_step_takes_the_policy_it_is_declared_with_last(name: str) -> None:
    driver = Driver()
    driver.declare(step("a", retry=NO_RETRY), assign=True)
    driver.missing()
    driver.declare(step("a", retry=STEADY if name == "policy after" else NO_RETRY), assign=True)
    driver.fail(retryable=True)
    assert driver.step("a").state == ("pending" if name == "policy after" else "failed")


OTHER_KINDS: list[Declaration] = [
    TimerDeclaration(StepId("a"), delay_ms="5"),
    EventWaitDeclaration(StepId("a"), "paid", {}, "5"),
    ChildDeclaration(StepId("a"), FunctionId("ship"), raw(1)),
    EmissionDeclaration(StepId("a"), "shipped", raw(b"x")),
]


@pytest.mark.parametrize("declaration", OTHER_KINDS)
@pytest.mark.parametrize("obsolete", [False, True])
def test_another_kind_under_a_known_id_conflicts(declaration: Declaration, obsolete: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    if obsolete:
        driver.missing()
    else:
        driver.succeed()
    decision = driver.declare(declaration)
    assert kinds(decision) == ["run_blocked"]
    assert only(decision.records, RunBlocked).reason == "declaration_conflict"


@pytest.mark.req("SEM-08", "BLK-04")
@pytest.mark.parametrize("failed", [False, True])
def test_a_completed_id_that_is_declared_again_is_never_adopted(failed: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    if failed:
        driver.fail()
    else:
        driver.succeed("first")
    decision = driver.declare("a")
    assert kinds(decision) == ["run_blocked"]
    assert driver.run.blocker is not None
    assert driver.run.blocker.reason == "declaration_conflict"
    assert len(driver.step("a").attempts) == 1
    assert driver.step("a").result == (None if failed else raw("first"))


INVALID: list[tuple[RunDeclaration, str]] = [
    (step("a", retry=RetryPolicy(max_attempts=0)), "max_attempts 0"),
    (step("a", retry=RetryPolicy(max_attempts=2**31)), "max_attempts"),
    (step("a", retry=RetryPolicy(initial_ms=-1)), "delay"),
    (step("a", retry=RetryPolicy(maximum_ms=2**53)), "delay"),
    (step("a", retry=RetryPolicy(multiplier=0.5)), "multiplier 0.5"),
    (step("a", retry=RetryPolicy(multiplier=float("nan"))), "multiplier nan"),
    (step("a", retry=RetryPolicy(jitter=1.5)), "jitter 1.5"),
    (step("a", retry=RetryPolicy(jitter=-0.1)), "jitter -0.1"),
    (step("a", timeout_ms=-1), "timeout is -1 ms"),
    (step("a", compensation=CompensationPolicy(RetryPolicy(max_attempts=0))), "compensation policy"),
    (step("a", compensation=CompensationPolicy(STEADY, 2**53)), "compensation attempt timeout"),
    (step(""), "empty"),
    (step("x" * 257), "257"),
    (step("a\x00b"), "NUL"),
]


@pytest.mark.parametrize(("declaration", "why"), INVALID, ids=[why for _, why in INVALID])
def test_a_declaration_outside_its_domain_is_refused_with_the_reason(declaration: RunDeclaration, why: str) -> None:
    driver = Driver()
    blocked = only(driver.declare(declaration).records, RunBlocked)
    assert blocked.reason == "invalid_declaration"
    assert why in blocked.message
    assert driver.run.steps == {}


def test_a_step_id_that_is_too_long_is_blocked_and_not_recorded_at_its_length() -> None:
    driver = Driver()
    blocked = only(driver.declare("i" * 100_000).records, RunBlocked)
    assert blocked.reason == "invalid_declaration"
    assert len(blocked.step_id) <= 256
    assert len(blocked.message) < 2_000


def test_a_full_replay_budget_refuses_another_step() -> None:
    driver = Driver(checked=False)
    for index in range(4):
        driver.run_step(f"s{index}", "x" * (2 * MIB - 1_600))
    left = REPLAY_BUDGET_BYTES_MAX - driver.run.replay_bytes
    assert REPLAY_RESERVE_BYTES <= left < 2 * REPLAY_RESERVE_BYTES
    driver.declare("uses-the-reserve")
    driver.authorize()
    driver.fail(message="y" * 3_000, retryable=False)
    assert REPLAY_BUDGET_BYTES_MAX - driver.run.replay_bytes < REPLAY_RESERVE_BYTES
    decision = driver.declare("one-more")
    blocked = only(decision.records, RunBlocked)
    assert (blocked.reason, blocked.step_id) == ("replay_budget", "one-more")
    assert driver.run.status == "definition_blocked"
    driver.cancel()
    assert len(driver.run.unwind) == 4


# Ends


@pytest.mark.req("SEM-14")
def test_a_completed_pass_ends_the_run_and_undoes_nothing() -> None:
    driver = Driver(deadline_ms=10_000)
    driver.run_step("a")
    decision = driver.complete({"total": 7})
    assert kinds(decision) == ["outcome_decided", "run_ended"]
    run = driver.run
    assert (run.status, run.outcome, run.recovery, run.recovery_reason) == ("ended", "succeeded", "not_required", "succeeded")
    assert (run.result, run.unwind, run.ended_at_ms) == (raw({"total": 7}), [], driver.now_ms)


@pytest.mark.req("SEM-14", "RTY-03", "RTY-06")
def test_a_handled_failure_stays_visible_in_a_run_that_succeeds() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare(step("b", retry=NO_RETRY), assign=True)
    driver.fail("declined")
    driver.complete()
    assert (driver.run.outcome, driver.run.unwind) == ("succeeded", [])
    failure = driver.step("b").failure
    assert failure is not None
    assert failure.message == "declined"
    assert driver.run.attempts[driver.step("b").attempts[0]].state == "failed"


UNPORTABLE = [
    (msgspec.Raw(b"[1]"), "portable value"),
    (msgspec.Raw(b'{"type":"decimal","value":"1"}'), "decimal"),
    (msgspec.Raw(b'{"type":"string","value":"' + b"x" * (2 * MIB) + b'"}'), "2 MiB"),
]


@pytest.mark.parametrize(("result", "why"), UNPORTABLE, ids=[why for _, why in UNPORTABLE])
@pytest.mark.parametrize("undo", [False, True])
def test_a_result_that_cannot_be_recorded_fails_the_run(result: msgspec.Raw, why: str, undo: bool) -> None:
    driver = Driver()
    if undo:
        driver.run_step("a")
    driver.discover(Completed(result))
    failure = driver.run.failure
    assert failure is not None
    assert (driver.run.outcome, failure.category, driver.run.result) == ("failed", "sdk.invalid_result", None)
    assert why in failure.message
    assert driver.run.status == ("compensating" if undo else "ended")


@pytest.mark.req("RTY-07", "CMP-18", "SEM-17")
def test_an_uncaught_failure_and_the_unwind_are_one_transaction() -> None:
    driver = Driver()
    driver.run_step("a")
    transactions = len(driver.rows)
    driver.start()
    decision = driver.respond(Uncaught(error("out of stock")))
    assert kinds(decision) == ["outcome_decided", "compensation_started", "attempt_queued"]
    assert len(driver.rows) == transactions + 1
    run = driver.run
    assert (run.status, run.outcome, run.recovery) == ("compensating", "failed", None)
    assert run.failure == error("out of stock")


@pytest.mark.req("SEM-17", "CMP-09")
def test_an_uncaught_failure_with_nothing_to_undo_ends_the_run_without_compensating() -> None:
    driver = Driver()
    driver.declare(step("a", retry=NO_RETRY), assign=True)
    driver.fail()
    assert kinds(driver.uncaught()) == ["outcome_decided", "run_ended"]
    run = driver.run
    assert (run.outcome, run.recovery, run.recovery_reason) == ("failed", "not_required", "empty_unwind")
    assert len(run.attempts) == 1, "the failed attempt stays in the history"


def test_an_uncaught_failure_is_cut_to_the_limits() -> None:
    driver = Driver()
    driver.uncaught(error("x" * 10 * MIB))
    assert driver.run.failure is not None
    assert len(driver.run.failure.message) <= 8 * 1024
    assert "cut" in driver.run.failure.message


# Blockers


@pytest.mark.req("BLK-02", "BLK-03", "BLK-07")
def test_a_duplicate_blocks_the_run_and_starts_nothing() -> None:
    driver = Driver()
    driver.run_step("a", "first")
    decision = driver.discover(DefinitionBlocked("duplicate_step_id", StepId("a"), HERE, THERE))
    assert kinds(decision) == ["run_blocked"]
    run, blocker = driver.run, driver.run.blocker
    assert blocker is not None
    assert (run.status, run.outcome, run.recovery, run.unwind, run.pending) == ("definition_blocked", None, None, [], None)
    assert (blocker.reason, blocker.step_id, blocker.first, blocker.duplicate) == ("duplicate_step_id", "a", HERE, THERE)
    assert (blocker.count, blocker.first_seen_at_ms, blocker.release_id) == (1, driver.now_ms, "r1")
    assert driver.step("a").result == raw("first")


@pytest.mark.req("BLK-11")
def test_the_same_blocker_again_only_updates_its_diagnostics() -> None:
    driver = Driver()
    driver.block("a")
    first_seen_at_ms = driver.now_ms
    for _ in range(3):
        driver.wait(30_000)
        driver.rediscover()
        driver.block("a")
    blocker = driver.run.blocker
    assert blocker is not None
    assert (blocker.count, blocker.first_seen_at_ms, blocker.last_seen_at_ms) == (4, first_seen_at_ms, driver.now_ms)
    assert (driver.run.outcome, driver.run.attempts) == (None, {})


@pytest.mark.parametrize(("step_id", "reason"), [("b", "duplicate_step_id"), ("a", "declaration_conflict")])
def test_another_blocker_replaces_it(step_id: str, reason: BlockReason) -> None:
    driver = Driver()
    driver.block("a")
    driver.wait(1_000)
    driver.rediscover()
    driver.block(step_id, reason)
    blocker = driver.run.blocker
    assert blocker is not None
    assert (blocker.step_id, blocker.reason, blocker.count, blocker.first_seen_at_ms) == (step_id, reason, 1, driver.now_ms)


@pytest.mark.req("BLK-04", "BLK-06", "BLK-07")
@pytest.mark.parametrize("fix", ["second call gets a new id", "second call removed", "first call renamed"])
def test_a_fix_lets_the_run_go_on_with_what_it_has(fix: str) -> None:
    driver = Driver()
    driver.run_step("a", "first")
    driver.block("a")
    driver.rediscover()
    if fix == "second call removed":
        driver.complete()
        assert (driver.run.outcome, driver.run.blocker) == ("succeeded", None)
        return
    driver.declare("b")
    assert (driver.run.status, driver.run.blocker) == ("running", None)
    driver.authorize()
    driver.succeed("second")
    assert (driver.step("a").result, driver.step("b").result) == (raw("first"), raw("second"))
    assert len(driver.step("a").attempts) == 1
    driver.uncaught()
    assert [target.step_id for target in driver.run.unwind] == ["b", "a"], "the old step stays in the unwind plan"


def test_a_failure_of_a_rediscovery_ends_the_blocked_run() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.block("a")
    driver.rediscover()
    driver.uncaught()
    assert (driver.run.status, driver.run.blocker) == ("compensating", None)


def test_a_pass_that_blocks_after_another_release_became_preferred_is_repeated_at_once() -> None:
    driver = Driver()
    request = driver.start()
    blocked = DefinitionBlocked("duplicate_step_id", StepId("a"))
    decision = driver.decided(AnswerDiscovery(request, blocked, WORKER.release_id, ReleaseId("r2"), None))
    assert kinds(decision) == ["run_blocked", "discovery_queued"]
    assert (driver.run.status, driver.run.discovery_pass, driver.run.discovery_due_at_ms) == ("definition_blocked", 2, 0)
    driver.preferred = ReleaseId("r2")
    assert kinds(driver.block("a")) == ["run_blocked"]
