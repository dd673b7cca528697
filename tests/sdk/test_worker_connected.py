"""The connected worker over a real socket, against a fake server that drives it frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from ryusen_sdk import Event, MisuseError, RegistrationRejected, Ryusen, Step, SyncStep, WorkerReplaced, operation
from ryusen_sdk.status import Connected, Disconnected, DrainStarted, Stopped, WorkerStatus
from ryusen_sdk.worker import Timings, Worker
from tests.sdk.peer import FakeServer, compensation, discovery, done, fake_server, forward, number, text

ROOT = Path(__file__).parents[2]
FAST = Timings(backoff_first=0.01, backoff_max=0.05, handshake=5.0)


class Running:
    """A worker in a task of the test's loop."""

    def __init__(self, app: Ryusen, server: FakeServer, **options: Any) -> None:
        self.statuses: list[WorkerStatus] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        options.setdefault("publish", False)
        options.setdefault("timings", FAST)
        self.worker = Worker(app, url=server.url, on_status=self._note, **options)
        self.task = asyncio.create_task(self.worker.serve())

    def saw(self, kind: type[WorkerStatus]) -> bool:
        return any(isinstance(status, kind) for status in self.statuses)

    async def until(self, kind: type[WorkerStatus], times: int = 1) -> None:
        """Waits until that many statuses of the kind have come."""
        async with asyncio.timeout(10):
            while sum(isinstance(status, kind) for status in self.statuses) < times:
                self._changed.clear()
                await self._changed.wait()

    def _note(self, status: WorkerStatus) -> None:
        self.statuses.append(status)
        with contextlib.suppress(RuntimeError):  # the test's loop is gone: nobody waits any more
            self._loop.call_soon_threadsafe(self._changed.set)


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


@pytest.mark.req("CON-01", "PRO-06", "PRO-09")
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


# Losing and finding the server again.


@pytest.mark.req("CON-02", "CON-05", "SDK-10")
async def test_a_result_that_came_while_the_server_was_away_is_delivered_after_the_reconnect() -> None:
    app = Ryusen("shop")
    started, gate = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @app.function()
    async def fulfil(event: Event, step: Step) -> None:
        async def slow() -> str:
            runs.append("ran")
            started.set()
            await gate.wait()
            return "late"

        await step.run("a", slow)

    async with running(app) as (worker, server):
        peer = await server.peer()
        await peer.registered(session="ss_1")
        document = forward("a", attempt=2)
        await peer.invoke(document)
        await started.wait()
        await server.stop()
        await worker.until(Disconnected)
        gate.set()
        await asyncio.sleep(0.1)
        await server.start()
        peer = await server.peer()
        await peer.registered(session="ss_2")
        assert peer.register["previous_session"] == "ss_1"
        assert peer.register["held"] == [{"request_id": document["request_id"], "run_id": "rn_1", "attempt": 2, "attempt_generation": 2}]
        outcome = await peer.outcome()
        assert outcome["outcome"]["result"] == text("late")
        await peer.ack(outcome, "replayed")
        assert runs == ["ran"]
        assert (await peer.call(discovery()))["type"] == "declared"


async def test_a_server_that_closes_in_order_is_found_again() -> None:
    async with running(shop()) as (_, server):
        for connection in (1, 2, 3):
            peer = await server.peer()
            await peer.registered()
            assert peer.register["connection"] == connection
            await peer.connection.close()


async def test_a_server_that_is_not_ready_yet_is_tried_again() -> None:
    async with running(shop()) as (worker, server):
        peer = await server.peer()
        await peer.receive("register")
        await peer.send({"type": "registration_rejected", "code": "unavailable", "message": "starting"})
        peer = await server.peer()
        await peer.registered()
        assert any(isinstance(status, Disconnected) and "starting" in status.reason for status in worker.statuses)


async def test_no_server_at_all_is_told_and_waited_for() -> None:
    server = FakeServer()
    await server.start()
    await server.stop()
    worker = Running(shop(), server)
    try:
        await worker.until(Disconnected, times=3)
        await server.start()
        await (await server.peer()).registered()
    finally:
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)
        await server.stop()


async def test_a_silent_server_is_given_up() -> None:
    """The kernel of the listener accepts, but nothing ever answers: no pong, no frame."""
    silent: list[asyncio.StreamWriter] = []
    timings = Timings(backoff_first=0.01, backoff_max=0.05, handshake=0.1)

    twice = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)
        if len(silent) == 2:
            twice.set()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    server = FakeServer()
    server.port = listener.sockets[0].getsockname()[1]
    worker = Running(shop(), server, timings=timings)
    try:
        await worker.until(Disconnected)
        await twice.wait()
        assert any(isinstance(status, Disconnected) and "no registration" in status.reason for status in worker.statuses)
    finally:
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)
        for writer in silent:
            writer.close()
        listener.close()
        await listener.wait_closed()


async def test_a_registered_connection_that_falls_silent_is_given_up() -> None:
    async with running(shop()) as (worker, server):
        peer = await server.peer()
        await peer.registered(heartbeat_ms=50)
        # From here on the listener reads and answers nothing, as behind a network that drops every packet.
        peer.connection.transport.pause_reading()  # type: ignore[attr-defined]
        again = await server.peer()
        await again.registered()
        assert any(isinstance(status, Disconnected) and "not a byte" in status.reason for status in worker.statuses)
        peer.connection.transport.abort()  # type: ignore[attr-defined]  # or the listener would wait for its goodbye


# Ends that the server decides.


@pytest.mark.req("CON-03")
async def test_a_rejected_registration_ends_the_worker() -> None:
    async with running(shop()) as (worker, server):
        peer = await server.peer()
        await peer.receive("register")
        await peer.send({"type": "registration_rejected", "code": "release_conflict", "message": "another contract"})
        with pytest.raises(RegistrationRejected, match="another contract") as refused:
            await worker.task
        assert refused.value.code == "release_conflict"
        assert isinstance(worker.statuses[-1], Stopped)
        assert server.accepted.empty()


@pytest.mark.req("CON-03")
@pytest.mark.parametrize(("status", "code"), [(401, "unauthorized"), (403, "forbidden"), (404, "http_404")])
async def test_a_refused_upgrade_ends_the_worker(status: int, code: str) -> None:
    async with fake_server() as server:
        server.refuse_with = status
        worker = Running(shop(), server)
        with pytest.raises(RegistrationRejected) as refused:
            await worker.task
        assert refused.value.code == code


async def test_a_server_error_on_the_upgrade_is_tried_again() -> None:
    async with fake_server() as server:
        server.refuse_with = 503
        worker = Running(shop(), server)
        await worker.until(Disconnected)
        server.refuse_with = None
        await (await server.peer()).registered()
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)


async def test_a_replaced_worker_stops_visibly() -> None:
    async with running(shop()) as (worker, server):
        peer = await server.peer()
        await peer.registered()
        await peer.send({"type": "error", "code": "replaced", "message": "connection 9 is newer"})
        with pytest.raises(WorkerReplaced, match="connection 9"):
            await worker.task


async def test_the_token_goes_with_the_upgrade() -> None:
    async with running(shop(), token="secret") as (_, server):
        peer = await server.peer()
        request = peer.connection.request
        assert request is not None
        assert request.headers["Authorization"] == "Bearer secret"


# Draining.


@pytest.mark.req("CON-06")
async def test_a_drain_finishes_waits_for_the_acknowledgement_and_ends() -> None:
    app = Ryusen("shop")
    started, gate = threading.Event(), threading.Event()

    def slow() -> bool:
        started.set()
        return gate.wait(10)

    @app.function()
    def fulfil(event: Event, step: SyncStep) -> None:
        step.run("a", slow)

    async with running(app) as (worker, server):
        peer = await server.peer()
        await peer.registered()
        await peer.invoke(forward("a"))
        await asyncio.to_thread(started.wait, 10)
        worker.worker.drain()
        assert (await peer.receive("draining"))["type"] == "draining"
        assert (await peer.call(discovery()))["reason"] == "draining"
        gate.set()
        outcome = await peer.outcome()
        assert outcome["outcome"]["type"] == "succeeded"
        await asyncio.sleep(0.05)
        assert not worker.task.done()
        await peer.ack(outcome)
        await asyncio.wait_for(worker.task, 10)
        await peer.closed()
        assert worker.saw(DrainStarted)
        assert worker.statuses[-1] == Stopped(None)


async def test_a_drain_without_a_server_ends_at_once() -> None:
    server = FakeServer()
    await server.start()
    await server.stop()
    worker = Running(shop(), server, timings=Timings(backoff_first=60.0))
    await worker.until(Disconnected)
    worker.worker.drain()
    await asyncio.wait_for(worker.task, 10)


LEAVING_WORKER = """
import asyncio, sys
from ryusen_sdk import Ryusen

app = Ryusen("shop")


@app.function()
async def fulfil(event, step):
    async def slow():
        await asyncio.sleep(0.5)
        return "slow"

    await step.run("slow", slow)


@app.function()
async def leave(event, step):
    await step.run("a", sys.exit, 3)


app.run_worker(url=sys.argv[1], publish=False)
"""


async def test_exit_from_a_callback_drains_the_rest_and_ends_the_process() -> None:
    async with fake_server() as server, worker_process(LEAVING_WORKER, server) as process:
        peer = await server.peer(30)
        await peer.registered()
        await peer.invoke(forward("slow"))
        await peer.invoke(forward("a", function="leave"))
        await peer.receive("draining")
        outcome = await peer.outcome()
        assert outcome["outcome"]["result"] == text("slow")
        await peer.ack(outcome)
        assert await asyncio.wait_for(process.wait(), 10) == 3


@pytest.mark.parametrize("function", ["in_thread", "in_pool", "in_loop", "beside"])
async def test_a_worker_that_is_cancelled_waits_for_no_callback_that_never_returns(function: str) -> None:
    app = Ryusen("shop")
    never, started, ever = threading.Event(), threading.Event(), asyncio.Event()

    def stuck() -> None:
        started.set()
        never.wait(60)

    async def astuck() -> None:
        started.set()
        await ever.wait()

    @app.function(id="in_thread")
    def in_thread(event: Event, step: SyncStep) -> None:
        step.run("a", stuck)

    @app.function(id="in_pool")
    async def in_pool(event: Event, step: Step) -> None:
        await step.run("a", stuck)

    @app.function(id="in_loop")
    async def in_loop(event: Event, step: Step) -> None:
        await step.run("a", astuck)

    @app.function(id="beside")
    async def beside(event: Event, step: Step) -> None:
        await asyncio.gather(step.run("a", stuck), step.run("b", stuck))

    try:
        async with running(app) as (worker, server):
            peer = await server.peer()
            await peer.registered()
            await peer.invoke(forward("a", function=function))
            await asyncio.to_thread(started.wait, 10)
            worker.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(5):
                    await worker.task
            with pytest.raises(ConnectionClosed):
                await peer.outcome()
    finally:
        never.set()


VANISHING_WORKER = """
import os, sys
from ryusen_sdk import Ryusen

app = Ryusen("shop")


@app.function()
def vanish(event, step):
    step.run("a", os._exit, 9)


app.run_worker(url=sys.argv[1], publish=False)
"""


async def test_a_callback_that_ends_the_process_answers_nothing() -> None:
    """What it did is for the server to call Unknown: an answer of any kind would be a guess."""
    async with fake_server() as server, worker_process(VANISHING_WORKER, server) as process:
        peer = await server.peer(30)
        await peer.registered()
        await peer.invoke(forward("a", function="vanish"))
        with pytest.raises(ConnectionClosed):
            await peer.outcome()
        assert await asyncio.wait_for(process.wait(), 10) == 9


# User code never stalls the connection.


def block_the_thread(seconds: float) -> str:
    time.sleep(seconds)
    return "blocked"


def burn(seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return "burnt"


async def ablock(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - the offence under test
    return "blocked the loop"


async def aburn(seconds: float) -> str:
    return burn(seconds)


BLOCKED_WORKER = """
import sys
from ryusen_sdk import Ryusen
from tests.sdk.test_worker_connected import ablock, aburn, block_the_thread, burn

app = Ryusen("shop")


@app.function()
async def fulfil(event, step):
    await step.run("a", {callback}, 1.0)


app.run_worker(url=sys.argv[1], publish=False)
"""


@contextlib.asynccontextmanager
async def worker_process(source: str, server: FakeServer) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, server.url, cwd=ROOT, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("callback", ["ablock", "aburn", "block_the_thread", "burn"])
async def test_a_blocked_loop_or_a_busy_callback_never_stalls_heartbeats(callback: str) -> None:
    async with fake_server() as server, worker_process(BLOCKED_WORKER.format(callback=callback), server):
        peer = await server.peer(30)
        await peer.registered(heartbeat_ms=100)
        document = forward("a")
        await peer.invoke(document)
        beats: list[float] = []
        while True:
            frame = await peer.receive("heartbeat", "outcome")
            if frame["type"] == "outcome":
                break
            beats.append(time.monotonic())
            assert frame["request_ids"] == [document["request_id"]]
        assert len(beats) >= 6
        assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 0.5
        assert frame["outcome"]["type"] == "succeeded"


@pytest.mark.req("CON-06")
async def test_sigterm_drains_even_while_a_coroutine_blocks_the_loop() -> None:
    async with fake_server() as server, worker_process(BLOCKED_WORKER.format(callback="ablock"), server) as process:
        peer = await server.peer(30)
        await peer.registered()
        await peer.invoke(forward("a"))
        await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        await peer.receive("draining", within=0.7)
        outcome = await peer.outcome()
        await peer.ack(outcome)
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_second_signal_ends_at_once() -> None:
    source = BLOCKED_WORKER.format(callback="ablock").replace("1.0", "60.0")
    async with fake_server() as server, worker_process(source, server) as process:
        peer = await server.peer(30)
        await peer.registered()
        await peer.invoke(forward("a"))
        await asyncio.sleep(0.2)
        process.send_signal(signal.SIGINT)
        await peer.receive("draining")
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 5) == 130


async def test_a_rejected_worker_process_exits_with_an_error() -> None:
    async with fake_server() as server, worker_process(BLOCKED_WORKER.format(callback="burn"), server) as process:
        peer = await server.peer(30)
        await peer.receive("register")
        await peer.send({"type": "registration_rejected", "code": "forbidden", "message": "not this application"})
        _, stderr = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == 1
        assert b"not this application" in stderr


# Capacity and order.


@pytest.mark.req("CON-07")
async def test_many_at_once_up_to_the_capacity() -> None:
    app = Ryusen("shop")
    lock = threading.Lock()
    now: list[int] = [0, 0]

    def count(number_: int) -> int:
        with lock:
            now[0] += 1
            now[1] = max(now)
        time.sleep(0.002)
        with lock:
            now[0] -= 1
        return number_

    @app.function()
    async def fulfil(event: Event, step: Step) -> None:
        await step.run("a", count, event.data)

    @app.function()
    def plain(event: Event, step: SyncStep) -> None:
        step.run("a", count, event.data)

    async with running(app, capacity=4) as (_, server):
        peer = await server.peer()
        await peer.registered()
        assert peer.register["capacity"] == 4
        documents = [forward("a", data=str(each).encode(), function=("fulfil", "plain")[each % 2]) for each in range(200)]
        by_id = {document["request_id"]: each for each, document in enumerate(documents)}
        waiting = list(documents)
        for _ in range(4):
            await peer.invoke(waiting.pop(0))
        for _ in documents:
            outcome = await peer.outcome()
            assert outcome["outcome"]["result"] == number(by_id[outcome["request_id"]])
            await peer.ack(outcome)
            if waiting:
                await peer.invoke(waiting.pop(0))
        assert now[1] <= 4
        await peer.invoke(discovery())
        assert (await peer.outcome())["outcome"]["type"] == "declared"


async def test_a_large_value_crosses_both_ways() -> None:
    app = Ryusen("shop")

    @app.function()
    async def fulfil(event: Event, step: Step) -> None:
        await step.run("a", lambda: event.payload * 2)

    async with running(app) as (_, server):
        peer = await server.peer()
        await peer.registered()
        result = await peer.call(forward("a", data=b"\xff" * 700_000))
        assert len(result["result"]["value"]) > 1_800_000


async def test_the_lifespan_is_entered_once_around_everything() -> None:
    trail: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        trail.append("enter")
        yield
        trail.append("exit")

    app = Ryusen("shop", lifespan=lifespan)

    @app.function()
    async def fulfil(event: Event, step: Step) -> list[str]:
        return list(trail)

    async with running(app) as (worker, server):
        peer = await server.peer()
        await peer.registered()
        for _ in range(2):
            assert (await peer.call(discovery()))["result"]["value"] == [text("enter")]
        worker.worker.drain()
        await worker.task
    assert trail == ["enter", "exit"]


@pytest.mark.parametrize("url", ["127.0.0.1:7878", "ftp://x", "http://", "http://x/?a=1"])
async def test_a_bad_address_is_told_at_once(url: str) -> None:
    with pytest.raises(MisuseError, match="no server address"):
        Worker(shop(), url=url)


@pytest.mark.req("CON-02", "CON-05", "PRO-19")
@pytest.mark.parametrize("seed", range(3))
async def test_connections_that_break_at_random_lose_and_repeat_nothing(seed: int) -> None:
    """The server cuts the connection at any point, with outcomes on their way and unacknowledged. Every attempt runs once and arrives."""
    chance = random.Random(seed)
    app = Ryusen("shop")
    ran: list[int] = []

    async def count(number_: int) -> int:
        ran.append(number_)
        await asyncio.sleep(chance.random() / 500)
        return number_

    @app.function()
    async def fulfil(event: Event, step: Step) -> None:
        await step.run("a", count, event.data)

    @app.function()
    def plain(event: Event, step: SyncStep) -> None:
        step.run("a", count, event.data)

    documents = [forward("a", data=str(each).encode(), function=("fulfil", "plain")[each % 2]) for each in range(60)]
    numbers = {document["request_id"]: each for each, document in enumerate(documents)}
    acknowledged: set[str] = set()
    answered: set[str] = set()
    async with running(app, capacity=8) as (_, server):
        while len(acknowledged) < len(documents):
            peer = await server.peer()
            with contextlib.suppress(ConnectionClosed):
                await peer.registered()
                in_flight = {held["request_id"] for held in peer.register["held"]}
                assert answered - acknowledged <= in_flight
                # What is not held and was not answered never began, so it may be sent again.
                waiting = [each for each in documents if each["request_id"] not in in_flight | acknowledged]
                for _ in range(chance.randrange(1, 12)):
                    while len(in_flight) < 8 and waiting:
                        in_flight.add(waiting[0]["request_id"])
                        await peer.invoke(waiting.pop(0))
                    if not in_flight:
                        break
                    outcome = await peer.outcome()
                    request_id = outcome["request_id"]
                    assert outcome["outcome"]["result"] == number(numbers[request_id])
                    answered.add(request_id)
                    in_flight.discard(request_id)
                    if chance.random() < 0.7:
                        await peer.ack(outcome)
                        await (await peer.connection.ping())  # the acknowledgement has been read before it counts
                        acknowledged.add(request_id)
            peer.connection.transport.abort()
    assert sorted(ran) == sorted(numbers.values())
