# ruff: noqa: ASYNC221, ASYNC240 — nothing else runs on a test's loop
"""Which files the store opens, with which modes, and what it says of those it does not."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ryusen_protocol.ids import RunId
from ryusen_server.ports.store import RunFilter
from ryusen_server.store.sqlite import SqliteConfig, StoreRefused
from ryusen_server.store.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from tests.store.builders import WORKSPACE, begins, commit, run_row
from tests.store.harness import mode_of, opened

NOBODY = 65_534


async def refusal(path: Path, *, config: SqliteConfig | None = None) -> str:
    with pytest.raises(StoreRefused) as refused:
        async with opened(path, config=config):
            pass
    message = str(refused.value)
    assert "\n" not in message
    assert str(path) in message or str(path.parent) in message
    assert not path.with_name(f"{path.name}.lock").exists()
    return message


async def filled(db: Path, runs: int = 200) -> None:
    async with opened(db) as store:
        await commit(store, *(begins(run_row(f"run_{number}"), records=b"x" * 200) for number in range(runs)))


@pytest.mark.req("STO-01")
async def test_every_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    db = tmp_path / ".ryusen" / "ryusen.db"
    before = os.umask(0)
    try:
        async with opened(db) as store:
            await commit(store, begins(run_row("run_1")))
            assert mode_of(db.parent) == 0o700
            names = sorted(file.name for file in db.parent.iterdir())
            assert names == ["ryusen.db", "ryusen.db-shm", "ryusen.db-wal", "ryusen.db.lock"]
            assert [mode_of(file) for file in db.parent.iterdir()] == [0o600] * 4
    finally:
        os.umask(before)


async def test_a_file_that_others_may_read_is_closed_to_them(db: Path) -> None:
    await filled(db, 1)
    db.chmod(0o644)
    async with opened(db):
        assert mode_of(db) == 0o600


async def test_a_strict_umask_does_not_lock_the_owner_out(db: Path) -> None:
    before = os.umask(0o777)
    try:
        async with opened(db) as store:
            await commit(store, begins(run_row("run_1")))
        assert mode_of(db) == 0o600
    finally:
        os.umask(before)


async def test_the_lock_names_its_owner(db: Path) -> None:
    async with opened(db) as store:
        store.set_owner_url("http://127.0.0.1:1234")
        assert json.loads(db.with_name("ryusen.db.lock").read_bytes()) == {"pid": os.getpid(), "url": "http://127.0.0.1:1234"}
        with pytest.raises(StoreRefused, match=f"pid {os.getpid()} at http://127.0.0.1:1234"):
            async with opened(db):
                pass
        await commit(store, begins(run_row("run_1")))


async def test_the_file_says_whose_it_is(db: Path) -> None:
    await filled(db, 1)
    header = db.read_bytes()[:100]
    assert struct.unpack_from(">I", header, 68)[0] == APPLICATION_ID
    assert struct.unpack_from(">I", header, 60)[0] == SCHEMA_VERSION


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in await refusal(tmp_path)


async def test_a_missing_folder_is_refused_unless_it_is_ours(tmp_path: Path) -> None:
    assert "does not exist" in await refusal(tmp_path / "typo" / "ryusen.db")
    assert not (tmp_path / "typo").exists()
    assert "does not exist" in await refusal(tmp_path / "typo" / ".." / "other" / "ryusen.db")


async def test_a_file_that_is_no_database_is_refused_and_kept(db: Path) -> None:
    for content in (b"hello", b"x" * 5_000, b"SQLite format 3\x00", b"SQLite"):
        db.write_bytes(content)
        message = await refusal(db)
        assert "not a database" in message or "cut off" in message
        assert db.read_bytes() == content


async def test_a_database_of_another_program_is_refused_and_kept(db: Path) -> None:
    foreign = sqlite3.connect(db)
    foreign.execute("PRAGMA journal_mode = WAL")
    foreign.execute("CREATE TABLE photos (name TEXT)")
    foreign.commit()
    foreign.close()
    content = db.read_bytes()
    assert "another program" in await refusal(db)
    assert db.read_bytes() == content


async def test_a_newer_file_is_refused_and_kept(db: Path) -> None:
    await filled(db, 1)
    newer = sqlite3.connect(db)
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    content = db.read_bytes()
    message = await refusal(db)
    assert "newer Ryusen" in message
    assert f"schema {SCHEMA_VERSION + 1}" in message
    assert db.read_bytes() == content


async def test_a_damaged_page_of_a_small_file_is_found_at_the_start(db: Path) -> None:
    await filled(db)
    content = bytearray(db.read_bytes())
    for page in range(2, len(content) // 4096, 3):
        content[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    db.write_bytes(content)
    assert "damaged" in await refusal(db)


@pytest.mark.parametrize("keep", [4_096, 9_000, 40_960])
async def test_a_file_that_was_cut_off_is_refused(db: Path, keep: int) -> None:
    await filled(db)
    db.write_bytes(db.read_bytes()[:keep])
    assert "damaged" in await refusal(db)
    assert "damaged" in await refusal(db, config=SqliteConfig(probe_bytes_max=0))


async def test_a_damaged_first_page_is_refused(db: Path) -> None:
    await filled(db)
    content = bytearray(db.read_bytes())
    content[100:2_000] = os.urandom(1_900)
    db.write_bytes(content)
    assert "damaged" in await refusal(db)


@pytest.mark.req("STO-01")
async def test_a_store_that_is_not_to_last_leaves_nothing_behind() -> None:
    async with opened(None) as store:
        await commit(store, begins(run_row("run_1")))
        assert await store.run(RunId("run_1")) is not None
        folder = store.path.parent
        assert mode_of(folder) == 0o700
    assert not folder.exists()


async def test_odd_characters_in_the_path_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20?#é"
    folder.mkdir()
    await filled(folder / "ryusen.db", 1)
    assert (folder / "ryusen.db").exists()


async def test_another_server_can_take_over_a_log_that_was_not_checkpointed(db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    async with opened(db, config=SqliteConfig(checkpoint_idle_ms=60_000)) as store:
        await commit(store, begins(run_row("run_1")))
        for suffix in ("", "-wal"):
            copy.with_name(f"copy.db{suffix}").write_bytes(db.with_name(f"ryusen.db{suffix}").read_bytes())
    async with opened(copy) as store:
        assert [run.run_id for run in await store.runs(WORKSPACE, RunFilter(), before=None, limit=9)] == ["run_1"]


OPEN_AS_NOBODY = f"""
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from ryusen_server.store.sqlite import SqliteStore, StoreRefused
if os.getuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
try:
    asyncio.run(SqliteStore.open(Path(sys.argv[1]), on_fatal=print))
except StoreRefused as refused:
    print(refused)
"""


@pytest.mark.parametrize("what", ["file", "folder", "new file", "new folder"])
async def test_b59_a_read_only_place_is_refused_with_one_clear_line(tmp_path: Path, what: str) -> None:
    if os.getuid() == 0:
        for folder in (tmp_path, *tmp_path.parents):
            if mode_of(folder) & 0o001 == 0:
                folder.chmod(0o711)
    folder = tmp_path / "place"
    folder.mkdir()
    db = folder / "ryusen.db"
    if not what.startswith("new"):
        await filled(db, 1)
    if what == "new folder":
        db = folder / ".ryusen" / "ryusen.db"
    owner = NOBODY if os.getuid() == 0 else -1
    if db.exists():
        os.chown(db, owner, -1)
        db.chmod(0o444 if what == "file" else 0o600)
    os.chown(folder, owner, -1)
    folder.chmod(0o755 if what == "file" else 0o555)
    root = Path(__file__).parents[2]
    try:
        ran = subprocess.run(
            [sys.executable, "-c", OPEN_AS_NOBODY, str(db)],
            env=os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    finally:
        folder.chmod(0o755)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("\n") == 1
    assert "writable" in ran.stdout or "permission" in ran.stdout
    assert str(folder) in ran.stdout
