"""The change stream over real sockets: from a position on, each change once and in order; resync, heartbeats, notices, slow readers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ryusen_protocol import changes
from ryusen_protocol.ids import RunId, Workspace
from ryusen_protocol.sse import StreamParser
from ryusen_server.api.pace import Pace
from ryusen_server.engine import feed as feeding
from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.api.following import Reader, following, kinds, tells
from tests.gateway.worker_peer import string, worker_peer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        await harness.publish()
        yield harness


@asynccontextmanager
async def busy_worker(api: ApiHarness, steps: list[str]) -> AsyncGenerator[None, None]:
    """A worker that does every step of every run."""
    async with worker_peer(api.server.url, capacity=64) as peer:
        playing = asyncio.create_task(peer.play(steps))
        try:
            yield
        finally:
            playing.cancel()


def of_run(run_id: str) -> Any:
    """Whether a change is of that run."""
    return lambda change: any(record.get("run_id") == run_id for record in change["records"])


@pytest.mark.req("API-06")
async def test_what_commits_between_snapshot_and_subscription_is_told(api: ApiHarness) -> None:
    receipt = await api.send()
    run_id = (await api.get(f"{W}/events/{receipt['event_id']}"))["matches"][0]["run_id"]
    snapshot = await api.get(f"{W}/runs/{run_id}")
    async with busy_worker(api, ["charge"]):
        await api.get(f"{W}/runs/{run_id}", wait_ms=5000)
    async with following(api, after=snapshot["position"]) as reader:
        changes = await reader.until(tells("run_ended"))
    history = await api.get(f"{W}/runs/{run_id}/history", after=snapshot["position"])
    mine = [change for change in changes if of_run(run_id)(change)]
    assert [(change["position"], kinds(change)) for change in mine] == [
        (entry["position"], [record["kind"] for record in entry["records"]]) for entry in history["items"]
    ]


@pytest.mark.req("API-06")
@pytest.mark.parametrize("listed", ["runs", "events", "attempts"])
async def test_a_list_says_at_which_position_it_holds(api: ApiHarness, listed: str) -> None:
    before = (await api.get(f"{W}/{listed}"))["position"]
    async with busy_worker(api, ["charge"]):
        await api.send(wait_ms=5000)
    async with following(api, after=before) as reader:
        changes = await reader.until(tells("run_ended"))
    assert kinds(changes[0])[0] in ("event_accepted", "release_seen")
    assert (await api.get(f"{W}/{listed}"))["position"] == changes[-1]["position"]


@pytest.mark.req("API-06")
@pytest.mark.parametrize(("listed", "read"), [("runs", "runs"), ("events", "events"), ("attempts", "attempts"), ("event", "event")])
async def test_what_commits_while_a_snapshot_is_read_is_behind_its_position(
    api: ApiHarness, monkeypatch: pytest.MonkeyPatch, listed: str, read: str
) -> None:
    """Otherwise it would neither be in the snapshot nor on the stream behind it."""
    receipt = await api.send()
    reading = getattr(api.server.store, read)
    meanwhile: list[str] = []

    async def read_then_commit(*arguments: Any, **named: Any) -> Any:
        found = await reading(*arguments, **named)
        if not meanwhile:
            meanwhile.append((await api.send("of/no/interest"))["event_id"])
        return found

    monkeypatch.setattr(api.server.store, read, read_then_commit)
    snapshot = await api.get(f"{W}/events/{receipt['event_id']}" if listed == "event" else f"{W}/{listed}")
    async with following(api, after=snapshot["position"]) as reader:
        change = await reader.next("change")
    assert change["records"][0]["event_id"] == meanwhile[0]


async def test_every_kind_of_change_comes_live_without_payloads(api: ApiHarness) -> None:
    async with following(api) as reader:
        assert await reader.next("heartbeat") == {"position": (await api.get(f"{W}/runs"))["position"]}
        parent = (await api.get(f"{W}/applications/shop"))["manifest_generation"]
        second = await api.publish(parent=parent, events=("order/placed", "order/again"))
        activated = await reader.change()
        assert activated["records"] == [
            {
                "kind": "manifest_activated",
                "application": "shop",
                "manifest_generation": second["manifest_generation"],
                "routing_generation": second["routing_generation"],
            }
        ]
        async with worker_peer(api.server.url, release_id="r1") as peer:
            assert await reader.next("notice") == {"kind": "workers"}
            await api.send("order/again", data={"secret": "payload"})
            await peer.declare(await peer.receive(), "charge", has_compensation=True)
            await peer.answer(await peer.receive(), {"type": "succeeded", "result": string("a secret result")})
            while (frame := await peer.receive())["type"] != "invoke":
                pass
            await peer.answer(frame, {"type": "completed", "result": string("a secret end")})
            changes = await reader.until(tells("run_ended"))
        assert await reader.next("notice") == {"kind": "workers"}
    text = json.dumps(changes)
    assert "secret" not in text
    records = {record["kind"]: record for change in changes for record in change["records"]}
    event_id = records["run_created"]["event_id"]
    assert records["event_accepted"] == {"kind": "event_accepted", "event_id": event_id, "name": "order/again", "matched": 1}
    run_id = records["run_created"]["run_id"]
    assert records["step_declared"] == {"kind": "step_declared", "run_id": run_id, "step_id": "charge", "step_kind": "run"}
    assert records["attempt_authorized"]["instance_id"].startswith("wk_")
    assert records["run_ended"] == {"kind": "run_ended", "run_id": run_id, "recovery": "not_required", "recovery_reason": "succeeded"}
    assert records["outcome_decided"]["outcome"] == "succeeded"


async def test_another_workspace_is_not_told(api: ApiHarness) -> None:
    async with following(api, after=0, root="/v1/workspaces/other") as reader:
        await api.send()
        await api.post("/v1/workspaces/other/events", {"name": "theirs", "data": {}}, 201)
        assert (await reader.change())["records"][0]["name"] == "theirs"


@pytest.mark.parametrize("last_event_id", ["999999999", "no position", "-1", "9" * 40])
async def test_an_id_of_another_database_is_told_to_begin_anew(api: ApiHarness, last_event_id: str) -> None:
    last = (await api.get(f"{W}/runs"))["position"]
    async with following(api, after=0, last_event_id=last_event_id) as reader:
        assert await reader.event() == ("resync", {"position": last, "reason": "unknown_position"})
        assert reader.last_id == str(last)
        await api.send()
        assert tells("event_accepted")(await reader.change())


async def test_the_last_event_id_counts_before_the_address(api: ApiHarness) -> None:
    async with following(api, after=0) as reader:
        first = await reader.change()
    await api.send()
    async with following(api, after=0, last_event_id=str(first["position"])) as reader:
        assert tells("event_accepted")(await reader.change())


async def test_a_position_that_is_none_is_refused(api: ApiHarness) -> None:
    for after in ("-1", "x", "1.5", "99999999999999999999"):
        assert (await api.get(f"{W}/stream", 400, after=after))["code"] == "invalid"


async def test_silence_is_ended_by_heartbeats(api: ApiHarness) -> None:
    api.context.pace = Pace(heartbeat_s=0.05)
    async with following(api) as reader:
        beats = [await reader.event() for _ in range(4)]
    assert {name for name, _ in beats} == {"heartbeat"}


async def test_the_head_of_a_stream_has_no_body(api: ApiHarness) -> None:
    for path in (f"{W}/stream", f"{W}/runs", "/v1/health"):
        head = await api.client.head(path)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-type"].startswith("text/event-stream" if path.endswith("stream") else "application/json")
    assert api.server.engine.feed.followers == 0


async def test_a_reader_that_goes_away_is_forgotten(api: ApiHarness) -> None:
    feed = api.server.engine.feed
    async with following(api) as reader:
        await reader.next("heartbeat")
        assert feed.followers == 1

    async def nobody() -> bool:
        return feed.followers == 0

    await eventually(nobody)
    assert api.server.store._writer.watcher is None


async def test_there_is_a_bound_on_readers(api: ApiHarness) -> None:
    api.context.pace = Pace(readers_max=1)
    async with following(api) as reader:
        await reader.next("heartbeat")
        assert (await api.get(f"{W}/stream", 429))["code"] == "busy"


async def test_a_stream_ends_with_its_server(tmp_path: Path) -> None:
    async with api_server(tmp_path, memory=True) as api, following(api) as reader:
        stopping = asyncio.create_task(api.server.stop())
        assert await reader.ended()
        await stopping


@asynccontextmanager
async def lazy_reader(api: ApiHarness) -> AsyncGenerator[asyncio.StreamReader, None]:
    """A connection to the stream whose reader takes nothing until it is asked, between buffers of the system that are soon full."""
    host, _, port = api.authority.rpartition(":")
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, (host, int(port)))
    connection, writer = await asyncio.open_connection(sock=plug, limit=2048)
    try:
        writer.write(f"GET {W}/stream HTTP/1.1\r\nhost: {api.authority}\r\n\r\n".encode())
        await connection.readuntil(b"\r\n\r\n")
        assert api.server._serving is not None
        for served in api.server._serving._connections():
            served.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield connection
    finally:
        writer.close()


async def flood(api: ApiHarness, enough: Callable[[], bool]) -> None:
    """Commit changes until it is enough."""

    async def write() -> None:
        while not enough():
            await api.server.engine.submit_event(Workspace("default"), name="x" * 250, payload=b"", metadata={}, key=None)

    async with asyncio.timeout(30):
        await asyncio.gather(*(write() for _ in range(16)))


async def test_a_slow_reader_costs_a_bounded_buffer_and_is_told_to_begin_anew(api: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "BUFFER_EVENTS_MAX", 50)
    async with lazy_reader(api) as connection:
        (follower,) = api.server.engine.feed._followers[Workspace("default")]
        await flood(api, lambda: follower.overrun)
        assert not follower._told
        parser, positions, resynced = StreamParser(), list[int](), list[dict[str, Any]]()
        while not (resynced and positions[-1] > resynced[-1]["position"]):
            for event in parser.feed(await asyncio.wait_for(connection.read(65536), 10)):
                if event.name == "resync":
                    resynced.append(msgspec.json.decode(event.data))
                    assert resynced[-1]["position"] > positions[-1]
                    await api.send("after/resync")
                elif event.name == "change":
                    positions.append(msgspec.json.decode(event.data)["position"])
        assert [one["reason"] for one in resynced] == ["slow"]
        assert positions == sorted(set(positions))
        assert api.server.engine.feed.resyncs == {"slow": 1}


async def test_a_reader_that_takes_nothing_is_cut_off(api: ApiHarness) -> None:
    api.context.pace = Pace(stalled_s=0.2)
    feed = api.server.engine.feed
    async with lazy_reader(api):
        await flood(api, lambda: feed.followers == 0)


class Record:
    """What one reader has been told over all of its connections."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    async def read(self, reader: Reader, count: int) -> None:
        for _ in range(count):
            self.positions.append((await reader.change())["position"])


@pytest.mark.req("API-06")
async def test_a_stream_that_is_cut_again_and_again_tells_everything_once_and_in_order(tmp_path: Path) -> None:
    """`CUTS` in the environment gives their number."""
    chance = random.Random(11)
    async with api_server(tmp_path) as api:
        await api.publish()
        record, stop = Record(), asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await api.send()

        async with busy_worker(api, ["a", "b"]):
            writers = [asyncio.create_task(write()) for _ in range(4)]
            for _ in range(cuts()):
                after = record.positions[-1] if record.positions else 0
                async with following(api, after=after) as reader:
                    await record.read(reader, chance.randrange(1, 12))
            stop.set()
            await asyncio.gather(*writers)
        last = (await api.get(f"{W}/runs"))["position"]
        async with following(api, after=record.positions[-1]) as reader:
            while record.positions[-1] < last:
                await record.read(reader, 1)
        everything: list[int] = []
        after = 0
        while True:
            page = await api.server.store.changes(Workspace("default"), after=after)
            assert not isinstance(page, str)
            everything += [row.position for row in page.rows]
            after = page.until
            if page.complete:
                break
        told = record.positions[-1]  # the worker is gone, and what it held goes on being committed
        assert record.positions == [position for position in everything if position <= told]


def cuts() -> int:
    return int(os.environ.get("CUTS", "60"))


def test_stream_documents_are_those_of_the_protocol() -> None:
    change = changes.Change(position=3, at_ms=1, records=[changes.ChangeRecord(kind="run_ended", run_id=RunId("rn_1"))])
    assert msgspec.json.encode(change) == b'{"position":3,"at_ms":1,"records":[{"kind":"run_ended","run_id":"rn_1"}]}'


@pytest.mark.req("API-06")
async def test_an_event_says_at_which_position_it_holds(api: ApiHarness) -> None:
    receipt = await api.send()
    last = (await api.get(f"{W}/runs"))["position"]
    assert (await api.get(f"{W}/events/{receipt['event_id']}"))["position"] == last
