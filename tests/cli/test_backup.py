"""`ryusen backup`: a copy that is whole while somebody writes, that a server opens, and that takes nobody's place."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from ryusen_protocol.ids import RunId
from ryusen_server.store.sqlite import SqliteStore
from ryusen_server.store.sqlite.schema import SCHEMA_VERSION
from tests.cli.told import ryusen
from tests.store.builders import begins, commit, moves, run_row
from tests.store.harness import opened


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_copy_under_writes_is_one_moment_and_opens_as_a_database(tmp_path: Path) -> None:
    source, copy = tmp_path / "ryusen.db", tmp_path / "copy.db"
    async with opened(source) as store:
        position = await commit(store, begins(run_row("run_1")))
        going = True

        async def write() -> int:
            last = position
            while going:
                last = await commit(store, moves("run_1", last))
            return last

        writing = asyncio.create_task(write())
        done = await asyncio.to_thread(ryusen, "backup", str(copy), "--db", str(source), "--json")
        going = False
        last = await writing
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"path": str(copy), "bytes": copy.stat().st_size, "schema_version": SCHEMA_VERSION}
    assert copy.stat().st_mode & 0o777 == 0o600
    assert {name for name in names(tmp_path) if name.startswith((".", "copy"))} == {"copy.db"}, "one file, and no leftovers"
    async with opened(copy) as store:
        history = [row.position for row in await store.history(RunId("run_1"))]
        assert history[0] == position
        assert history == list(range(position, position + len(history))), "nothing is missing in between"
        assert history[-1] <= last
        assert await commit(store, moves("run_1", history[-1])) > history[-1]


def test_nothing_is_overwritten_and_what_cannot_be_copied_leaves_nothing(tmp_path: Path) -> None:
    source, other = tmp_path / "ryusen.db", tmp_path / "other.db"

    async def make() -> None:
        store = await SqliteStore.open(source, on_fatal=print)
        await store.close()

    asyncio.run(make())
    other.write_text("mine")
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    refused = {
        ("backup", str(other), "--db", str(source)): "exists already",
        ("backup", str(tmp_path / "new.db"), "--db", str(tmp_path / "none.db")): "there is no database",
        ("backup", str(tmp_path / "new.db"), "--db", str(foreign)): "is no database of Ryusen",
        ("backup", str(tmp_path / "none" / "new.db"), "--db", str(source)): "cannot be written",
    }
    for words, why in refused.items():
        done = ryusen(*words)
        assert done.returncode == 1
        assert why in done.stderr.decode()
        assert b"try: " in done.stderr
    assert other.read_text() == "mine"
    assert not (tmp_path / "new.db").exists()
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("words", [("backup",), ("backup", "a", "b")])
def test_it_takes_one_file(words: tuple[str, ...]) -> None:
    assert ryusen(*words).returncode == 2
