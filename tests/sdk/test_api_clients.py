"""Client and AsyncClient against a fake HTTP server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

from ryusen_sdk import AsyncClient, Client, ConversionError, MisuseError, RequestRefused, ServerUnreachable, result_of
from tests.sdk.http_peer import Answer, Asked, HttpPeer, http_peer, problem

RECEIPT: dict[str, Any] = {"event_id": "ev_1", "status": "created", "routing_generation": "rg_1", "matched": 1, "expansion": "pending"}


def event_run(status: str) -> dict[str, Any]:
    return {"run_id": "rn_1", "status": status, "outcome": "succeeded" if status == "ended" else None, "recovery": None}


def run(status: str) -> dict[str, Any]:
    return {
        "run_id": "rn_1",
        "status": status,
        "stop": None,
        "outcome": None,
        "recovery": None,
        "recovery_reason": None,
        "function": "fulfil",
        "application": "shop",
        "event_id": "ev_1",
        "trigger_id": None,
        "manifest_generation": None,
        "routing_generation": None,
        "parent": None,
        "deadline": None,
        "attention": None,
        "attention_run_id": None,
        "created_at_ms": 1,
        "ended_at_ms": None,
        "steps_declared": 0,
        "steps_completed": 0,
        "unwind_counts": {},
    }


def detail(status: str) -> dict[str, Any]:
    return {**run(status), "input": {}, "steps": [], "unwind": {"targets": []}, "blocker": None, "children": [], "position": 1}


async def with_client(peer: HttpPeer, kind: str, call: Callable[[Any], Any], **options: Any) -> Any:
    """The same call on either client."""
    if kind == "async":
        async with AsyncClient(peer.url, **options) as client:
            return await call(client)

    def blocking() -> Any:
        with Client(peer.url, **options) as client:
            return call(client)

    return await asyncio.to_thread(blocking)


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
async def test_send_gives_the_acknowledgement(kind: str) -> None:
    async with http_peer(lambda _: (201, RECEIPT)) as peer:
        receipt = await with_client(
            peer,
            kind,
            lambda client: client.send("order/placed", {"id": 1}, key="k", metadata={"a": "b"}),
            token="secret",
            workspace="team",
        )
        assert receipt.event_id == "ev_1"
        (asked,) = peer.asked
        assert (asked.method, asked.path) == ("POST", "/v1/workspaces/team/events")
        assert asked.json == {"name": "order/placed", "data": {"id": 1}, "metadata": {"a": "b"}, "idempotency_key": "k"}
        assert asked.headers["authorization"] == "Bearer secret"


@both
async def test_bytes_are_sent_as_they_are(kind: str) -> None:
    async with http_peer(lambda _: (201, RECEIPT)) as peer:
        await with_client(peer, kind, lambda client: client.send("x", b"\x00\xff"))
        assert peer.asked[0].json["payload_base64"] == base64.b64encode(b"\x00\xff").decode()


@both
async def test_send_that_waits_goes_on_asking_until_every_run_has_ended(kind: str) -> None:
    answers = iter(
        [
            (201, {**RECEIPT, "runs": []}),
            (200, event("complete", [event_run("running")])),
            (200, event("complete", [event_run("ended")])),
        ]
    )
    async with http_peer(lambda _: next(answers)) as peer:
        receipt = await with_client(peer, kind, lambda client: client.send("x", None, wait="30s"))
        assert [one.status for one in receipt.runs] == ["ended"]
        assert len(peer.asked) == 3
        assert "wait_ms=" in peer.asked[0].path


@both
async def test_send_that_waits_gives_what_there_is_at_the_time(kind: str) -> None:
    def respond(asked: Asked) -> Answer:
        return (201, {**RECEIPT, "runs": []}) if asked.method == "POST" else (200, event("complete", [event_run("running")]))

    async with http_peer(respond) as peer:
        receipt = await with_client(peer, kind, lambda client: client.send("x", None, wait="50ms"))
        assert all(one.status == "running" for one in receipt.runs)


def event(expansion: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "event_id": "ev_1",
        "name": "x",
        "metadata": {},
        "received_at_ms": 1,
        "routing_generation": "rg_1",
        "matched": 1,
        "expansion": expansion,
        "payload_base64": "",
        "matches": [],
        "runs": runs,
    }


@both
async def test_wait_gives_the_ended_run_or_times_out(kind: str) -> None:
    statuses = iter(["running", "ended"])
    async with http_peer(lambda _: (200, detail(next(statuses)))) as peer:
        assert (await with_client(peer, kind, lambda client: client.wait("rn_1"))).status == "ended"
    async with http_peer(lambda _: (200, detail("running"))) as peer:
        with pytest.raises(TimeoutError, match="still running"):
            await with_client(peer, kind, lambda client: client.wait("rn_1", timeout="20ms"))


@both
async def test_a_server_that_goes_away_while_a_run_is_waited_for_is_asked_again(kind: str) -> None:
    answers: list[Answer | None] = [
        None,
        (200, detail("running")),
        problem(503, "unavailable", "stopping"),
        (502, b"a proxy's page"),
        (200, detail("running")),
        None,
        (200, detail("ended")),
    ]
    async with http_peer(lambda _: answers.pop(0)) as peer:
        assert (await with_client(peer, kind, lambda client: client.wait("rn_1", timeout="30s"))).status == "ended"
        assert answers == []


@both
async def test_a_server_that_stays_away_ends_the_wait_at_its_time(kind: str) -> None:
    asked = 0

    def respond(_: Asked) -> Answer | None:
        nonlocal asked
        asked += 1
        return None

    async with http_peer(respond) as peer:
        with pytest.raises(TimeoutError, match="no answer"):
            await with_client(peer, kind, lambda client: client.wait("rn_1", timeout="600ms"))
        assert asked > 1


@both
async def test_a_wait_for_what_is_not_there_ends_at_once(kind: str) -> None:
    async with http_peer(lambda _: problem(404, "not_found", "no such run")) as peer:
        with pytest.raises(RequestRefused, match="no such run"):
            await with_client(peer, kind, lambda client: client.wait("rn_1", timeout="30s"))
        assert len(peer.asked) == 1
    with pytest.raises(ServerUnreachable):
        await with_client(peer, kind, lambda client: client.wait("rn_1", timeout="30s"))


@both
async def test_a_server_that_goes_away_while_an_event_is_waited_for_is_asked_again(kind: str) -> None:
    answers: list[Answer | None] = [(201, {**RECEIPT, "runs": []}), None, (200, event("complete", [event_run("ended")]))]
    async with http_peer(lambda _: answers.pop(0)) as peer:
        receipt = await with_client(peer, kind, lambda client: client.send("x", None, wait="30s"))
        assert [one.status for one in receipt.runs] == ["ended"]
        assert [one.method for one in peer.asked] == ["POST", "GET", "GET"]


@both
async def test_runs_run_and_cancel(kind: str) -> None:
    def respond(asked: Asked) -> Answer:
        if asked.method == "POST":
            return 202, {"status": "applied", "run": run("stopping")}
        return 200, {"items": [run("running")]} if "?" in asked.path else detail("running")

    async with http_peer(respond) as peer:
        page = await with_client(peer, kind, lambda client: client.runs(status="running", function="fulfil"))
        assert page.items[0].run_id == "rn_1"
        assert peer.asked[0].path.endswith("/runs?status=running&function=fulfil")
        assert (await with_client(peer, kind, lambda client: client.run("rn_1"))).position == 1
        assert (await with_client(peer, kind, lambda client: client.cancel("rn_1"))).status == "applied"


@both
async def test_a_refusal_and_no_answer_are_two_errors(kind: str) -> None:
    async with http_peer(lambda _: problem(413, "limit_exceeded", "too large")) as peer:
        with pytest.raises(RequestRefused, match="too large") as refused:
            await with_client(peer, kind, lambda client: client.send("x", 1))
        assert (refused.value.code, refused.value.status) == ("limit_exceeded", 413)
    async with http_peer(lambda _: None) as peer:
        with pytest.raises(ServerUnreachable):
            await with_client(peer, kind, lambda client: client.send("x", 1))
    with pytest.raises(ServerUnreachable):
        await with_client(peer, kind, lambda client: client.send("x", 1))


@both
@pytest.mark.parametrize("data", [float("nan"), {"a": [float("inf")]}, object(), {"a": print}, {"a": "\ud800"}])
async def test_data_that_is_no_json_is_refused_before_it_is_sent(kind: str, data: Any) -> None:
    async with http_peer(lambda _: (201, RECEIPT)) as peer:
        with pytest.raises(ConversionError):
            await with_client(peer, kind, lambda client: client.send("x", data))
        assert peer.asked == []


@both
async def test_a_bad_wait_is_told(kind: str) -> None:
    async with http_peer(lambda _: (201, RECEIPT)) as peer:
        with pytest.raises(MisuseError):
            await with_client(peer, kind, lambda client: client.send("x", 1, wait="soon"))


@both
async def test_a_result_is_read_as_python_data(kind: str) -> None:
    tagged = {"type": "object", "value": {"n": {"type": "u64", "value": "18446744073709551615"}, "b": {"type": "bytes", "value": "AAE="}}}
    runs = [{**event_run("ended"), "result": tagged}, {**event_run("ended"), "result": {"type": "null"}}, event_run("running")]
    async with http_peer(lambda _: (201, {**RECEIPT, "runs": runs})) as peer:
        receipt = await with_client(peer, kind, lambda client: client.send("x", None, wait="0s"))
        assert [result_of(one) for one in receipt.runs] == [{"n": 2**64 - 1, "b": b"\x00\x01"}, None, None]
    async with http_peer(lambda _: (200, {**detail("ended"), "result": tagged})) as peer:
        assert result_of(await with_client(peer, kind, lambda client: client.run("rn_1")))["n"] == 2**64 - 1


@both
async def test_key_metadata_and_wait_may_follow_in_their_places(kind: str) -> None:
    async with http_peer(lambda _: (201, RECEIPT)) as peer:
        await with_client(peer, kind, lambda client: client.send("x", 1, "k", {"a": "b"}, None))
        assert peer.asked[0].json == {"name": "x", "data": 1, "metadata": {"a": "b"}, "idempotency_key": "k"}


@both
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.send("\ud800"),
        lambda client: client.send("x", 1, key="\ud800"),
        lambda client: client.send("x", b"", metadata={"a": "\ud800"}),
        lambda client: client.run(""),
        lambda client: client.cancel("\ud800"),
    ],
)
async def test_what_no_request_can_be_made_of_is_misuse(kind: str, call: Callable[[Any], Any]) -> None:
    async with http_peer(lambda _: (201, RECEIPT)) as peer:
        with pytest.raises(MisuseError):
            await with_client(peer, kind, call)
        assert peer.asked == []


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("options", [{"url": "nonsense"}, {"url": "127.0.0.1:7878"}, {"workspace": ""}, {"token": "line\n"}])
def test_a_client_that_could_reach_nothing_is_misuse(kind: type[Any], options: dict[str, str]) -> None:
    with pytest.raises(MisuseError):
        kind(**options)
