"""Settling a timer, row by row: on time, late, early because the clock went back, past the deadline, after a stop."""

from __future__ import annotations

import pytest

from ryusen_protocol.ids import StepId
from ryusen_protocol.outcome import Declared
from ryusen_server.core.agenda import agenda, wake_at_ms
from ryusen_server.core.commands.settle_timer import TimerDue
from ryusen_server.core.records import StepCompleted, TimerArmed
from tests.core.driving import START_MS, Driver, kinds, only, raw, timer, timer_until

LARGEST_I64 = 2**63 - 1


@pytest.mark.req("TMR-06", "TMR-07")
def test_a_due_timer_completes_with_null_and_the_body_is_run_again() -> None:
    driver = Driver()
    driver.declare(timer("cool", 5_000))
    driver.wait(5_000)
    assert kinds(driver.timer_due()) == ["step_completed", "discovery_queued"]
    step = driver.step("cool")
    assert (step.state, step.result, step.completion_order, step.attempts) == ("succeeded", raw(None), 1, [])
    assert driver.run.history_entries == [b'{"step_id":"cool","kind":"timer","outcome":{"success":{"type":"null"}}}']
    driver.complete()
    assert len([record for record in driver.records() if isinstance(record, TimerArmed)]) == 1


@pytest.mark.req("TMR-03")
@pytest.mark.parametrize(("delay_ms", "due_at_ms"), [(0, START_MS), (1, START_MS + 1), (2**64 - 1, LARGEST_I64)])
def test_a_delay_is_anchored_to_the_acceptance(delay_ms: int, due_at_ms: int) -> None:
    driver = Driver()
    decision = driver.declare(timer("cool", delay_ms))
    assert kinds(decision) == ["step_declared", "timer_armed"]
    assert only(decision.records, TimerArmed).due_at_ms == due_at_ms
    driver.wait(7)
    driver.restart()
    assert (driver.step("cool").due_at_ms, agenda(driver.run).due_at_ms, wake_at_ms(driver.run)) == (due_at_ms, due_at_ms, due_at_ms)


@pytest.mark.req("TMR-04")
@pytest.mark.parametrize("deadline_ms", [-(2**63), -1, 0, START_MS - 1, START_MS])
def test_an_instant_that_is_past_settles_at_once_and_not_before_the_acceptance(deadline_ms: int) -> None:
    driver = Driver()
    driver.declare(timer_until("cool", deadline_ms))
    assert driver.step("cool").due_at_ms == START_MS
    driver.timer_due()
    assert driver.step("cool").completed_at_ms == START_MS


@pytest.mark.parametrize("deadline_ms", [START_MS + 1, LARGEST_I64])
def test_an_instant_ahead_is_kept_as_it_is(deadline_ms: int) -> None:
    driver = Driver()
    driver.declare(timer_until("cool", deadline_ms))
    assert driver.step("cool").due_at_ms == deadline_ms


@pytest.mark.req("TMR-03", "TMR-06")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_timer_is_never_early_however_the_clock_is_moved(restarted: bool) -> None:
    driver = Driver()
    driver.declare(timer("cool", 5_000))
    for step_ms in (4_999, -7_200_000, 7_199_999):
        driver.wait(step_ms)
        if restarted:
            driver.restart()
        position = driver.position
        assert kinds(driver.timer_due()) == []
        assert (driver.position, driver.waiting.state) == (position, "pending")
    driver.wait(2)
    assert kinds(driver.timer_due()) == ["step_completed", "discovery_queued"]


def test_a_timer_that_is_years_late_still_settles() -> None:
    driver = Driver()
    driver.declare(timer("cool", 5_000))
    driver.wait(10 * 365 * 86_400_000)
    assert kinds(driver.timer_due()) == ["step_completed", "discovery_queued"]


@pytest.mark.parametrize("due", [False, True])
def test_past_the_deadline_the_timer_is_dropped_and_the_run_times_out(due: bool) -> None:
    driver = Driver(deadline_ms=10_000)
    driver.run_step("a")
    driver.declare(timer("cool", 10_000 if due else 60_000))
    driver.wait(10_000)
    decision = driver.timer_due()
    assert kinds(decision) == ["stop_requested", "step_stopped", "outcome_decided", "compensation_started", "attempt_queued"]
    assert (driver.run.outcome, driver.step("cool").state) == ("timed_out", "stopped")
    assert [target.step_id for target in driver.run.unwind] == ["a"]


@pytest.mark.req("TMR-06", "TMR-08")
def test_a_cancel_drops_the_timer_and_a_run_of_timers_alone_has_nothing_to_undo() -> None:
    driver = Driver()
    driver.declare(timer("one", 0))
    driver.timer_due()
    driver.declare(timer("two"))
    assert kinds(driver.cancel()) == ["stop_requested", "step_stopped", "outcome_decided", "run_ended"]
    run = driver.run
    assert (run.outcome, run.recovery, run.recovery_reason) == ("cancelled", "not_required", "empty_unwind")
    driver.wait(60_000)
    position = driver.position
    assert kinds(driver.decided(TimerDue(StepId("two")))) == []
    assert driver.position == position


@pytest.mark.req("TMR-07")
def test_a_timer_settles_once_and_no_other_steps_clock_settles_it() -> None:
    driver = Driver()
    driver.declare(timer("one", 0))
    assert kinds(driver.decided(TimerDue(StepId("other")))) == []
    driver.timer_due()
    assert kinds(driver.decided(TimerDue(StepId("one")))) == []
    assert len([record for record in driver.records() if isinstance(record, StepCompleted)]) == 1


@pytest.mark.req("TMR-05")
def test_a_timer_that_is_declared_again_keeps_its_anchor_and_never_arms_twice() -> None:
    driver = Driver()
    request = driver.start()
    driver.respond(Declared(timer("cool", 5_000)), request=request)
    driver.wait(3_000)
    late = driver.respond(Declared(timer("cool", 9_000)), request=request)
    assert (late.disposition, late.records, driver.step("cool").due_at_ms) == ("discarded", [], START_MS + 5_000)
    driver.wait(2_000)
    driver.timer_due()
    again = driver.declare(timer("cool", 9_000))
    assert kinds(again) == ["run_blocked"]
    assert (driver.step("cool").due_at_ms, driver.step("cool").completed_at_ms) == (START_MS + 5_000, START_MS + 5_000)
