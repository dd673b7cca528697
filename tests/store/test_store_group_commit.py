# ruff: noqa: ASYNC240, ASYNC110 — nothing else runs on a test's loop
"""How units become commits: together, in order, riders with the next."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from ryusen_protocol.ids import RunId
from ryusen_server.ports.store import RunFilter, StorageUnavailable, Unit
from ryusen_server.store.sqlite import SqliteConfig, SqliteStore
from ryusen_server.store.sqlite.batch import Batch
from tests.store.builders import WORKSPACE, attempt_row, begins, commit, ended, moves, run_row, submit
from tests.store.harness import Recorder, opened


def run_ids(units: list[Unit]) -> list[str]:
    return [unit.writes[0].run_id for unit in units]  # type: ignore[union-attr]


async def test_everything_that_waits_becomes_one_commit_in_order(sqlite_store: SqliteStore, recorder: Recorder) -> None:
    busy, go = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go.wait(10)

    recorder.hold = hold
    submit(sqlite_store, begins(run_row("run_first")))
    await asyncio.to_thread(busy.wait, 10)
    for number in range(300):
        submit(sqlite_store, begins(run_row(f"run_{number}")), rides=number % 2 == 0)
    recorder.hold = None
    go.set()
    await sqlite_store.flush()
    assert [len(batch) for batch in recorder.batches] == [1, 300]
    assert run_ids(recorder.batches[1]) == [f"run_{number}" for number in range(300)]


async def test_a_commit_is_bounded(db: Path, recorder: Recorder) -> None:
    async with opened(db, hooks=recorder, config=SqliteConfig(batch_units_max=10)) as store:
        gate = threading.Event()
        recorder.hold = lambda: gate.wait(10)
        for number in range(36):
            submit(store, begins(run_row(f"run_{number:02}")), rides=number > 20)
        gate.set()
        await store.flush()
        assert max(len(batch) for batch in recorder.batches) <= 10
        assert [run for batch in recorder.batches for run in run_ids(batch)] == [f"run_{number:02}" for number in range(36)]


async def test_a_commit_wakes_the_loop_once_for_all_its_units(sqlite_store: SqliteStore, recorder: Recorder) -> None:
    gate = threading.Event()
    recorder.hold = lambda: gate.wait(10)
    turns: list[int] = []
    turn = 0

    def done(_: StorageUnavailable | None) -> None:
        turns.append(turn)

    for number in range(50):
        sqlite_store.submit(Unit((begins(run_row(f"run_{number}")),)), done)
    gate.set()
    while len(turns) < 50:
        turn += 1
        await asyncio.sleep(0)
    assert len(set(turns)) == len(recorder.batches)


async def test_what_rides_alone_commits_after_its_wait(db: Path, recorder: Recorder) -> None:
    async with opened(db, hooks=recorder, config=SqliteConfig(ride_wait_ms=80)) as store:
        begun = time.monotonic()
        _, first = submit(store, begins(run_row("run_1")), rides=True)
        _, second = submit(store, begins(run_row("run_2")), rides=True)
        assert await first is None
        assert time.monotonic() - begun >= 0.08
        assert second.done()
        assert [len(batch) for batch in recorder.batches] == [2]


async def test_an_urgent_unit_takes_what_rides_along_at_once(db: Path, recorder: Recorder) -> None:
    async with opened(db, hooks=recorder, config=SqliteConfig(ride_wait_ms=60_000)) as store:
        _, rider = submit(store, begins(run_row("run_1")), rides=True)
        await asyncio.sleep(0.02)
        assert not rider.done()
        _, urgent = submit(store, begins(run_row("run_2")))
        async with asyncio.timeout(10):
            assert await rider is None
            assert await urgent is None
        assert [run_ids(batch) for batch in recorder.batches] == [["run_1", "run_2"]]
        _, later = submit(store, begins(run_row("run_3")), rides=True)
        await asyncio.sleep(0.02)
        assert not later.done()
        async with asyncio.timeout(10):
            await store.flush()
        assert later.done()


async def test_closing_commits_what_waits(db: Path) -> None:
    async with opened(db, config=SqliteConfig(ride_wait_ms=60_000)) as store:
        futures = [submit(store, begins(run_row(f"run_{number}")), rides=True)[1] for number in range(3)]
    assert [await future for future in futures] == [None] * 3
    with pytest.raises(StorageUnavailable, match="stopping"):
        await commit(store, begins(run_row("run_9")))
    with pytest.raises(StorageUnavailable, match="stopping"):
        await store.run(RunId("run_1"))
    async with opened(db) as again:
        assert len(await again.runs(WORKSPACE, RunFilter(), before=None, limit=9)) == 3


async def test_positions_go_on_after_a_restart(db: Path) -> None:
    async with opened(db) as store:
        first = await commit(store, begins(run_row("run_1")), begins(run_row("run_2")))
    async with opened(db) as store:
        assert await commit(store, moves("run_1", first)) == first + 1


async def test_a_failing_caller_does_not_keep_the_others_from_their_answer(sqlite_store: SqliteStore) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))

    def broken(_: StorageUnavailable | None) -> None:
        raise ValueError

    sqlite_store.submit(Unit((begins(run_row("run_1")),)), broken)
    _, told = submit(sqlite_store, begins(run_row("run_2")))
    assert await told is None
    assert len(reported) == 1


async def test_a_row_that_cannot_be_stored_rolls_its_commit_back(sqlite_store: SqliteStore) -> None:
    position = await commit(sqlite_store, begins(run_row("run_1")))
    with pytest.raises(StorageUnavailable, match="defect"):
        await commit(sqlite_store, moves("run_1", position, run=ended(run_row("run_1"))), begins(run_row("run_2", wake_at_ms=2**63)))
    with pytest.raises(StorageUnavailable, match="defect"):
        await commit(sqlite_store, moves("run_unknown", position, run=ended(run_row("run_unknown"))))
    with pytest.raises(StorageUnavailable):
        await commit(sqlite_store, begins(run_row("run_3")), begins(run_row("run_4")), begins(run_row("run_1")))
    assert [run.run_id for run in await sqlite_store.runs(WORKSPACE, RunFilter(), before=None, limit=9)] == ["run_1"]
    assert await sqlite_store.run(RunId("run_1")) == run_row("run_1")
    await commit(sqlite_store, begins(run_row("run_2", wake_at_ms=2**63 - 1)))


async def test_a_step_writes_two_rows_a_unit(sqlite_store: SqliteStore) -> None:
    batch = Batch()
    batch.add(Unit((moves("run_1", 1, attempt_row("att_1", "run_1", state="authorized")),)), 2)
    assert batch.rows() == 2


async def test_the_log_is_checkpointed_while_commits_go_on(db: Path) -> None:
    async with opened(db, config=SqliteConfig(checkpoint_pages=50, checkpoint_idle_ms=60_000)) as store:
        before = db.stat().st_size
        for number in range(40):
            await commit(store, *(begins(run_row(f"run_{number}_{part}"), records=b"x" * 500) for part in range(20)))
        assert db.stat().st_size > before + 200_000
        assert db.with_name("ryusen.db-wal").stat().st_size < 2_000_000


async def test_the_log_is_checkpointed_when_it_is_quiet(db: Path) -> None:
    async with opened(db, config=SqliteConfig(checkpoint_idle_ms=20)) as store:
        await commit(store, begins(run_row("run_1"), records=b"findme" * 10))
        async with asyncio.timeout(10):
            while b"findme" not in db.read_bytes():
                await asyncio.sleep(0.01)


async def test_readers_see_committed_state_only(db: Path, recorder: Recorder) -> None:
    async with opened(db, hooks=recorder) as store:
        gate = threading.Event()
        recorder.hold = lambda: gate.wait(10)
        _, told = submit(store, begins(run_row("run_1")))
        assert await store.run(RunId("run_1")) is None
        gate.set()
        assert await told is None
        assert await store.run(RunId("run_1")) is not None


async def test_the_writer_is_durable_and_alone_in_checkpointing(sqlite_store: SqliteStore) -> None:
    writer: sqlite3.Connection = sqlite_store._writer._connection
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    for pragma, value in (("query_only", 1), ("wal_autocheckpoint", 0)):
        assert await sqlite_store._readers.rows(f"PRAGMA {pragma}") == [(value,)]
