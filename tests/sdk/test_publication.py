"""Publication at start: read what is active, publish only what differs, answer other publishers within a bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ryusen_sdk import RequestRefused, Ryusen, ServerUnreachable, SyncStep
from ryusen_sdk.event import Event
from ryusen_sdk.status import Disconnected, Published, WorkerStatus
from ryusen_sdk.worker import Timings, Worker
from tests.sdk.http_peer import Answer, Asked, HttpPeer, http_peer, problem


def shop() -> Ryusen:
    app = Ryusen("shop")

    @app.function(on="order/placed")
    def fulfil(event: Event, step: SyncStep) -> None: ...

    return app


class Head:
    """The publication routes of one application, as a server keeps them. `rivals` publish between a read and a publication."""

    def __init__(self, rivals: int = 0) -> None:
        self.active: str | None = None
        self.digest = ""
        self.count = 0
        self.rivals = rivals

    def respond(self, asked: Asked) -> Answer:
        assert asked.path.startswith("/v1/workspaces/default/applications/shop")
        if asked.method == "GET":
            if self.active is None:
                return problem(404, "not_found")
            return 200, self.document()
        if self.rivals:
            self.rivals -= 1
            self.activate("sha256:rival")
        if asked.json["expected_parent"] != self.active:
            return problem(409, "parent_conflict", active_generation=self.active)
        self.activate(shop().manifest().digest)
        return 201, {"status": "created", "manifest_generation": self.active, "routing_generation": "rg_1", "digest": self.digest}

    def activate(self, digest: str) -> None:
        self.count += 1
        self.active, self.digest = f"mg_{self.count}", digest

    def document(self) -> dict[str, Any]:
        return {
            "application": "shop",
            "manifest_generation": self.active,
            "digest": self.digest,
            "routing_generation": "rg_1",
            "functions": 1,
            "triggers": 1,
            "activated_at_ms": 1,
            "activated_position": 1,
        }


async def publish(peer: HttpPeer, app: Ryusen | None = None) -> Any:
    return await asyncio.to_thread((app or shop()).publish, url=peer.url, token="secret")


@pytest.mark.req("MAN-16", "REG-12")
async def test_the_first_start_publishes_and_the_second_does_not() -> None:
    head = Head()
    async with http_peer(head.respond) as peer:
        receipt = await publish(peer)
        assert receipt.manifest_generation == "mg_1"
        assert [asked.method for asked in peer.asked] == ["GET", "POST"]
        sent = peer.asked[1]
        assert sent.headers["authorization"] == "Bearer secret"
        assert sent.headers["content-type"] == "application/json"
        assert sent.json["functions"] == [{"id": "fulfil"}]
        assert sent.json["triggers"] == [{"id": "fulfil/order/placed", "event_name": "order/placed", "function": "fulfil"}]
        assert await publish(peer) is None
        assert [asked.method for asked in peer.asked] == ["GET", "POST", "GET"]


@pytest.mark.req("MAN-07")
async def test_a_rival_is_answered_by_reading_again() -> None:
    head = Head(rivals=2)
    async with http_peer(head.respond) as peer:
        assert (await publish(peer)).manifest_generation == "mg_3"
        assert [asked.json["expected_parent"] for asked in peer.asked if asked.method == "POST"] == [None, "mg_1", "mg_2"]


@pytest.mark.req("MAN-07")
async def test_a_rival_without_end_is_visible() -> None:
    head = Head(rivals=1_000)
    async with http_peer(head.respond) as peer:
        with pytest.raises(RequestRefused) as refused:
            await publish(peer)
        assert refused.value.code == "parent_conflict"
        assert len(peer.asked) == 10


@pytest.mark.parametrize("answer", [(200, b"<html>"), (502, b"bad gateway"), None])
async def test_no_usable_answer_is_unreachable(answer: Answer | None) -> None:
    async with http_peer(lambda _: answer) as peer:
        with pytest.raises(ServerUnreachable):
            await publish(peer)


async def started(peer: HttpPeer, until: type[WorkerStatus]) -> tuple[Worker, asyncio.Task[None], list[WorkerStatus]]:
    statuses: list[WorkerStatus] = []
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(status: WorkerStatus) -> None:
        statuses.append(status)
        if isinstance(status, until):
            loop.call_soon_threadsafe(seen.set)

    worker = Worker(shop(), url=peer.url, on_status=note, timings=Timings(backoff_first=0.01, backoff_max=0.02))
    task = asyncio.create_task(worker.serve())
    async with asyncio.timeout(10):
        await seen.wait()
    return worker, task, statuses


@pytest.mark.req("SDK-10", "MAN-16")
async def test_a_worker_waits_for_a_server_that_is_not_ready_and_publishes_before_it_connects() -> None:
    head = Head()
    answers = iter([problem(503, "unavailable"), (502, b"")])

    def respond(asked: Asked) -> Answer:
        if asked.path == "/v1/connect":
            return problem(503, "unavailable")
        return next(answers, None) or head.respond(asked)

    async with http_peer(respond) as peer:
        worker, task, statuses = await started(peer, Published)
        assert sum(isinstance(status, Disconnected) for status in statuses) == 2
        assert Published(shop().manifest().digest, is_new=True) in statuses
        worker.drain()
        await asyncio.wait_for(task, 10)
        assert [asked.path for asked in peer.asked if asked.path.endswith("connect")] in ([], ["/v1/connect"])


async def test_a_worker_whose_publication_is_refused_ends() -> None:
    async with http_peer(lambda _: problem(403, "forbidden", "this token may not deploy")) as peer:
        worker = Worker(shop(), url=peer.url, on_status=lambda _: None)
        with pytest.raises(RequestRefused, match="may not deploy"):
            await asyncio.wait_for(worker.serve(), 10)
