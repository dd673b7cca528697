"""The rows that lists read, taken off a run."""

from __future__ import annotations

import pytest

from ryusen_server.core.projection import attempt_row, run_row, touched_attempts
from tests.core.driving import LEASE_MS, START_MS, WORKER, Driver


def test_a_run_row_counts_steps_and_targets_and_tells_the_three_facts() -> None:
    driver = Driver(deadline_ms=100_000, source="policy")
    row = run_row(driver.run)
    assert (row.status, row.outcome, row.recovery, row.attention, row.steps_declared) == ("running", None, None, None, 0)
    assert (row.deadline_at_ms, row.deadline_source) == (START_MS + 100_000, "policy")
    assert (row.event_id, row.trigger_id, row.function) == ("ev_one", "on-order", "fulfil")
    for name in ("a", "b", "c"):
        driver.run_step(name)
    driver.declare("d", assign=True)
    driver.cancel()
    row = run_row(driver.run)
    assert (row.status, row.stop_reason, row.stop_requested_at_ms) == ("stopping", "cancelled", START_MS)
    assert (row.steps_declared, row.steps_completed) == (4, 3)
    driver.fail()
    driver.authorize()
    driver.succeed()
    driver.authorize()
    driver.missing("no_compensator")
    row = run_row(driver.run)
    assert (row.status, row.outcome, row.steps_completed) == ("compensating", "cancelled", 4)
    assert (row.unwind_pending, row.unwind_succeeded, row.unwind_skipped, row.unwind_failed) == (1, 1, 1, 0)
    driver.authorize()
    driver.fail()
    row = run_row(driver.run)
    assert (row.status, row.recovery, row.recovery_reason, row.ended_at_ms) == ("ended", "compensation_failed", None, START_MS)
    assert (row.unwind_pending, row.unwind_succeeded, row.unwind_skipped, row.unwind_failed) == (0, 1, 1, 1)


@pytest.mark.parametrize("stop", [False, True])
def test_an_unknown_effect_and_a_blocker_ask_for_attention_until_they_are_over(stop: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    driver.lose()
    if stop:
        driver.cancel()
    assert run_row(driver.run).attention == "unknown"
    driver.succeed()
    assert run_row(driver.run).attention is None
    if not stop:
        driver.block("b")
        assert run_row(driver.run).attention == "blocked"
        driver.rediscover()
        assert run_row(driver.run).attention == "blocked"
        driver.complete()
        assert run_row(driver.run).attention is None


def test_an_attempt_row_follows_the_attempt() -> None:
    driver = Driver()
    driver.declare("a")
    attempt = driver.attempt
    row = attempt_row(driver.run, attempt)
    assert (row.state, row.request_id, row.instance_id, row.lease_until_ms) == ("queued", None, None, None)
    driver.authorize()
    row = attempt_row(driver.run, attempt)
    assert (row.state, row.instance_id, row.session_id, row.release_id) == ("authorized", WORKER.instance_id, WORKER.session_id, "r1")
    assert (row.request_id, row.lease_until_ms, row.transport) == (driver.request, START_MS + LEASE_MS, "connected")
    driver.lose()
    assert attempt_row(driver.run, attempt).unknown_at_ms == START_MS
    driver.wait(5)
    driver.succeed()
    row = attempt_row(driver.run, attempt)
    assert (row.state, row.settled_at_ms, row.operation_id) == ("succeeded", START_MS + 5, driver.step("a").operation_id)


def test_a_transaction_touches_each_attempt_once() -> None:
    driver = Driver()
    assert touched_attempts(driver.records()) == []
    decision = driver.declare("a", assign=True)
    first = driver.attempt.attempt_id
    assert touched_attempts(decision.records) == [first]
    decision = driver.fail(retryable=True)
    assert touched_attempts(decision.records) == [first, driver.attempt.attempt_id]
    request = driver.authorize()
    assert touched_attempts(driver.succeed(request=request).records) == [driver.run.requests[request]]
    assert touched_attempts(driver.fail(request=request).records) == [], "a stale answer changes no row"
