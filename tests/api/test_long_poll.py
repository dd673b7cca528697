"""The long poll: an answer that waits for runs to end, and for no longer than it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.gateway.worker_peer import string, worker_peer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        yield harness


async def test_one_request_starts_a_run_and_brings_its_result(api: ApiHarness) -> None:
    await api.publish()
    async with worker_peer(api.server.url) as peer:
        playing = asyncio.create_task(peer.play(["charge"]))
        receipt = await api.send(wait_ms=10_000)
        playing.cancel()
    assert (receipt["status"], receipt["expansion"]) == ("created", "complete")
    (run,) = receipt["runs"]
    assert run == {
        "run_id": run["run_id"],
        "status": "ended",
        "outcome": "succeeded",
        "recovery": "not_required",
        "result": string("done"),
        "failure": None,
    }


async def test_an_event_that_matches_nothing_is_answered_at_once(api: ApiHarness) -> None:
    async with asyncio.timeout(5):
        receipt = await api.send("nobody/listens", wait_ms=60_000)
    assert (receipt["matched"], receipt["runs"]) == (0, [])


async def test_a_wait_ends_at_its_time_with_what_there_is(api: ApiHarness) -> None:
    await api.publish()
    receipt = await api.send(wait_ms=150)
    (run,) = receipt["runs"]
    assert (run["status"], run["outcome"], run["result"]) == ("running", None, None)
    started = asyncio.get_running_loop().time()
    shown = await api.get(f"{W}/runs/{run['run_id']}", wait_ms=200)
    assert shown["status"] == "running"
    assert asyncio.get_running_loop().time() - started >= 0.2
    event = await api.get(f"{W}/events/{receipt['event_id']}", wait_ms=100)
    assert [entry["status"] for entry in event["runs"]] == ["running"]
    assert "runs" not in await api.get(f"{W}/events/{receipt['event_id']}")


async def test_a_run_and_an_event_are_waited_for_until_all_runs_ended(api: ApiHarness) -> None:
    await api.publish("shop")
    await api.publish("kiosk", function="print")
    receipt = await api.send(wait_ms=50)
    first, second = (run["run_id"] for run in receipt["runs"])
    on_run = asyncio.create_task(api.get(f"{W}/runs/{first}", wait_ms=20_000))
    on_event = asyncio.create_task(api.get(f"{W}/events/{receipt['event_id']}", wait_ms=20_000))
    await api.post(f"{W}/runs/{first}/cancel", {}, 202)
    assert (await on_run)["outcome"] == "cancelled"
    assert not on_event.done()
    await api.post(f"{W}/runs/{second}/cancel", {}, 202)
    assert [run["outcome"] for run in (await on_event)["runs"]] == ["cancelled", "cancelled"]


async def test_what_has_ended_already_is_answered_at_once(api: ApiHarness) -> None:
    await api.publish()
    receipt = await api.send(idempotency_key="k", wait_ms=50)
    (run,) = receipt["runs"]
    await api.post(f"{W}/runs/{run['run_id']}/cancel", {}, 202)
    async with asyncio.timeout(5):
        assert (await api.get(f"{W}/runs/{run['run_id']}", wait_ms=60_000))["outcome"] == "cancelled"
        replayed = await api.send(idempotency_key="k", wait_ms=60_000, status=200)
    assert [entry["outcome"] for entry in replayed["runs"]] == ["cancelled"]


@pytest.mark.parametrize("wait_ms", ["-1", "60001", "soon", "1.5", ""])
async def test_a_wait_is_bounded(api: ApiHarness, wait_ms: str) -> None:
    problem = await api.post(f"{W}/events?wait_ms={wait_ms}", {"name": "x", "data": 1}, 400)
    assert "60000" in problem["detail"]
    assert (await api.get("/v1/server"))["counts"]["events"] == 0


async def test_a_caller_that_hangs_up_loses_nothing_and_leaves_nothing_behind(api: ApiHarness) -> None:
    await api.publish()
    async with httpx.AsyncClient(base_url=api.server.url, trust_env=False, timeout=0.3) as impatient:
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post(f"{W}/events?wait_ms=60000", json={"name": "order/placed", "data": 1, "idempotency_key": "k"})

    async def forgotten() -> bool:
        return not api.server.engine.waiters._waiting

    await eventually(forgotten)
    replayed = await api.send(data=1, idempotency_key="k", status=200)
    assert replayed["status"] == "replayed"


async def test_a_stopping_server_answers_those_who_wait(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        await api.publish()
        waiting = asyncio.create_task(api.send(wait_ms=60_000))

        async def waits() -> bool:
            return bool(api.server.engine.waiters._waiting)

        await eventually(waits)
        async with asyncio.timeout(5):
            await api.server.stop()
            assert (await waiting)["runs"][0]["status"] == "running"
