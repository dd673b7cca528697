"""The control plane as readers see it: applications that publish at once, why nobody runs a run, policies that may not contradict."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ryusen_server.bootstrap import ServerSettings, StartRefused, build
from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.gateway.worker_peer import publication, worker_peer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        yield harness


@pytest.mark.req("MAN-09", "MAN-05", "MAN-11")
async def test_applications_that_publish_at_once_all_succeed_one_routing_generation_after_the_other(api: ApiHarness) -> None:
    names = [f"app-{number}" for number in range(12)]
    rounds = 3
    heads: dict[str, str | None] = dict.fromkeys(names)
    for number in range(rounds):
        answers = await asyncio.gather(
            *(api.post(f"{W}/applications/{name}/manifests", publication(f"f{number}", parent=heads[name]), 201) for name in names)
        )
        heads = {name: answer["manifest_generation"] for name, answer in zip(names, answers, strict=True)}
    chain = await api.get(f"{W}/routing", limit=500)
    generations = chain["items"]
    assert len(generations) == 1 + rounds * len(names)
    for newer, older in itertools.pairwise(generations):
        assert newer["expected_parent"] == older["routing_generation"]
        moved = {name for name in names if newer["applications"].get(name) != older["applications"].get(name)}
        assert len(moved) == 1, "one publication moves one application and keeps the others"
    assert generations[0]["applications"] == heads
    for shown in generations[:-1]:
        for name, manifest in shown["applications"].items():
            assert (await api.get(f"{W}/applications/{name}/manifests/{manifest}"))["manifest_generation"] == manifest


@pytest.mark.req("MAN-07")
async def test_of_publishers_that_race_on_one_parent_one_wins_and_the_others_are_told_what_is_active(api: ApiHarness) -> None:
    first = await api.publish()
    parent = first["manifest_generation"]
    bodies = [publication(f"f{number}", parent=parent) for number in range(8)]
    answers = await asyncio.gather(*(api.client.post(f"{W}/applications/shop/manifests", json=body) for body in bodies))
    (won,) = [answer.json() for answer in answers if answer.status_code == 201]
    lost = [answer.json() for answer in answers if answer.status_code == 409]
    assert len(lost) == 7
    assert {one["code"] for one in lost} == {"parent_conflict"}
    assert {one["active_generation"] for one in lost} == {won["manifest_generation"]}
    assert len((await api.get(f"{W}/routing"))["items"]) == 3


async def only_run(api: ApiHarness) -> dict[str, Any]:
    (run,) = (await api.get(f"{W}/runs"))["items"]
    return await api.get(f"{W}/runs/{run['run_id']}")


@pytest.mark.req("REG-11")
async def test_a_run_says_why_nobody_runs_it(api: ApiHarness) -> None:
    await api.publish()
    await api.send()

    async def reason(holds: str) -> None:
        async def told() -> bool:
            run = await only_run(api)
            return holds in (run["no_worker_reason"] or "") and run["attention"] == "no_worker"

        await eventually(told)

    await reason("No worker of the application shop is connected. Start one")
    async with worker_peer(api.server.url, scope={"workspace": "default", "application": "till"}):
        await reason("No worker of the application shop is connected")
    async with worker_peer(api.server.url, functions=["other"]):
        await reason("1 worker of the application shop connected, but none has the function fulfil")
    async with worker_peer(api.server.url, draining=True):
        await reason("Every worker that has the function fulfil is draining")
    async with worker_peer(api.server.url, capacity=1) as peer:
        await peer.expect("invoke")
        assert (await only_run(api))["no_worker_reason"] is None
        await api.send()
        waiting = (await api.get(f"{W}/runs"))["items"][0]
        assert waiting["attention"] is None, "somebody can run it, once there is room"


async def test_a_default_beyond_the_maximum_refuses_the_start(tmp_path: Path) -> None:
    db = tmp_path / "ryusen.db"
    with pytest.raises(StartRefused, match=r"--default-run-timeout.*--max-run-timeout"):
        await build(ServerSettings(db=db, port=0, default_run_timeout_ms=2_000, max_run_timeout_ms=1_000)).start()
    assert not db.exists()


@pytest.mark.req("DLN-01")
async def test_policies_are_shown_and_the_source_of_a_deadline_with_them(tmp_path: Path) -> None:
    async with api_server(tmp_path, memory=True, default_run_timeout_ms=60_000, max_run_timeout_ms=90_000) as api:
        shown = await api.get("/v1/server")
        assert (shown["default_run_timeout_ms"], shown["max_run_timeout_ms"]) == (60_000, 90_000)
        long = publication()
        long["functions"][0]["timeout_ms"] = 90_001
        refused = await api.post(f"{W}/applications/shop/manifests", long, 400)
        assert "above the 90000 ms" in refused["detail"]
        await api.publish()
        await api.send()
        assert (await only_run(api))["deadline"]["source"] == "policy"
