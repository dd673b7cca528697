"""History deltas as the engine sends them: what a worker holds is left out, and whatever it may not hold is sent whole."""

from __future__ import annotations

import pytest

from ryusen_protocol.frames import Invoke
from ryusen_protocol.invocation import DeltaHistory, DiscoveryTarget, FullHistory, Invocation
from ryusen_sdk.histories import Histories
from tests.engine.bench import Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error

STEPS = body(Step("a", undo=[None]), Step("b", undo=[None]), Step("c"))
SAGA = body(Step("a", undo=[None]), Step("b", undo=[None]), Step("c", forward=[error("no", retryable=False)]))


def sent(worker: FakeWorker) -> list[Invocation]:
    assert worker.channel is not None
    return [frame.invocation for frame in worker.channel.frames if isinstance(frame, Invoke)]


def shape(invocation: Invocation) -> tuple[str, int, list[str]]:
    """The mode, how much it builds on, and the steps it carries."""
    history = invocation.history
    base = history.base.count if isinstance(history, DeltaHistory) else 0
    return type(history).__name__, base, [step.step_id for step in history.steps]


@pytest.mark.req("PRO-21")
async def test_each_completed_step_is_sent_once_in_a_session_effects_and_unwind_too() -> None:
    async with Bench() as bench:
        worker = await bench.serving(SAGA)
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("failed", "fully_compensated")
        invocations = sent(worker)
        first, *rest = [shape(invocation) for invocation in invocations]
        assert first == ("FullHistory", 0, [])
        assert {mode for mode, _, _ in rest} == {"DeltaHistory"}
        assert [step for _, _, steps in rest for step in steps] == ["a", "b", "c"]
        assert all(invocation.input is None for invocation in invocations[1:]), "the input is not sent again"
        assert bench.engine._fleet.at(worker.session_id).held.base(run_id) is None, "an ended run is forgotten"


@pytest.mark.req("PRO-21")
async def test_a_worker_that_does_not_keep_histories_is_sent_them_whole() -> None:
    async with Bench() as bench:
        worker = await bench.serving(STEPS, keeps_histories=False)
        await bench.begin()
        await bench.settle()
        assert {mode for mode, _, _ in map(shape, sent(worker))} == {"FullHistory"}
        assert all(invocation.input is not None for invocation in sent(worker))


async def test_a_new_session_begins_with_the_whole_history() -> None:
    async with Bench() as bench:
        worker = await bench.serving(STEPS)
        worker.holding("forward", "b")
        await bench.begin()
        await bench.settle()
        worker.disconnect()
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert shape(sent(worker)[0]) == ("FullHistory", 0, ["a", "b"])


@pytest.mark.parametrize("mode", ["discovery", "forward"])
async def test_a_worker_that_has_let_go_of_its_copy_gets_it_whole_at_once_and_nothing_is_consumed(mode: str) -> None:
    async with Bench() as bench:
        worker = await bench.serving(STEPS)
        worker.holding("forward", "a")
        run_id = await bench.begin()
        await bench.settle()
        if mode == "discovery":
            worker.histories = Histories()
            worker.release_all()
        else:
            worker.holding("discovery")
            for request_id in list(worker.executing):
                worker.finish(request_id)
            await bench.settle()
            worker.histories = Histories()
            worker.release_all()
        now_ms = bench.clock.now_ms()
        await bench.settle()
        assert bench.clock.now_ms() == now_ms, "nothing was paced"
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        run = await bench.run(run_id)
        assert [len(step.attempts) for step in run.steps.values()] == [1, 1, 1]
        whole = [shape(invocation) for invocation in sent(worker) if isinstance(invocation.history, FullHistory)]
        assert whole == [("FullHistory", 0, []), ("FullHistory", 0, ["a"])]
        assert bench.count("b") == 1


async def test_what_left_with_a_commit_that_failed_is_not_built_on() -> None:
    async with Bench() as bench:
        worker = await bench.serving(STEPS)
        worker.holding("forward", "a")
        run_id = await bench.begin()
        await bench.settle()
        bench.memory.failing_commits = {bench.memory.commits + 1}
        worker.release_all()
        for _ in range(20):
            await bench.advance(1_000, beating=[worker])
            worker.resend()
            await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        after = [shape(invocation) for invocation in sent(worker) if isinstance(invocation.target, DiscoveryTarget)]
        assert ("DeltaHistory", 0, ["a"]) in after, "the pass that left early"
        assert after.count(("FullHistory", 0, ["a"])) == 1, f"and the one that followed the loss: {after}"


async def test_two_workers_are_sent_what_each_does_not_hold() -> None:
    async with Bench() as bench:
        functions = {"f": body(*[Step(name) for name in "abcdef"])}
        workers = [await bench.connected(f"wk_{number}", functions=functions, capacity=1) for number in range(2)]
        await bench.publish()
        for worker in workers:
            worker.holding("discovery")
        run_ids = [await bench.begin() for _ in range(4)]
        for worker in workers:
            worker.release_all()
        for _ in range(10):
            await bench.settle()
        assert [await bench.ended(run_id) for run_id in run_ids] == [("succeeded", "not_required")] * 4
        for worker in workers:
            assert {mode for mode, _, _ in map(shape, sent(worker))} == {"FullHistory", "DeltaHistory"}
