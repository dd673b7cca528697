"""An endpoint on an engine's bench: it answers as a function's body says, holds what a test asks it to hold, and ends as told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import decode_invocation
from ryusen_protocol.ids import RequestId
from ryusen_protocol.invocation import DiscoveryTarget, Invocation
from ryusen_protocol.outcome import CallbackFailed, Outcome, OutcomeBody, Succeeded
from ryusen_protocol.scope import Scope
from ryusen_server.ports.worker import Answered, Exchange, ExchangeEnd, NotSent
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import Answer, matches

ADDRESS = "http://127.0.0.1:9000/ryusen"


class ScriptedEndpoint:
    """`down` refuses connections. `executing` are the invocations that are held, by request."""

    def __init__(self, bench: Bench, answer: Answer, *, address: str = ADDRESS, capacity: int = 32) -> None:
        self.bench = bench
        self.answer = answer
        self.address = address
        self.capacity = capacity
        self.instance_id = address
        self.channel = None
        self.down = False
        self.holds: Callable[[Invocation], bool] = lambda _: False
        self.refused = 0
        self.exchanges: list[Exchange] = []
        self.invocations: list[Invocation] = []
        self.executing: dict[RequestId, Invocation] = {}
        self._ends: dict[RequestId, Callable[[ExchangeEnd], None]] = {}
        bench.workers.append(self)  # type: ignore[arg-type]  # what the bench asks of a worker, it has

    def attach(self) -> None:
        """Configure it on the bench's engine."""
        self.bench.engine.attach_endpoint(Scope(DEFAULT, "shop"), self.address, self, self.capacity)  # type: ignore[arg-type]

    def invoke(self, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        loop = asyncio.get_running_loop()
        if self.down:
            self.refused += 1
            loop.call_soon(ended, NotSent("connection refused"))
            return
        invocation = decode_invocation(exchange.invocation)
        self.bench.invoked(self, invocation)  # type: ignore[arg-type]
        self.exchanges.append(exchange)
        self.invocations.append(invocation)
        self.executing[exchange.request_id] = invocation
        self._ends[exchange.request_id] = ended
        if len(self.executing) > self.capacity:
            self.bench.violations.append("an endpoint was sent more than its capacity")
        if not self.holds(invocation):
            loop.call_soon(self.finish, exchange.request_id)

    def holding(self, mode: str, step_id: str | None = None) -> None:
        self.holds = lambda invocation: matches(invocation, mode, step_id)

    def finish(self, request_id: RequestId, body: OutcomeBody | None = None) -> None:
        """Answer what is held."""
        invocation = self.executing[request_id]
        answer = self.answer(invocation) if body is None else body
        if not isinstance(invocation.target, DiscoveryTarget) and isinstance(answer, Succeeded | CallbackFailed):
            self.bench.started(self, invocation)  # type: ignore[arg-type]
        self.end(request_id, Answered(Outcome(PROTOCOL_VERSION, request_id, invocation.run.run_id, answer)))

    def end(self, request_id: RequestId, end: ExchangeEnd) -> None:
        """End an exchange that is held."""
        del self.executing[request_id]
        self._ends.pop(request_id)(end)

    def cut(self) -> None:
        """The server that held these exchanges is gone, and so are they."""
        self.executing.clear()
        self._ends.clear()

    def of(self, mode: str, step_id: str | None = None) -> list[Invocation]:
        return [invocation for invocation in self.invocations if matches(invocation, mode, step_id)]
