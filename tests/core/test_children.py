"""Parents and their children: identity, the tightest bound, the input a child is invoked with, and what one owes the other."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.ids import FunctionId, ManifestGeneration, RoutingGeneration, RunId, StepId
from ryusen_protocol.invocation import ChildInput
from ryusen_server.core.agenda import agenda
from ryusen_server.core.children import ChildEnd, ChildTarget, end_of
from ryusen_server.core.commands.request_stop import ParentStopped
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.decision import Decision, SettleParent
from ryusen_server.core.evolve import begin, evolve
from ryusen_server.core.invocation import child_input
from ryusen_server.core.projection import run_row
from ryusen_server.core.records import DeadlineSource, ParentRef
from tests.core.driving import START_MS, WORKER, Driver, child, error, kinds, raw, step

PARENT = ParentRef(RunId("rn_parent"), StepId("call"), 1)


def target(function_ms: int | None = None, policy_ms: int | None = None) -> ChildTarget:
    return ChildTarget(ManifestGeneration("mg_two"), RoutingGeneration("rg_two"), function_ms, policy_ms)


Bound = tuple[int, DeadlineSource]
BOUNDS: list[tuple[int | None, int | None, int | None, int | None, Bound | None]] = [
    # function, policy, invoke, parent → the child's bound
    (None, None, None, None, None),
    (3_000, None, None, None, (3_000, "function")),
    (3_000, 1_000, None, None, (3_000, "function")),
    (None, 1_000, None, None, (1_000, "policy")),
    (None, None, 2_000, None, (2_000, "invoke")),
    (None, None, None, 9_000, (9_000, "parent")),
    (3_000, None, 2_000, 9_000, (2_000, "invoke")),
    (3_000, None, 4_000, 9_000, (3_000, "function")),
    (30_000, None, 20_000, 9_000, (9_000, "parent")),
    (None, 1_000, 2_000, 9_000, (1_000, "policy")),
    (2_000, None, 2_000, 2_000, (2_000, "function")),
    (None, 2_000, 2_000, 2_000, (2_000, "policy")),
    (None, None, 2_000, 2_000, (2_000, "invoke")),
    (3_000, None, 0, None, (0, "invoke")),
]


@pytest.mark.req("INV-06", "DLN-05")
@pytest.mark.parametrize(("function_ms", "policy_ms", "invoke_ms", "parent_ms", "expected"), BOUNDS)
def test_the_tightest_bound_holds_and_the_first_named_of_equal_ones(
    function_ms: int | None,
    policy_ms: int | None,
    invoke_ms: int | None,
    parent_ms: int | None,
    expected: tuple[int, DeadlineSource] | None,
) -> None:
    driver = Driver(deadline_ms=parent_ms)
    driver.functions[FunctionId("pack")] = target(function_ms, policy_ms)
    born = driver.declare(child("pack", timeout_ms=invoke_ms)).birth
    assert born is not None
    deadline = born.created.deadline
    found = None if deadline is None else (deadline.at_ms - START_MS, deadline.source)
    assert found == expected


def test_a_bound_beyond_what_a_worker_reads_is_kept_as_the_last_instant_it_does() -> None:
    born = Driver().declare(child("pack", timeout_ms=2**64 - 1)).birth
    assert born is not None
    assert born.created.deadline is not None
    assert born.created.deadline.at_ms == 2**53 - 1


@pytest.mark.req("INV-07")
def test_a_child_without_time_exists_and_times_out_before_anything_of_it_runs() -> None:
    parent = Driver()
    born = parent.declare(child("pack", timeout_ms=0)).birth
    assert born is not None
    run = evolve(begin(born.created, parent.now_ms), born.records, parent.now_ms, 0)
    driver = Driver(deadline_ms=0, source="invoke", parent=born.created.parent)
    assert (run.deadline, run.status) == (driver.run.deadline, "running")
    decision = driver.decided(StartDiscovery(WORKER, None))
    assert (kinds(decision), decision.effects) == (["stop_requested", "outcome_decided", "run_ended"], [])
    assert driver.run.outcome == "timed_out"
    assert end_of(driver.run) == ChildEnd(driver.run.run_id, "timed_out", None, None)


@pytest.mark.req("INV-01", "INV-04")
def test_a_child_is_invoked_with_its_parents_value_and_listed_with_its_parent() -> None:
    driver = Driver(parent=PARENT)
    driver.restart()
    found = msgspec.json.decode(child_input(driver.run), type=ChildInput)
    assert found == ChildInput(PARENT.run_id, PARENT.step_id, raw("order"))
    assert msgspec.json.decode(child_input(driver.run))["kind"] == "child"
    row = run_row(driver.run)
    assert (row.parent_run_id, row.parent_step_id, row.event_id, row.trigger_id) == (PARENT.run_id, PARENT.step_id, None, None)


ENDINGS = ["completes", "fails", "fails and unwinds", "is cancelled"]


@pytest.mark.req("INV-04", "INV-05")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("parent", [None, PARENT])
def test_the_decision_that_ends_a_child_owes_its_parent_the_end(ending: str, parent: ParentRef | None) -> None:
    driver = Driver(parent=parent)
    undo = ending == "fails and unwinds"
    if undo:
        driver.run_step("a")
    last: Decision
    match ending:
        case "completes":
            last = driver.complete({"boxes": 2})
        case "is cancelled":
            answer = driver.cancel()
            assert isinstance(answer, Decision)
            last = answer
        case _:
            last = driver.uncaught(error("no boxes"))
            if undo:
                assert last.obligations == (), "its own unwind comes first"
                driver.authorize()
                last = driver.succeed()
    expected = () if parent is None else (SettleParent(driver.run.run_id, parent.run_id, parent.step_id),)
    assert last.obligations == expected
    end = end_of(driver.run)
    assert end.result == (raw({"boxes": 2}) if ending == "completes" else None)
    assert end.failure == (error("no boxes") if ending.startswith("fails") else None)


def test_a_run_that_has_not_ended_has_no_end() -> None:
    driver = Driver(parent=PARENT)
    with pytest.raises(AssertionError, match="not ended"):
        end_of(driver.run)


@pytest.mark.parametrize("reason", ["cancelled", "timed_out"])
def test_a_parents_stop_stops_the_child_for_the_same_reason_and_names_the_parent(reason: str) -> None:
    driver = Driver(parent=PARENT)
    driver.run_step("a")
    driver.declare("b", assign=True)
    decision = driver.parent_stopped(reason)  # type: ignore[arg-type]
    assert kinds(decision) == ["stop_requested"]
    assert driver.run.stop is not None
    assert (driver.run.stop.reason, driver.run.stop.by) == (reason, PARENT.run_id)
    driver.succeed()
    assert (driver.run.status, driver.run.outcome) == ("compensating", reason)
    assert [one.step_id for one in driver.run.unwind] == ["b", "a"]


def test_a_child_past_its_own_deadline_times_out_when_its_parent_is_cancelled() -> None:
    driver = Driver(deadline_ms=1_000, source="invoke", parent=PARENT)
    driver.wait(1_000)
    driver.parent_stopped("cancelled")
    assert driver.run.outcome == "timed_out"


@pytest.mark.parametrize("state", ["stopping", "compensating", "ended"])
def test_a_child_that_is_stopping_unwinding_or_ended_just_goes_on(state: str) -> None:
    driver = Driver(parent=PARENT)
    driver.run_step("a")
    if state == "stopping":
        driver.declare(step("b"), assign=True)
        driver.cancel("ada")
    elif state == "compensating":
        driver.uncaught()
    else:
        driver.complete()
    assert driver.run.status == state
    position, before = driver.position, agenda(driver.run)
    decision = driver.decided(ParentStopped(PARENT.run_id, "timed_out"))
    assert (decision.records, decision.obligations, driver.position, agenda(driver.run)) == ([], (), position, before)


def test_a_stop_goes_down_from_child_to_child() -> None:
    driver = Driver(parent=PARENT)
    driver.declare(child("pack"))
    grandchild = driver.waiting.child_run_id
    decision = driver.parent_stopped("cancelled")
    (owed,) = decision.obligations
    assert (owed.child_run_id, driver.run.status) == (grandchild, "stopping")
    ended = driver.child_ended("cancelled")
    assert ended.obligations == (SettleParent(driver.run.run_id, PARENT.run_id, PARENT.step_id),)
