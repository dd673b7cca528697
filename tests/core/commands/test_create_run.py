"""Creating a run: running at once, its first discovery queued, its deadline fixed."""

from __future__ import annotations

import pytest

from ryusen_server.core.agenda import agenda
from ryusen_server.core.records import DeadlineSource, DiscoveryQueued, RunCreated
from tests.core.driving import START_MS, Driver


@pytest.mark.req("SEM-15")
def test_a_new_run_is_running_with_its_first_pass_queued() -> None:
    driver = Driver()
    created, queued = driver.records()
    assert isinstance(created, RunCreated)
    assert queued == DiscoveryQueued(1)
    assert driver.run.status == "running"
    assert agenda(driver.run).need == "discovery"
    assert (driver.run.outcome, driver.run.recovery, driver.run.stop) == (None, None, None)


@pytest.mark.req("DLN-01")
def test_without_a_deadline_there_is_none() -> None:
    driver = Driver()
    assert driver.run.deadline is None
    driver.wait(10**12)
    driver.run_step("a")
    driver.complete()
    assert driver.run.outcome == "succeeded"


@pytest.mark.req("DLN-05")
@pytest.mark.parametrize("source", ["function", "policy", "invoke", "parent"])
def test_the_deadline_is_an_instant_with_its_source(source: DeadlineSource) -> None:
    driver = Driver(deadline_ms=5_000, source=source)
    assert driver.run.deadline is not None
    assert (driver.run.deadline.at_ms, driver.run.deadline.source) == (START_MS + 5_000, source)
