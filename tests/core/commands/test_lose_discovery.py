"""Losing a discovery pass, row by row."""

from __future__ import annotations

import pytest

from ryusen_protocol.outcome import Completed
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from tests.core.driving import Driver, raw


@pytest.mark.req("UNK-02")
def test_a_lost_pass_is_queued_again_without_a_trace_in_the_history() -> None:
    driver = Driver()
    request = driver.start()
    position = driver.position
    driver.lose_pass()
    assert driver.position == position
    assert (driver.run.passes, driver.run.discovery_pass, driver.run.dispatch) == (1, 1, None)
    assert driver.start() != request


def test_it_goes_at_once_then_waits_a_second_doubling_to_a_minute() -> None:
    driver = Driver()
    waits: list[int] = []
    for _ in range(9):
        driver.start(hurry=True)
        driver.lose_pass()
        waits.append(driver.run.discovery_due_at_ms - driver.now_ms)
    assert waits == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_the_wait_begins_anew_once_the_run_has_got_on() -> None:
    driver = Driver()
    for _ in range(5):
        driver.start(hurry=True)
        driver.lose_pass()
    driver.run_step("a")
    driver.start()
    driver.lose_pass()
    assert driver.run.discovery_due_at_ms == driver.now_ms


def test_only_the_pass_that_is_out_can_be_lost() -> None:
    driver = Driver()
    old = driver.start()
    driver.lose_pass()
    new = driver.start()
    assert driver.decided(LoseDiscovery(old)).notes == []
    assert driver.run.dispatch is not None
    driver.respond(Completed(raw(1)), request=new)
    assert driver.decided(LoseDiscovery(new)).notes == []
    assert driver.run.status == "ended"


def test_a_blocked_run_stays_blocked_when_its_rediscovery_is_lost() -> None:
    driver = Driver()
    driver.block()
    driver.rediscover()
    driver.start()
    driver.lose_pass()
    assert driver.run.status == "definition_blocked"
    driver.start()
