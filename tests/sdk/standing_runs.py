"""Runs on a real host whose bodies may stand, moved as a server would move them."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ryusen_protocol.codec import decode_invocation
from ryusen_protocol.invocation import FullHistory, Invocation
from ryusen_sdk import Event, Ryusen
from ryusen_sdk.host import Answer, Host
from ryusen_sdk.standing import Shelf, Standing
from ryusen_sdk.threads import ThreadPool
from tests.sdk.peer import NULL, JsonDict, discovery, done, failed, forward, text

Function = Callable[[Event, Any], Any]


class Process:
    """A worker's host, and a run that moves on it as a server would have it move."""

    def __init__(self, body: Function, standing: Standing | None) -> None:
        app = Ryusen("shop")
        app.function(id="fulfil")(body)
        self.standing = standing
        self.pool = ThreadPool(8)
        self.loop = asyncio.get_running_loop()
        self.host = Host(app.registry, self.loop, self.pool, standing=standing)
        self.history: list[JsonDict] = []
        self._last: Invocation | None = None

    def begin(self, document: JsonDict, *, whole: bool = False) -> asyncio.Future[JsonDict]:
        """The outcome to come. The entries of its history are those of the last invocation, as in a delta, unless `whole`."""
        invocation = decode_invocation(json.dumps(document))
        steps = invocation.history.steps
        if self._last is not None and not whole:
            before = self._last.history.steps
            same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, steps, strict=False)))
            steps = [*(old for old, _ in same), *steps[len(same) :]]
        history = FullHistory(f"sha256:{json.dumps(document['history']['steps'])}", steps)
        self._last = invocation = msgspec.structs.replace(invocation, history=history)
        given: asyncio.Future[JsonDict] = self.loop.create_future()

        def finish(_invocation: Invocation, answer: Answer) -> None:
            assert isinstance(answer, bytes), answer
            self.loop.call_soon_threadsafe(given.set_result, json.loads(answer))

        self.host.start([invocation], finish)
        return given

    async def ask(self, document: JsonDict, *, whole: bool = False) -> JsonDict:
        async with asyncio.timeout(10):
            return (await self.begin(document, whole=whole))["outcome"]

    async def close(self) -> None:
        async with asyncio.timeout(10):
            await self.host.end_standing()
        self.host.abandon()
        self.pool.close()

    async def discover(self) -> JsonDict:
        return await self.ask(discovery(*self.history))

    async def step(self) -> JsonDict:
        """One `run` step from its declaration to its record; its outcome."""
        declared = await self.discover()
        assert declared["type"] == "declared", declared
        step_id = declared["declaration"]["step_id"]
        outcome = await self.ask(forward(step_id, *self.history))
        assert outcome["type"] == "succeeded", outcome
        self.history.append(done(step_id, outcome["result"]))
        return outcome


@asynccontextmanager
async def process(body: Function, **options: Any) -> AsyncGenerator[Process]:
    made = Process(body, Standing(**{"steps_min": 0, **options}))
    yield made
    await made.close()


@dataclass
class Seen:
    """What a body did."""

    begun: int = 0
    ended: int = 0
    called: list[str] = field(default_factory=list[str])


async def ended(body: Function, standing: Standing | None, drop: random.Random | None) -> list[JsonDict]:
    """Every outcome of a run, as a server moves it. With `drop` some invocations follow in no body, and some bodies end meanwhile."""
    worker = Process(body, standing)
    told: list[JsonDict] = []
    try:
        for _ in range(100):
            document = discovery(*worker.history)
            discovered = await worker.ask(document, whole=drop is not None and drop.random() < 0.1)
            told.append(discovered)
            if discovered["type"] != "declared":
                return told
            declaration = discovered["declaration"]
            step_id, kind = declaration["step_id"], declaration["kind"]
            if kind != "run":
                worker.history.append(done(step_id, text("ev_1") if kind == "emission" else NULL, kind))
                continue
            for attempt in range(1, 10):
                if drop is not None and drop.random() < 0.1:
                    await worker.host.end_standing()
                told.append(await worker.ask(forward(step_id, *worker.history, attempt=attempt)))
                if told[-1]["type"] == "succeeded":
                    worker.history.append(done(step_id, told[-1]["result"]))
                    break
                if not told[-1]["failure"]["retryable"]:
                    worker.history.append(failed(step_id, told[-1]["failure"]["category"]))
                    break
        raise AssertionError(f"no end: {told[-1]}")
    finally:
        await worker.close()


def comparable(outcomes: list[JsonDict]) -> list[JsonDict]:
    """Without the stacks, which tell of the host's own frames."""
    return [{**one, "failure": {**one["failure"], "stack": None}} if "failure" in one else one for one in outcomes]


async def same_as_replayed(programs: Callable[[int], Function], seeds: int) -> int:
    """Holds the outcomes of random functions against their replays. How often an invocation went on in a body that stood."""
    went_on = 0
    goes_on: Callable[..., bool] = Shelf[Any].goes_on

    def counted(self: Shelf[Any], *given: Any) -> bool:
        nonlocal went_on
        went_on += (did := goes_on(self, *given))
        return did

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shelf, "goes_on", counted)
        for seed in range(seeds):
            replayed = await ended(programs(seed), None, None)
            drop = random.Random(seed)
            standing = Standing(steps_min=0, stretch_max=drop.choice((1, 4, 100)))
            assert comparable(await ended(programs(seed), standing, drop)) == comparable(replayed), seed
    return went_on
