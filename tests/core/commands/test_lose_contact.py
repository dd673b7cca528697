"""Losing an effect, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.ids import RequestId
from ryusen_server.core.agenda import NOTHING, agenda
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from tests.core.driving import LEASE_MS, WORKER, Driver, kinds


@pytest.mark.req("SEM-10", "UNK-01", "UNK-02", "PRO-15")
def test_a_lost_effect_is_unknown_and_the_run_waits() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    assert kinds(driver.lose("lease elapsed")) == ["attempt_unknown"]
    assert (driver.attempt.state, driver.attempt.unknown_reason) == ("unknown", "lease elapsed")
    assert (driver.attempt.unknown_at_ms, driver.run.status) == (driver.now_ms, "running")
    assert agenda(driver.run) == NOTHING
    driver.wait(10**10)
    assert driver.send(AuthorizeAttempt(WORKER, LEASE_MS)).__class__.__name__ == "Refusal"


@pytest.mark.req("STOP-09", "STOP-10")
def test_while_stopping_the_gate_waits_for_it() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    driver.cancel()
    driver.lose()
    assert (driver.run.status, driver.run.outcome, driver.run.unwind) == ("stopping", None, [])
    assert agenda(driver.run) == NOTHING


@pytest.mark.req("CMP-11")
def test_while_compensating_the_unwind_halts() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.run_step("b")
    driver.uncaught()
    driver.authorize()
    driver.lose()
    assert (driver.run.status, driver.run.unwind_index) == ("compensating", 0)
    assert driver.target("a").attempts == []
    assert agenda(driver.run) == NOTHING


def test_a_deadline_passes_an_unknown_attempt_without_settling_it() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.declare("a", assign=True)
    driver.lose()
    driver.wait(1_000)
    driver.deadline()
    assert (driver.run.status, driver.attempt.state) == ("stopping", "unknown")


def test_nothing_else_can_be_lost() -> None:
    driver = Driver()
    assert driver.decided(LoseContact(RequestId("rq_none"), "x")).records == []
    driver.declare("a")
    old = driver.authorize()
    driver.never_began()
    assert driver.decided(LoseContact(old, "x")).records == [], "it is queued"
    driver.authorize()
    assert driver.decided(LoseContact(old, "x")).records == [], "it is out under another request"
    driver.lose()
    assert driver.lose().records == [], "it is unknown already"
    request = driver.request
    driver.succeed()
    assert driver.decided(LoseContact(request, "x")).records == [], "it is settled"
