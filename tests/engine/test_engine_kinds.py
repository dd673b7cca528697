"""Timers, event waits, children and emissions in the engine: what the server does of itself, over restarts, stops and clock jumps."""

from __future__ import annotations

import base64

import msgspec

from ryusen_protocol.ids import RunId
from ryusen_server.core.state import Step as StepState
from tests.engine.bench import Bench
from tests.engine.bench_worker import FakeWorker, Step, body, emit, error, invoke, sleep, wait_for

HOUR_MS = 3_600_000
TERMINAL = error("terminal", retryable=False)


async def serving(
    bench: Bench, *, functions: tuple[str, ...] = (), triggers: tuple[tuple[str, str], ...] = (("go", "f"),), **answers: object
) -> FakeWorker:
    await bench.publish(triggers, functions=functions)
    return await bench.connected(functions=answers)


async def step_of(bench: Bench, run_id: RunId, step_id: str) -> StepState:
    return (await bench.run(run_id)).steps[step_id]  # type: ignore[index]  # ids are text


def payload_of(step: StepState) -> bytes:
    assert step.result is not None
    document = msgspec.json.decode(step.result)
    assert document["type"] == "bytes"
    return base64.b64decode(document["value"])


async def test_a_timer_completes_at_its_instant_and_no_earlier() -> None:
    async with Bench() as bench:
        worker = await serving(bench, f=body(Step("a"), sleep("cool", HOUR_MS), Step("b")))
        run_id = await bench.begin()
        armed_at = bench.clock.now_ms()
        await bench.advance(HOUR_MS - 1)
        assert (await step_of(bench, run_id, "cool")).state == "pending"
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert (await step_of(bench, run_id, "cool")).completed_at_ms == armed_at + HOUR_MS
        assert len(worker.of("discovery")) == 4


async def test_a_wait_takes_an_event() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(wait_for("ok", "order/approved", HOUR_MS, order="7")))
        run_id = await bench.begin()
        await bench.submit("order/approved", payload=b'{"by":"ann"}', order="8")
        await bench.settle()
        assert (await step_of(bench, run_id, "ok")).state == "pending"
        event = await bench.submit("order/approved", payload=b'{"by":"ann"}', order="7", more="x")
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert payload_of(await step_of(bench, run_id, "ok")) == b'{"by":"ann"}'
        stored = await bench.store.event(event.event.event_id)
        assert stored.fan_out_next is None
        assert not bench.engine._control._waited


async def test_a_child_ends_and_the_parent_goes_on() -> None:
    async with Bench() as bench:
        await serving(bench, functions=("g",), f=body(invoke("pack", "g", given={"box": 3}), Step("b")), g=body(Step("c"), answer="packed"))
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        step = await step_of(bench, run_id, "pack")
        assert step.result is not None
        assert bytes(step.result) == b'{"type":"string","value":"packed"}'
        child = await bench.run(step.child_run_id)
        assert child.status == "ended"
        assert await bench.store.obligations(after=None, limit=9) == []


async def test_an_emission_starts_runs_and_settles_waits() -> None:
    async with Bench() as bench:
        await serving(
            bench,
            triggers=(("go", "f"), ("wait", "w"), ("told", "h")),
            f=body(emit("tell", "told", b'{"n":1}', order="7")),
            w=body(wait_for("ok", "told", HOUR_MS, order="7")),
            h=body(Step("c")),
        )
        waiting = await bench.begin("wait")
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert payload_of(await step_of(bench, waiting, "ok")) == b'{"n":1}'
        assert bench.count("c") == 1
