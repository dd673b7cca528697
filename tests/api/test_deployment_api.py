"""Publication, generations, workers, releases and functions over HTTP."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ryusen_protocol.manifest import FunctionDeclaration, TriggerDeclaration
from ryusen_protocol.manifests import content_digest, initial_routing_generation
from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.gateway.worker_peer import publication, worker_peer

SHOP = f"{W}/applications/shop"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        yield harness


async def test_a_publication_creates_a_generation_once(api: ApiHarness) -> None:
    first = await api.post(f"{SHOP}/manifests", publication(), 201)
    assert first["status"] == "created"
    again = await api.post(f"{SHOP}/manifests", publication(), 200)
    assert again == {**first, "status": "replayed"}
    functions, triggers = [FunctionDeclaration("fulfil")], [TriggerDeclaration("fulfil/order/placed", "order/placed", "fulfil")]
    assert first["digest"] == content_digest(base64.b64encode(b"{}").decode(), functions, triggers)


@pytest.mark.req("API-07")
async def test_heads_and_generations_can_be_read(api: ApiHarness) -> None:
    assert (await api.get(f"{W}/applications"))["items"] == []
    assert (await api.get(SHOP, 404))["code"] == "not_found"
    (initial,) = (await api.get(f"{W}/routing"))["items"]
    assert initial["routing_generation"] == initial_routing_generation("default")  # type: ignore[arg-type]
    assert (initial["active"], initial["applications"], initial["activated_at_ms"]) == (True, {}, None)
    first = await api.publish()
    second = await api.publish(events=("order/placed", "order/changed"), parent=first["manifest_generation"])
    head = await api.get(SHOP)
    assert (head["manifest_generation"], head["digest"]) == (second["manifest_generation"], second["digest"])
    assert (head["functions"], head["triggers"]) == (1, 2)
    assert head["routing_generation"] == second["routing_generation"]
    old = await api.get(f"{SHOP}/manifests/{first['manifest_generation']}")
    new = await api.get(f"{SHOP}/manifests/{second['manifest_generation']}")
    assert (old["active"], new["active"]) == (False, True)
    assert (old["expected_parent"], new["expected_parent"]) == (None, first["manifest_generation"])
    assert [trigger["event_name"] for trigger in new["triggers"]] == ["order/changed", "order/placed"]
    assert base64.b64decode(new["contents"]) == b"{}"
    assert new["activated_position"] > old["activated_position"] > 0
    listed = (await api.get(f"{W}/routing"))["items"]
    assert [entry["active"] for entry in listed] == [True, False, False]
    assert [entry["applications"] for entry in listed] == [
        {"shop": second["manifest_generation"]},
        {"shop": first["manifest_generation"]},
        {},
    ]
    assert listed[1]["expected_parent"] == listed[2]["routing_generation"]
    for entry in listed:
        assert await api.get(f"{W}/routing/{entry['routing_generation']}") == entry
    assert (await api.get(f"{W}/routing/rg_x", 404))["code"] == "not_found"
    assert (await api.get(f"{W}/applications/kiosk/manifests/{first['manifest_generation']}", 404))["code"] == "not_found"


async def test_a_publication_on_another_parent_is_refused_with_the_active_one(api: ApiHarness) -> None:
    first = await api.publish()
    before = await api.get(f"{W}/routing")
    for parent in (None, "mg_x"):
        problem = await api.post(f"{SHOP}/manifests", publication("other", parent=parent), 409)
        assert (problem["code"], problem["active_generation"]) == ("parent_conflict", first["manifest_generation"])
    problem = await api.post(f"{W}/applications/kiosk/manifests", publication(parent="mg_x"), 409)
    assert problem["active_generation"] is None
    assert await api.get(f"{W}/routing") == before


async def test_an_old_publication_answers_its_first_activation_and_moves_no_head(api: ApiHarness) -> None:
    first = await api.publish()
    second = await api.publish(events=("other",), parent=first["manifest_generation"])
    assert await api.post(f"{SHOP}/manifests", publication(), 200) == {**first, "status": "replayed"}
    assert (await api.get(SHOP))["manifest_generation"] == second["manifest_generation"]


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        ({"protocol_version": 2}, "unsupported_version", "$.protocol_version"),
        ({"functions": [{"id": ""}]}, "invalid", "$.functions[0].id"),
        ({"functions": [{"id": "a"}, {"id": "a"}], "triggers": []}, "invalid", "$.functions[1].id"),
        ({"triggers": [{"id": "t", "event_name": "e", "function": "none"}]}, "invalid", "$.triggers[0].function"),
        ({"triggers": [{"id": "", "event_name": "e", "function": "fulfil"}]}, "invalid", "$.triggers[0].id"),
        ({"triggers": [{"id": "t", "event_name": "", "function": "fulfil"}]}, "invalid", "$.triggers[0].event_name"),
        ({"contents": "?"}, "invalid", "$.contents"),
        ({"functions": "all"}, "invalid", "$.functions"),
        ({"expected_parent": 5}, "invalid", "$.expected_parent"),
        ({"functions": [{"id": "fulfil", "timeout_ms": 2**53}]}, "invalid", "$.functions[0].timeout_ms"),
    ],
)
async def test_a_publication_that_cannot_be_is_refused_with_its_place(
    api: ApiHarness, change: dict[str, Any], code: str, path: str
) -> None:
    problem = await api.post(f"{SHOP}/manifests", {**publication(), **change}, 400)
    assert (problem["code"], problem["path"]) == (code, path)
    assert (await api.get(f"{W}/applications"))["items"] == []


async def test_applications_with_any_name_can_be_reached(api: ApiHarness) -> None:
    for name in ("a/b", "..", "é ü", "%41", "a?b#c", "-", "x" * 256):
        path = f"{W}/applications/{_segment(name)}"
        await api.post(f"{path}/manifests", publication(), 201)
        assert (await api.get(path))["application"] == name
    assert len((await api.get(f"{W}/applications"))["items"]) == 7
    first = await api.get(f"{W}/applications", limit=4)
    rest = await api.get(f"{W}/applications", limit=4, cursor=first["next_cursor"])
    assert [len(first["items"]), len(rest["items"]), rest["next_cursor"]] == [4, 3, None]


def _segment(name: str) -> str:
    from ryusen_protocol.client import segment

    return segment(name)


@pytest.mark.parametrize("name", ["%00", "%FF", "%ED%A0%80", "x" * 257, "%C3"])
async def test_a_workspace_or_application_that_is_no_name_is_refused(api: ApiHarness, name: str) -> None:
    for path in (f"/v1/workspaces/{name}/runs", f"{W}/applications/{name}"):
        answer = await api.client.get(path)
        assert answer.status_code in {400, 413}, answer.text
        assert answer.json()["code"] in {"invalid", "limit_exceeded"}


async def test_a_workspace_needs_no_creation(api: ApiHarness) -> None:
    path = "/v1/workspaces/t%C3%A9st%2F1"
    await api.post(f"{path}/applications/shop/manifests", publication(), 201)
    receipt = await api.post(f"{path}/events", {"name": "order/placed", "data": 1}, 201)
    assert receipt["matched"] == 1
    assert (await api.get(f"{W}/events"))["items"] == []


@pytest.mark.req("API-08")
async def test_workers_releases_and_functions_follow_connections(api: ApiHarness) -> None:
    await api.publish()
    (function,) = (await api.get(f"{W}/functions"))["items"]
    assert (function["function"], function["workers"]) == ("fulfil", [])
    assert function["triggers"] == [{"trigger_id": "fulfil/order/placed", "event_name": "order/placed"}]
    async with worker_peer(api.server.url, instance_id="wk_a", release_id="r1", capabilities=["history_delta"], capacity=3) as peer:
        (worker,) = (await api.get(f"{W}/workers"))["items"]
        assert (worker["instance_id"], worker["release_id"], worker["transport"], worker["connected"]) == ("wk_a", "r1", "connected", True)
        assert (worker["capacity"], worker["in_flight"], worker["draining"]) == (3, 0, False)
        assert (worker["session_id"], worker["sdk"]["name"]) == (peer.session_id, "peer")
        (release,) = (await api.get(f"{W}/releases"))["items"]
        assert (release["release_id"], release["instances"]) == ("r1", ["wk_a"])
        (function,) = (await api.get(f"{W}/functions"))["items"]
        assert function["workers"] == ["wk_a"]
        assert (await api.get("/v1/server"))["counts"]["workers"] == 1
        await api.send()
        await peer.expect("invoke")
        assert (await api.get(f"{W}/workers"))["items"][0]["in_flight"] == 1
        await peer.send({"protocol_version": 1, "type": "draining"})

        async def drains() -> bool:
            return (await api.get(f"{W}/workers"))["items"][0]["draining"]

        await eventually(drains)
        assert (await api.get(f"{W}/functions"))["items"][0]["workers"] == []

    async def lost() -> bool:
        return not (await api.get(f"{W}/workers"))["items"][0]["connected"]

    await eventually(lost)
    (worker,) = (await api.get(f"{W}/workers"))["items"]
    assert worker["session_id"] is None
    assert worker["last_failure"]
    (release,) = (await api.get(f"{W}/releases"))["items"]
    assert release["instances"] == []
    assert (await api.get("/v1/server"))["counts"]["workers"] == 0


@pytest.mark.req("SEM-04")
async def test_the_server_describes_itself(api: ApiHarness) -> None:
    info = await api.get("/v1/server")
    assert info["addresses"] == list(api.server.addresses)
    assert info["database"]["path"].endswith("ryusen.db")
    assert (info["lease_ms"], info["heartbeat_ms"], info["reconnect_grace_ms"]) == (30_000, 10_000, 30_000)
    assert (info["default_run_timeout_ms"], info["max_run_timeout_ms"]) == (None, None)
    assert info["limits"]["payload_bytes"] == 1 << 20
    assert info["protocol_version"] == 1
    assert info["counts"] == {"events": 0, "runs": 0, "moving": 0, "unknown": 0, "blocked": 0, "workers": 0}
