"""The settlement gate and the walk of the unwind: what is undone, in which order, and what it adds up to."""

from __future__ import annotations

import itertools

import pytest

from ryusen_protocol.declarations import CompensationPolicy
from ryusen_server.core.records import CompensationStarted, Recovery, RunEnded
from tests.core.driving import NO_RETRY, STEADY, Driver, kinds, only, step

ENDINGS = ("failed", "cancelled", "timed_out")


def stopped(ending: str, steps: int) -> Driver:
    """A run that has completed that many steps and then stops for the given reason."""
    driver = Driver(deadline_ms=10**6)
    for index in range(steps):
        driver.run_step(step(f"s{index}", compensation=CompensationPolicy(NO_RETRY)))
    match ending:
        case "failed":
            driver.uncaught()
        case "cancelled":
            driver.cancel()
        case _:
            driver.wait(10**6)
            driver.deadline()
    return driver


@pytest.mark.req("CMP-08", "SEM-18", "SEM-17")
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_to_undo_ends_the_run_without_compensating(ending: str) -> None:
    driver = stopped(ending, 0)
    run = driver.run
    assert (run.status, run.outcome, run.recovery, run.recovery_reason) == ("ended", ending, "not_required", "empty_unwind")
    assert not [record for record in driver.records() if isinstance(record, CompensationStarted)]


RECOVERIES: dict[frozenset[str], Recovery] = {
    frozenset(("succeeded",)): "fully_compensated",
    frozenset(("skipped",)): "partially_compensated",
    frozenset(("succeeded", "skipped")): "partially_compensated",
    frozenset(("failed",)): "compensation_failed",
    frozenset(("failed", "succeeded")): "compensation_failed",
    frozenset(("failed", "skipped")): "compensation_failed",
    frozenset(("failed", "skipped", "succeeded")): "compensation_failed",
}


@pytest.mark.req("CMP-08", "CMP-10", "SEM-18", "CMP-13", "DLN-08")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("results", list(itertools.product(("succeeded", "skipped", "failed"), repeat=3)))
def test_recovery_says_what_the_targets_add_up_to_and_the_outcome_stays(ending: str, results: tuple[str, ...]) -> None:
    driver = stopped(ending, 3)
    for result in results:
        assert driver.run.recovery is None
        driver.authorize()
        match result:
            case "succeeded":
                driver.succeed()
            case "skipped":
                driver.missing("no_compensator")
            case _:
                driver.fail()
    run = driver.run
    assert [target.state for target in run.unwind] == list(results)
    assert (run.status, run.outcome, run.recovery) == ("ended", ending, RECOVERIES[frozenset(results)])
    assert run.recovery_reason is None
    assert [record for record in driver.records() if isinstance(record, RunEnded)] == [RunEnded(RECOVERIES[frozenset(results)], None)]


@pytest.mark.req("CMP-11")
def test_an_unknown_compensation_ends_nothing() -> None:
    driver = stopped("cancelled", 2)
    driver.authorize()
    driver.succeed()
    driver.authorize()
    driver.lose()
    driver.wait(10**9)
    assert (driver.run.status, driver.run.recovery) == ("compensating", None)


@pytest.mark.req("CMP-04", "CMP-01")
def test_steps_are_undone_in_reverse_completion_order_and_a_failed_one_is_not_in_the_plan() -> None:
    driver = Driver()
    driver.run_step("one")
    driver.declare("two", assign=True)
    driver.missing()
    driver.run_step("three")
    driver.declare("two", assign=True)
    driver.fail(retryable=True)
    driver.authorize()
    driver.succeed()
    driver.declare(step("four", retry=NO_RETRY), assign=True)
    driver.fail()
    assert list(driver.run.steps) == ["one", "two", "three", "four"]
    decision = driver.uncaught()
    plan = only(decision.records, CompensationStarted)
    assert [target.step_id for target in plan.targets] == ["two", "three", "one"]
    walked: list[str] = []
    while driver.run.status == "compensating":
        walked.append(driver.attempt.step_id)
        driver.authorize()
        driver.succeed()
    assert walked == ["two", "three", "one"]


@pytest.mark.req("CMP-01", "CMP-14")
def test_a_step_declared_without_a_compensator_is_in_the_plan_and_may_be_undone() -> None:
    driver = Driver()
    driver.run_step(step("a", has_compensation=False, compensation=None))
    driver.run_step(step("b"))
    driver.uncaught()
    assert [target.step_id for target in driver.run.unwind] == ["b", "a"]
    driver.authorize()
    driver.succeed()
    driver.authorize()
    driver.succeed("a compensator that was added later")
    assert driver.run.recovery == "fully_compensated"


@pytest.mark.req("CMP-05", "CMP-18")
def test_each_target_has_an_operation_of_its_own_and_the_first_is_queued_with_the_plan() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.run_step("b")
    decision = driver.uncaught()
    assert kinds(decision) == ["outcome_decided", "compensation_started", "attempt_queued"]
    operations = [target.operation_id for target in driver.run.unwind] + [driver.step(name).operation_id for name in ("a", "b")]
    assert len(set(operations)) == 4
    assert driver.attempt.operation_id == driver.target("b").operation_id


@pytest.mark.req("CMP-04")
def test_no_target_begins_before_the_one_before_it_has_settled() -> None:
    driver = stopped("cancelled", 3)
    for settled in range(3):
        assert [bool(target.attempts) for target in driver.run.unwind] == [index <= settled for index in range(3)]
        driver.authorize()
        driver.reject()
        assert [bool(target.attempts) for target in driver.run.unwind] == [index <= settled for index in range(3)]
        driver.authorize()
        driver.succeed()


@pytest.mark.req("CMP-01")
def test_obsolete_and_stopped_steps_are_not_undone() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("gone", assign=True)
    driver.missing()
    driver.declare("fenced")
    driver.cancel()
    assert [target.step_id for target in driver.run.unwind] == ["a"]
    assert (driver.step("gone").state, driver.step("fenced").state) == ("obsolete", "stopped")


def test_a_retry_of_a_compensation_goes_on_past_any_deadline_and_stop() -> None:
    driver = Driver(deadline_ms=5_000)
    driver.run_step(step("a", compensation=CompensationPolicy(STEADY)))
    driver.cancel()
    driver.authorize()
    driver.wait(10_000)
    driver.fail(retryable=True)
    driver.authorize()
    assert driver.deadline().records == []
    driver.succeed()
    assert (driver.run.outcome, driver.run.recovery) == ("cancelled", "fully_compensated")
