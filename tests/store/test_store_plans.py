"""No read scans a backlog: the plan of every statement that the port's reads run."""

from __future__ import annotations

import itertools
import re
import sqlite3
from pathlib import Path

import msgspec
import pytest

from ryusen_protocol.ids import Application, AttemptId, EventId, FunctionId, ManifestGeneration, RoutingGeneration, RunId
from ryusen_server.core import rows as row_types
from ryusen_server.core.decision import StopChild
from ryusen_server.ports.store import RunFilter, WakeRow
from ryusen_server.store.sqlite import SqliteStore, changes, retention, sql
from ryusen_server.store.sqlite import store as sqlite_stores
from ryusen_server.store.sqlite.readers import Readers, Rows
from ryusen_server.store.sqlite.sql import Parameters
from tests.store.builders import APPLICATION, WORKSPACE, begins, commit, run_row

SMALL_TABLES = {"workspaces", "applications", "a", "releases"}
"""Read whole at a start: as many rows as there are workspaces, applications and releases."""
OPEN_TABLES = {"named", "obligations", "shapes", "above", "CONSTANT"}
"""What is owed just now, by its primary key in pages; the shapes found under one event name; the runs above one."""
WHOLE_INDEXES = {"attempts_authorized", "attempts_queued", "events_to_expand", "attempts_unknown", "runs_by_status", "runs_blocked"}
"""Partial indexes that hold only what is open."""


async def record(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Parameters]]:
    seen: list[tuple[str, Parameters]] = []
    rows = Readers.rows

    async def recorded(self: Readers, statement: str, parameters: Parameters = ()) -> Rows:
        seen.append((statement, parameters))
        return await rows(self, statement, parameters)

    monkeypatch.setattr(Readers, "rows", recorded)
    for until, after in ((5, None), (5, WakeRow(RunId("r"), 1))):
        await store.wakes(until_ms=until, after=after, limit=3)
    await store.authorized_runs()
    await store.expanding_events(WORKSPACE, "n", after=3, limit=3)
    await store.wait(RunId("r"))
    await store.obligations(after=None, limit=3)
    await store.obligations(after=StopChild(RunId("c"), RunId("p"), "cancelled"), limit=3)
    seen += ((sql.WAIT_SHAPES, (WORKSPACE, "n")), (sql.MATCHING_WAITS, (WORKSPACE, "n", "[]", b"", 0, 9, 3)))
    seen.append((sql.CARRY_UNKNOWN, (None, "r")))
    await store.pending_fan_outs(after=None, limit=3)
    await store.pending_fan_outs(after=EventId("e"), limit=3)
    await store.blocked_runs(WORKSPACE, APPLICATION, [FunctionId("f"), FunctionId("g")])
    await store.history(RunId("r"))
    await store.history(RunId("r"), after=3, limit=4)
    await store.histories([RunId("r"), RunId("s")])
    await store.run(RunId("r"))
    await store.attempt(AttemptId("a"))
    await store.attempt_log(AttemptId("a"))
    await store.run_logs(RunId("r"), after=3, limit=4)
    seen.append((retention.DELETE_RUN_LOGS, ("r",)))
    for state, key in itertools.product((None, "queued", "authorized", "unknown", "failed"), (None, (1, AttemptId("a")))):
        await store.attempts(WORKSPACE, state=state, after=key, limit=3)
    await store.event(EventId("e"))
    for name, before in itertools.product((None, "n"), (None, (1, EventId("e")))):
        await store.events(WORKSPACE, name=name, before=before, limit=3)
    await store.event_runs(EventId("e"))
    await store.event_key(WORKSPACE, "k")
    await store.operator_command(WORKSPACE, "k")
    await store.manifest(WORKSPACE, ManifestGeneration("m"))
    await store.routing(WORKSPACE, RoutingGeneration("r"))
    await store.counts([WORKSPACE])
    for position in (None, 4):
        await store.routings(WORKSPACE, before=position, limit=3)
    choices = (
        (None, "running", "ended"),
        (None, "succeeded", "failed"),
        (None, "not_required", "partially_compensated"),
        (None, FunctionId("f")),
        (None, Application("a")),
        (None, EventId("e")),
        (None, "unknown"),
        (None, "run_"),
    )
    for filters in itertools.product(*choices):
        where = RunFilter(*filters)
        await store.runs(WORKSPACE, where, before=None, limit=3)
        await store.runs(WORKSPACE, where, before=(1, RunId("r")), limit=3)
    await store.position()
    for after in (None, (1, EventId("e"))):
        await store.old_events(WORKSPACE, before_ms=9, after=after, limit=3)
    seen += [
        (changes.CHANGE_SIZES, (3, 4)),
        (changes.CHANGES, (3, 4, WORKSPACE)),
        (changes.PRUNED_UP_TO, ("pruned:w",)),
        (retention.ENDED_FAMILIES, (WORKSPACE, 9, 1, "r", 3)),
        *((statement, ("r",)) for statement in (retention.RUN_END, retention.OWED, retention.RUN_PARTS, retention.RUN_LAST)),
    ]
    return seen


async def test_no_read_scans_a_table_or_sorts_more_than_it_found(
    sqlite_store: SqliteStore, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = await record(sqlite_store, monkeypatch)
    reader = sqlite3.connect(db)
    for statement, parameters in statements:
        plan = [row[3] for row in reader.execute(f"EXPLAIN QUERY PLAN {statement}", tuple(parameters))]
        for step in plan:
            scanned = re.match(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", step)
            if scanned:
                assert scanned[1] in {"json_each", "chosen", *OPEN_TABLES} or scanned[2] in WHOLE_INDEXES, (statement, plan)
            if "TEMP B-TREE" in step:  # only a search by prefix sorts: a bounded number of ids; and authorized runs are made distinct
                assert statement.startswith("SELECT * FROM (") or "DISTINCT" in step, (statement, plan)
    reader.close()


async def test_counts_walk_indexes_only(sqlite_store: SqliteStore, db: Path) -> None:
    reader = sqlite3.connect(db)

    for statement in (sql.WAITED_NAMES, sql.COUNTS, sql.LIVE_RUNS, sql.OPEN_COUNTS, sql.ROUTING_HEADS, sql.ACTIVE_MANIFESTS, sql.RELEASES):
        for step in (row[3] for row in reader.execute(f"EXPLAIN QUERY PLAN {statement}")):
            if step.startswith("SCAN") and step != "SCAN CONSTANT ROW":
                covered = "COVERING INDEX" in step or any(step.endswith(index) for index in WHOLE_INDEXES)
                assert covered or step.split()[1] in SMALL_TABLES, step
    reader.close()


TABLES = {
    "runs": row_types.RunRow,
    "attempts": row_types.AttemptRow,
    "events": row_types.EventRow,
    "event_keys": row_types.EventKeyRow,
    "waits": row_types.WaitRow,
    "operator_commands": row_types.OperatorCommandRow,
    "manifests": row_types.ManifestRow,
    "routing": row_types.RoutingRow,
    "releases": row_types.ReleaseRow,
}


@pytest.mark.parametrize("table", TABLES)
async def test_columns_are_the_fields_of_the_row(sqlite_store: SqliteStore, db: Path, table: str) -> None:
    reader = sqlite3.connect(db)
    columns = [row[1] for row in reader.execute(f"PRAGMA table_info({table})")]
    reader.close()
    row: type[msgspec.Struct] = TABLES[table]
    assert columns == list(row.__struct_fields__)


async def test_a_search_finds_the_same_whichever_way_it_walks(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("fulfil", "fulfil-again", "rn", "refund")
    for number in range(40):
        row = run_row(
            f"rn_{number % 7}{number:02}",
            function=names[number % 4],
            created_at_ms=number // 2,
            status="running" if number % 3 else "ended",
        )
        await commit(sqlite_store, begins(row))

    async def found(**filters: str) -> list[list[str]]:
        """Pages of three."""
        pages: list[list[str]] = []
        before = None
        while True:
            rows = await sqlite_store.runs(WORKSPACE, RunFilter(**filters), before=before, limit=3)
            if not rows:
                return pages
            pages.append([row.run_id for row in rows])
            before = (rows[-1].created_at_ms, rows[-1].run_id)

    questions: list[dict[str, str]] = [
        *({"q": q} for q in ("r", "rn", "rn_1", "rn_512", "ful", "fulfil-", "refund", "x")),
        {"q": "rn_1", "function": "rn"}, {"q": "ful", "outcome": "succeeded"},
        {"q": "rn", "status": "ended"}, {"q": "rn_3", "application": "orders"},
    ]  # fmt: skip
    few = [await found(**question) for question in questions]
    monkeypatch.setattr(sqlite_stores, "COMMON", 0)
    many = [await found(**question) for question in questions]
    assert few == many
    assert len(few[0]) == 14
