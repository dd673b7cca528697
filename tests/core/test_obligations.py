"""Obligations are read off a decision's records, so that no command forgets one and none invents one."""

from __future__ import annotations

import pytest

from ryusen_protocol.ids import RunId, StepId
from ryusen_server.core.decision import SettleParent, StopChild
from ryusen_server.core.obligations import obligations
from ryusen_server.core.records import DiscoveryQueued, ParentRef, Record, RunEnded, StepCompleted, StopRequested
from tests.core.driving import Driver, child, raw, timer

PARENT = ParentRef(RunId("rn_parent"), StepId("call"), 1)
STOPPED = StopRequested("timed_out", "deadline")
ENDED = RunEnded("not_required", "succeeded")


def test_most_records_oblige_nobody() -> None:
    driver = Driver(parent=PARENT)
    driver.declare(child("pack"))
    assert obligations(driver.run, [DiscoveryQueued(2), StepCompleted(StepId("pack"), 1, result=raw(1))]) == ()


@pytest.mark.parametrize("records", [[ENDED], [STOPPED, ENDED]])
def test_an_end_obliges_to_settle_the_parents_step_if_there_is_a_parent(records: list[Record]) -> None:
    assert obligations(Driver().run, records) == ()
    run = Driver(parent=PARENT).run
    assert obligations(run, records) == (SettleParent(run.run_id, PARENT.run_id, PARENT.step_id),)


def test_a_stop_obliges_to_stop_the_child_that_is_waited_for_and_no_other() -> None:
    driver = Driver()
    driver.declare(child("pack"))
    child_run_id = driver.waiting.child_run_id
    assert child_run_id is not None
    assert obligations(driver.run, [STOPPED]) == (StopChild(child_run_id, driver.run.run_id, "timed_out"),)
    assert obligations(driver.run, [StepCompleted(StepId("pack"), 1, result=raw(1)), STOPPED]) == (), "it has ended"
    driver.child_ended()
    driver.declare(timer("t"))
    assert obligations(driver.run, [STOPPED]) == (), "an earlier child has ended"
