"""Runs and attempts over HTTP: lists with filters, detail, history, cancel, rediscover."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.gateway.worker_peer import WorkerPeer, string, worker_peer

FAILURE = {"category": "CardRefused", "message": "no money", "retryable": False}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        await harness.publish()
        yield harness


async def effect(peer: WorkerPeer) -> dict[str, Any]:
    """The next invocation, acknowledgements passed over."""
    while (frame := await peer.receive())["type"] != "invoke":
        pass
    return frame


async def failing_saga(api: ApiHarness) -> dict[str, Any]:
    """A run whose second step fails once, then for good, and whose first is undone; its detail."""
    async with worker_peer(api.server.url, release_id="r1") as peer:
        receipt = await api.send()
        compensated = {"has_compensation": True, "location": {"file": "shop.py", "line": 7}}
        await peer.declare(await effect(peer), "charge", **compensated)
        await peer.answer(await effect(peer), {"type": "succeeded", "result": string("paid")})
        await peer.declare(await effect(peer), "ship", retry={"max_attempts": 2, "initial_ms": 1, "jitter": 0.0})
        await peer.answer(await effect(peer), {"type": "callback_failed", "failure": {**FAILURE, "retryable": True}})
        await peer.answer(await effect(peer), {"type": "callback_failed", "failure": FAILURE})
        await peer.answer(await effect(peer), {"type": "uncaught", "failure": FAILURE})
        undo = await effect(peer)
        assert undo["invocation"]["target"]["forward_result"] == string("paid")
        await peer.answer(undo, {"type": "succeeded", "result": {"type": "null"}})
        await peer.expect("outcome_ack")
        shown = await api.get(f"{W}/events/{receipt['event_id']}", wait_ms=10_000)
    (run,) = shown["runs"]
    return await api.get(f"{W}/runs/{run['run_id']}")


@pytest.mark.req("API-03", "API-04")
async def test_a_failed_run_shows_its_outcome_steps_attempts_and_unwind(api: ApiHarness) -> None:
    run = await failing_saga(api)
    assert (run["status"], run["outcome"], run["recovery"]) == ("ended", "failed", "fully_compensated")
    assert run["failure"]["category"] == "CardRefused"
    assert (run["deadline"], run["stop"], run["blocker"], run["parent"], run["attention"]) == (None, None, None, None, None)
    charge, ship = run["steps"]
    assert (charge["state"], charge["result"], charge["has_compensation"], charge["kind"]) == ("succeeded", string("paid"), True, "run")
    assert charge["location"] == {"file": "shop.py", "line": 7}
    assert (ship["state"], ship["failure"]["message"], ship["result"]) == ("failed", "no money", None)
    assert [(attempt["attempt"], attempt["attempt_generation"], attempt["state"]) for attempt in ship["attempts"]] == [
        (1, 1, "failed"),
        (2, 2, "failed"),
    ]
    assert len({attempt["operation_id"] for attempt in ship["attempts"]}) == 1
    assert {attempt["settled_by"] for attempt in ship["attempts"]} == {"worker"}
    assert ship["attempts"][0]["worker"]["release_id"] == "r1"
    (target,) = run["unwind"]["targets"]
    assert (target["step_id"], target["state"]) == ("charge", "succeeded")
    assert [(attempt["phase"], attempt["state"]) for attempt in target["attempts"]] == [("compensation", "succeeded")]
    assert run["unwind_counts"] == {"pending": 0, "succeeded": 1, "failed": 0, "skipped": 0}
    assert run["input"]["kind"] == "event"
    assert run["input"]["payload"]["type"] == "bytes"


@pytest.mark.req("API-05")
async def test_history_is_in_commit_order_pages_and_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        await api.publish()
        run = await failing_saga(api)
        path = f"{W}/runs/{run['run_id']}/history"
        whole = (await api.get(path, limit=500))["items"]
    positions = [entry["position"] for entry in whole]
    assert positions == sorted(set(positions))
    assert positions[-1] == run["position"]
    kinds = [record["kind"] for entry in whole for record in entry["records"]]
    assert kinds[0] == "run_created"
    assert kinds[-1] == "run_ended"
    assert kinds.count("attempt_authorized") == 4
    async with api_server(tmp_path) as api:
        paged: list[Any] = []
        after = 0
        while True:
            page = await api.get(path, after=after, limit=3)
            paged += page["items"]
            if page["next_cursor"] is None:
                break
            after = int(page["next_cursor"])
        assert paged == whole
        assert await api.get(f"{W}/runs/{run['run_id']}") == run


async def test_every_filter_of_the_list(api: ApiHarness) -> None:
    failed = await failing_saga(api)
    waiting = await api.send()

    async def started() -> bool:
        return len((await api.get(f"{W}/runs"))["items"]) == 2

    await eventually(started)
    other = next(run for run in (await api.get(f"{W}/runs"))["items"] if run["run_id"] != failed["run_id"])
    for query, expected in (
        ({"status": "ended"}, {failed["run_id"]}),
        ({"status": "running"}, {other["run_id"]}),
        ({"outcome": "failed"}, {failed["run_id"]}),
        ({"outcome": "succeeded"}, set[str]()),
        ({"recovery": "fully_compensated"}, {failed["run_id"]}),
        ({"function": "fulfil"}, {failed["run_id"], other["run_id"]}),
        ({"function": "ful"}, set[str]()),
        ({"application": "shop", "status": "running"}, {other["run_id"]}),
        ({"application": "kiosk"}, set[str]()),
        ({"event": waiting["event_id"]}, {other["run_id"]}),
        ({"attention": "no_worker"}, {other["run_id"]}),
        ({"attention": "unknown"}, set[str]()),
        ({"attention": "blocked"}, set[str]()),
        ({"q": "ful"}, {failed["run_id"], other["run_id"]}),
        ({"q": failed["run_id"][:12]}, {failed["run_id"]}),
        ({"q": ""}, {failed["run_id"], other["run_id"]}),
    ):
        listed = await api.get(f"{W}/runs?" + "&".join(f"{name}={value}" for name, value in query.items()))
        assert {run["run_id"] for run in listed["items"]} == expected, query
    for run in (await api.get(f"{W}/runs"))["items"]:
        assert "input" not in run
        assert "result" not in run


@pytest.mark.parametrize(
    "query",
    [
        "status=finished",
        "outcome=",
        "attention=all",
        "limit=0",
        "limit=-1",
        "limit=501",
        "limit=ten",
        "limit=%D9%A1",
        "limit=1e2",
        "cursor=nonsense",
        "cursor=",
        "cursor=%ED%A0%80",
        "statsu=running",
        "status=running&status=ended",
        "function=%00",
        "function=%FF",
        "q=%zz",
        "wait_ms=1",
        "q=" + "x" * 257,
    ],
)
async def test_a_query_that_means_nothing_is_refused_and_not_an_empty_list(api: ApiHarness, query: str) -> None:
    answer = await api.client.get(f"{W}/runs?{query}")
    assert answer.status_code in {400, 413}, answer.text
    assert answer.json()["code"] in {"invalid", "limit_exceeded"}
    assert answer.json()["detail"].isprintable()


async def test_pages_are_stable_under_writes(api: ApiHarness) -> None:
    for number in range(25):
        await api.send(data=number)

    async def started() -> bool:
        return (await api.get("/v1/server"))["counts"]["runs"] == 25

    await eventually(started)
    there = {run["run_id"] for run in (await api.get(f"{W}/runs", limit=100))["items"]}
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 10}
    while True:
        page = await api.get(f"{W}/runs", **query)
        seen += [run["run_id"] for run in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
        await api.send()
        await api.post(f"{W}/runs/{seen[0]}/cancel", {}, 202)
    assert len(seen) == len(set(seen))
    assert there <= set(seen)


async def test_a_cursor_belongs_to_its_list_and_filters(api: ApiHarness) -> None:
    for _ in range(3):
        await api.send()

    async def started() -> bool:
        return (await api.get("/v1/server"))["counts"]["runs"] == 3

    await eventually(started)
    cursor = (await api.get(f"{W}/runs", limit=1))["next_cursor"]
    assert len((await api.get(f"{W}/runs", cursor=cursor))["items"]) == 2
    for path in (f"{W}/runs?status=running&cursor={cursor}", f"{W}/events?cursor={cursor}", f"/v1/workspaces/other/runs?cursor={cursor}"):
        problem = await api.get(path, 400)
        assert problem["code"] == "invalid"


async def test_an_altered_cursor_is_refused_or_a_place_like_any_other(api: ApiHarness) -> None:
    await api.publish("till")
    for _ in range(2):
        await api.send()
    for what in ("runs", "events", "routing", "applications", "functions"):
        cursor = (await api.get(f"{W}/{what}", limit=1))["next_cursor"]
        question, order, key = json.loads(urlsafe_b64decode(cursor + "=="))
        for beyond in (2**63, 2**64, 2**70, -(2**63) - 1, True, 1.5, "1", None):
            await api.get(f"{W}/{what}", 400, cursor=cursor_of(question, beyond, key))
        for within in (2**63 - 1, -(2**63), 0, order):
            for place in ("", "a\x00b", "\u00e9" * 200, key):
                await api.get(f"{W}/{what}", cursor=cursor_of(question, within, place))
        for garbled in (f"*{cursor}", f"{cursor[:9]}*{cursor[9:]}", f"{cursor}==", f"{cursor}\n"):
            await api.get(f"{W}/{what}", 400, cursor=garbled)


def cursor_of(*members: object) -> str:
    return urlsafe_b64encode(json.dumps(members).encode()).rstrip(b"=").decode()


async def test_runs_without_a_worker_are_found_behind_others_and_paged(api: ApiHarness) -> None:
    await api.publish("kiosk", function="print", events=("job",))
    async with worker_peer(api.server.url):
        for number in range(12):
            await api.send("job" if number % 3 == 0 else "order/placed")

        async def started() -> bool:
            return (await api.get("/v1/server"))["counts"]["runs"] == 12

        await eventually(started)
        found: list[str] = []
        query: dict[str, Any] = {"attention": "no_worker", "limit": 3}
        while True:
            page = await api.get(f"{W}/runs", **query)
            found += [run["function"] for run in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert found == ["print"] * 4


async def test_work_that_is_out_at_a_lost_worker_is_no_work_without_a_worker(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        await peer.declare(await effect(peer), "charge")
        await effect(peer)

    async def away() -> bool:
        return not (await api.get(f"{W}/workers"))["items"][0]["connected"]

    await eventually(away)
    (listed,) = (await api.get(f"{W}/runs"))["items"]
    detail = await api.get(f"{W}/runs/{listed['run_id']}")
    assert (listed["attention"], detail["attention"]) == (None, None)
    (attempt,) = detail["steps"][0]["attempts"]
    assert (attempt["state"], attempt["out_of_contact"]) == ("authorized", True)
    assert attempt["unknown_at_ms"] > attempt["authorized_at_ms"]


async def test_a_cancel_stops_a_waiting_run_once(api: ApiHarness) -> None:
    receipt = await api.send(wait_ms=1)

    async def started() -> bool:
        return bool((await api.get(f"{W}/runs"))["items"])

    await eventually(started)
    (run,) = (await api.get(f"{W}/runs", event=receipt["event_id"]))["items"]
    path = f"{W}/runs/{run['run_id']}"
    first = await api.post(f"{path}/cancel", {}, 202)
    assert (first["status"], first["run"]["outcome"], first["run"]["recovery"]) == ("applied", "cancelled", "not_required")
    assert first["run"]["stop"]["reason"] == "cancelled"
    again = await api.post(f"{path}/cancel", {}, 202)
    assert (again["status"], again["run"]) == ("replayed", first["run"])
    assert (await api.get(path))["stop"] == first["run"]["stop"]
    problem = await api.post(f"{path}/rediscover", {}, 409)
    assert problem["code"] == "not_blocked"


async def test_an_ended_run_cannot_be_cancelled(api: ApiHarness) -> None:
    run = await failing_saga(api)
    problem = await api.post(f"{W}/runs/{run['run_id']}/cancel", {}, 409)
    assert (problem["code"], problem["outcome"]) == ("not_cancellable", "failed")
    assert await api.get(f"{W}/runs/{run['run_id']}") == run


async def test_a_blocked_run_shows_its_blocker_and_is_woken(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        await api.send()
        blocked = {
            "type": "definition_blocked",
            "reason": "duplicate_step_id",
            "step_id": "charge",
            "first": {"file": "a.py", "line": 1},
            "duplicate": {"file": "a.py", "line": 9},
        }
        await peer.answer(await effect(peer), blocked)

        async def is_blocked() -> bool:
            return bool((await api.get(f"{W}/runs", attention="blocked"))["items"])

        await eventually(is_blocked)
        (run,) = (await api.get(f"{W}/runs", attention="blocked"))["items"]
        detail = await api.get(f"{W}/runs/{run['run_id']}")
        assert detail["status"] == "definition_blocked"
        assert (detail["blocker"]["reason"], detail["blocker"]["step_id"]) == ("duplicate_step_id", "charge")
        assert (detail["blocker"]["first"]["line"], detail["blocker"]["duplicate"]["line"]) == (1, 9)
        assert (await api.get("/v1/server"))["counts"]["blocked"] == 1
        woken = await api.post(f"{W}/runs/{run['run_id']}/rediscover", {}, 202)
        assert woken["status"] == "applied"
        await peer.answer(await effect(peer), {"type": "completed", "result": string("fixed")})
        assert (await api.get(f"{W}/runs/{run['run_id']}", wait_ms=5_000))["outcome"] == "succeeded"


async def test_attempts_are_listed_by_state_and_paged(api: ApiHarness) -> None:
    await failing_saga(api)
    everything = (await api.get(f"{W}/attempts"))["items"]
    assert [attempt["state"] for attempt in everything] == ["succeeded", "failed", "failed", "succeeded"]
    assert (await api.get(f"{W}/attempts", state="unknown"))["items"] == []
    failed = (await api.get(f"{W}/attempts", state="failed"))["items"]
    assert [attempt["error"]["message"] for attempt in failed] == ["no money", "no money"]
    one = await api.get(f"{W}/attempts", limit=1)
    rest = await api.get(f"{W}/attempts", limit=10, cursor=one["next_cursor"])
    assert one["items"] + rest["items"] == everything
    assert await api.get(f"{W}/attempts/{failed[0]['attempt_id']}") == failed[0]
    assert failed[0]["allowed_commands"] == []
    assert {entry["code"] for entry in failed[0]["forbidden_commands"]} == {"stale"}


@pytest.mark.parametrize("path", ["runs/rn_x", "runs/rn_x/history", "attempts/at_x", "events/ev_x", "runs/%C3%A9%2F..%2Fx"])
async def test_what_does_not_exist_is_not_found_in_any_workspace(api: ApiHarness, path: str) -> None:
    for workspace in ("default", "other"):
        problem = await api.get(f"/v1/workspaces/{workspace}/{path}", 404)
        assert problem["code"] == "not_found"


async def test_nothing_of_one_workspace_is_seen_from_another(api: ApiHarness) -> None:
    run = await failing_saga(api)
    attempt = run["steps"][0]["attempts"][0]["attempt_id"]
    other = "/v1/workspaces/other"
    its = f"runs/{run['run_id']}"
    for path in (its, f"{its}/history", f"{its}/logs", f"{its}/logs?attempt={attempt}", f"attempts/{attempt}", f"events/{run['event_id']}"):
        missing = path.replace(run["run_id"], "rn_x").replace(attempt, "at_x").replace(run["event_id"], "ev_x")
        seen, unseen = await api.get(f"{other}/{path}", 404), await api.get(f"{other}/{missing}", 404)
        assert seen["title"] == unseen["title"]
    for command in ("cancel", "rediscover"):
        assert (await api.post(f"{other}/{its}/{command}", {}, 404))["code"] == "not_found"
    settles = {"version": 1, "attempt_id": attempt, "attempt_generation": 1, "idempotency_key": "k", "command": {"authorize_retry": {}}}
    assert (await api.post(f"{other}/attempts/{attempt}/resolve", settles, 409))["refusal"]["code"] == "stale"
    application = await api.get(f"{W}/applications/shop")
    manifest, routing = application["manifest_generation"], application["routing_generation"]
    for path in (
        f"{other}/applications/shop/manifests/{manifest}",
        f"{W}/applications/till/manifests/{manifest}",
        f"{other}/routing/{routing}",
    ):
        assert (await api.get(path, 404))["code"] == "not_found"
    for path in ("runs", "events", "attempts", "workers", "applications", "functions", "releases"):
        assert (await api.get(f"{other}/{path}"))["items"] == []


async def test_lines_of_an_attempt_are_read_under_its_own_run_alone(api: ApiHarness) -> None:
    async with worker_peer(api.server.url) as peer:
        for text in ("mine", "theirs"):
            await api.send()
            await peer.declare(await effect(peer), "charge")
            lines = [{"at_ms": 1, "level": "stdout", "text": text}]
            await peer.answer(await effect(peer), {"type": "succeeded", "result": string("paid")}, logs=lines)
            await peer.answer(await effect(peer), {"type": "completed", "result": string("done")})
    found = {}
    for run in (await api.get(f"{W}/runs"))["items"]:
        (item,) = (await api.get(path := f"{W}/runs/{run['run_id']}/logs"))["items"]
        found[item["lines"][0]["text"]] = (path, item)
    (mine, own), (_, foreign) = found["mine"], found["theirs"]
    assert (await api.get(mine, attempt=own["attempt_id"]))["items"] == [own]
    assert (await api.get(mine, attempt=foreign["attempt_id"]))["items"] == []


@pytest.mark.parametrize("body", ["[]", "null", "{", "5", '{"a":1,"a":2}'])
async def test_a_command_takes_an_object(api: ApiHarness, body: str) -> None:
    answer = await api.client.post(f"{W}/runs/rn_x/cancel", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


async def test_concurrent_cancels_record_one_stop(api: ApiHarness) -> None:
    await api.send()

    async def started() -> bool:
        return bool((await api.get(f"{W}/runs"))["items"])

    await eventually(started)
    (run,) = (await api.get(f"{W}/runs"))["items"]
    answers = await asyncio.gather(*(api.post(f"{W}/runs/{run['run_id']}/cancel", {}, 202) for _ in range(6)))
    assert sorted(answer["status"] for answer in answers) == ["applied", *["replayed"] * 5]
    history = (await api.get(f"{W}/runs/{run['run_id']}/history"))["items"]
    assert [record["kind"] for entry in history for record in entry["records"]].count("stop_requested") == 1
