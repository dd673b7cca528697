"""Pruning over HTTP: what goes, what stays, what a reader in the middle is told, and that the file becomes smaller."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ryusen_protocol.ids import Workspace
from ryusen_server.api import retention
from ryusen_server.engine import pruning
from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.api.following import following, tells
from tests.gateway.worker_peer import WorkerPeer, worker_peer

AGE_MS = 30 * 24 * 3_600_000


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        await harness.publish()
        yield harness


async def prune(api: ApiHarness, older_than_ms: int = 0) -> Any:
    await asyncio.sleep(0.003)  # what ended in this very millisecond is not older than it
    return await api.post(f"{W}/prune", {"older_than_ms": older_than_ms})


async def finished(api: ApiHarness, **members: Any) -> tuple[str, str]:
    """An event and its run, which has ended."""
    async with worker_peer(api.server.url) as peer:
        playing = asyncio.create_task(peer.play(["charge"]))
        receipt = await api.send(wait_ms=5000, **members)
        playing.cancel()
    return receipt["event_id"], receipt["runs"][0]["run_id"]


async def invocation(peer: WorkerPeer) -> dict[str, Any]:
    while (frame := await peer.receive())["type"] != "invoke":
        pass
    return frame


async def test_what_has_ended_goes_with_its_event_and_attempts_and_what_lives_stays(api: ApiHarness) -> None:
    event_id, run_id = await finished(api)
    waiting = await api.send()
    unmatched = await api.send("of/no/interest")
    young = await prune(api, AGE_MS)
    assert (young["runs"], young["events"], young["complete"]) == (0, 0, True)

    receipt = await prune(api)
    assert (receipt["runs"], receipt["events"], receipt["complete"]) == (1, 2, True)
    for path in (f"runs/{run_id}", f"runs/{run_id}/history", f"events/{event_id}", f"events/{unmatched['event_id']}"):
        assert (await api.get(f"{W}/{path}", 404))["code"] == "not_found"
    assert (await api.get(f"{W}/attempts"))["items"] == []
    live = (await api.get(f"{W}/runs"))["items"]
    assert [run["event_id"] for run in live] == [waiting["event_id"]]
    assert [one["event_id"] for one in (await api.get(f"{W}/events"))["items"]] == [waiting["event_id"]]
    assert (await api.get(f"{W}/applications/shop"))["functions"] == 1
    again = await prune(api)
    assert (again["runs"], again["events"]) == (0, 0)

    async with worker_peer(api.server.url) as peer:
        playing = asyncio.create_task(peer.play(["charge"]))
        ended = await api.get(f"{W}/runs/{live[0]['run_id']}", wait_ms=5000)
        playing.cancel()
    assert ended["outcome"] == "succeeded"


@pytest.mark.req("ING-04", "ING-05")
async def test_a_key_outlives_its_event(api: ApiHarness) -> None:
    event_id, run_id = await finished(api, idempotency_key="k")
    first = await api.send(status=200, idempotency_key="k")
    assert (await prune(api))["events"] == 1
    again = await api.send(status=200, idempotency_key="k")
    assert again == first
    assert (again["event_id"], again["status"], again["matched"], again["expansion"]) == (event_id, "replayed", 1, "complete")
    refused = await api.post(f"{W}/events", {"name": "order/placed", "data": {"other": 1}, "idempotency_key": "k"}, 409)
    assert refused["code"] == "idempotency_key_reused"
    await api.get(f"{W}/runs/{run_id}", 404)


async def test_an_operator_key_outlives_its_run(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        await peer.declare(await invocation(peer), "charge")
        await peer.answer(await invocation(peer), {"type": "invented"})
        attempts: list[Any] = []
        while not attempts:
            attempts = (await api.get(f"{W}/attempts", state="unknown"))["items"]
        (attempt,) = attempts
        assert (await prune(api))["runs"] == 0, "a run that waits for an operator lives"
        command = {
            "version": 1,
            "attempt_id": attempt["attempt_id"],
            "attempt_generation": 1,
            "idempotency_key": "operator-k",
            "command": {"supply_success": {"result": {"type": "null"}}},
        }
        path = f"{W}/attempts/{attempt['attempt_id']}/resolve"
        applied = await api.post(path, command)
        await peer.answer(await invocation(peer), {"type": "completed", "result": {"type": "null"}})
        await api.get(f"{W}/runs/{attempt['run_id']}", wait_ms=5000)
    assert (await prune(api))["runs"] == 1
    assert await api.post(path, command) == {**applied, "status": "replayed"}


async def test_an_answer_for_a_run_that_is_gone_is_discarded(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        await peer.declare(await invocation(peer), "charge")
        effect = await invocation(peer)
        await peer.answer(effect, {"type": "succeeded", "result": {"type": "null"}})
        await peer.answer(await invocation(peer), {"type": "completed", "result": {"type": "null"}})
        run_id = effect["invocation"]["run"]["run_id"]
        await api.get(f"{W}/runs/{run_id}", wait_ms=5000)
        assert (await prune(api))["runs"] == 1
        await peer.answer(effect, {"type": "succeeded", "result": {"type": "null"}})
        while (frame := await peer.receive())["type"] != "outcome_ack" or frame["disposition"] == "accepted":
            pass
    assert frame["disposition"] == "discarded"
    await finished(api)


async def test_a_reader_behind_what_was_removed_is_told_and_one_ahead_is_not_disturbed(api: ApiHarness) -> None:
    before = (await api.get(f"{W}/runs"))["position"]
    await finished(api)
    async with following(api) as ahead:
        await prune(api)
        removed = await ahead.until(tells("pruned"))
        assert [record["runs"] for change in removed for record in change["records"]] == [1]
        await ahead.until(tells("pruned"))
    async with following(api, after=before) as behind:
        name, resync = await behind.event()
        assert (name, resync["reason"]) == ("resync", "pruned")
        await finished(api)
        changes = await behind.until(tells("run_ended"))
        assert changes[0]["position"] > resync["position"]


async def test_the_file_becomes_smaller_while_work_goes_on(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        file = tmp_path / "ryusen.db"
        for number in range(24):
            await api.send("of/no/interest", data="x" * 400_000, metadata={"number": str(number)})
        before = (await api.get("/v1/server"))["counts"]["events"]
        assert before == 24
        stop = asyncio.Event()

        async def work() -> int:
            sent = 0
            while not stop.is_set():
                await api.send("small")
                sent += 1
            return sent

        working = asyncio.create_task(work())
        receipt = await prune(api)
        stop.set()
        assert await working > 0
        assert receipt["events"] >= 24
        assert receipt["freed_bytes"] > 24 * 350_000

        async def shrunk() -> bool:
            return file.stat().st_size < 2_000_000

        await eventually(shrunk)  # the next checkpoint cuts it


@pytest.mark.parametrize("body", [{}, {"older_than_ms": -1}, {"older_than_ms": "30d"}, {"older_than_ms": 2**53}])
async def test_what_is_no_age_is_refused(api: ApiHarness, body: Any) -> None:
    assert (await api.post(f"{W}/prune", body, 400))["code"] == "invalid"


async def test_the_command_asks_until_nothing_more_can_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BOUND_MS", 0)
    async with api_server(tmp_path) as api:
        for _ in range(pruning.EVENTS_A_COMMIT * 2 + 1):
            await api.server.engine.submit_event(Workspace("default"), name="x", payload=b"{}", metadata={}, key=None)
        ryusen = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ryusen_cli",
            "prune",
            "--older-than",
            "0s",
            "--json",
            "--url",
            api.server.url,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await ryusen.communicate()
        assert ryusen.returncode == 0
        receipt = json.loads(out)
        assert (receipt["events"], receipt["complete"]) == (pruning.EVENTS_A_COMMIT * 2 + 1, True)
        assert (await api.get(f"{W}/events"))["items"] == []
