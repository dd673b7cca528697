# ruff: noqa: ASYNC240 — nothing else runs on a test's loop
"""kill -9 at the edges of a commit: what was acknowledged is there, what was not is whole or absent."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from ryusen_protocol.ids import RunId
from ryusen_server.ports.store import RunFilter
from ryusen_server.store.sqlite import StoreRefused
from tests.store.builders import WORKSPACE, begins, commit, run_row
from tests.store.harness import opened

ROOT = Path(__file__).parents[2]


async def start(db: Path, *arguments: str, env: dict[str, str] | None = None) -> Process:
    script = Path(__file__).with_name("writer_process.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(db), *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    if line != b"ready\n":
        raise AssertionError((line, await process.communicate()))
    return process


@pytest.mark.req("STO-02", "STO-04")
@pytest.mark.parametrize("where", ["kill-before", "kill-after"])
@pytest.mark.parametrize("at", [1, 7])
async def test_every_acknowledged_unit_survives_a_kill(db: Path, where: str, at: int) -> None:
    process = await start(db, where, str(at))
    async with asyncio.timeout(30):
        output, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    acknowledged = {line.split()[1] for line in output.decode().splitlines() if line.startswith("acknowledged")}
    assert len(acknowledged) >= at - 1
    async with opened(db) as store:
        stored = {run.run_id for run in await store.runs(WORKSPACE, RunFilter(), before=None, limit=1_000)}
        histories = {run_id for run_id in stored if len(await store.history(run_id)) == 1}
        assert acknowledged <= stored
        assert histories == stored
        await commit(store, begins(run_row("run_after")))
    check = sqlite3.connect(db)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


async def test_a_second_server_on_the_file_is_refused_and_told_where_the_first_is(db: Path) -> None:
    process = await start(db, "hold")
    with pytest.raises(StoreRefused, match=rf"pid {process.pid} at http://127\.0\.0\.1:7878"):
        async with opened(db):
            pass
    alias = db.with_name("alias.db")
    alias.symlink_to(db)
    with pytest.raises(StoreRefused, match=f"pid {process.pid}"):
        async with opened(alias):
            pass
    process.kill()
    await process.wait()
    async with opened(db) as store:
        await commit(store, begins(run_row("run_1")))


async def test_the_lock_is_free_after_a_clean_stop(db: Path) -> None:
    process = await start(db, "hold")
    await process.communicate(b"\n")
    assert process.returncode == 0
    assert not db.with_name("ryusen.db.lock").exists()
    assert not db.with_name("ryusen.db-wal").exists()
    async with opened(db):
        pass


@pytest.mark.req("STO-02")
async def test_a_killed_creation_starts_over(db: Path) -> None:
    db.write_bytes(b"")
    async with opened(db) as store:
        await commit(store, begins(run_row("run_1")))
        assert await store.run(RunId("run_1")) is not None
