"""A run from its event to its end: steps, retries, sagas, cancels and deadlines."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from ryusen_protocol.declarations import RetryPolicy
from ryusen_protocol.frames import Invoke, OutcomeAck
from ryusen_protocol.outcome import RejectedBeforeStart
from ryusen_protocol.problems import Problem
from ryusen_server.engine.views import StoppedRun
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import Step, body, error

TERMINAL = error("terminal", retryable=False)
RETRY_ONCE = [error("first"), None]


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("early", [True, False])
async def test_three_steps_run_once_each_whatever_the_switches(merge: bool, early: bool) -> None:
    async with Bench(merge=merge, early=early) as bench:
        await bench.serving(body(Step("a"), Step("b"), Step("c"), answer=7))
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        run = await bench.run(run_id)
        assert run.completed == ["a", "b", "c"]
        assert [bench.count(step) for step in "abc"] == [1, 1, 1]
        assert bytes(run.result or b"") == b'{"type":"i64","value":"7"}'


@pytest.mark.req("STO-05")
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("early", [True, False])
async def test_an_effect_leaves_only_after_its_commit(merge: bool, early: bool) -> None:
    async with Bench(merge=merge, early=early) as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), fails=TERMINAL))
        worker.holding("discovery")
        run_id = await bench.begin()
        bench.memory.hold()
        worker.release_all()
        await bench.settle()
        assert not worker.of("forward")
        bench.memory.release()
        worker.holding("forward")
        await bench.settle()
        assert len(worker.of("forward")) == 1

        bench.memory.hold()
        worker.release_all()
        await bench.settle()
        assert not worker.acks, "a result is acknowledged only after its commit"
        assert len(worker.of("discovery")) == (2 if early else 1)
        assert not worker.of("compensation")
        bench.memory.release()
        await bench.settle()
        assert worker.dispositions == ["accepted", "accepted"]
        assert await bench.ended(run_id) == ("failed", "fully_compensated")


@pytest.mark.parametrize("early", [True, False])
async def test_the_first_discovery_waits_for_its_run_unless_early(early: bool) -> None:
    async with Bench(early=early) as bench:
        worker = await bench.serving(body())
        bench.memory.hold()
        sending = asyncio.ensure_future(bench.submit())
        await bench.settle()
        assert not sending.done(), "an event is acknowledged only after its commit"
        assert len(worker.invocations) == (1 if early else 0)
        bench.memory.release()
        await bench.settle()
        accepted = await sending
        assert await bench.ended(await bench.only_run(accepted.event.event_id)) == ("succeeded", "not_required")


async def test_a_failed_step_undoes_the_earlier_ones_in_reverse() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), Step("b", undo=[None]), Step("c", forward=[TERMINAL])))
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("failed", "fully_compensated")
        undone = [invocation.target.step_id for invocation in worker.of("compensation")]  # type: ignore[union-attr]
        assert undone == ["b", "a"]


async def test_a_step_without_compensator_is_skipped() -> None:
    async with Bench() as bench:
        await bench.serving(body(Step("a"), Step("b", undo=[None]), fails=TERMINAL))
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("failed", "partially_compensated")


async def test_a_handled_failure_lets_the_run_succeed() -> None:
    async with Bench() as bench:
        await bench.serving(body(Step("a", undo=[None]), Step("b", forward=[TERMINAL], handled=True)))
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a", "compensation") == 0


async def test_a_retry_waits_for_its_backoff() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error(), error(), None])))
        run_id = await bench.begin()
        await bench.advance(999, beating=[worker])
        assert bench.count("a") == 1
        await bench.advance(1)
        assert bench.count("a") == 2
        await bench.advance(1_999)
        assert bench.count("a") == 2
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        operations = {invocation.target.operation_id for invocation in worker.of("forward")}  # type: ignore[union-attr]
        assert len(operations) == 1


async def test_a_compensation_retries_with_its_own_policy() -> None:
    async with Bench() as bench:
        await bench.serving(body(Step("a", undo=RETRY_ONCE), fails=TERMINAL))
        run_id = await bench.begin()
        await bench.advance(1_000)
        assert await bench.ended(run_id) == ("failed", "fully_compensated")
        assert bench.count("a", "compensation") == 2


async def test_a_failed_compensation_does_not_stop_the_unwind() -> None:
    async with Bench() as bench:
        await bench.serving(body(Step("a", undo=[None]), Step("b", undo=[TERMINAL]), fails=TERMINAL))
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("failed", "compensation_failed")
        assert bench.count("a", "compensation") == 1


# cancel


async def test_cancel_while_queued_without_a_worker_ends_the_run() -> None:
    async with Bench() as bench:
        await bench.publish()
        run_id = await bench.begin()
        stopped = await bench.cancel(run_id)
        assert isinstance(stopped, StoppedRun)
        assert not stopped.replayed
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        worker = await bench.connected()
        assert not worker.invocations
        assert bench.engine._dispatcher.waiting == 0


async def test_cancel_during_discovery_discards_the_response() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("discovery")
        run_id = await bench.begin()
        await bench.cancel(run_id)
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        worker.release_all()
        await bench.settle()
        assert bench.count("a") == 0


async def test_cancel_during_an_effect_waits_for_it_and_undoes_it() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), Step("b")))
        worker.holding("forward")
        run_id = await bench.begin()
        await bench.cancel(run_id)
        assert (await bench.row(run_id)).status == "stopping"
        again = await bench.cancel(run_id)
        assert isinstance(again, StoppedRun)
        assert again.replayed
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("cancelled", "fully_compensated")
        assert bench.count("b") == 0


async def test_cancel_in_backoff_runs_no_retry() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=RETRY_ONCE)))
        run_id = await bench.begin()
        await bench.cancel(run_id)
        await bench.advance(5_000, beating=[worker])
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        assert bench.count("a") == 1


async def test_a_retryable_failure_after_a_cancel_is_not_retried() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error()])))
        worker.holding("forward")
        run_id = await bench.begin()
        await bench.cancel(run_id)
        worker.release_all()
        await bench.advance(60_000, beating=[worker])
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        assert bench.count("a") == 1


async def test_cancel_of_a_run_that_succeeded_is_refused_with_its_outcome() -> None:
    async with Bench() as bench:
        await bench.serving(body())
        run_id = await bench.begin()
        before = bench.memory.rows_of(run_id)
        refused = await bench.cancel(run_id)
        assert isinstance(refused, Problem)
        assert (refused.code, refused.outcome) == ("not_cancellable", "succeeded")
        assert bench.memory.rows_of(run_id) == before


async def test_cancel_of_a_cancelled_run_is_replayed() -> None:
    async with Bench() as bench:
        await bench.publish()
        run_id = await bench.begin()
        await bench.cancel(run_id)
        again = await bench.cancel(run_id)
        assert isinstance(again, StoppedRun)
        assert again.replayed


async def test_cancel_during_the_unwind_of_a_failed_run_is_refused() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), fails=TERMINAL))
        worker.holding("compensation")
        run_id = await bench.begin()
        refused = await bench.cancel(run_id)
        assert isinstance(refused, Problem)
        assert (refused.code, refused.outcome) == ("not_cancellable", "failed")
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("failed", "fully_compensated")


async def test_a_run_of_another_workspace_cannot_be_cancelled() -> None:
    async with Bench() as bench:
        await bench.publish()
        run_id = await bench.begin()
        refused = await bench.engine.cancel("other", run_id, by="tester")  # type: ignore[arg-type]  # ids are text
        assert isinstance(refused, Problem)
        assert refused.code == "not_found"
        assert (await bench.row(run_id)).status == "running"


async def test_rediscover_is_refused_unless_the_run_is_blocked() -> None:
    async with Bench() as bench:
        await bench.publish()
        run_id = await bench.begin()
        refused = await bench.engine.rediscover(DEFAULT, run_id, by="tester")
        assert isinstance(refused, Problem)
        assert refused.code == "not_blocked"


# deadlines


@pytest.mark.parametrize("timeout_ms", [5_000, 59_000, 61_000, 600_000])
async def test_a_deadline_ends_a_run_on_time_near_and_beyond_the_horizon(timeout_ms: int) -> None:
    async with Bench() as bench:
        await bench.publish(timeouts={"f": timeout_ms})
        run_id = await bench.begin()
        await bench.advance(timeout_ms - 1)
        assert (await bench.row(run_id)).status == "running"
        await bench.advance(1)
        assert await bench.ended(run_id) == ("timed_out", "not_required")


@pytest.mark.req("DLN-09")
@pytest.mark.parametrize("timeout_ms", [30_000, 600_000])
async def test_a_deadline_survives_a_restart(timeout_ms: int) -> None:
    async with Bench() as bench:
        await bench.publish(timeouts={"f": timeout_ms})
        run_id = await bench.begin()
        await bench.restart()
        await bench.advance(timeout_ms - 1)
        assert (await bench.row(run_id)).status == "running"
        await bench.advance(1)
        assert await bench.ended(run_id) == ("timed_out", "not_required")


async def test_a_deadline_passed_while_the_server_was_down_is_met_at_once() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error()])))
        await bench.publish(timeouts={"f": 5_000}, parent=bench.engine.active_manifests(DEFAULT)[0].manifest_generation)
        run_id = await bench.begin()
        await bench.crash()
        bench.clock.jump(3_600_000)
        await bench.engine.start()
        await bench.settle()
        await bench.advance(0)
        assert await bench.ended(run_id) == ("timed_out", "not_required")
        await worker.connect()
        assert bench.count("a") == 1


async def test_a_deadline_waits_for_an_effect_and_never_cuts_its_undo_short() -> None:
    async with Bench() as bench:
        await bench.publish(timeouts={"f": 5_000})
        worker = await bench.connected(functions={"f": body(Step("a", undo=[None]))})
        worker.holding("forward")
        run_id = await bench.begin()
        await bench.advance(5_000, beating=[worker])
        assert (await bench.row(run_id)).status == "stopping"
        worker.holding("compensation")
        worker.finish(next(iter(worker.executing)))
        await bench.advance(60_000, beating=[worker])
        assert (await bench.row(run_id)).status == "compensating"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("timed_out", "fully_compensated")


async def test_a_completion_before_the_deadline_leaves_no_timer_that_loads_the_run() -> None:
    async with Bench() as bench:
        await bench.publish(timeouts={"f": 20_000})
        await bench.connected()
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        reads = bench.memory.reads
        await bench.advance(25_000)
        assert bench.engine._runs.get(run_id) is None
        assert bench.memory.reads == reads, "an ended run is not looked at again"


async def test_a_clock_that_jumps_ahead_meets_deadline_and_backoff() -> None:
    async with Bench() as bench:
        await bench.publish([("go", "f"), ("slow", "g")], timeouts={"g": 600_000})
        await bench.connected(functions={"f": body(Step("a", forward=RETRY_ONCE))})
        retrying = await bench.begin()
        waiting = await bench.begin("slow")
        bench.clock.jump(3_600_000)
        await bench.advance(250)
        assert await bench.ended(retrying) == ("succeeded", "not_required")
        assert await bench.ended(waiting) == ("timed_out", "not_required")


@pytest.mark.parametrize("back_ms", [1_000, 7_200_000])
async def test_a_clock_that_goes_back_settles_no_timer_early_and_loses_none(back_ms: int) -> None:
    slow = Step("a", forward=RETRY_ONCE, retry=RetryPolicy(4, 600_000, 1.0, 600_000, 0.0))
    async with Bench() as bench:
        worker = await bench.serving(body(slow))
        earlier = await bench.begin()
        await bench.advance(570_000, beating=[worker])
        bench.clock.jump(-back_ms)
        later = await bench.begin()
        await bench.advance(599_999, beating=[worker])
        assert (await bench.row(later)).status == "running"
        await bench.advance(1)
        assert await bench.ended(later) == ("succeeded", "not_required")
        await bench.advance(back_ms, beating=[worker])
        assert await bench.ended(earlier) == ("succeeded", "not_required")


async def test_an_undo_that_is_due_goes_to_the_next_worker_however_far_the_clock_went_back() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), Step("b")))
        worker.holds = lambda _: len(worker.of("discovery")) > 1
        run_id = await bench.begin()
        worker.disconnect()
        await bench.engine.cancel(DEFAULT, run_id, by="operator")
        assert (await bench.row(run_id)).status == "compensating"
        bench.clock.jump(-7_200_000)
        await bench.connected("wk_2", functions=worker.functions)
        assert await bench.ended(run_id) == ("cancelled", "fully_compensated")


@pytest.mark.parametrize("holding", ["discovery", "forward"])
async def test_no_pace_outlasts_a_clock_that_goes_back(holding: Literal["discovery", "forward"]) -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding(holding)
        run_id = await bench.begin()
        for _ in range(3):
            assert worker.executing
            ordinal = (None, None) if holding == "discovery" else (1, 1)
            worker.finish(next(iter(worker.executing)), RejectedBeforeStart("busy", *ordinal))
            await bench.advance(1_000)
        assert not worker.executing
        bench.clock.jump(-7_200_000)
        await bench.advance(250)
        assert worker.executing
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


# waiting


async def test_waiters_are_told_of_the_end_and_of_the_expansion_after_the_commit() -> None:
    async with Bench(fan_out_batch=1) as bench:
        await bench.publish([("go", "f")] * 3)
        worker = await bench.connected()
        worker.holding("discovery")
        accepted = await bench.submit()
        expanded = bench.engine.waiters.expanded(accepted.event.event_id)
        assert not expanded.done()
        await bench.settle()
        assert expanded.done()
        run_id = (await bench.store.event_runs(accepted.event.event_id))[0].run_id
        ended = bench.engine.waiters.run_ended(run_id)
        forgotten = bench.engine.waiters.run_ended(run_id)
        bench.engine.waiters.forget(forgotten)
        bench.memory.hold()
        worker.release_all()
        await bench.settle()
        assert not ended.done()
        bench.memory.release()
        await bench.settle()
        assert ended.done()
        assert forgotten.cancelled()
        bench.engine.waiters.forget(ended)
        bench.engine.waiters.forget(expanded)
        assert not bench.engine.waiters._waiting
        assert not bench.engine.waiters._key_of


async def test_a_retry_that_is_due_at_once_does_not_overtake_the_acknowledgement_of_the_failure() -> None:
    at_once = RetryPolicy(max_attempts=2, initial_ms=0, maximum_ms=0, jitter=0.0)
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error(), None], retry=at_once)))
        run_id = await bench.begin()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert worker.channel is not None
        first, second = (invocation.request_id for invocation in worker.of("forward", "a"))
        of_attempts = {first: "first", second: "second"}
        order: list[str] = []
        for frame in worker.channel.frames:
            if isinstance(frame, OutcomeAck):
                order.append(f"{of_attempts[frame.request_id]} acknowledged")
            elif isinstance(frame, Invoke) and frame.invocation.request_id in of_attempts:
                order.append(f"{of_attempts[frame.invocation.request_id]} out")
        assert order == ["first out", "first acknowledged", "second out", "second acknowledged"]
