"""What readers see of timers, waits, children and emissions, and of a run whose child needs somebody."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.gateway.worker_peer import WorkerPeer, string, worker_peer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        await harness.publish()
        yield harness


async def invoked(peer: WorkerPeer) -> dict[str, Any]:
    """The next invocation, acknowledgements passed over."""
    while (frame := await peer.receive())["type"] != "invoke":
        pass
    return frame


async def declare(api: ApiHarness, peer: WorkerPeer, frame: dict[str, Any], **declaration: Any) -> dict[str, Any]:
    """Declare a step, and give the run once it shows the step."""
    await peer.answer(frame, {"type": "declared", "declaration": declaration})
    path = f"{W}/runs/{frame['invocation']['run']['run_id']}"

    async def shown() -> bool:
        return any(step["step_id"] == declaration["step_id"] for step in (await api.get(path))["steps"])

    await eventually(shown)
    return await api.get(path)


async def test_a_timer_shows_its_instant_and_waits_for_no_worker(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        run = await declare(api, peer, await invoked(peer), kind="timer", step_id="cool", delay_ms=str(2**64 - 1))
    (step,) = run["steps"]
    assert (step["kind"], step["state"], step["attempts"], step["due_at_ms"]) == ("timer", "pending", [], 2**53 - 1)

    async def away() -> bool:
        return not (await api.get(f"{W}/workers"))["items"][0]["connected"]

    await eventually(away)
    (listed,) = (await api.get(f"{W}/runs"))["items"]
    detail = await api.get(f"{W}/runs/{run['run_id']}")
    assert (listed["attention"], detail["attention"]) == (None, None)
    assert (await api.get(f"{W}/runs", attention="no_worker"))["items"] == []


async def test_a_long_poll_on_an_event_answers_when_the_waits_it_meets_are_settled(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        wait = {"kind": "event_wait", "step_id": "ok", "event_name": "order/approved", "correlation": {"order": "7"}, "timeout_ms": "60000"}
        run = await declare(api, peer, await invoked(peer), **wait)
        (step,) = run["steps"]
        assert (step["event_name"], step["correlation"], step["state"]) == ("order/approved", {"order": "7"}, "pending")
        receipt = await api.send("order/approved", wait_ms=10_000, metadata={"order": "7"})
        assert (receipt["matched"], receipt["expansion"], receipt["runs"]) == (0, "complete", [])
        (step,) = (await api.get(f"{W}/runs/{run['run_id']}"))["steps"]
        assert (step["state"], step["result"]["type"]) == ("succeeded", "bytes")


async def test_an_emission_shows_the_event_it_made(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        payload = {"type": "bytes", "value": "e30="}
        emission = {"kind": "emission", "step_id": "tell", "event_name": "order/told", "payload": payload, "metadata": {"order": "7"}}
        run = await declare(api, peer, await invoked(peer), **emission)
        (step,) = run["steps"]
        event = await api.get(f"{W}/events/{step['event_id']}")
        assert (event["name"], event["metadata"], event["payload_base64"]) == ("order/told", {"order": "7"}, "e30=")
        assert step["result"] == string(step["event_id"])


async def test_a_childs_unknown_is_shown_on_the_parent_and_says_where_to_act(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        parent = await declare(api, peer, await invoked(peer), kind="child", step_id="pack", function="fulfil", input=string("box"))
        await peer.declare(await invoked(peer), "charge")
        await peer.answer(await invoked(peer), {"type": "completed", "result": string("no answer of an effect")})
        await peer.expect("outcome_ack")

        async def flagged() -> bool:
            return len((await api.get(f"{W}/runs", attention="unknown"))["items"]) == 2

        await eventually(flagged)
    child_run_id = parent["steps"][0]["child_run_id"]
    listed = {run["run_id"]: run["attention_run_id"] for run in (await api.get(f"{W}/runs", attention="unknown"))["items"]}
    assert listed == {parent["run_id"]: child_run_id, child_run_id: child_run_id}
    parent, child = [await api.get(f"{W}/runs/{run_id}") for run_id in (parent["run_id"], child_run_id)]
    assert (parent["attention"], parent["attention_run_id"]) == ("unknown", child_run_id)
    assert parent["children"] == [{"run_id": child_run_id, "step_id": "pack", "function": "fulfil", "status": "running", "outcome": None}]
    assert parent["steps"][0]["function"] == "fulfil"
    assert child["parent"] == {"run_id": parent["run_id"], "step_id": "pack"}
    assert child["input"] == {"kind": "child", "parent_run_id": parent["run_id"], "parent_step_id": "pack", "value": string("box")}
