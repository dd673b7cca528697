"""A file of every released schema version opens with what it held, one transaction a version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ryusen_protocol.ids import AttemptId, EventId, RunId
from ryusen_server.store.sqlite import SqliteStore
from ryusen_server.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION, migrate, schema_version
from tests.store.builders import WORKSPACE, commit, moves
from tests.store.harness import opened

DUMPS = Path(__file__).with_name("dumps")


def restore(dump: Path, db: Path, version: int) -> None:
    connection = sqlite3.connect(db)
    connection.executescript(dump.read_text(encoding="utf-8"))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def schema_of(db: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(db)
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name").fetchall()
    connection.close()
    return [(name, "".join(str(text).split())) for name, text in found]


@pytest.mark.req("STO-02")
@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
async def test_a_file_of_an_older_version_opens_with_its_content(db: Path, tmp_path: Path, version: int) -> None:
    restore(DUMPS / f"v{version}.sql", db, version)
    async with opened(db) as store:
        run = await store.run(RunId("run_1"))
        assert run is not None
        assert (run.status, run.wake_at_ms) == ("running", 0)
        assert [row.records for row in await store.history(RunId("run_1"))] == [b'[{"kind":"run_created"}]', b'[{"kind":"moved"}]']
        assert await store.authorized_runs() == ["run_1"]
        attempt = await store.attempt(AttemptId("att_1"))
        assert attempt is not None
        event = await store.event(EventId("evt_1"))
        assert event is not None
        assert event.payload == b'{"total": 12}'
        assert event.metadata == {"source": "web", "a": "\u00e9"}
        assert await store.event_key(WORKSPACE, "k") is not None
        heads = await store.heads()
        assert len(heads.manifests) == len(heads.releases) == 1
        last = (await store.history(RunId("run_1")))[-1].position
        assert await commit(store, moves("run_1", last)) > last
    fresh = tmp_path / "fresh.db"
    async with opened(fresh):
        pass
    assert schema_of(db) == schema_of(fresh)


def test_each_version_is_one_transaction_that_a_crash_leaves_whole(db: Path) -> None:
    connection = sqlite3.connect(db, isolation_level=None)
    migrate(connection)
    broken = (*MIGRATIONS, "CREATE TABLE extra (a TEXT) STRICT;", "CREATE TABLE more (a TEXT) STRICT;\nCREATE TABLE more (b TEXT);")
    with pytest.raises(sqlite3.OperationalError, match="more"):
        migrate(connection, broken)
    assert schema_version(connection) == SCHEMA_VERSION + 1
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert "extra" in tables
    assert "more" not in tables
    migrate(connection, (*broken[:-1], "CREATE TABLE more (a TEXT) STRICT;"))
    assert schema_version(connection) == SCHEMA_VERSION + 2
    connection.close()


async def test_opening_again_migrates_nothing(sqlite_store: SqliteStore) -> None:
    connection = sqlite_store._writer._connection
    before = connection.execute("PRAGMA schema_version").fetchone()
    migrate(connection)
    assert connection.execute("PRAGMA schema_version").fetchone() == before
