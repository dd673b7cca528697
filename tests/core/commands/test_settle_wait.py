"""Settling an event wait, row by row: an event in time, too early, too late; the timeout; the deadline; a stop."""

from __future__ import annotations

import pytest

from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.ids import StepId
from ryusen_protocol.limits import MIB, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.outcome import Declared
from ryusen_server.core.agenda import agenda, wake_at_ms
from ryusen_server.core.commands.settle_wait import EventMatched, WaitTimedOut
from ryusen_server.core.records import RunBlocked, WaitRegistered
from tests.core.driving import START_MS, Driver, event_wait, kinds, only, raw


@pytest.mark.req("EVW-06")
@pytest.mark.parametrize("payload", [b"{}", b"", b"\x00\xff" * 100])
def test_a_match_completes_with_the_exact_payload(payload: bytes) -> None:
    driver = Driver()
    driver.declare(event_wait("ok", order="7"))
    driver.wait(100)
    assert kinds(driver.match(payload)) == ["step_completed", "discovery_queued"]
    step = driver.step("ok")
    assert (step.state, step.result, step.failure) == ("succeeded", raw(payload), None)
    assert b'"kind":"event_wait"' in driver.run.history_entries[0]


@pytest.mark.req("EVW-06")
def test_a_second_event_changes_nothing() -> None:
    driver = Driver()
    driver.declare(event_wait("ok"))
    registered = driver.registered_position
    driver.match(b"first")
    position = driver.position
    assert kinds(driver.decided(EventMatched(StepId("ok"), b"second", driver.now_ms, registered + 9, registered))) == []
    assert (driver.position, driver.step("ok").result) == (position, raw(b"first"))


@pytest.mark.req("EVW-03")
@pytest.mark.parametrize("after", [False, True])
def test_only_an_event_accepted_after_the_registration_matches(after: bool) -> None:
    driver = Driver()
    driver.declare(event_wait("ok"))
    position = driver.position
    decision = driver.match(after=after)
    assert kinds(decision) == (["step_completed", "discovery_queued"] if after else [])
    assert (driver.position > position) == after


@pytest.mark.req("EVW-04", "EVW-05", "EVW-11")
@pytest.mark.parametrize(("timeout_ms", "timeout_at_ms"), [(0, START_MS), (5_000, START_MS + 5_000), (2**64 - 1, 2**63 - 1)])
def test_the_registration_records_its_timeout_instant_and_keeps_it(timeout_ms: int, timeout_at_ms: int) -> None:
    driver = Driver()
    request = driver.start()
    decision = driver.respond(Declared(event_wait("ok", timeout_ms)), request=request)
    assert kinds(decision) == ["step_declared", "wait_registered"]
    assert only(decision.records, WaitRegistered).timeout_at_ms == timeout_at_ms
    driver.wait(9)
    driver.restart()
    again = driver.respond(Declared(event_wait("ok", timeout_ms)), request=request)
    assert (again.disposition, again.records) == ("discarded", [])
    found = agenda(driver.run)
    assert (found.need, found.due_at_ms, wake_at_ms(driver.run)) == ("event", timeout_at_ms, timeout_at_ms)


@pytest.mark.req("EVW-07", "EVW-11")
@pytest.mark.parametrize("timeout_ms", [0, 5_000])
def test_an_elapsed_timeout_is_a_failure_that_the_body_can_handle(timeout_ms: int) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare(event_wait("ok", timeout_ms))
    driver.wait(timeout_ms)
    assert kinds(driver.timed_out()) == ["step_completed", "discovery_queued"]
    failure = driver.step("ok").failure
    assert failure is not None
    assert (failure.category, failure.retryable, "'paid'" in failure.message) == ("sdk.timeout", False, True)
    driver.complete()
    assert (driver.run.outcome, driver.run.unwind) == ("succeeded", [])


@pytest.mark.req("EVW-05")
def test_a_timeout_is_never_early_however_the_clock_is_moved() -> None:
    driver = Driver()
    driver.declare(event_wait("ok", 5_000))
    for step_ms in (4_999, -7_200_000, 7_199_999):
        driver.wait(step_ms)
        driver.restart()
        assert kinds(driver.timed_out()) == []
    driver.wait(10 * 365 * 86_400_000)
    assert kinds(driver.timed_out()) == ["step_completed", "discovery_queued"]


@pytest.mark.parametrize(("accepted_ms", "matches"), [(0, True), (4_999, True), (5_000, False), (5_001, False)])
def test_the_acceptance_decides_between_event_and_timeout_however_late_it_is_processed(accepted_ms: int, matches: bool) -> None:
    driver = Driver()
    driver.declare(event_wait("ok", 5_000))
    driver.wait(60_000)
    decision = driver.match(accepted_at_ms=START_MS + accepted_ms)
    assert kinds(decision) == (["step_completed", "discovery_queued"] if matches else [])
    assert driver.step("ok").state == ("succeeded" if matches else "pending")


def test_a_wait_of_no_time_takes_no_event() -> None:
    driver = Driver()
    driver.declare(event_wait("ok", 0))
    assert kinds(driver.match()) == []


@pytest.mark.parametrize("event", [False, True])
def test_past_the_deadline_the_wait_is_dropped_and_the_run_times_out(event: bool) -> None:
    driver = Driver(deadline_ms=10_000)
    driver.declare(event_wait("ok", 10_000))
    driver.wait(10_000)
    decision = driver.match(accepted_at_ms=START_MS + 1) if event else driver.timed_out()
    assert kinds(decision) == ["stop_requested", "step_stopped", "outcome_decided", "run_ended"]
    assert (driver.run.outcome, driver.step("ok").state) == ("timed_out", "stopped")


@pytest.mark.req("EVW-05", "EVW-10")
def test_a_cancel_drops_the_wait_and_a_settled_one_is_not_undone() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare(event_wait("one"))
    driver.match()
    driver.declare(event_wait("two"))
    registered = driver.registered_position
    assert kinds(driver.cancel())[:2] == ["stop_requested", "step_stopped"]
    assert [target.step_id for target in driver.run.unwind] == ["a"]
    position = driver.position
    assert kinds(driver.decided(EventMatched(StepId("two"), b"late", driver.now_ms, registered + 9, registered))) == []
    driver.wait(60_000)
    assert kinds(driver.decided(WaitTimedOut(StepId("two")))) == []
    assert driver.position == position


@pytest.mark.req("EVW-08")
def test_a_payload_that_the_record_cannot_carry_is_a_failure_of_the_step_and_nothing_worse() -> None:
    driver = Driver(checked=False)
    for index in range(4):
        driver.run_step(f"s{index}", "x" * (2 * MIB - 100_000))
    driver.declare(event_wait("ok"))
    assert kinds(driver.match(b"y" * MIB)) == ["step_completed", "discovery_queued"]
    failure = driver.step("ok").failure
    assert failure is not None
    assert (failure.category, failure.retryable) == ("sdk.invalid_result", False)


@pytest.mark.req("EVW-09")
def test_a_wait_whose_timeout_could_not_be_recorded_is_refused_before_it_is_registered() -> None:
    driver = Driver(checked=False)
    for index in range(4):
        driver.run_step(f"s{index}", "x" * (2 * MIB - 1_600))
    # What is left holds the worst timeout there can be, and then no other.
    worst = EventWaitDeclaration(StepId("\x01" * 256), "\x01" * 256, {}, "0")
    assert REPLAY_RESERVE_BYTES <= REPLAY_BUDGET_BYTES_MAX - driver.run.replay_bytes < 2 * REPLAY_RESERVE_BYTES
    driver.declare(worst)
    driver.timed_out()
    assert REPLAY_BUDGET_BYTES_MAX - driver.run.replay_bytes >= 0
    while REPLAY_BUDGET_BYTES_MAX - driver.run.replay_bytes >= REPLAY_RESERVE_BYTES:
        driver.declare(event_wait(f"w{driver.run.passes}", 0))
        driver.timed_out()
    steps = len(driver.run.steps)
    decision = driver.declare(event_wait("ok"))
    assert only(decision.records, RunBlocked).reason == "replay_budget"
    assert (kinds(decision), len(driver.run.steps)) == (["run_blocked"], steps)
