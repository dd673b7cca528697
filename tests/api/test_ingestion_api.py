"""Events that are sent again, at once, elsewhere or differently, and while the routing changes: one event, one routing generation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.api.api_harness import JSON_BODY, ApiHarness, W, api_server, eventually
from tests.api.operating import database
from tests.gateway.worker_peer import publication, string, worker_peer

EVENTS = f"{W}/events"
BODY = {"name": "order/placed", "data": {"n": 1}, "metadata": {"a": "1"}, "idempotency_key": "k"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness]:
    async with api_server(tmp_path) as harness:
        await harness.publish()
        yield harness


async def expanded(api: ApiHarness, event_id: str) -> Any:
    """The event, once every run it starts is there."""

    async def complete() -> bool:
        return (await api.get(f"{EVENTS}/{event_id}"))["expansion"] == "complete"

    await eventually(complete)
    return await api.get(f"{EVENTS}/{event_id}")


@pytest.mark.req("ACC-33", "ING-04")
async def test_a_response_that_was_lost_is_had_by_sending_the_same_again(api: ApiHarness) -> None:
    content = json.dumps(BODY).encode()
    head = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.authority}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    host, _, port = api.authority.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + content)
    await writer.drain()

    async def committed() -> bool:
        return (await api.get("/v1/server"))["counts"]["events"] == 1

    await eventually(committed)
    writer.close()  # nobody has read the answer
    answer = await api.client.post(EVENTS, content=content, headers=JSON_BODY)
    again = answer.json()
    assert (answer.status_code, again["status"]) == (200, "replayed")
    (event,) = (await api.get(EVENTS))["items"]
    assert event["event_id"] == again["event_id"]
    (match,) = (await expanded(api, again["event_id"]))["matches"]
    (run,) = (await api.get(f"{W}/runs"))["items"]
    assert match["run_id"] == run["run_id"]


@pytest.mark.req("ACC-34")
async def test_identical_submissions_at_once_are_one_creation_and_replays(api: ApiHarness) -> None:
    answers = await asyncio.gather(*(api.client.post(EVENTS, json=BODY) for _ in range(12)))
    assert sorted(answer.json()["status"] for answer in answers) == ["created"] + ["replayed"] * 11
    (event_id,) = {answer.json()["event_id"] for answer in answers}
    await expanded(api, event_id)
    assert len((await api.get(f"{W}/runs"))["items"]) == 1


@pytest.mark.req("ACC-35", "ACC-36", "ING-02", "ING-05")
async def test_a_key_with_another_payload_is_refused_without_a_trace_and_is_free_in_another_workspace(
    api: ApiHarness, tmp_path: Path
) -> None:
    first = await api.post(EVENTS, BODY, 201)
    await expanded(api, first["event_id"])
    with database(tmp_path) as data, data.unchanged():
        for changed in ({"data": {"n": 2}}, {"metadata": {"a": "2"}}, {"name": "order/other"}, {"data": {"n": 1.0}}):
            problem = await api.post(EVENTS, {**BODY, **changed}, 409)
            assert problem["code"] == "idempotency_key_reused"
        assert (await api.post(EVENTS, BODY, 200))["event_id"] == first["event_id"]
    other = await api.post("/v1/workspaces/other/events", {**BODY, "data": {"n": 2}}, 201)
    assert (other["status"], other["matched"]) == ("created", 0)
    assert other["event_id"] != first["event_id"]
    assert (await api.post("/v1/workspaces/other/events", {**BODY, "data": {"n": 2}}, 200))["event_id"] == other["event_id"]


@pytest.mark.req("ACC-37", "MAN-02")
async def test_one_event_starts_a_run_in_each_application_of_its_workspace(api: ApiHarness) -> None:
    await api.publish("kiosk")
    event = await expanded(api, (await api.post(EVENTS, BODY, 201))["event_id"])
    runs = (await api.get(f"{W}/runs", event=event["event_id"]))["items"]
    assert sorted(run["application"] for run in runs) == ["kiosk", "shop"]
    assert {match["run_id"] for match in event["matches"]} == {run["run_id"] for run in runs}
    assert {run["event_id"] for run in runs} == {event["event_id"]}


@pytest.mark.req("ACC-38", "ACC-39", "ING-08", "MAN-19")
async def test_an_event_beside_an_activation_keeps_the_one_generation_it_met_and_runs_on_whatever_is_live(api: ApiHarness) -> None:
    """Generation n routes the event to a function of its own, so that an expansion against another one would show."""
    parent = (await api.get(f"{W}/applications"))["items"][0]["manifest_generation"]
    by_routing: dict[str, str] = {(await api.get(f"{W}/routing"))["items"][0]["routing_generation"]: "fulfil"}
    events: list[Any] = []
    for number in range(12):

        async def activate(number: int = number, parent: str = parent) -> Any:
            return await api.post(f"{W}/applications/shop/manifests", publication(f"f{number}", parent=parent), 201)

        sent, activated, later = await asyncio.gather(api.send(), activate(), api.send())
        events += [sent, later]
        parent = activated["manifest_generation"]
        by_routing[activated["routing_generation"]] = f"f{number}"
    shown = [await expanded(api, event["event_id"]) for event in events]
    for event, now in zip(events, shown, strict=True):
        assert now["routing_generation"] == event["routing_generation"]
        (match,) = now["matches"]
        assert match["function"] == by_routing[event["routing_generation"]]
    assert len({event["routing_generation"] for event in events}) > 1
    async with worker_peer(api.server.url, functions=sorted(set(by_routing.values())), release_id="newer", capacity=64) as peer:
        playing = asyncio.create_task(peer.play(["a"]))
        for now in shown:
            run = await api.get(f"{W}/runs/{now['matches'][0]['run_id']}", wait_ms=10_000)
            assert (run["outcome"], run["result"]) == ("succeeded", string("done"))
            assert run["routing_generation"] == now["routing_generation"]
            assert run["steps"][0]["attempts"][0]["worker"]["release_id"] == "newer"
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
