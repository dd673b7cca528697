"""The connected worker over a real socket, against a fake server that drives it frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ryusen_sdk import Event, Ryusen, Step, SyncStep, operation
from ryusen_sdk.status import Connected, WorkerStatus
from ryusen_sdk.worker import Timings, Worker
from tests.sdk.peer import FakeServer, compensation, discovery, done, fake_server, forward, text

FAST = Timings(backoff_first=0.01, backoff_max=0.05, handshake=5.0)


class Running:
    """A worker in a task of the test's loop."""

    def __init__(self, app: Ryusen, server: FakeServer, **options: Any) -> None:
        self.statuses: list[WorkerStatus] = []
        options.setdefault("publish", False)
        options.setdefault("timings", FAST)
        self.worker = Worker(app, url=server.url, on_status=self.statuses.append, **options)
        self.task = asyncio.create_task(self.worker.serve())

    def saw(self, kind: type[WorkerStatus]) -> bool:
        return any(isinstance(status, kind) for status in self.statuses)


@contextlib.asynccontextmanager
async def running(app: Ryusen, **options: Any) -> AsyncIterator[tuple[Running, FakeServer]]:
    async with fake_server() as server:
        worker = Running(app, server, **options)
        try:
            yield worker, server
        finally:
            worker.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await worker.task


def shop() -> Ryusen:
    app = Ryusen("shop")

    @app.function(on="order/placed")
    async def fulfil(event: Event, step: Step) -> object:
        charge = await step.run("charge", charge_card, event.data["id"], compensate=refund)
        await step.run("ship", ship, charge)
        return {"charge": charge}

    @app.function()
    def plain(event: Event, step: SyncStep) -> object:
        return step.run("charge", charge_card, event.data["id"])

    return app


def charge_card(order: int) -> str:
    return f"ch_{order}_{operation().id}"


async def ship(charge: str) -> str:
    await asyncio.sleep(0)
    return f"shipped {charge}"


def refund(charge: str, order: int) -> str:
    return f"refunded {charge} of {order}"


@pytest.mark.req("CON-01", "PRO-06", "PRO-09", "SDK-03")
@pytest.mark.parametrize("function", ["fulfil", "plain"])
async def test_one_run_over_the_wire(function: str) -> None:
    async with running(shop()) as (worker, server):
        peer = await server.peer()
        await peer.registered()
        assert peer.register["functions"] == ["fulfil", "plain"]
        assert peer.register["connection"] == 1
        declared = await peer.call(discovery(function=function))
        assert declared["type"] == "declared"
        assert declared["declaration"]["step_id"] == "charge"
        ran = await peer.call(forward("charge", function=function))
        assert ran == {"type": "succeeded", "result": text("ch_7_op_charge"), "attempt": 1, "attempt_generation": 1}
        assert worker.saw(Connected)


async def test_the_whole_saga() -> None:
    async with running(shop()) as (_, server):
        peer = await server.peer()
        await peer.registered()
        charged = done("charge", text("ch"))
        assert (await peer.call(forward("ship", charged)))["result"] == text("shipped ch")
        ended = await peer.call(discovery(charged, done("ship", text("x"))))
        assert ended == {"type": "completed", "result": {"type": "object", "value": {"charge": text("ch")}}}
        undone = await peer.call(compensation("charge", charged, result=text("ch")))
        assert undone["result"] == text("refunded ch of 7")
