"""Which worker gets what: capacity, releases, balance, draining, and instances that refuse a function."""

from __future__ import annotations

import pytest

from ryusen_protocol.outcome import RejectedBeforeStart
from tests.engine.bench import Bench
from tests.engine.bench_worker import FakeWorker, Step, body, effect_target, error


def hold_all(*workers: FakeWorker) -> None:
    for worker in workers:
        worker.holds = lambda _: True


@pytest.mark.req("CON-07")
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("early", [True, False])
async def test_no_worker_is_ever_sent_more_than_its_capacity(merge: bool, early: bool) -> None:
    async with Bench(merge=merge, early=early) as bench:
        await bench.publish([("go", "f")] * 10)
        functions = {"f": body(Step("a", undo=[None]), Step("b", forward=[error(retryable=False)]))}
        workers = [await bench.connected(f"wk_{capacity}", functions=functions, capacity=capacity) for capacity in (1, 2, 3)]
        hold_all(*workers)
        accepted = await bench.submit()
        await bench.settle()
        assert [len(worker.executing) for worker in workers] == [1, 2, 3]
        assert bench.engine._dispatcher.waiting == 4
        while any(worker.executing for worker in workers):
            for worker in workers:
                for request_id in list(worker.executing):
                    worker.finish(request_id)
                    await bench.settle()
        for row in await bench.store.event_runs(accepted.event.event_id):
            assert await bench.ended(row.run_id) == ("failed", "fully_compensated")
        # `Bench` refuses a worker that executes more than its capacity, at every frame.


async def test_a_worker_gets_only_its_own_functions() -> None:
    async with Bench() as bench:
        await bench.publish([("go", "f"), ("go", "g")])
        f = await bench.connected("wk_f", functions={"f": body()})
        await bench.submit()
        await bench.settle()
        assert {invocation.run.function for invocation in f.invocations} == {"f"}
        assert bench.engine._dispatcher.waiting == 1
        g = await bench.connected("wk_g", functions={"g": body()})
        assert {invocation.run.function for invocation in g.invocations} == {"g"}


@pytest.mark.req("REG-08", "REG-09", "OPT-02")
async def test_the_newest_release_is_preferred_and_the_older_one_is_its_fallback_until_it_drains() -> None:
    async with Bench() as bench:
        await bench.publish()
        old = await bench.connected("wk_old", release_id="r1", capacity=4)
        new = await bench.connected("wk_new", release_id="r2", capacity=1)
        plain = await bench.connected("wk_plain", capacity=4)
        hold_all(old, new, plain)
        for _ in range(2):
            await bench.begin()
        assert [len(worker.executing) for worker in (new, old, plain)] == [1, 1, 0]
        old.drain()
        await bench.begin()
        assert [len(worker.executing) for worker in (new, old, plain)] == [1, 1, 1]
        for worker in (new, old, plain):
            worker.release_all()
        await bench.settle()


@pytest.mark.req("REG-10", "REG-06")
async def test_unversioned_workers_share_by_load_and_come_after_any_release() -> None:
    async with Bench() as bench:
        await bench.publish()
        small = await bench.connected("wk_small", capacity=2)
        large = await bench.connected("wk_large", capacity=4)
        hold_all(small, large)
        for _ in range(3):
            await bench.begin()
        assert [len(worker.executing) for worker in (small, large)] == [1, 2]
        named = await bench.connected("wk_named", release_id="r1", capacity=1)
        hold_all(named)
        await bench.begin()
        assert len(named.executing) == 1
        for worker in (small, large, named):
            worker.release_all()
        await bench.settle()


@pytest.mark.req("CON-06")
async def test_a_draining_worker_finishes_what_it_has_and_gets_nothing_new_over_reconnects_too() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        worker.drain()
        waiting = await bench.begin()
        worker.release_all()
        await bench.settle()
        assert worker.dispositions == ["accepted"]
        count = len(worker.invocations)
        worker.disconnect()
        await worker.connect()
        assert len(worker.invocations) == count
        assert not bench.engine.can_run(worker.scope, "f")  # type: ignore[arg-type]  # ids are text
        other = await bench.connected("wk_2", functions=worker.functions)
        assert bench.engine.can_run(other.scope, "f")  # type: ignore[arg-type]
        for each in (run_id, waiting):
            assert await bench.ended(each) == ("succeeded", "not_required")
        assert bench.count("a") == 2


@pytest.mark.req("REG-11")
async def test_work_without_a_worker_waits_and_goes_when_one_comes() -> None:
    async with Bench() as bench:
        await bench.publish()
        run_id = await bench.begin()
        await bench.advance(300_000)
        row = await bench.row(run_id)
        assert (row.status, row.wake_at_ms) == ("running", 0)
        await bench.connected()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.parametrize("mode", ["discovery", "forward", "compensation"])
async def test_an_instance_that_does_not_support_a_target_gets_none_of_the_function_until_it_registers_again(mode: str) -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), fails=error(retryable=False)))
        worker.holding(mode)
        run_id = await bench.begin()
        invocation = next(iter(worker.executing.values()))
        place = (None, None) if mode == "discovery" else (effect_target(invocation).attempt, effect_target(invocation).attempt_generation)
        worker.holds = lambda _: False
        worker.finish(invocation.request_id, RejectedBeforeStart("unsupported_target", *place))
        await bench.advance(120_000, beating=[worker])
        assert len(worker.of(mode)) == 1
        assert not bench.engine.can_run(worker.scope, "f")  # type: ignore[arg-type]
        worker.disconnect()
        await worker.connect()
        assert await bench.ended(run_id) == ("failed", "fully_compensated")
        assert (bench.count("a"), bench.count("a", "compensation")) == (1, 1)


async def test_another_instance_takes_what_one_does_not_support() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        other = await bench.connected("wk_2", functions=worker.functions)
        worker.holding("forward")
        run_id = await bench.begin()
        worker.finish(next(iter(worker.executing)), RejectedBeforeStart("unsupported_target", 1, 1))
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert len(other.of("forward")) == 1


@pytest.mark.req("PRO-17")
async def test_a_rejected_effect_is_queued_again_with_the_same_ordinal_and_paced() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        for wait_ms in (0, 1_000, 2_000):
            worker.finish(next(iter(worker.executing)), RejectedBeforeStart("busy", 1, 1))
            await bench.settle()
            if wait_ms:
                await bench.advance(wait_ms - 1)
                assert not worker.executing
                await bench.advance(1)
        assert [effect_target(each).attempt for each in worker.of("forward")] == [1, 1, 1, 1]
        worker.finish(next(iter(worker.executing)), RejectedBeforeStart("busy", 1, 1))
        await bench.settle()
        assert not worker.executing
        worker.holds = lambda _: False
        await bench.connected("wk_2", functions={"f": worker.functions["f"]})
        assert await bench.ended(run_id) == ("succeeded", "not_required"), "a registration ends the wait"
        assert worker.dispositions == ["accepted"] * len(worker.acks)


async def test_everything_paced_goes_as_soon_as_the_registered_worker_has_room() -> None:
    async with Bench() as bench:
        await bench.publish([("go", "f")] * 5)
        first = await bench.connected("wk_1")
        first.holds = lambda _: True
        await bench.submit()
        await bench.settle()
        for _ in range(2):
            for request_id in list(first.executing):
                first.finish(request_id, RejectedBeforeStart("busy"))
            await bench.settle()
        first.disconnect()
        await bench.connected("wk_2", capacity=1)
        await bench.settle()
        assert not [row for row in bench.memory._runs.values() if row.status != "ended"], "none waits for its pace any more"


async def test_a_long_queue_of_one_function_does_not_starve_another() -> None:
    async with Bench() as bench:
        await bench.publish([*[("go", "f")] * 20, ("go", "g")])
        await bench.submit()
        worker = bench.worker(functions={"f": body(), "g": body()}, capacity=1)
        await worker.connect()
        await bench.settle()
        order = [invocation.run.function for invocation in worker.invocations]
        assert order.index("g") < 5


async def test_the_declaring_worker_gets_its_own_step_only_when_the_choice_falls_on_it() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")), release_id="r1")
        worker.holding("discovery")
        run_id = await bench.begin()
        newer = await bench.connected("wk_2", functions=worker.functions, release_id="r2")
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert not worker.of("forward")
        assert len(newer.of("forward")) == 1
