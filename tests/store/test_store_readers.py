"""Reads beside the writer, whatever happens to the tasks that make them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ryusen_protocol.ids import RunId
from ryusen_server.ports.store import StorageUnavailable
from ryusen_server.store.sqlite import SqliteConfig, SqliteStore
from tests.store.builders import begins, commit, registers, run_row, submit
from tests.store.harness import opened

SLOW = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 30000000) SELECT count(*) FROM n"


async def test_cancelled_readers_leave_no_transaction_and_lose_no_connection(db: Path) -> None:
    async with opened(db, config=SqliteConfig(readers=2)) as store:
        await commit(store, begins(run_row("run_1")), registers("r1"))
        chance = random.Random(7)
        for _ in range(60):
            tasks: list[asyncio.Task[object]] = [asyncio.create_task(store.heads()) for _ in range(6)]
            tasks.append(asyncio.create_task(store.run(RunId("run_1"))))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.random() * 0.001)
            for task in chance.sample(tasks, 5):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Both connections serve, and neither still stands on an old state.
        await commit(store, registers("r2"))
        async with asyncio.timeout(10):
            for heads in await asyncio.gather(*(store.heads() for _ in range(8))):
                assert [release.release_id for release in heads.releases] == ["r1", "r2"]
        connections = [await store._readers._free.get() for _ in range(2)]
        assert not any(connection.in_transaction for connection in connections)
        for connection in connections:
            store._readers._free.put_nowait(connection)


async def test_a_cancelled_long_read_frees_its_connection_at_once(db: Path) -> None:
    async with opened(db, config=SqliteConfig(readers=1)) as store:
        await commit(store, begins(run_row("run_1")))
        slow = asyncio.create_task(store._readers.rows(SLOW))
        await asyncio.sleep(0.05)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        async with asyncio.timeout(1):
            assert await store.run(RunId("run_1")) is not None


async def test_a_long_read_does_not_hold_commits_up(db: Path) -> None:
    async with opened(db, config=SqliteConfig(checkpoint_pages=10)) as store:
        slow = asyncio.create_task(store._readers.rows(SLOW))
        await asyncio.sleep(0.02)
        for number in range(30):
            await commit(store, begins(run_row(f"run_{number}")))
        assert not slow.done()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_a_snapshot_is_one_state(sqlite_store: SqliteStore) -> None:
    async with sqlite_store._readers.snapshot() as read:
        before = await read("SELECT count(*) FROM releases", ())
        await commit(sqlite_store, registers("r1"))
        assert await read("SELECT count(*) FROM releases", ()) == before
    assert await sqlite_store._readers.rows("SELECT count(*) FROM releases") == [(1,)]


async def test_readers_cannot_write(sqlite_store: SqliteStore) -> None:
    with pytest.raises(StorageUnavailable):
        await sqlite_store._readers.rows("DELETE FROM runs")


async def test_a_fault_of_a_read_is_storage_unavailable_and_later_reads_go_on(sqlite_store: SqliteStore) -> None:
    await commit(sqlite_store, begins(run_row("run_1")))
    for _ in range(10):
        with pytest.raises(StorageUnavailable):
            await sqlite_store._readers.rows("SELECT * FROM nowhere")
    assert await sqlite_store.run(RunId("run_1")) is not None


async def test_closing_waits_for_the_reads_that_run(db: Path) -> None:
    async with opened(db, config=SqliteConfig(readers=1)) as store:
        await commit(store, begins(run_row("run_1")))
        reads = [asyncio.create_task(store.run(RunId("run_1"))) for _ in range(20)]
        await asyncio.sleep(0)
        submit(store, begins(run_row("run_2")))
    assert all(run is not None for run in await asyncio.gather(*reads))
