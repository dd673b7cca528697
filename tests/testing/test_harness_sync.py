"""The harness in tests that are not coroutines, and as fixtures of both kinds."""

from __future__ import annotations

import pytest

from ryusen_sdk import Event, Ryusen, Step, Terminal
from ryusen_testing import Harness, HarnessError, SyncHarness, harness_fixture, sync_harness_fixture

app = Ryusen("fixtures")


@app.function(on="go")
async def work(event: Event, step: Step) -> int:
    number = await step.run("number", int, event.data["text"], compensate=lambda _: None)
    await step.sleep("nap", "1h")
    return number


harness = sync_harness_fixture(app)
async_harness = harness_fixture(app, always_replay=True)


def test_a_sync_test_needs_no_await(harness: SyncHarness) -> None:
    run = harness.send("go", {"text": "41"})
    assert run.status == "running"
    assert "sleeps" in run.details.waits_for
    harness.advance("1h")
    assert (run.outcome, run.recovery, run.result) == ("succeeded", "not_required", 41)
    assert [one.run_id for one in harness.runs()] == [run.run_id]


def test_every_sync_test_has_a_harness_of_its_own(harness: SyncHarness) -> None:
    assert harness.runs() == []
    harness.fail("number", Terminal("no"))
    assert harness.send("go", {"text": "1"}).outcome == "failed"
    harness.stub("number", 5)
    run = harness.send("go", {"text": "1"})
    harness.crash()
    harness.kill_worker()
    run.cancel()
    assert run.ended().recovery == "fully_compensated"
    harness.lose_result("number")
    lost = harness.send("go", {"text": "1"})
    lost.resolve("number", result=6)
    assert lost.ended().result == 6


async def test_an_async_fixture(async_harness: Harness) -> None:
    run = await async_harness.send("go", {"text": "7"})
    assert (await run.ended()).result == 7


def test_a_sync_test_may_crash_its_server_at_a_commit(harness: SyncHarness) -> None:
    harness.stub("number", 5)
    harness.unstub("number")
    harness.crash_at(harness.commits + 3, "after")
    run = harness.send("go", {"text": "3"})
    harness.settle()
    assert run.ended().result == 3
    assert len(harness.calls("number")) == 1


async def test_a_sync_harness_inside_a_loop_says_what_to_write() -> None:
    with pytest.raises(HarnessError, match="async with Harness"), SyncHarness(app):
        pass
