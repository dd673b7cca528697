"""Faults of the store in the middle of everything: nothing is acknowledged that is not kept, nothing is lost, and the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from ryusen_protocol.ids import RunId
from ryusen_protocol.problems import Problem
from ryusen_server.engine.views import AcceptedEvent, StoppedRun
from ryusen_server.ports.store import StorageUnavailable
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import FakeWorker, Step, body, emit, error

TERMINAL = error("terminal", retryable=False)
SAGA = body(Step("a", undo=[None]), Step("b", forward=[error(), None], undo=[None]), Step("c", forward=[TERMINAL], undo=[None]))


async def persist(bench: Bench, worker: FakeWorker, runs: Iterable[RunId] = ()) -> None:
    """Let a run get on, its worker saying again what was not acknowledged, until everything has ended."""
    for _ in range(120):
        rows = bench.memory._runs.values()
        if rows and all(row.status == "ended" for row in rows):
            return
        await bench.advance(1_000, beating=[worker])
        if worker.channel is not None:
            worker.resend()
        await bench.settle()
    raise AssertionError([row for row in bench.memory._runs.values() if row.status != "ended"])


async def submit_until_accepted(bench: Bench) -> AcceptedEvent:
    for _ in range(50):
        try:
            return await bench.submit(key="k")
        except StorageUnavailable:
            await bench.advance(500)
    raise AssertionError("never accepted")


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("faults", [1, 3])
async def test_a_saga_ends_the_same_whichever_commit_fails(merge: bool, early: bool, faults: int) -> None:
    failing = 2
    while True:
        async with Bench(merge=merge, early=early) as bench:
            worker = await bench.serving(SAGA)
            bench.memory.failing_commits = set(range(failing, failing + faults))
            accepted = await submit_until_accepted(bench)
            run_id = await bench.only_run(accepted.event.event_id)
            await persist(bench, worker)
            assert await bench.ended(run_id) == ("failed", "fully_compensated")
            run = await bench.run(run_id)
            assert run.completed == ["a", "b", "c"]
            forward = {step: len(run.steps[step].attempts) for step in run.steps}
            assert forward == {"a": 1, "b": 2, "c": 1}, "a fault consumes no attempt"
            assert {step: bench.count(step, "compensation") for step in "ab"} == {"a": 1, "b": 1}
            # Every callback ran once for each generation: `Bench` sees to it.
            assert len(bench.memory._events) == 1
            assert not worker.unacknowledged
            if not bench.memory.failed:
                assert failing > 10
                return
            failing += 1


@pytest.mark.parametrize("failing", range(2, 9))
async def test_many_runs_over_few_slots_all_end_after_a_fault(failing: int) -> None:
    async with Bench(fan_out_batch=4) as bench:
        await bench.publish([("go", "f")] * 12)
        worker = await bench.connected(functions={"f": body(Step("a"), Step("b"))}, capacity=3)
        bench.memory.failing_commits = {failing, failing + 2}
        accepted = await submit_until_accepted(bench)
        await persist(bench, worker)
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert len(rows) == 12
        assert {(row.status, row.outcome) for row in rows} == {("ended", "succeeded")}
        assert (bench.count("a"), bench.count("b")) == (12, 12)


async def test_a_long_fault_accepts_nothing_and_everything_goes_on_after_it() -> None:
    async with Bench() as bench:
        worker = await bench.serving(SAGA)
        run_id = await bench.begin()
        bench.memory.write_fault = "disk full"
        for key in ("k", "k", "other"):
            with pytest.raises(StorageUnavailable, match="disk full"):
                await bench.submit(key=key)
        with pytest.raises(StorageUnavailable):
            await bench.try_publish([("go", "g")], application="depot")
        acknowledged = len(worker.acks)
        await bench.advance(60_000, beating=[worker])
        worker.resend()
        await bench.settle()
        assert len(worker.acks) == acknowledged
        events = len(bench.memory._events)
        bench.memory.write_fault = None
        assert not (await bench.submit(key="k")).replayed
        assert (await bench.submit(key="k")).replayed
        assert len(bench.memory._events) == events + 1
        await persist(bench, worker)
        assert await bench.ended(run_id) == ("failed", "fully_compensated")


async def test_a_cancel_that_cannot_be_kept_is_not_acknowledged_and_can_be_repeated() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None])))
        worker.holding("forward")
        run_id = await bench.begin()
        bench.memory.write_fault = "disk full"
        with pytest.raises(StorageUnavailable):
            await bench.engine.cancel(DEFAULT, run_id, by="tester")
        assert (await bench.row(run_id)).status == "running"
        with pytest.raises(StorageUnavailable):
            await bench.engine.cancel(DEFAULT, run_id, by="tester")
        bench.memory.write_fault = None
        stopped = await bench.cancel(run_id)
        assert isinstance(stopped, StoppedRun)
        assert not stopped.replayed
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("cancelled", "fully_compensated")


@pytest.mark.req("STO-05")
@pytest.mark.parametrize("when", ["before the commit fails", "after it"])
async def test_an_unreadable_answer_is_not_acknowledged_while_its_attempt_may_be_wanted_again(when: str) -> None:
    """Told that it is over, the worker forgets the result it holds, and comes back without it: proof that nothing ever began."""
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        (request_id,) = worker.executing
        bench.memory.write_fault = "disk full"
        if when == "before the commit fails":
            bench.memory.hold()
        worker.release_all()
        await bench.settle()
        bench.engine.unreadable_outcome(worker.session_id, request_id, "garbled")
        await bench.settle()
        bench.memory.release()
        await bench.settle()
        assert not worker.acks
        bench.memory.write_fault = None
        await bench.advance(500)
        worker.disconnect()
        await worker.connect()
        worker.resend()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


@pytest.mark.req("STO-05")
async def test_an_authorization_that_is_lost_sends_nothing_and_takes_no_slot() -> None:
    async with Bench() as bench:
        await bench.publish()
        worker = await bench.connected(functions={"f": body(Step("a"))}, capacity=1)
        worker.holding("discovery")
        run_id = await bench.begin()
        bench.memory.write_fault = "disk full"
        worker.release_all()
        await bench.settle()
        assert not worker.of("forward")
        assert bench.engine.workers(DEFAULT)[0].in_flight == 0
        assert not len(bench.engine._leases)
        bench.memory.write_fault = None
        await bench.advance(500)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        attempts = (await bench.run(run_id)).attempts
        assert [attempt.attempt for attempt in attempts.values()] == [1]


async def test_a_result_that_is_lost_is_taken_when_it_is_sent_again() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        bench.memory.failing_commits = {bench.memory.commits + 1}
        worker.release_all()
        await bench.settle()
        assert not worker.acks
        await bench.advance(500)
        assert (await bench.row(run_id)).status == "running"
        worker.resend()
        await bench.settle()
        assert worker.dispositions == ["accepted"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


async def test_a_result_that_comes_while_its_run_is_away_from_memory_is_taken() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        bench.memory.failing_commits = {bench.memory.commits + 1}
        request_id = next(iter(worker.executing))
        bench.engine.unreadable_outcome(worker.session_id, request_id, "garbage")
        await bench.settle()
        assert bench.engine._runs.get(run_id) is None
        worker.release_all()
        await bench.settle()
        assert worker.dispositions == ["accepted"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_proof_that_an_effect_never_began_outlives_a_fault() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        worker.disconnect()
        worker.forget()
        worker.holds = lambda _: False
        bench.memory.write_fault = "disk full"
        await worker.connect()
        await bench.advance(5_000, beating=[worker])
        bench.memory.write_fault = None
        await bench.advance(1_000)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


async def test_a_lease_that_ends_during_a_fault_ends_after_it() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        worker.disconnect()
        bench.memory.fault = "unplugged"
        await bench.advance(60_000)
        bench.memory.fault = None
        await bench.advance(32_000)
        assert (await bench.row(run_id)).attention == "unknown"
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_deadline_and_a_retry_that_come_due_during_a_fault_are_met_after_it() -> None:
    async with Bench(runs_in_memory=1) as bench:
        await bench.publish([("go", "f"), ("slow", "g")], timeouts={"g": 5_000})
        await bench.connected(functions={"f": body(Step("a", forward=[error(), None]))})
        retrying = await bench.begin()
        waiting = await bench.begin("slow")
        bench.memory.fault = "unplugged"
        await bench.advance(10_000)
        bench.memory.fault = None
        await bench.advance(1_000)
        assert await bench.ended(retrying) == ("succeeded", "not_required")
        assert await bench.ended(waiting) == ("timed_out", "not_required")


async def test_work_that_could_not_be_loaded_for_a_worker_is_not_forgotten() -> None:
    async with Bench(runs_in_memory=1) as bench:
        await bench.publish([("go", "f")] * 5)
        accepted = await bench.submit()
        await bench.settle()
        bench.memory.fault = "unplugged"
        await bench.connected()
        await bench.advance(2_000)
        bench.memory.fault = None
        await bench.advance(1_000)
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert {row.status for row in rows} == {"ended"}


async def test_runs_whose_commits_fail_do_not_push_each_other_to_the_worker_without_a_pause() -> None:
    async with Bench() as bench:
        await bench.publish([("go", "f"), ("told", "g")])
        worker = await bench.connected(functions={"f": body(emit("tell", "told")), "g": body()}, capacity=1)
        worker.holding("discovery")
        run_id = await bench.begin()
        bench.memory.write_fault = "disk full"
        worker.release_all()  # the event it emits starts a run, which takes its slot until the commit of both fails
        for _ in range(20):
            await bench.settle()
        assert len(worker.of("discovery")) <= 4
        bench.memory.write_fault = None
        await bench.advance(1_000)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert {row.status for row in bench.memory._runs.values()} == {"ended"}


@pytest.mark.parametrize("lost", [True, False])
async def test_a_callback_of_the_store_that_fails_does_not_keep_the_next_from_its_answer(lost: bool) -> None:
    async with Bench() as bench:
        bench.expect_errors = True
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        live = bench.engine._runs.get(run_id)
        assert live is not None
        told: list[StorageUnavailable | None] = []

        def broken(failure: StorageUnavailable | None) -> None:
            raise ValueError(failure)

        bench.memory.hold()
        stopping = asyncio.ensure_future(bench.engine.cancel(DEFAULT, run_id, by="tester"))
        await bench.settle()
        live.followers.insert(0, broken)
        bench.engine._runs.when_durable(live, told.append)
        bench.memory.write_fault = "disk full" if lost else None
        bench.memory.release()
        await bench.settle()
        bench.memory.write_fault = None
        assert [failure is not None for failure in told] == [lost]
        stopped = (await asyncio.gather(stopping, return_exceptions=True))[0]
        assert isinstance(stopped, StorageUnavailable if lost else StoppedRun)
        assert len(bench.errors.records) == 1
        await bench.advance(500)
        worker.release_all()
        await bench.settle()
        assert (await bench.row(run_id)).status == "ended"


async def test_a_refusal_needs_no_commit() -> None:
    async with Bench() as bench:
        await bench.serving(body())
        run_id = await bench.begin()
        bench.memory.write_fault = "disk full"
        assert isinstance(await bench.engine.cancel(DEFAULT, run_id, by="tester"), Problem)
        bench.memory.write_fault = None


async def test_waiters_are_told_once_the_end_is_kept_and_not_when_it_was_lost() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body())
        worker.holding("discovery")
        run_id = await bench.begin()
        ended = bench.engine.waiters.run_ended(run_id)
        bench.memory.failing_commits = {bench.memory.commits + 1}
        worker.release_all()
        await bench.settle()
        assert not ended.done()
        await bench.advance(500)
        assert ended.done()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
