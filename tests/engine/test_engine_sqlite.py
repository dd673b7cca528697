"""The engine over a real database: a saga, faults of the commit, a restart on the same file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from ryusen_protocol.ids import RunId
from ryusen_server.ports.store import StorageUnavailable, Unit
from ryusen_server.store.sqlite import NoHooks, SqliteStore
from tests.engine.bench import Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error

TERMINAL = error("terminal", retryable=False)
SAGA = body(Step("a", undo=[None]), Step("b", undo=[None]), Step("c", forward=[TERMINAL], undo=[None]))


class Faults(NoHooks):
    """Fails chosen commits as a full disk would. Runs on the writer's thread."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.commits = 0
        self.failed = 0

    def before_commit(self, units: Sequence[Unit], /) -> None:
        self.commits += 1
        if self.commits in self.failing:
            self.failed += 1
            raise sqlite3.OperationalError("database or disk is full")


async def opened(path: Path, faults: Faults | None = None) -> SqliteStore:
    return await SqliteStore.open(path, on_fatal=pytest.fail, hooks=faults)


async def end_of(bench: Bench, run_id: RunId, worker: FakeWorker) -> None:
    """Wait for the end of a run as the API does; retries and resends need time to pass."""
    ended = bench.engine.waiters.run_ended(run_id)
    for _ in range(200):
        if (await bench.row(run_id)).status == "ended":
            break
        await asyncio.wait([ended], timeout=0.02)
        await bench.advance(1_000, beating=[worker])
        worker.resend()
    bench.engine.waiters.forget(ended)


@pytest.mark.parametrize("merge", [True, False])
async def test_a_saga_over_a_file_and_a_replay_after_a_restart(tmp_path: Path, merge: bool) -> None:
    path = tmp_path / "ryusen.db"
    store = await opened(path)
    async with Bench(store, merge=merge) as bench:
        worker = await bench.serving(SAGA)
        accepted = await bench.submit(key="k")
        run_id = await bench.only_run(accepted.event.event_id)
        await end_of(bench, run_id, worker)
        assert await bench.ended(run_id) == ("failed", "fully_compensated")
        before = await bench.run(run_id)
        assert [bench.count(step, "compensation") for step in "abc"] == [1, 1, 0]
    await store.close()
    store = await opened(path)
    async with Bench(store, merge=merge) as bench:
        assert (await bench.submit(key="k")).replayed
        assert await bench.run(run_id) == before
    await store.close()


@pytest.mark.req("STO-02", "STO-07")
async def test_a_run_in_the_middle_of_an_effect_goes_on_in_another_server(tmp_path: Path) -> None:
    path = tmp_path / "ryusen.db"
    store = await opened(path)
    async with Bench(store) as bench:
        worker = await bench.serving(SAGA)
        worker.holding("forward", "b")
        accepted = await bench.submit(key="k")
        run_id = await bench.only_run(accepted.event.event_id)
        for _ in range(200):
            if worker.of("forward", "b"):
                break
            await bench.settle()
        before = await bench.run(run_id)
        held = dict(worker.executing)
        session = worker.previous_session
    await store.close()
    store = await opened(path)
    async with Bench(store) as bench:
        assert await bench.run(run_id) == before
        worker = bench.worker(functions={"f": SAGA})
        worker.executing, worker.previous_session = held, session
        answer = await worker.connect()
        assert answer.wanted == list(held)
        worker.release_all()
        await end_of(bench, run_id, worker)
        assert await bench.ended(run_id) == ("failed", "fully_compensated")
        assert [bench.count(step) for step in "abc"] == [0, 1, 1], "in this server's life"
    await store.close()


async def test_a_saga_ends_the_same_whichever_commit_the_disk_refuses(tmp_path: Path) -> None:
    failing = 2
    while True:
        faults = Faults()
        store = await opened(tmp_path / f"{failing}.db", faults)
        async with Bench(store) as bench:
            worker = await bench.serving(SAGA)
            faults.failing = {failing, failing + 1}
            for _ in range(10):
                try:
                    accepted = await bench.submit(key="k")
                    break
                except StorageUnavailable:
                    await bench.advance(500)
            else:
                raise AssertionError("never accepted")
            for _ in range(10):
                if await store.event_runs(accepted.event.event_id):
                    break
                await bench.advance(500)
            run_id = await bench.only_run(accepted.event.event_id)
            await end_of(bench, run_id, worker)
            assert await bench.ended(run_id) == ("failed", "fully_compensated")
            run = await bench.run(run_id)
            assert len(run.attempts) == 5
            assert not bench.engine._fleet._flights
            assert not len(bench.engine._leases)
        await store.close()
        if not faults.failed:
            assert failing > 5
            return
        failing += 1


async def test_the_same_key_at_once_gives_one_event_also_when_a_caller_goes_away(tmp_path: Path) -> None:
    store = await opened(tmp_path / "ryusen.db")
    async with Bench(store) as bench:
        gone = asyncio.ensure_future(bench.submit(key="k"))
        for _ in range(4):
            await asyncio.sleep(0)
        gone.cancel()
        accepted = await asyncio.gather(*(bench.submit(key="k") for _ in range(5)))
        assert len({each.event.event_id for each in accepted}) == 1
        assert (await store.counts()).events == 1
    await store.close()


async def test_few_runs_in_memory_over_a_file(tmp_path: Path) -> None:
    store = await opened(tmp_path / "ryusen.db")
    async with Bench(store, runs_in_memory=1, fan_out_batch=3) as bench:
        await bench.publish([("go", "f")] * 9)
        worker = await bench.connected(functions={"f": SAGA}, capacity=2)
        accepted = await bench.submit()
        for _ in range(200):
            rows = await store.event_runs(accepted.event.event_id)
            if len(rows) == 9 and all(row.status == "ended" for row in rows):
                break
            await asyncio.sleep(0.01)
            await bench.settle()
        assert {(row.outcome, row.recovery) for row in rows} == {("failed", "fully_compensated")}
        assert (bench.count("a"), bench.count("a", "compensation")) == (9, 9)
        assert not worker.unacknowledged
    await store.close()
