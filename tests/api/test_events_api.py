"""Events over HTTP: acceptance, idempotency, what is refused, what is shown."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ryusen_protocol.limits import METADATA_PAIRS_MAX, PAYLOAD_BYTES_MAX
from tests.api.api_harness import JSON_BODY, ApiHarness, W, api_server, eventually
from tests.gateway.worker_peer import worker_peer

EVENTS = f"{W}/events"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        yield harness


@pytest.mark.req("ING-01", "ING-04")
async def test_one_key_gives_one_event_however_often_it_is_sent(api: ApiHarness) -> None:
    await api.publish()
    body = {"name": "order/placed", "data": {"n": 1}, "idempotency_key": "k-1"}
    answers = [await api.client.post(EVENTS, json=body) for _ in range(3)]
    answers += await asyncio.gather(*(api.client.post(EVENTS, json=body) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    documents = [answer.json() for answer in answers]
    assert len({document["event_id"] for document in documents}) == 1
    assert sorted(document["status"] for document in documents) == ["created", *["replayed"] * 5]
    assert len((await api.get(f"{W}/runs"))["items"]) == 1


async def test_concurrent_first_uses_of_a_key_create_one_event(api: ApiHarness) -> None:
    body = {"name": "order/placed", "data": 1, "idempotency_key": "k"}
    answers = await asyncio.gather(*(api.client.post(EVENTS, json=body) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert (await api.get("/v1/server"))["counts"]["events"] == 1


@pytest.mark.req("ING-02", "ING-05")
async def test_a_key_stands_for_one_request_in_one_workspace(api: ApiHarness) -> None:
    first = await api.send(data={"n": 1}, metadata={"a": "1"}, idempotency_key="k")
    assert (await api.send(data={"n": 1}, metadata={"a": "1"}, idempotency_key="k", status=200))["event_id"] == first["event_id"]
    before = (await api.get("/v1/server"))["counts"]
    for changed in (
        {"data": {"n": 2}},
        {"data": {"n": 1}, "metadata": {"a": "2"}},
        {"data": {"n": 1}, "metadata": {"a": "1"}, "name": "order/other"},
    ):
        members: dict[str, Any] = {"name": "order/placed", "metadata": {"a": "1"}, "idempotency_key": "k", **changed}
        problem = await api.post(EVENTS, members, 409)
        assert problem["code"] == "idempotency_key_reused"
        assert "k" not in problem["detail"].split()
    assert (await api.get("/v1/server"))["counts"] == before
    other = await api.post("/v1/workspaces/other/events", {"name": "x", "data": 1, "idempotency_key": "k"}, 201)
    assert other["event_id"] != first["event_id"]


@pytest.mark.req("ING-01")
async def test_without_a_key_every_submission_is_a_new_event(api: ApiHarness) -> None:
    assert (await api.send())["event_id"] != (await api.send())["event_id"]


@pytest.mark.req("ING-03")
async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        routing = (await api.publish())["routing_generation"]
        receipt = await api.send(data={"n": 1}, idempotency_key="k")
        assert receipt["routing_generation"] == routing
    async with api_server(tmp_path) as api:
        shown = await api.get(f"{EVENTS}/{receipt['event_id']}")
        assert (shown["routing_generation"], shown["matched"]) == (routing, 1)
        replayed = await api.send(data={"n": 1}, idempotency_key="k", status=200)
        assert replayed["event_id"] == receipt["event_id"]

        async def expanded() -> bool:
            return (await api.get(f"{EVENTS}/{receipt['event_id']}"))["matches"][0]["run_id"] is not None

        await eventually(expanded)


@pytest.mark.req("VAL-06")
async def test_the_payload_is_kept_byte_for_byte(api: ApiHarness) -> None:
    text = '{"b" : 1.0,\t"a":"\\u00e9\U0001f600 e\u0301", "n": -0.0, "big": 12345678901234567890123}'
    answer = await api.client.post(EVENTS, content=f'{{"name":"x","data":  {text} }}'.encode(), headers=JSON_BODY)
    shown = await api.get(f"{EVENTS}/{answer.json()['event_id']}")
    assert base64.b64decode(shown["payload_base64"]).decode() == text
    every_byte = bytes(range(256))
    receipt = await api.post(EVENTS, {"name": "x", "payload_base64": base64.b64encode(every_byte).decode()}, 201)
    assert base64.b64decode((await api.get(f"{EVENTS}/{receipt['event_id']}"))["payload_base64"]) == every_byte


@pytest.mark.req("ING-10")
async def test_metadata_maps_strings_to_strings(api: ApiHarness) -> None:
    receipt = await api.send(metadata={"order": "7", "é": ""})
    assert (await api.get(f"{EVENTS}/{receipt['event_id']}"))["metadata"] == {"order": "7", "é": ""}
    problem = await api.post(EVENTS, {"name": "x", "data": 1, "metadata": {"order": 7}}, 400)
    assert (problem["code"], problem["path"]) == ("invalid", "$.metadata[...]")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "invalid", "empty"),
        (b"   ", "invalid", "empty"),
        (b"{", "invalid", "not valid JSON"),
        (b'{"name":"x","data":1}}', "invalid", "not valid JSON"),
        (b'{"name":"x","data":1,"data":2}', "invalid", "twice"),
        (b'{"name":"x","data":{"a":1,"\\u0061":2}}', "invalid", "twice"),
        (b'{"name":"x","data":NaN}', "invalid", "NaN"),
        (b'{"name":"x","data":Infinity}', "invalid", "Infinity"),
        (b'{"name":"x","data":1e999}', "invalid", "JSON"),
        (b'{"name":"x","data":' + b"9" * 400 + b"}", "invalid", "digits"),
        (b'{"name":"x","data":"\\ud800"}', "invalid", "surrogate"),
        (b'{"name":"\\udfff","data":1}', "invalid", "surrogate"),
        (b'{"name":"x","data":1,"idempotency_key":"\\ud800"}', "invalid", "surrogate"),
        (b'{"name":"x","data":"\xff"}', "invalid", "UTF-8"),
        (b'\xef\xbb\xbf{"name":"x","data":1}', "invalid", "byte order mark"),
        (b'{"name":"x","data":' + b"[" * 65 + b"]" * 65 + b"}", "limit_exceeded", "nested"),
        (b"[" * 100_000, "limit_exceeded", "nested"),
        (b'{"name":"","data":1}', "invalid", "$.name"),
        (b'{"name":"a\\u0000b","data":1}', "invalid", "$.name"),
        (b'{"name":5,"data":1}', "invalid", "$.name"),
        (b'{"data":1}', "invalid", "name"),
        (b'{"name":"x"}', "invalid", "payload"),
        (b'{"name":"x","data":1,"payload_base64":"AA=="}', "invalid", "exactly one"),
        (b'{"name":"x","payload_base64":"AA"}', "invalid", "base64"),
        (b'{"name":"x","payload_base64":"AB=="}', "invalid", "base64"),
        (b"[]", "invalid", "object"),
        (b"null", "invalid", "object"),
        (b'{"name":"' + b"x" * 257 + b'","data":1}', "limit_exceeded", "256 bytes"),
        (b'{"name":"x","data":1,"metadata":{"a":"' + b"x" * 1025 + b'"}}', "limit_exceeded", "1024 bytes"),
        (json.dumps({"name": "x", "data": 1, "metadata": dict.fromkeys(map(str, range(65)), "")}), "limit_exceeded", "64 pairs"),
        (b'{"name":"x","data":1,"idempotency_key":"a\\u0000b"}', "invalid", "NUL"),
        ('{"name":"' + "é" * 129 + '","data":1}', "limit_exceeded", "256"),
        (b'{"name":"x","data":1,"idempotency_key":""}', "invalid", "idempotency_key"),
    ],
)
async def test_a_body_that_is_no_event_is_refused_with_the_reason_and_changes_nothing(
    api: ApiHarness, body: bytes | str, code: str, says: str
) -> None:
    answer = await api.client.post(EVENTS, content=body, headers=JSON_BODY)
    problem = answer.json()
    assert problem["code"] == code, problem
    assert answer.status_code == (413 if code == "limit_exceeded" else 400)
    assert says in problem["detail"] + problem.get("path", "")
    assert (await api.get("/v1/server"))["counts"]["events"] == 0


async def test_sizes_are_bounded(api: ApiHarness) -> None:
    exact = b'{"name":"x","data":"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"}'
    assert (await api.client.post(EVENTS, content=exact, headers=JSON_BODY)).status_code == 201
    over = b'{"name":"x","data":"' + b"x" * (PAYLOAD_BYTES_MAX - 1) + b'"}'
    answer = await api.client.post(EVENTS, content=over, headers=JSON_BODY)
    assert (answer.status_code, answer.json()["limit"]) == (413, PAYLOAD_BYTES_MAX)
    encoded = base64.b64encode(bytes(PAYLOAD_BYTES_MAX)).decode()
    await api.post(EVENTS, {"name": "x", "payload_base64": encoded}, 201)
    far = await api.client.post(EVENTS, content=b" " * (3 << 20), headers=JSON_BODY)
    assert (far.status_code, far.json()["code"]) == (413, "limit_exceeded")
    pairs = {str(number): "" for number in range(METADATA_PAIRS_MAX + 1)}
    assert (await api.client.post(EVENTS, json={"name": "x", "data": 1, "metadata": pairs})).status_code in {400, 413}


@pytest.mark.req("ING-08", "ING-09")
async def test_an_event_keeps_the_routing_it_was_accepted_under(api: ApiHarness) -> None:
    early = await api.send()
    published = await api.publish()
    late = await api.send()
    near = [await api.send(name) for name in ("order/place", "order/placed/", "Order/placed", "order")]
    assert (early["matched"], late["matched"]) == (0, 1)
    assert [receipt["matched"] for receipt in near] == [0, 0, 0, 0]
    assert late["routing_generation"] == published["routing_generation"] != early["routing_generation"]
    shown = await api.get(f"{EVENTS}/{early['event_id']}")
    assert (shown["matches"], shown["expansion"]) == ([], "complete")


@pytest.mark.req("API-02", "ING-07")
async def test_an_event_shows_its_runs_over_all_applications(api: ApiHarness) -> None:
    shop = await api.publish("shop")
    kiosk = await api.publish("kiosk", function="print")
    receipt = await api.send()
    assert receipt["matched"] == 2

    async def expanded() -> bool:
        return (await api.get(f"{EVENTS}/{receipt['event_id']}"))["expansion"] == "complete"

    await eventually(expanded)
    shown = await api.get(f"{EVENTS}/{receipt['event_id']}")
    assert [(match["application"], match["function"], match["trigger_id"]) for match in shown["matches"]] == [
        ("kiosk", "print", "print/order/placed"),
        ("shop", "fulfil", "fulfil/order/placed"),
    ]
    runs = {run["run_id"]: run for run in (await api.get(f"{W}/runs", event=receipt["event_id"]))["items"]}
    for match, generation in zip(shown["matches"], (kiosk, shop), strict=True):
        run = runs[match["run_id"]]
        assert run["event_id"] == receipt["event_id"]
        assert (run["application"], run["trigger_id"]) == (match["application"], match["trigger_id"])
        assert run["manifest_generation"] == match["manifest_generation"] == generation["manifest_generation"]
        assert run["routing_generation"] == receipt["routing_generation"] == kiosk["routing_generation"]


@pytest.mark.req("ING-06")
async def test_many_triggers_start_one_run_each(api: ApiHarness) -> None:
    triggers = [{"id": f"t{number:03}", "event_name": "order/placed", "function": "fulfil"} for number in range(150)]
    manifest = {"protocol_version": 1, "expected_parent": None, "functions": [{"id": "fulfil"}], "triggers": triggers, "contents": ""}
    await api.post(f"{W}/applications/shop/manifests", manifest, 201)
    receipt = await api.send()
    assert receipt["matched"] == 150

    async def expanded() -> bool:
        return (await api.get(f"{EVENTS}/{receipt['event_id']}"))["expansion"] == "complete"

    await eventually(expanded)
    shown = await api.get(f"{EVENTS}/{receipt['event_id']}")
    assert len({match["run_id"] for match in shown["matches"]} - {None}) == 150
    assert (await api.get("/v1/server"))["counts"]["runs"] == 150


@pytest.mark.req("ING-11")
async def test_fan_out_goes_on_by_itself_after_a_restart(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        await api.publish()
        receipt = await api.send()
    async with api_server(tmp_path) as api, worker_peer(api.server.url) as peer:
        playing = asyncio.create_task(peer.play([]))
        shown = await api.get(f"{EVENTS}/{receipt['event_id']}", wait_ms=10_000)
        playing.cancel()
        assert [run["outcome"] for run in shown["runs"]] == ["succeeded"]


async def test_events_are_listed_newest_first_without_payloads(api: ApiHarness) -> None:
    sent = [(await api.send(f"n{number % 2}", data=number))["event_id"] for number in range(5)]
    listed = await api.get(EVENTS)
    assert sorted(item["event_id"] for item in listed["items"]) == sorted(sent)
    assert all("payload_base64" not in item for item in listed["items"])
    instants = [item["received_at_ms"] for item in listed["items"]]
    assert instants == sorted(instants, reverse=True)
    assert {item["name"] for item in (await api.get(EVENTS, name="n1"))["items"]} == {"n1"}


async def test_an_event_of_another_workspace_is_not_found(api: ApiHarness) -> None:
    receipt = await api.send()
    problem = await api.get(f"/v1/workspaces/other/events/{receipt['event_id']}", 404)
    assert problem["code"] == "not_found"
    assert (await api.get("/v1/workspaces/other/events"))["items"] == []
