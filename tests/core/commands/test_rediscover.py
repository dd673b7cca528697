"""Rediscovering a blocked run, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.outcome import Completed
from ryusen_server.core.decision import Decision, Refusal
from tests.core.driving import Driver, kinds, raw


@pytest.mark.req("BLK-10")
def test_a_blocked_run_gets_one_pass_and_stays_blocked_until_it_answers() -> None:
    driver = Driver()
    driver.block()
    assert kinds(driver.rediscover()) == ["discovery_queued"]
    assert (driver.run.status, driver.run.discovery_pass) == ("definition_blocked", 2)
    assert driver.run.blocker is not None


def test_a_pass_that_is_queued_already_is_enough() -> None:
    driver = Driver()
    driver.block()
    driver.rediscover()
    answer = driver.rediscover()
    assert isinstance(answer, Decision)
    assert (answer.records, answer.replayed) == ([], True)


def test_a_pass_that_is_out_is_superseded() -> None:
    driver = Driver()
    driver.block()
    driver.rediscover()
    old = driver.start()
    assert kinds(driver.rediscover()) == ["discovery_queued"]
    assert driver.respond(Completed(raw(1)), request=old).disposition == "discarded"
    assert driver.run.status == "definition_blocked"
    driver.complete(2)
    assert driver.run.result == raw(2)


def test_any_other_status_is_refused() -> None:
    driver = Driver()
    statuses: list[str] = []

    def refuse() -> None:
        statuses.append(driver.run.status)
        answer = driver.rediscover()
        assert isinstance(answer, Refusal)
        assert answer.code == "not_blocked"
        assert driver.run.status in answer.message

    refuse()
    driver.run_step("a")
    driver.declare("b", assign=True)
    driver.cancel()
    refuse()
    driver.fail()
    refuse()
    driver.authorize()
    driver.succeed()
    refuse()
    assert statuses == ["running", "stopping", "compensating", "ended"]


def test_a_pass_that_is_asked_for_anew_is_paced_anew() -> None:
    driver = Driver()
    driver.block()
    driver.rediscover()
    for _ in range(4):
        driver.start(hurry=True)
        driver.lose_pass()
    driver.start(hurry=True)
    driver.rediscover()
    driver.start()
    driver.lose_pass()
    assert driver.run.discovery_due_at_ms == driver.now_ms
