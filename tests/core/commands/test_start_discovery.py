"""Starting a discovery pass, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.outcome import Completed
from ryusen_server.core.agenda import agenda
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.decision import SendDiscovery
from tests.core.driving import WORKER, Driver, kinds, raw

START = StartDiscovery(WORKER, WORKER.release_id)


def test_a_queued_pass_is_sent_and_nothing_is_recorded() -> None:
    driver = Driver()
    position = driver.position
    decision = driver.decided(START)
    (effect,) = decision.effects
    assert isinstance(effect, SendDiscovery)
    assert effect.worker == WORKER
    assert driver.position == position
    assert agenda(driver.run).need == "answer"


def test_a_blocked_run_is_rediscovered() -> None:
    driver = Driver()
    driver.block()
    driver.rediscover()
    driver.start()
    assert driver.run.status == "definition_blocked"


@pytest.mark.req("DLN-10", "SEM-17")
@pytest.mark.parametrize("late_ms", [0, 1, 10**9])
def test_at_the_deadline_the_pass_is_fenced_and_the_run_timed_out(late_ms: int) -> None:
    driver = Driver(deadline_ms=1_000)
    driver.wait(1_000 + late_ms)
    decision = driver.decided(START)
    assert decision.effects == []
    assert kinds(decision) == ["stop_requested", "outcome_decided", "run_ended"]
    assert (driver.run.outcome, driver.run.recovery, driver.run.recovery_reason) == ("timed_out", "not_required", "empty_unwind")


def test_a_moment_before_the_deadline_the_pass_is_sent() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.wait(999)
    assert driver.decided(START).effects


def test_a_blocked_run_past_its_deadline_times_out() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.block()
    driver.rediscover()
    driver.wait(1_000)
    assert driver.decided(START).effects == []
    assert (driver.run.status, driver.run.outcome, driver.run.blocker) == ("ended", "timed_out", None)


def test_what_has_steps_to_undo_times_out_into_compensation() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.run_step("a")
    driver.wait(1_000)
    assert kinds(driver.decided(START)) == ["stop_requested", "outcome_decided", "compensation_started", "attempt_queued"]
    assert driver.run.status == "compensating"


def test_a_pass_that_is_out_is_not_sent_twice() -> None:
    driver = Driver()
    driver.start()
    assert driver.refused(START).code == "not_ready"


def test_no_pass_is_sent_while_a_step_is_pending() -> None:
    driver = Driver()
    driver.declare("a")
    assert driver.refused(START).code == "not_ready"


@pytest.mark.req("STOP-02")
def test_no_pass_is_sent_after_the_end_nor_while_stopping_or_compensating() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    driver.cancel()
    assert driver.run.status == "stopping"
    assert driver.refused(START).code == "not_ready"
    driver.fail()
    assert driver.run.status == "compensating"
    assert driver.refused(START).code == "not_ready"
    driver.authorize()
    driver.succeed()
    assert driver.run.status == "ended"
    assert driver.refused(START).code == "not_ready"


def test_a_paced_pass_waits_unless_a_registration_ends_the_wait() -> None:
    driver = Driver()
    for _ in range(2):
        driver.start()
        driver.lose_pass()
    driver.wait(999)
    assert driver.refused(START).code == "not_ready"
    assert driver.decided(StartDiscovery(WORKER, WORKER.release_id, hurry=True)).effects
    driver.lose_pass()
    driver.wait(1_999)
    assert driver.refused(START).code == "not_ready"
    driver.wait(1)
    assert driver.decided(START).effects


def test_a_restart_sends_the_pass_again_and_the_old_answer_is_discarded() -> None:
    driver = Driver()
    old = driver.start()
    driver.restart()
    new = driver.start()
    assert old != new
    assert driver.respond(Completed(raw(1)), request=old).disposition == "discarded"
    assert driver.respond(Completed(raw(2)), request=new).disposition == "accepted"
    assert driver.run.result == raw(2)
