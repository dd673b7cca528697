"""Settling a child step, row by row: every end of the child, in every state of the parent."""

from __future__ import annotations

import pytest

from ryusen_protocol.ids import RunId
from ryusen_protocol.limits import MIB
from ryusen_protocol.outcome import Declared
from ryusen_server.core.agenda import CHILD, agenda, wake_at_ms
from ryusen_server.core.children import ChildEnd
from ryusen_server.core.commands.settle_child import ChildEnded
from ryusen_server.core.decision import StopChild
from ryusen_server.core.records import Outcome
from tests.core.driving import START_MS, Driver, child, error, kinds, raw


@pytest.mark.req("INV-05")
def test_a_child_that_succeeds_gives_its_result_and_the_parent_goes_on() -> None:
    driver = Driver()
    driver.declare(child("pack"))
    assert (agenda(driver.run), wake_at_ms(driver.run)) == (CHILD, None)
    assert kinds(driver.child_ended(value={"boxes": 2})) == ["step_completed", "discovery_queued"]
    step = driver.step("pack")
    assert (step.state, step.result, step.attempts) == ("succeeded", raw({"boxes": 2}), [])
    assert b'"kind":"child"' in driver.run.history_entries[0]


ENDS: list[tuple[Outcome, str]] = [("failed", "sdk.child_failed"), ("cancelled", "sdk.child_cancelled"), ("timed_out", "sdk.timeout")]


@pytest.mark.req("INV-05")
@pytest.mark.parametrize(("outcome", "category"), ENDS)
def test_a_child_that_does_not_succeed_is_a_failure_that_names_it(outcome: Outcome, category: str) -> None:
    driver = Driver()
    driver.declare(child("pack"))
    child_run_id = driver.waiting.child_run_id
    assert child_run_id is not None
    driver.child_ended(outcome, failure=error("no boxes left", category="stock.empty") if outcome == "failed" else None)
    failure = driver.step("pack").failure
    assert failure is not None
    assert (failure.category, failure.retryable) == (category, False)
    assert failure.details is not None
    assert failure.details["child_run_id"] == raw(str(child_run_id))
    if outcome == "failed":
        assert failure.details["error"] == raw({"category": "stock.empty", "message": "no boxes left", "retryable": False})
        assert failure.cause == error("no boxes left", category="stock.empty")
        assert "no boxes left" in failure.message
    driver.complete()
    assert driver.run.outcome == "succeeded"


def test_a_failure_near_the_limits_is_cut_and_still_names_the_child() -> None:
    driver = Driver()
    driver.declare(child("pack"))
    driver.child_ended("failed", failure=error("x" * 8 * 1024))
    failure = driver.step("pack").failure
    assert failure is not None
    assert failure.category == "sdk.child_failed"
    assert "cut" in failure.message
    assert failure.details is not None
    assert "child_run_id" in failure.details


def test_a_result_that_the_parent_cannot_record_fails_the_step() -> None:
    driver = Driver(checked=False)
    for index in range(4):
        driver.run_step(f"s{index}", "x" * (2 * MIB - 100_000))
    driver.declare(child("pack"))
    driver.child_ended(value="y" * MIB)
    failure = driver.step("pack").failure
    assert failure is not None
    assert failure.category == "sdk.invalid_result"


@pytest.mark.req("INV-08")
@pytest.mark.parametrize("outcome", ["succeeded", "cancelled"])
def test_a_stopping_parent_waits_for_its_child_and_does_not_undo_it(outcome: Outcome) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare(child("pack"))
    child_run_id = driver.waiting.child_run_id
    assert child_run_id is not None
    stopped = driver.cancel("ada")
    assert kinds(stopped) == ["stop_requested"]
    assert stopped.obligations == (StopChild(child_run_id, driver.run.run_id, "cancelled"),)  # type: ignore[union-attr]
    assert (driver.run.status, agenda(driver.run)) == ("stopping", CHILD)
    driver.restart()
    assert kinds(driver.child_ended(outcome)) == ["step_completed", "outcome_decided", "compensation_started", "attempt_queued"]
    assert [target.step_id for target in driver.run.unwind] == ["a"]
    assert driver.step("pack").state == ("succeeded" if outcome == "succeeded" else "failed")


def test_past_the_deadline_the_childs_end_is_kept_and_the_parent_times_out() -> None:
    driver = Driver(deadline_ms=10_000)
    driver.declare(child("pack"))
    driver.wait(10_000)
    decision = driver.child_ended()
    assert kinds(decision) == ["step_completed", "stop_requested", "outcome_decided", "run_ended"]
    assert decision.obligations == (), "the child has ended: nobody is to stop it"
    assert (driver.run.outcome, driver.step("pack").state) == ("timed_out", "succeeded")


def test_the_deadline_of_a_parent_stops_its_child_for_the_same_reason() -> None:
    driver = Driver(deadline_ms=10_000)
    driver.declare(child("pack"))
    assert wake_at_ms(driver.run) == START_MS + 10_000
    child_run_id = driver.waiting.child_run_id
    assert child_run_id is not None
    driver.wait(10_000)
    decision = driver.deadline()
    assert kinds(decision) == ["stop_requested"]
    assert decision.obligations == (StopChild(child_run_id, driver.run.run_id, "timed_out"),)
    assert wake_at_ms(driver.run) is None
    driver.child_ended("timed_out")
    assert (driver.run.status, driver.run.outcome) == ("ended", "timed_out")


@pytest.mark.req("INV-02", "INV-05")
def test_a_childs_end_counts_once_and_another_runs_end_counts_for_nothing() -> None:
    driver = Driver()
    driver.declare(child("pack"))
    step = driver.waiting
    assert step.child_run_id is not None
    position = driver.position
    assert kinds(driver.decided(ChildEnded(ChildEnd(RunId("rn_other"), "succeeded", raw(1), None)))) == []
    assert driver.position == position
    driver.child_ended(value="first")
    assert kinds(driver.decided(ChildEnded(ChildEnd(step.child_run_id, "succeeded", raw("second"), None)))) == []
    assert step.result == raw("first")


@pytest.mark.req("INV-02")
def test_a_declaration_that_is_delivered_again_invokes_nobody_again() -> None:
    driver = Driver()
    request = driver.start()
    first = driver.respond(Declared(child("pack")), request=request)
    again = driver.respond(Declared(child("pack")), request=request)
    assert first.birth is not None
    assert (again.disposition, again.records, again.birth) == ("discarded", [], None)
    assert driver.step("pack").child_run_id == first.birth.created.run_id
