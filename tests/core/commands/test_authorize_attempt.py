"""Authorizing an attempt, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.declarations import CompensationPolicy
from ryusen_server.core.commands.authorize_attempt import ANSWER_GRACE_MS, AuthorizeAttempt
from ryusen_server.core.decision import SendAttempt
from ryusen_server.core.records import AttemptAuthorized
from tests.core.driving import LEASE_MS, STEADY, WORKER, Driver, kinds, only, step

AUTHORIZE = AuthorizeAttempt(WORKER, LEASE_MS)


def test_a_queued_attempt_is_authorized_under_a_fresh_request_with_its_lease() -> None:
    driver = Driver()
    driver.declare("a")
    decision = driver.decided(AUTHORIZE)
    record = only(decision.records, AttemptAuthorized)
    assert decision.effects == [SendAttempt(driver.attempt.attempt_id, record.request_id, WORKER)]
    assert (record.lease_until_ms, record.answer_by_ms) == (driver.now_ms + LEASE_MS, None)
    attempt = driver.attempt
    assert (attempt.state, attempt.worker, attempt.authorized_at_ms) == ("authorized", WORKER, driver.now_ms)
    assert attempt.request_id == record.request_id


def test_a_timeout_makes_the_answer_due_two_seconds_after_it() -> None:
    driver = Driver()
    driver.declare(step("a", timeout_ms=5_000))
    record = only(driver.decided(AUTHORIZE).records, AttemptAuthorized)
    assert record.answer_by_ms == driver.now_ms + 5_000 + ANSWER_GRACE_MS == driver.now_ms + 7_000


@pytest.mark.parametrize("assign", [False, True])
def test_both_ways_to_authorize_count_the_timeout_from_the_authorization(assign: bool) -> None:
    driver = Driver()
    driver.declare(step("a", timeout_ms=5_000), assign=assign)
    if not assign:
        driver.wait(10_000)
        driver.authorize()
    assert driver.attempt.answer_by_ms == driver.now_ms + 7_000


@pytest.mark.req("DLN-10", "STOP-02")
def test_at_the_deadline_a_forward_attempt_is_fenced() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.declare("a")
    driver.wait(1_000)
    decision = driver.decided(AUTHORIZE)
    assert kinds(decision) == ["stop_requested", "attempt_settled", "step_stopped", "outcome_decided", "run_ended"]
    assert decision.effects == []
    assert driver.step("a").state == "stopped"
    assert (driver.run.status, driver.run.outcome) == ("ended", "timed_out")


@pytest.mark.req("DLN-08", "DLN-07")
def test_a_deadline_does_not_cut_compensation_short() -> None:
    driver = Driver(deadline_ms=10_000)
    driver.run_step("a")
    driver.run_step("b")
    driver.uncaught()
    driver.wait(1_000_000)
    for _ in range(2):
        driver.authorize()
        driver.wait(1_000_000)
        driver.succeed()
    assert (driver.run.outcome, driver.run.recovery, driver.run.stop) == ("failed", "fully_compensated", None)


@pytest.mark.req("CMP-06")
def test_a_compensation_has_its_own_timeout() -> None:
    driver = Driver()
    policy = CompensationPolicy(retry=STEADY, attempt_timeout_ms=9_000)
    driver.run_step(step("a", timeout_ms=1_000, compensation=policy))
    driver.run_step(step("b", timeout_ms=1_000, compensation=None))
    driver.uncaught()
    driver.authorize()
    assert driver.attempt.answer_by_ms is None, "a compensator without a policy has the default, which has no timeout"
    driver.succeed()
    driver.authorize()
    assert driver.attempt.answer_by_ms == driver.now_ms + 11_000


def test_nothing_queued_is_refused() -> None:
    driver = Driver()
    assert driver.refused(AUTHORIZE).code == "not_ready"
    driver.declare("a")
    driver.authorize()
    assert driver.refused(AUTHORIZE).code == "not_ready"
    driver.lose()
    assert driver.refused(AUTHORIZE).code == "not_ready"
    driver.succeed()
    driver.complete()
    assert driver.refused(AUTHORIZE).code == "not_ready"


@pytest.mark.req("RTY-10")
def test_a_retry_waits_for_its_instant_over_a_restart_and_no_registration_hurries_it() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    driver.fail(retryable=True)
    driver.restart()
    driver.wait(999)
    assert driver.refused(AUTHORIZE).code == "not_ready"
    assert driver.refused(AuthorizeAttempt(WORKER, LEASE_MS, hurry=True)).code == "not_ready"
    driver.wait(1)
    assert driver.decided(AUTHORIZE).effects


def test_a_clock_that_goes_back_does_not_make_a_retry_due() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    driver.fail(retryable=True)
    due_at_ms = driver.attempt.due_at_ms
    driver.wait(-60_000)
    assert driver.refused(AUTHORIZE).code == "not_ready"
    assert driver.attempt.due_at_ms == due_at_ms


def test_what_is_due_stays_due_when_the_clock_goes_back() -> None:
    driver = Driver()
    driver.declare("a")
    driver.wait(-7_200_000)
    assert driver.decided(AUTHORIZE).effects


def test_a_registration_ends_the_pace_of_what_never_began() -> None:
    driver = Driver()
    driver.declare("a")
    for _ in range(2):
        driver.authorize()
        driver.never_began()
    assert driver.refused(AUTHORIZE).code == "not_ready"
    assert driver.decided(AuthorizeAttempt(WORKER, LEASE_MS, hurry=True)).effects
