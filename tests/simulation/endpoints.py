"""HTTP between the simulated server and an application behind it: the real ASGI handler of the SDK, and the real reading of replies.

Ours is what lies between: connections that nobody accepts, requests that arrive twice or not at all, replies that are cut, altered, refused
by something in between, late or lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ryusen_protocol.codec import decode_invocation
from ryusen_protocol.exchange import MEDIA_TYPE
from ryusen_protocol.scope import Scope
from ryusen_sdk import Ryusen
from ryusen_sdk.manifest import Registry
from ryusen_server.ports.worker import Exchange, ExchangeEnd, Lost, NotSent
from ryusen_server.transports.http.exchange import Reply, read_reply
from tests.simulation.network import Conditions
from tests.simulation.programs import Release
from tests.simulation.scheduling import Process, SimulatedLoop, current_process

REJECTED_COMES_AGAIN = 0.4
"""How often a request is repeated behind its rejection, while there is trouble: by then there may be room for it."""
FAULTS = ("refused", "unsent", "twice", "status", "cut", "altered", "reset", "silence")


class HttpWorker:
    """One process of an application behind a web server. Its requests are served until it is killed; a drained one accepts no new ones."""

    def __init__(
        self,
        name: str,
        scope: Scope,
        release: Release,
        *,
        registry: Registry,
        capacity: int,
        loop: SimulatedLoop,
        trace: Callable[[str], None],
    ) -> None:
        self.name = name
        self.scope = scope
        self.release = release
        self.process = Process(name)
        self.is_draining = False
        self._loop = loop
        self._trace = trace
        self._serving = 0
        self._watchers: dict[asyncio.Future[Reply | None], None] = {}
        app = Ryusen(scope.application, workspace=scope.workspace)
        app.registry = registry
        self._handler = app.asgi(capacity=capacity)

    @property
    def is_alive(self) -> bool:
        return self.process.alive

    @property
    def is_up(self) -> bool:
        """Alive, and not stopped."""
        return self.is_alive and not self.process.paused

    @property
    def accepts(self) -> bool:
        """Whether a connection to it stands: one to a stopped process does too."""
        return self.is_alive and not self.is_draining

    def kill(self, why: str, *, silently: bool = False) -> None:
        """SIGKILL. Its machine resets the connections, unless it is gone too (`silently`)."""
        if not self.process.alive:
            return
        self._trace(f"{self.name} is killed {why}")
        self._end(silently=silently)

    def _end(self, *, silently: bool) -> None:
        self.process.end()
        if not silently:
            for waiting in self._watchers:
                self._loop.call_soon(_settle, waiting, None, context=Process("wire").context)

    def pause(self) -> None:
        self._trace(f"{self.name} is stopped")
        self.process.pause()

    def resume(self) -> None:
        if self.process.paused:
            self._trace(f"{self.name} goes on")
            self._loop.resume(self.process)

    def drain(self) -> None:
        """SIGTERM."""
        self._trace(f"{self.name} drains")
        self.is_draining = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self.is_draining and not self._serving and self.process.alive:
            self._trace(f"{self.name} ends")
            self._end(silently=False)

    def request(self, body: bytes, delay_s: float, waiting: asyncio.Future[Reply | None]) -> None:
        """A request is on its way. `waiting` is told the reply, or none when there will be none."""
        self._watchers[waiting] = None
        waiting.add_done_callback(lambda done: self._watchers.pop(done, None))
        self._loop.call_later(delay_s, self._arrived, body, waiting, context=self.process.context)

    def _arrived(self, body: bytes, waiting: asyncio.Future[Reply | None]) -> None:
        self._loop.spawn(self.process, self._serve(body, waiting))

    async def _serve(self, body: bytes, waiting: asyncio.Future[Reply | None]) -> None:
        self._serving += 1
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", MEDIA_TYPE.encode())]}
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._handler(scope, receive, send)
        self._serving -= 1
        _settle(waiting, Reply(sent[0]["status"], sent[1]["body"]))
        self._loop.call_soon(self._end_if_idle)


def _settle(waiting: asyncio.Future[Reply | None], reply: Reply | None) -> None:
    if not waiting.done():
        waiting.set_result(reply)


class Site:
    """Where one application's exchanges go: the engine's `Endpoint`. `current` is the process that accepts connections now."""

    def __init__(
        self,
        scope: Scope,
        *,
        capacity: int,
        current: Callable[[], HttpWorker | None],
        loop: SimulatedLoop,
        conditions: Conditions,
        chance: random.Random,
        left: Callable[[Any], None],
        trace: Callable[[str], None],
    ) -> None:
        self.scope = scope
        self.address = f"http://{scope.application}.simulated/ryusen"
        self.capacity = capacity
        self.trouble = 0.0
        """How often something goes wrong with an exchange."""
        self._current = current
        self._loop = loop
        self._conditions = conditions
        self._chance = chance
        self._left = left
        self._trace = trace

    def invoke(self, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        """See `Endpoint`."""
        self._left(decode_invocation(exchange.invocation))
        process = current_process()
        assert process is not None
        self._loop.spawn(process, self._run(exchange, ended))

    async def _run(self, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        fault = self._chance.choice(FAULTS) if self._chance.random() < self.trouble else None
        await asyncio.sleep(self._conditions.delay_s())
        worker = self._current()
        if worker is None or fault == "refused":
            end: ExchangeEnd = NotSent("connection refused")
        else:
            end = await self._exchange(worker, exchange, fault)
        self._trace(f"exchange {exchange.request_id[-6:]}: {fault or 'well'}, {type(end).__name__}")
        ended(end)

    async def _exchange(self, worker: HttpWorker, exchange: Exchange, fault: str | None) -> ExchangeEnd:
        waiting: asyncio.Future[Reply | None] = self._loop.create_future()
        if fault != "unsent":
            worker.request(exchange.invocation, self._conditions.delay_s(), waiting)
        if fault == "twice":
            self._repeat(worker, exchange)
        if fault in {"unsent", "reset"}:
            self._loop.call_later(self._chance.choice((0.0, 0.01, 0.5, 5.0)), _settle, waiting, None)
        try:
            async with asyncio.timeout(exchange.within_ms / 1000):
                reply = await waiting
                await asyncio.sleep(self._conditions.delay_s())
                if fault == "silence":
                    await asyncio.Event().wait()
        except TimeoutError:
            return Lost("no answer came in time")
        if reply is None:
            return Lost("the connection was reset")
        if self.trouble and b'"rejected_before_start"' in reply.body and self._chance.random() < REJECTED_COMES_AGAIN:
            self._repeat(worker, exchange)
        return read_reply(exchange, _damaged(reply, fault), None, 0)

    def _repeat(self, worker: HttpWorker, exchange: Exchange) -> None:
        """The request arrives once more, and nobody waits for what comes of it."""
        nobody: asyncio.Future[Reply | None] = self._loop.create_future()
        self._loop.call_later(self._chance.choice((0.0, 0.03, 3.0)), partial(worker.request, exchange.invocation, 0.0, nobody))


def _damaged(reply: Reply, fault: str | None) -> Reply:
    match fault:
        case "status":
            return Reply(502, b"")
        case "cut":
            return Reply(reply.status, reply.body[: len(reply.body) // 2])
        case "altered":
            document = msgspec.json.decode(reply.body)
            return Reply(reply.status, msgspec.json.encode({**document, "request_id": "rq_another"}))
        case _:
            return reply
