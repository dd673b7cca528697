"""Cancelling, and passing the deadline, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.declarations import Declaration
from ryusen_protocol.outcome import Completed
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.decision import Decision, Refusal
from tests.core.driving import LEASE_MS, START_MS, WORKER, Driver, event_wait, kinds, raw, timer


@pytest.mark.req("STOP-03", "SEM-17")
def test_a_cancel_before_the_first_pass_ends_the_run_without_a_worker() -> None:
    driver = Driver()
    assert kinds(driver.cancel("ada")) == ["stop_requested", "outcome_decided", "run_ended"]
    run = driver.run
    assert run.stop is not None
    assert (run.stop.reason, run.stop.by, run.stop.requested_at_ms) == ("cancelled", "ada", START_MS)
    assert (run.outcome, run.recovery, run.recovery_reason) == ("cancelled", "not_required", "empty_unwind")


@pytest.mark.req("STOP-04")
def test_a_pass_that_is_out_is_discarded_and_holds_nothing_up() -> None:
    driver = Driver()
    request = driver.start()
    driver.cancel()
    assert driver.run.status == "ended"
    position = driver.position
    assert driver.respond(Completed(raw(1)), request=request).disposition == "discarded"
    assert (driver.position, driver.run.outcome) == (position, "cancelled")


@pytest.mark.req("STOP-02")
@pytest.mark.parametrize("retrying", [False, True])
def test_what_is_queued_is_fenced_a_retry_in_backoff_too(retrying: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=retrying)
    if retrying:
        driver.fail(retryable=True)
    assert kinds(driver.cancel()) == ["stop_requested", "attempt_settled", "step_stopped", "outcome_decided", "run_ended"]
    assert driver.run.attempts[driver.step("a").attempts[-1]].state == "fenced"
    assert driver.step("a").state == "stopped"
    driver.wait(10**9)
    assert driver.refused(AuthorizeAttempt(WORKER, LEASE_MS)).code == "not_ready"


@pytest.mark.req("STOP-05", "STOP-10", "SEM-16")
@pytest.mark.parametrize("unknown", [False, True])
def test_an_effect_that_is_out_is_waited_for(unknown: bool) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    if unknown:
        driver.lose()
    assert kinds(driver.cancel()) == ["stop_requested"]
    assert (driver.run.status, driver.run.outcome, driver.run.unwind) == ("stopping", None, [])


@pytest.mark.req("TMR-06", "EVW-05")
@pytest.mark.parametrize("declaration", [timer("t", 60_000), event_wait("t", 60_000)], ids=["timer", "wait"])
@pytest.mark.parametrize("by", ["cancel", "deadline", "parent"])
def test_a_timer_or_wait_is_dropped_by_every_stop(declaration: Declaration, by: str) -> None:
    driver = Driver(deadline_ms=5_000)
    driver.run_step("a")
    driver.declare(declaration)
    if by == "deadline":
        driver.wait(5_000)
    answer = {"cancel": driver.cancel, "deadline": driver.deadline, "parent": driver.parent_stopped}[by]()
    assert kinds(answer) == ["stop_requested", "step_stopped", "outcome_decided", "compensation_started", "attempt_queued"]
    assert (driver.step("t").state, driver.run.pending) == ("stopped", None)
    assert [target.step_id for target in driver.run.unwind] == ["a"]


def test_a_blocked_child_is_stopped_by_its_parent() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.block()
    driver.parent_stopped()
    assert (driver.run.status, driver.run.outcome, driver.run.blocker) == ("compensating", "cancelled", None)


@pytest.mark.req("BLK-07")
def test_a_blocked_run_can_be_stopped() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.block()
    driver.rediscover()
    driver.cancel()
    assert (driver.run.status, driver.run.blocker, driver.run.discovery_pass) == ("compensating", None, None)


@pytest.mark.req("STOP-14")
def test_a_second_cancel_while_stopping_changes_nothing() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    driver.cancel("ada")
    position = driver.position
    again = driver.cancel("bob")
    assert isinstance(again, Decision)
    assert (again.records, again.replayed, driver.position) == ([], True, position)
    assert driver.run.stop is not None
    assert driver.run.stop.by == "ada"


def test_while_stopping_the_first_reason_stays() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.declare("a", assign=True)
    driver.cancel()
    driver.wait(2_000)
    assert driver.deadline().records == []
    driver.fail()
    assert driver.run.outcome == "cancelled"

    driver = Driver(deadline_ms=1_000)
    driver.declare("a", assign=True)
    driver.wait(2_000)
    driver.deadline()
    driver.wait(-2_000)
    again = driver.cancel()
    assert isinstance(again, Decision)
    assert again.replayed
    driver.fail()
    assert driver.run.outcome == "timed_out"


@pytest.mark.parametrize("ended", [False, True])
def test_a_cancelled_run_acknowledges_another_cancel_for_ever(ended: bool) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.cancel()
    if ended:
        driver.authorize()
        driver.succeed()
    assert driver.run.status == ("ended" if ended else "compensating")
    again = driver.cancel()
    assert isinstance(again, Decision)
    assert (again.records, again.replayed) == ([], True)


@pytest.mark.parametrize("ending", ["failed", "timed_out", "succeeded"])
def test_any_other_decided_run_refuses_a_cancel_and_names_its_outcome(ending: str) -> None:
    driver = Driver(deadline_ms=1_000)
    driver.run_step("a")
    match ending:
        case "failed":
            driver.uncaught()
        case "timed_out":
            driver.wait(1_000)
            driver.deadline()
        case _:
            driver.complete()
    for _ in range(2):
        refusal = driver.cancel()
        assert isinstance(refusal, Refusal)
        assert refusal.code == "not_cancellable"
        assert ending in refusal.message
        if driver.run.status == "compensating":
            driver.authorize()
            driver.succeed()
    assert driver.run.outcome == ending


def test_a_cancel_past_the_deadline_is_a_timeout() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.wait(1_000)
    driver.cancel()
    assert (driver.run.outcome, driver.run.stop is not None and driver.run.stop.reason) == ("timed_out", "timed_out")


@pytest.mark.req("DLN-10")
def test_the_deadline_timer_stops_the_run_at_its_instant_and_not_before() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.run_step("a")
    driver.wait(999)
    assert driver.deadline().records == []
    driver.wait(1)
    assert kinds(driver.deadline()) == ["stop_requested", "outcome_decided", "compensation_started", "attempt_queued"]
    assert driver.run.outcome == "timed_out"


def test_a_deadline_timer_without_a_deadline_does_nothing() -> None:
    assert Driver().deadline().records == []


@pytest.mark.req("DLN-08", "SEM-18")
def test_the_deadline_does_nothing_to_a_run_that_compensates_or_has_ended() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.run_step("a")
    driver.run_step("b")
    driver.cancel()
    driver.wait(5_000)
    assert driver.deadline().records == []
    driver.authorize()
    driver.succeed()
    assert driver.deadline().records == []
    driver.authorize()
    driver.succeed()
    assert (driver.run.outcome, driver.run.recovery) == ("cancelled", "fully_compensated")
    assert driver.deadline().records == []


@pytest.mark.req("DLN-07")
def test_a_lease_that_elapses_before_the_deadline_does_not_time_the_run_out() -> None:
    driver = Driver(deadline_ms=100_000)
    driver.declare("a", assign=True)
    driver.wait(LEASE_MS)
    driver.lose()
    assert (driver.run.status, driver.run.stop) == ("running", None)
    driver.succeed()
    driver.complete()
    assert driver.run.outcome == "succeeded"
