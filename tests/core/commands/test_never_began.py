"""Reconciling what provably never began, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.ids import RequestId
from ryusen_server.core.commands.never_began import NeverBegan
from tests.core.driving import Driver, kinds


@pytest.mark.req("STOP-12")
@pytest.mark.parametrize("lost", [False, True])
def test_while_running_the_same_attempt_is_queued_again(lost: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    before = driver.attempt
    identity = (before.attempt_id, before.attempt, before.attempt_generation, before.operation_id)
    if lost:
        driver.lose()
    assert kinds(driver.never_began()) == ["attempt_requeued"]
    after = driver.attempt
    assert (after.attempt_id, after.attempt, after.attempt_generation, after.operation_id) == identity
    assert (after.state, after.worker, after.lease_until_ms, after.unknown_at_ms) == ("queued", None, None, None)
    driver.authorize()
    driver.succeed()
    assert driver.step("a").state == "succeeded"
    assert len(driver.step("a").attempts) == 1


def test_it_goes_at_once_then_waits_a_second_doubling_to_a_minute() -> None:
    driver = Driver()
    driver.declare("a")
    waits: list[int] = []
    for _ in range(9):
        driver.authorize()
        driver.never_began()
        waits.append(driver.attempt.due_at_ms - driver.now_ms)
    assert waits == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert driver.attempt.attempt == 1


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_while_compensating_it_is_queued_again_whatever_the_stop_reason(cancelled_first: bool) -> None:
    driver = Driver(deadline_ms=50_000)
    driver.run_step("a")
    if cancelled_first:
        driver.cancel()
    else:
        driver.uncaught()
    driver.authorize()
    driver.lose()
    driver.wait(100_000)
    assert kinds(driver.never_began()) == ["attempt_requeued"]
    assert (driver.run.status, driver.attempt.attempt) == ("compensating", 1)
    driver.authorize()
    driver.succeed()
    assert driver.run.recovery == "fully_compensated"


@pytest.mark.req("STOP-13", "SEM-17")
@pytest.mark.parametrize("lost", [False, True])
def test_while_stopping_it_is_fenced_and_the_gate_opens(lost: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    driver.cancel()
    if lost:
        driver.lose()
    attempt_id = driver.attempt.attempt_id
    assert kinds(driver.never_began()) == ["attempt_settled", "step_stopped", "outcome_decided", "run_ended"]
    assert driver.run.attempts[attempt_id].state == "fenced"
    assert driver.step("a").state == "stopped"
    assert (driver.run.outcome, driver.run.recovery_reason) == ("cancelled", "empty_unwind")


@pytest.mark.req("STOP-13", "CMP-18")
def test_while_stopping_the_unwind_begins_in_the_same_transaction() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    driver.cancel()
    decision = driver.never_began()
    assert kinds(decision) == ["attempt_settled", "step_stopped", "outcome_decided", "compensation_started", "attempt_queued"]
    assert [target.step_id for target in driver.run.unwind] == ["a"]


def test_past_the_deadline_it_times_out_and_is_fenced() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.declare("a", assign=True)
    driver.wait(1_000)
    assert kinds(driver.never_began()) == ["stop_requested", "attempt_settled", "step_stopped", "outcome_decided", "run_ended"]
    assert (driver.run.outcome, driver.step("a").state) == ("timed_out", "stopped")


def test_it_must_be_the_request_that_is_out() -> None:
    driver = Driver()
    assert driver.never_began(request=RequestId("rq_none")).records == []
    driver.declare("a")
    old = driver.authorize()
    driver.never_began()
    assert driver.never_began(request=old).records == [], "it is queued already"
    new = driver.authorize()
    assert driver.never_began(request=old).records == [], "it is out under another request"
    driver.succeed()
    assert driver.decided(NeverBegan(new, "x")).records == [], "it is settled"


def test_a_late_answer_to_what_was_proven_not_to_have_begun_is_stale() -> None:
    driver = Driver()
    driver.declare("a")
    old = driver.authorize()
    driver.never_began()
    assert driver.succeed(request=old).disposition == "stale"
    assert driver.attempt.state == "queued"
    driver.authorize()
    assert driver.fail(request=old).disposition == "stale"
    assert driver.attempt.state == "authorized"
