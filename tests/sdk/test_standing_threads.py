"""Bodies of sync functions that stand at a step, in threads of the pool."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from ryusen_sdk import Event, Failure, StepFailed, SyncStep, Terminal, operation
from ryusen_sdk import standing as standing_module
from tests.sdk.peer import NULL, JsonDict, compensation, discovery, done, forward, number, text
from tests.sdk.standing_runs import Function, Seen, process, same_as_replayed


def linear(seen: Seen, count: int = 5) -> Function:
    def body(_event: Event, step: SyncStep) -> int:
        seen.begun += 1
        total = 0
        try:
            for place in range(count):
                total += step.run(f"s{place}", call, place, compensate=call)
        finally:
            seen.ended += 1
        return total

    def call(place: int, *_: object) -> int:
        seen.called.append(f"{operation().step_id}:{operation().attempt}")
        return place

    return body


async def test_a_run_goes_on_in_the_thread_where_its_body_stands() -> None:
    seen = Seen()
    threads: set[int] = set()
    counting = linear(seen)

    def body(event: Event, step: SyncStep) -> int:
        threads.add(threading.get_ident())
        return counting(event, step)

    async with process(body) as worker:
        for _ in range(5):
            await worker.step()
        assert await worker.discover() == {"type": "completed", "result": number(10)}
    assert seen == Seen(begun=1, ended=1, called=[f"s{place}:1" for place in range(5)])
    assert len(threads) == 1


async def test_a_short_run_is_replayed_and_a_stretch_ends() -> None:
    seen = Seen()
    async with process(linear(seen), steps_min=3, stretch_max=3) as worker:
        for _ in range(5):
            await worker.step()
        assert seen.begun == 3 * 2 + 1
        assert (await worker.discover())["type"] == "completed"
        assert seen.begun == 3 * 2 + 2, "the fourth answer had ended it"


def undo(history: list[JsonDict]) -> JsonDict:
    return compensation("s0", *history, result=number(0))


def again(history: list[JsonDict]) -> JsonDict:
    return discovery(*history)


def with_news(history: list[JsonDict]) -> JsonDict:
    return forward("s2", *history, done("x", NULL))


@pytest.mark.parametrize("following", [undo, again, with_news])
async def test_what_does_not_follow_begins_at_the_first_line(following: Callable[[list[JsonDict]], JsonDict]) -> None:
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.step()
        await worker.step()
        await worker.discover()
        document = following(worker.history)
        await worker.ask(document)
        assert seen.begun == 2


async def test_a_pass_begins_when_the_body_that_stood_has_unwound() -> None:
    """Its answer came before that; without standing it would have come after."""
    alone = threading.Lock()

    def body(_event: Event, step: SyncStep) -> None:
        assert alone.acquire(blocking=False), "another pass of the run is still in its body"
        try:
            step.run("s0", str, compensate=str)
            step.run("s1", str)
        finally:
            time.sleep(0.05)
            alone.release()

    async with process(body) as worker:
        await worker.step()
        await worker.discover()
        assert (await worker.ask(compensation("s0", *worker.history, result=text(""))))["type"] == "succeeded"


async def test_a_body_stands_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_module, "WAIT_S", 0.01)
    seen = Seen()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    counting = linear(seen)

    def body(event: Event, step: SyncStep) -> int:
        try:
            return counting(event, step)
        finally:
            loop.call_soon_threadsafe(ended.set)

    async with process(body) as worker:
        await worker.step()
        async with asyncio.timeout(10):
            await ended.wait()
        await worker.step()
        assert seen.begun >= 2, "and once more where the machine is slow"


async def test_only_so_many_threads_are_held() -> None:
    begun: list[str] = []

    def body(event: Event, step: SyncStep) -> None:
        begun.append(event.run_id)
        step.run("s0", str)
        step.run("s1", str)

    def of(run: str, document: JsonDict) -> JsonDict:
        return {**document, "run": {**document["run"], "run_id": run}}

    async with process(body) as worker:
        assert worker.standing is not None
        worker.standing.threads.bodies_max = 2
        for run in ("rn_a", "rn_b", "rn_c"):
            await worker.ask(of(run, discovery()), whole=True)
        for run in ("rn_c", "rn_b", "rn_a"):
            await worker.ask(of(run, forward("s0")), whole=True)
        assert begun == ["rn_a", "rn_b", "rn_c", "rn_a"]


async def test_what_a_callback_set_in_its_context_is_gone_with_it() -> None:
    """Its replay has never been there."""
    name: ContextVar[str] = ContextVar("name", default="none")

    def body(_event: Event, step: SyncStep) -> str:
        step.run("s0", lambda: [name.set("the callback's") and None])
        return name.get()

    async with process(body) as worker:
        await worker.discover()
        await worker.ask(forward("s0"))
        worker.history.append(done("s0", NULL))
        assert (await worker.discover())["result"] == text("none")


async def test_the_end_of_a_worker_lets_bodies_unwind() -> None:
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.step()
        await worker.host.end_standing()
        assert seen.ended == 1


async def test_what_a_callback_prints_is_its_own_attempts() -> None:
    def body(_event: Event, step: SyncStep) -> None:
        for place in range(2):
            print("the body is nobody's attempt")
            step.run(f"s{place}", print, f"callback {place}")

    async with process(body) as worker:
        for place in range(2):
            await worker.discover()
            answer = await worker.begin(forward(f"s{place}", *worker.history))
            assert [line["text"] for line in answer["logs"]] == [f"callback {place}"]
            worker.history.append(done(f"s{place}", NULL))
        assert (await worker.begin(discovery(*worker.history))).get("logs", []) == []


class Program:
    """A random body, that does the same whenever it is given the same outcomes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def body(self, _event: Event, step: SyncStep) -> list[str]:
        chance = random.Random(self.seed)
        told: list[str] = []
        for place in range(chance.randrange(3, 25)):
            told.append(self.one(chance.randrange(8), f"s{place}", step))
            if chance.random() < 0.05 and told[-1] == "odd":
                break
        return told

    def one(self, kind: int, step_id: str, step: SyncStep) -> str:
        if kind == 0:
            step.sleep(step_id, "1s")
            return "slept"
        if kind == 1:
            try:
                return step.run(step_id, self.fails)
            except StepFailed as error:
                return error.category
        if kind == 2:
            return step.send_event(step_id, "told", {"by": step_id})
        if kind == 3:
            return step.run(step_id, self.async_effect, compensate=str)
        return step.run(step_id, self.effect, compensate=str)

    def effect(self) -> str:
        mine = random.Random(f"{self.seed}{operation().step_id}{operation().attempt}")
        if mine.random() < 0.15:
            raise Failure("again", retryable=True)
        return mine.choice(("odd", "even"))

    async def async_effect(self) -> str:
        await asyncio.sleep(0)
        return self.effect()

    def fails(self) -> str:
        raise Terminal("never")


@pytest.mark.req("SDK-09")
async def test_nobody_can_tell_a_body_that_stands_from_a_replay() -> None:
    assert await same_as_replayed(lambda seed: Program(seed).body, 40) > 250
