"""Writes `dumps/v<schema version>.sql`: a small store of today's schema, for later versions to open.

Run it when a migration is added, never again for a version that was released: `python -m tests.store.dump_schema`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from ryusen_server.store.sqlite import SqliteStore
from ryusen_server.store.sqlite.schema import SCHEMA_VERSION
from tests.store.builders import accepts, activates, attempt_row, begins, commit, event_row, moves, registers, run_row


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "ryusen.db"
        store = await SqliteStore.open(db, on_fatal=print)
        await commit(store, activates(1))
        await commit(store, registers("r1"))
        await commit(store, accepts(event_row("evt_1"), key="k"))
        position = await commit(store, begins(run_row("run_1")))
        await commit(store, moves("run_1", position, attempt_row("att_1", "run_1", state="authorized")))
        await store.close()
        connection = sqlite3.connect(db)
        dump = "\n".join(connection.iterdump())
        connection.close()
    Path(__file__).with_name("dumps").joinpath(f"v{SCHEMA_VERSION}.sql").write_text(dump + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
