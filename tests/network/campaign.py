"""Many runs over a network that fails, and what must hold of every one of them whatever was cut, repeated or lost.

One server, one application, one proxy between them: before the application for HTTP, before the server for a connected worker. Runs are
started until enough connections have been struck; then the network calms down, an operator settles what is Unknown by what the callbacks
really did, and every run has to end. A connected worker's process is lost now and then, too. Held to account, from the runs' histories
and from the callbacks' own log:

- no callback runs twice under one generation, and an attempt that is queued again keeps its ordinal and its generation;
- an attempt that is queued again had not begun;
- a success that is recorded is what the callback of that generation gave;
- over HTTP, exchange by exchange: answered in full, it settles; not connected, it is queued again; anything else, it is Unknown.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ryusen_protocol.ids import Application, RequestId, RunId, Workspace
from ryusen_protocol.operator import RefusalEnvelope, parse
from ryusen_protocol.scope import Scope
from ryusen_sdk import Event, Ryusen, Step, Terminal, operation
from ryusen_sdk.errors import RegistrationRejected, WorkerReplaced
from ryusen_sdk.worker import Timings, Worker
from ryusen_server.bootstrap import running_server
from ryusen_server.bootstrap.server import Server
from ryusen_server.bootstrap.settings import HttpEndpoint
from ryusen_server.core.rows import AttemptRow
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.views import AcceptedEvent
from tests.api.api_harness import open_memory
from tests.http.hosting import AsgiServer
from tests.network.proxy import Fault, Plan, Proxy, Wire, drawn, message_of, proxy

Transport = Literal["http", "connected"]

WORKSPACE = Workspace("default")
STEPS = ("reserve", "charge", "ship")
AT_ONCE = 24
WORKERS = 3
EXCHANGE_MS = 2_000
LEASE_MS = 1_500
PATIENCE_S = 120
FAULTS: list[Fault] = ["cut", "reset", "truncate", "silence", "delay", "repeat"]

Generation = tuple[str, str, str, int]
"""Run, step, phase and attempt generation."""


class Outside:
    """The application, and what its callbacks did."""

    def __init__(self, chance: random.Random) -> None:
        self.app = Ryusen("shop")
        self.began: Counter[Generation] = Counter()
        self.over: set[Generation] = set()
        """Those that run no more, whether they gave anything or were given up with their worker."""
        self.gave: dict[Generation, str] = {}
        self._chance = chance
        self.app.function(on="order/placed", id="fulfil")(self.fulfil)

    async def fulfil(self, event: Event, step: Step) -> str:
        for step_id in STEPS:
            await step.run(step_id, self.effect, compensate=self.undo)
        if event.data["fails"]:
            raise Terminal("no carrier takes it")
        return "done"

    async def effect(self) -> str:
        return await self._happen()

    async def undo(self, forward: str) -> str:
        return await self._happen()

    async def _happen(self) -> str:
        now = operation()
        generation = (now.run_id, now.step_id, now.phase, now.attempt_generation)
        self.began[generation] += 1
        try:
            await asyncio.sleep(self._chance.choice((0, 0, 0.005, 0.05)))
            self.gave[generation] = f"{now.id}/{now.attempt_generation}"
            return self.gave[generation]
        finally:
            self.over.add(generation)


class Report(NamedTuple):
    """What a campaign has seen."""

    runs: int
    struck: Counter[str]
    fates: Counter[str]
    refused: int

    @property
    def cases(self) -> int:
        return sum(self.struck.values()) + self.refused


class Campaign:
    """One transport, one seed."""

    def __init__(self, transport: Transport, cases: int, seed: int) -> None:
        self.transport = transport
        self.cases = cases
        self.chance = random.Random(f"{transport} {seed}")
        self.outside = Outside(random.Random(seed))
        self.calm = False
        self.runs: list[RunId] = []
        self.refusals = 0
        self._lives: set[asyncio.Task[None]] = set()
        self._ended: set[RunId] = set()
        self._beside: list[asyncio.Task[None]] = []
        """What goes on all the while: the operator, and workers. None of it ends by itself."""
        self._wires: dict[RequestId, Wire] = {}
        self._unseen: Counter[str] = Counter()
        self.server: Server
        self.proxy: Proxy

    def plan(self) -> Plan | None:
        """The next connection's."""
        if self.calm:
            return None
        if self.transport == "http":
            if self.chance.random() < 0.4:
                return None
            # Heads and bodies of one exchange; what lies beyond its end strikes nothing.
            return drawn(self.chance, [*FAULTS, *FAULTS, *FAULTS, "turn away"], up_bytes=1_600, down_bytes=520, silence_ms=EXCHANGE_MS * 2)
        return drawn(self.chance, FAULTS, up_bytes=12_000, down_bytes=18_000, silence_ms=4_000)

    @property
    def struck(self) -> int:
        return sum(self.proxy.struck.values()) + self.refusals

    async def run(self, folder: Path) -> Report:
        async with self._world(folder), asyncio.timeout(PATIENCE_S + self.cases):
            operator = asyncio.create_task(self._operate())
            self._beside.append(operator)
            try:
                while self.struck < self.cases:
                    await self._begin()
                    await self._until_below(AT_ONCE)
                    if self.transport == "http" and self.chance.random() < 0.4:
                        await self._refuse()
                    elif self.transport == "connected" and self.chance.random() < 0.05:
                        self._lose_worker()
                self.calm = True
                if self.transport == "http":
                    # Another endpoint is a registration, which ends the wait of whatever was repeated ever more seldom.
                    self._attach("/another")
                await self._until_below(1)
            finally:
                operator.cancel()
                await asyncio.gather(operator, return_exceptions=True)
            twice = {generation: times for generation, times in self.outside.began.items() if times > 1}
            assert not twice, f"callbacks ran more than once under one generation: {twice}"
            self._wires = wires_by_request(self.proxy.wires)
            fates = Counter[str]()
            for run_id in self.runs:
                fates += self._judge(run_id, await self._records(run_id))
            assert self._unseen["unknown"] <= self.proxy.struck["turn away"], "what was refused is in no doubt"
            return Report(len(self.runs), self.proxy.struck, fates, self.refusals)

    # the world

    @asynccontextmanager
    async def _world(self, folder: Path) -> AsyncGenerator[None, None]:
        config = EngineConfig(
            lease_ms=LEASE_MS, heartbeat_ms=300, reconnect_grace_ms=LEASE_MS, exchange_ms=EXCHANGE_MS, tick_ms=50, storage_retry_ms=50
        )
        if self.transport == "http":
            async with (
                AsgiServer(self.outside.app.asgi()).serving() as hosted,
                proxy(hosted.port, self.plan, keeps=True) as self.proxy,
                running_server(
                    folder,
                    store_factory=open_memory,
                    engine_config=config,
                    http_endpoints=(HttpEndpoint(Scope(WORKSPACE, Application("shop")), f"{self.proxy.url}/ryusen"),),
                ) as self.server,
            ):
                await asyncio.to_thread(self.outside.app.publish, url=self.server.url)
                yield
            return
        async with proxy(0, self.plan) as self.proxy:
            shown = f"127.0.0.1:{self.proxy.port}"
            async with running_server(folder, store_factory=open_memory, engine_config=config, allow_hosts=(shown,)) as self.server:
                await asyncio.to_thread(self.outside.app.publish, url=self.server.url)
                self.proxy.upstream = urlsplit(self.server.url).port or 0
                serving = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
                self._beside += serving
                try:
                    yield
                finally:
                    for task in serving:
                        task.cancel()
                    ended = await asyncio.gather(*serving, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

    def _attach(self, path: str) -> None:
        invoker = self.server._invoker
        assert invoker is not None
        url = self.proxy.url + path
        self.server.engine.attach_endpoint(Scope(WORKSPACE, Application("shop")), url, invoker.endpoint(url), 32)

    async def _work(self) -> None:
        """A worker process's place: when one ends, another starts. Bytes that come twice can make a registration unreadable, for good."""
        timings = Timings(backoff_first=0.02, backoff_max=0.2, handshake=1.0)
        while True:
            worker = Worker(self.outside.app, url=self.proxy.url, capacity=8, publish=False, timings=timings, on_status=lambda _: None)
            life = asyncio.create_task(worker.serve())
            self._lives.add(life)
            try:
                await asyncio.wait({life})
            finally:
                self._lives.discard(life)
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
            final = None if life.cancelled() else life.exception()
            if not life.cancelled() and not (isinstance(final, RegistrationRejected | WorkerReplaced) and self.proxy.struck["repeat"]):
                raise AssertionError("nothing had made a frame unreadable") from final

    def _lose_worker(self) -> None:
        """One process is gone with all that it was doing."""
        if self._lives:
            self.chance.choice(sorted(self._lives, key=lambda life: life.get_name())).cancel()

    async def _refuse(self) -> None:
        """Nobody listens for a moment: what is sent now is provably not begun."""
        self.proxy.shut()
        self.refusals += 1
        await asyncio.sleep(0.03)
        self.proxy.open()

    async def _begin(self) -> None:
        payload = json.dumps({"fails": self.chance.random() < 0.3}).encode()
        accepted = await self.server.engine.submit_event(WORKSPACE, name="order/placed", payload=payload, metadata={}, key=None)
        assert isinstance(accepted, AcceptedEvent)
        self.runs += accepted.run_ids

    async def _until_below(self, bound: int) -> None:
        store = self.server.store
        waiting = [run_id for run_id in self.runs if run_id not in self._ended]
        while len(waiting) >= bound:
            for run_id in list(waiting):
                row = await store.run(run_id)
                if row is not None and row.status == "ended":
                    self._ended.add(run_id)
                    waiting.remove(run_id)
            for task in self._beside:
                if task.done():
                    task.result()
                    raise AssertionError(f"{task} ended too early")
            if len(waiting) >= bound:
                await asyncio.sleep(0.02)

    # the operator

    async def _operate(self) -> None:
        """Settle what is Unknown by what is known out there, once nothing of it is under way any more."""
        while True:
            await asyncio.sleep(0.2)
            for attempt in await self.server.store.attempts(WORKSPACE, state="unknown", after=None, limit=500):
                generation = (attempt.run_id, attempt.step_id, attempt.phase, attempt.attempt_generation)
                if self.outside.began[generation] and generation not in self.outside.over:
                    continue
                await self._resolve(attempt, self.outside.gave.get(generation))

    async def _resolve(self, attempt: AttemptRow, gave: str | None) -> None:
        result = {"type": "string", "value": gave}
        command: dict[str, Any] = {"authorize_retry": {}} if gave is None else {"supply_success": {"result": result}}
        document = {
            "version": 1,
            "attempt_id": attempt.attempt_id,
            "attempt_generation": attempt.attempt_generation,
            "idempotency_key": f"{attempt.attempt_id} {attempt.request_id}",
            "command": command,
        }
        parsed = parse(json.dumps(document).encode(), path_attempt_id=attempt.attempt_id)
        assert not isinstance(parsed, RefusalEnvelope), parsed
        answer = await self.server.engine.resolve(WORKSPACE, parsed, by="campaign")
        assert not isinstance(answer, RefusalEnvelope) or answer.refusal.code == "stale", answer

    # the judgement

    async def _records(self, run_id: RunId) -> list[dict[str, Any]]:
        return [record for row in await self.server.store.history(run_id) for record in msgspec.json.decode(row.records)]

    def _judge(self, run_id: RunId, records: list[dict[str, Any]]) -> Counter[str]:
        self._judge_attempts(run_id, records)
        fates: dict[RequestId, str] = {}
        open_requests: dict[str, RequestId] = {}
        late: set[RequestId] = set()
        for record in records:
            attempt_id = record.get("attempt_id")
            match record["kind"]:
                case "attempt_authorized":
                    open_requests[attempt_id] = record["request_id"]
                case "attempt_unknown":
                    fates.setdefault(open_requests[attempt_id], "unknown")
                    if record["reason"].startswith("no answer came") or "whole lease" in record["reason"]:
                        late.add(open_requests[attempt_id])
                case "attempt_requeued":
                    fates.setdefault(open_requests[attempt_id], "queued again")
                case "attempt_settled":
                    fates.setdefault(open_requests[attempt_id], record["state"])
                case _:
                    pass
        if self.transport == "http":
            self._judge_exchanges(fates, late)
        return Counter(fates.values())

    def _judge_attempts(self, run_id: RunId, records: list[dict[str, Any]]) -> None:
        """No attempt but those a person asked for, and no success but what a callback gave."""
        attempts: dict[str, dict[str, Any]] = {}
        asked_for: set[tuple[str, str, int]] = set()
        for record in records:
            if record["kind"] == "attempt_queued":
                attempts[record["attempt_id"]] = record
                place = (record["step_id"], record["phase"], record["attempt"])
                assert record["attempt"] == 1 or place in asked_for, f"{run_id}: an attempt nobody asked for: {record}"
            elif record["kind"] == "attempt_settled":
                attempt = attempts[record["attempt_id"]]
                if record["state"] == "retry_authorized":
                    asked_for.add((attempt["step_id"], attempt["phase"], attempt["attempt"] + 1))
                    continue
                assert record["state"] == "succeeded", f"{run_id}: every callback succeeds, and yet {record}"
                generation = (run_id, attempt["step_id"], attempt["phase"], attempt["attempt_generation"])
                assert generation in self.outside.gave, f"a success of a callback that did not run: {generation}"

    def _judge_exchanges(self, fates: dict[RequestId, str], late: set[RequestId]) -> None:
        """What each exchange came to, against the bytes that went over its wire."""
        for request_id, fate in fates.items():
            wire = self._wires.get(request_id)
            if wire is None:
                # Refused, or turned away before a byte was read: the client may or may not have been connected.
                assert fate in ("queued again", "unknown"), f"{request_id} never left, and is {fate}"
                self._unseen[fate] += 1
                continue
            due = _due(request_id, wire)
            if due == "succeeded" and fate == "unknown" and request_id in late:
                continue  # this machine was too busy to take the answer in time, and that is all that may come of it
            if wire.struck and wire.plan is not None and (wire.plan.fault, wire.plan.direction) == ("repeat", "down"):
                # Bytes that come twice in a head may leave a response that reads the same.
                assert fate in (due, "succeeded"), f"{request_id} is {fate} after {wire.plan}"
                continue
            assert fate == due, f"{request_id} is {fate} after {wire.plan}, struck {wire.struck}; it must be {due}"


def _due(request_id: str, wire: Wire) -> str:
    """What must come of an effect, by what was delivered of its answer."""
    answer = message_of(wire.delivered)
    if answer is None or answer != message_of(wire.answered) or not answer.startswith(b"HTTP/1.1 200 "):
        return "unknown"
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    if document["request_id"] != request_id:
        return "unknown"
    return {"succeeded": "succeeded", "rejected_before_start": "queued again"}[document["outcome"]["type"]]


def wires_by_request(wires: list[Wire]) -> dict[RequestId, Wire]:
    """The wire each request went over."""
    found: dict[RequestId, Wire] = {}
    for wire in wires:
        asked = message_of(wire.asked)
        if asked is not None:
            request_id = json.loads(asked.partition(b"\r\n\r\n")[2])["request_id"]
            assert request_id not in found, f"{request_id} was sent twice"
            found[request_id] = wire
    return found
