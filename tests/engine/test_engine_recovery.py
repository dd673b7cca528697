"""Restarts, memory and shutdown: what a new engine makes of a store, and what one engine may forget."""

from __future__ import annotations

import asyncio

import pytest

from ryusen_protocol.declarations import RetryPolicy
from ryusen_protocol.frames import RegistrationRejected
from ryusen_protocol.ids import EventId, RoutingGeneration, RunId, StepId, Workspace
from ryusen_server.core.decision import SettleParent
from ryusen_server.core.routing import RoutingTable
from ryusen_server.core.rows import EventRow, HistoryRow
from ryusen_server.engine.control import Control
from ryusen_server.engine.runs import LiveRun
from ryusen_server.ports.store import StorageUnavailable
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error

TERMINAL = error("terminal", retryable=False)
SAGA = body(Step("a", undo=[None]), Step("b", forward=[error(), None], undo=[None]), Step("c", forward=[TERMINAL], undo=[None]))


async def persist(bench: Bench, worker: FakeWorker) -> None:
    for _ in range(60):
        if all(row.status == "ended" for row in bench.memory._runs.values()):
            return
        await bench.advance(1_000, beating=[worker])
        if worker.channel is not None:
            worker.resend()
        await bench.settle()
    raise AssertionError([row for row in bench.memory._runs.values() if row.status != "ended"])


@pytest.mark.req("STO-02")
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("early", [True, False])
async def test_a_saga_ends_the_same_whichever_commit_the_server_dies_after(merge: bool, early: bool) -> None:
    after = 3
    while True:
        async with Bench(merge=merge, early=early) as bench:
            worker = await bench.serving(SAGA)
            await bench.submit(key="k")
            for _ in range(400):
                if bench.memory.commits >= after:
                    break
                timer = bench.clock.next_within(bench.clock.elapsed_ms + 1_000)
                if timer is not None:
                    timer.callback()
                await asyncio.sleep(0)
            died = any(row.status != "ended" for row in bench.memory._runs.values())
            await bench.restart()
            await worker.connect()
            await persist(bench, worker)
            accepted = await bench.submit(key="k")
            assert accepted.replayed
            run_id = await bench.only_run(accepted.event.event_id)
            assert await bench.ended(run_id) == ("failed", "fully_compensated")
            run = await bench.run(run_id)
            assert {step: len(run.steps[step].attempts) for step in run.steps} == {"a": 1, "b": 2, "c": 1}
            assert {step: bench.count(step, "compensation") for step in "ab"} == {"a": 1, "b": 1}
            if not died:
                assert after > 8
                return
            after += 1


async def test_a_retry_waits_for_its_backoff_over_a_restart() -> None:
    policy = RetryPolicy(4, 600_000, 1.0, 600_000, 0.0)
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error(), None], retry=policy)))
        run_id = await bench.begin()
        await bench.advance(100_000, beating=[worker])
        await bench.restart()
        await worker.connect()
        await bench.advance(499_999, beating=[worker])
        assert bench.count("a") == 1
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("STO-07", "CON-02")
@pytest.mark.parametrize("finished", [True, False])
async def test_a_worker_that_outlives_the_server_delivers_its_result_to_the_next_one(finished: bool) -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        request_id = next(iter(worker.executing))
        await bench.crash()
        if finished:
            worker.finish(request_id)
        await bench.advance(3_000)
        await bench.engine.start()
        await bench.settle()
        contact = bench.engine.contact(request_id)
        assert contact is not None
        assert contact.unknown_at_ms == bench.clock.now_ms() + bench.config.reconnect_grace_ms
        assert contact.out_of_contact
        await bench.advance(20_000)
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert worker.dispositions == ["accepted"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


@pytest.mark.req("STO-04")
async def test_an_effect_whose_worker_does_not_come_back_after_a_restart_becomes_unknown_after_the_grace() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", timeout_ms=5_000)))
        worker.holding("forward")
        run_id = await bench.begin()
        await bench.crash()
        await bench.advance(3_600_000)
        await bench.engine.start()
        await bench.advance(29_999)
        assert (await bench.row(run_id)).attention is None, "the grace is for the answer that was due meanwhile, too"
        await bench.advance(251)
        assert (await bench.row(run_id)).attention == "unknown"
        assert len(worker.of("forward")) == 1


async def test_the_same_process_proves_over_a_restart_what_never_began() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        await bench.restart()
        worker.forget()
        worker.holds = lambda _: False
        await worker.connect()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


@pytest.mark.req("STO-07")
async def test_stop_intent_and_an_unknown_attempt_are_as_they_were_after_a_restart() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None])))
        worker.holding("forward")
        run_id = await bench.begin()
        worker.disconnect()
        await bench.advance(31_000)
        await bench.cancel(run_id)
        before = await bench.run(run_id)
        await bench.restart()
        await bench.advance(120_000)
        assert await bench.run(run_id) == before
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("cancelled", "fully_compensated")


async def test_cancel_of_every_run_after_a_restart_is_accepted() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", undo=[None]), Step("b", forward=[error()])))
        worker.holding("forward", "b")
        runs = [await bench.begin() for _ in range(6)]
        for request_id in list(worker.executing)[:3]:
            worker.finish(request_id)
        await bench.settle()
        await bench.restart()
        for run_id in runs:
            await bench.cancel(run_id)
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert {await bench.ended(run_id) for run_id in runs} == {("cancelled", "fully_compensated")}


async def test_every_failing_read_of_the_recovery_is_retried_and_none_needs_a_second_restart() -> None:
    failing = 0
    while True:
        async with Bench(fan_out_batch=2) as bench:
            await bench.publish([("go", "f")] * 5)
            worker = await bench.connected(functions={"f": body(Step("a"))}, capacity=2)
            worker.holding("forward")
            await bench.submit()
            await bench.settle()
            sending = asyncio.ensure_future(bench.submit())
            for _ in range(3):
                await asyncio.sleep(0)
            await bench.crash()
            sending.cancel()
            bench.memory.reads = 0
            bench.memory.failing_reads = {failing, failing + 1}
            for _ in range(3):
                try:
                    await bench.engine.start()
                    break
                except StorageUnavailable:
                    continue  # at once: what the first try began has not been committed yet
            await bench.advance(2_000)
            reached = bench.memory.reads
            try:
                await worker.connect()
            except AssertionError:
                await worker.connect()
            worker.release_all()
            await persist(bench, worker)
            assert all(row.status == "ended" for row in bench.memory._runs.values())
            assert bench.count("a") == len(bench.memory._runs) == 10
            if failing > reached:
                assert failing > 10
                return
            failing += 1


async def test_one_run_that_cannot_be_read_keeps_no_other_from_going_on() -> None:
    async with Bench() as bench:
        bench.expect_errors = True
        await bench.publish([("go", "f")] * 3)
        accepted = await bench.submit()
        await bench.settle()
        rows = sorted(await bench.store.event_runs(accepted.event.event_id), key=lambda row: row.run_id)
        broken = rows[0].run_id
        await bench.crash()
        kept = bench.memory._history.pop(broken)
        bench.memory._history[broken] = [type(kept[0])(kept[0].position, kept[0].at_ms, b'[{"kind":"discovery_queued","pass":1}]')]
        await bench.engine.start()
        await bench.settle()
        worker = await bench.connected()
        assert len(worker.invocations) == 2
        assert bench.errors.records
        bench.memory._history[broken] = kept
        await bench.restart()
        await worker.connect()
        assert all(row.status == "ended" for row in bench.memory._runs.values())


async def test_one_run_that_was_out_and_cannot_be_read_keeps_no_server_from_starting() -> None:
    async with Bench() as bench:
        bench.expect_errors = True
        await bench.publish([("go", "f")] * 2)
        worker = await bench.connected(functions={"f": body(Step("a"))})
        worker.holding("forward")
        accepted = await bench.submit()
        await bench.settle()
        broken, other = [row.run_id for row in await bench.store.event_runs(accepted.event.event_id)]
        assert len(await bench.store.authorized_runs()) == 2
        await bench.crash()
        kept = bench.memory._history.pop(broken)
        bench.memory._history[broken] = [type(kept[0])(kept[0].position, kept[0].at_ms, b'[{"kind":"discovery_queued","pass":1}]')]
        await bench.engine.start()
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(other) == ("succeeded", "not_required")
        assert bench.errors.records
        bench.memory._history[broken] = kept
        await bench.restart()
        await worker.connect()
        worker.resend()
        assert await bench.ended(broken) == ("succeeded", "not_required")


async def test_what_cannot_be_carried_out_keeps_nothing_else_from_going_on_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Control, "_stored_table", _no_table)
    async with Bench() as bench:
        bench.expect_errors = True
        worker = await bench.serving(body(Step("a"), Step("b")))
        worker.holding("discovery")
        run_id = await bench.begin()
        bench.memory.failing_commits.add(bench.memory.commits + 1)
        bench.engine._families._later(SettleParent(RunId("rn_gone"), RunId("rn_parent"), StepId("pack")))
        bench.engine._control._retry.add(EventId("ev_odd"))
        bench.memory._events[EventId("ev_odd")] = EventRow(
            EventId("ev_odd"), DEFAULT, "odd", b"", {}, 0, RoutingGeneration("rg_gone"), 1, 0
        )
        worker.release_all()
        await bench.advance(5_000, beating=[worker])  # less than a walk of the wake index would take
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert len(bench.errors.records) == 2
        await bench.restart()
        assert len(bench.errors.records) == 3, "a start meets it again, and goes on"


async def _no_table(_: Control, workspace: Workspace, generation: RoutingGeneration) -> RoutingTable:
    raise AssertionError(f"{generation} of {workspace} names a manifest that is not stored")


# memory


@pytest.mark.parametrize("runs_in_memory", [1, 2, 5])
async def test_few_runs_in_memory_change_no_result(runs_in_memory: int) -> None:
    async with Bench(runs_in_memory=runs_in_memory, fan_out_batch=4) as bench:
        await bench.publish([("go", "f")] * 12)
        accepted = await bench.submit()
        await bench.settle()
        assert len(bench.engine._runs) <= max(runs_in_memory, 4), "a batch that is not committed cannot leave"
        worker = await bench.connected(functions={"f": SAGA}, capacity=2)
        await persist(bench, worker)
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert {(row.outcome, row.recovery) for row in rows} == {("failed", "fully_compensated")}
        assert (bench.count("a"), bench.count("a", "compensation")) == (12, 12)
        assert len(bench.engine._runs) <= runs_in_memory


async def test_a_run_evicted_while_it_was_being_loaded_is_not_changed_outside_the_memory() -> None:
    async with Bench(runs_in_memory=1) as bench:
        await bench.publish([("go", "f")] * 4)
        accepted = await bench.submit()
        await bench.settle()
        rows = await bench.store.event_runs(accepted.event.event_id)
        await asyncio.gather(*(bench.cancel(row.run_id) for row in rows for _ in range(2)))
        for row in rows:
            assert await bench.ended(row.run_id) == ("cancelled", "not_required")


async def test_a_run_that_leaves_as_soon_as_it_is_read_is_read_again_by_whoever_asks_next() -> None:
    async with Bench() as bench:
        await bench.publish([("go", "f")])
        accepted = await bench.submit()
        await bench.settle()
        (row,) = await bench.store.event_runs(accepted.event.event_id)
        runs, history = bench.engine._runs, bench.memory.history
        runs._live.pop(row.run_id)
        reads = 0

        async def counted(run_id: RunId, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
            nonlocal reads
            reads += 1
            assert reads < 5, "a reading that is over is waited for again and again"
            return await history(run_id, after=after, limit=limit)

        bench.memory.history = counted

        async def drop_and_ask() -> LiveRun | None:
            while row.run_id not in runs._live:  # noqa: ASYNC110 - the turn right after the reading
                await asyncio.sleep(0)
            runs._live.pop(row.run_id)
            assert all(not task.done() for task in runs._loading.values()), "would be waited for without a turn for anybody else"
            return await runs.load(row.run_id)

        first, second = await asyncio.gather(runs.load(row.run_id), drop_and_ask())
        assert first is second is runs.get(row.run_id)


async def test_nothing_of_an_ended_run_stays_in_memory() -> None:
    async with Bench() as bench:
        await bench.publish([("go", "f")] * 20, timeouts={"f": 3_600_000})
        worker = await bench.connected(functions={"f": SAGA})
        await bench.submit()
        await persist(bench, worker)
        engine = bench.engine
        dispatcher = engine._dispatcher
        assert len(engine._runs) == 0
        assert not len(engine._leases)
        assert not engine._fleet._flights
        assert not dispatcher._armed_for
        assert not dispatcher._paced
        assert not dispatcher._hurried
        assert not engine._mover.owed
        assert not engine._control._expanding
        assert not engine._control._retry
        await bench.advance(500)
        assert len(engine._mover.tasks) == 0


async def test_instants_of_ended_runs_are_swept_out_of_the_heap() -> None:
    async with Bench(fan_out_batch=256) as bench:
        await bench.publish([("go", "f")] * 250, timeouts={"f": 3_600_000})
        await bench.connected(capacity=1_000)
        for _ in range(9):
            await bench.submit()
            await bench.settle()
        await bench.settle()
        assert all(row.status == "ended" for row in bench.memory._runs.values())
        assert len(bench.memory._runs) == 2_250
        assert len(bench.engine._dispatcher._timers) <= 2_001


# shutdown


@pytest.mark.req("STO-03")
async def test_a_drain_waits_for_what_is_out_and_starts_nothing_new() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a"), Step("b")))
        worker.holding("forward")
        run_id = await bench.begin()
        draining = asyncio.ensure_future(bench.engine.drain(30_000))
        await bench.settle()
        assert worker.told_to_drain
        assert not draining.done()
        refused = await bench.worker("wk_2").register()
        assert isinstance(refused, RegistrationRejected)
        assert refused.code == "unavailable"
        worker.release_all()
        await bench.settle()
        assert draining.done()
        assert worker.dispositions == ["accepted"]
        assert not worker.of("forward", "b")
        assert len(worker.of("discovery")) == 1
        worker.disconnect()
        await bench.restart()
        await worker.connect()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("STO-03")
async def test_a_drain_ends_at_its_bound() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        draining = asyncio.ensure_future(bench.engine.drain(5_000))
        await bench.settle()
        await bench.advance(4_999)
        assert not draining.done()
        await bench.advance(1)
        assert draining.done()
        await bench.restart()
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_drain_does_not_wait_for_workers_that_are_gone() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        await bench.begin()
        draining = asyncio.ensure_future(bench.engine.drain(30_000))
        await bench.settle()
        worker.disconnect()
        await bench.settle()
        assert draining.done()


async def test_a_stopped_engine_arms_no_timer_and_starts_no_task() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error(), None])))
        await bench.begin()
        bench.memory.write_fault = "disk full"
        await bench.submit_lost()
        await bench.engine.stop()
        worker.disconnect()
        reads = bench.memory.reads
        await bench.advance(120_000)
        assert bench.memory.reads == reads
        assert bench.clock.armed == 0
        assert not bench.engine._mover.tasks
        bench.memory.write_fault = None
        await bench.restart()
        await worker.connect()
        await persist(bench, worker)


@pytest.mark.req("MAN-05")
@pytest.mark.parametrize("turns", range(6))
async def test_a_crash_moves_both_heads_or_neither(turns: int) -> None:
    async with Bench() as bench:
        first = await bench.publish()
        parent = first.manifest.manifest_generation
        publishing = asyncio.ensure_future(bench.publish([("go", "g")], parent=parent))
        for _ in range(turns):
            await asyncio.sleep(0)
        await bench.crash()
        publishing.cancel()
        await bench.engine.start()
        active = bench.engine.active_manifests(DEFAULT)[0]
        assert bench.engine.routing_head(DEFAULT) == active.routing_generation
        routing = await bench.store.routing(DEFAULT, active.routing_generation)
        assert routing.applications == {"shop": active.manifest_generation}
