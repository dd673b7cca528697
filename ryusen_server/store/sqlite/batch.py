"""Turns units into rows by table, and writes them with one statement a table. Knows no transaction: the writer opens and ends it.

Of several rows for one run or attempt only the last is written: inside one commit nobody can have seen the others.
"""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Callable, Iterable, Sized
from typing import Any, assert_never

import msgspec

from ryusen_protocol.ids import AttemptId, RunId
from ryusen_server.core.rows import AttemptRow, LogRow, RunRow, WaitRow
from ryusen_server.ports.logs import LogWrite
from ryusen_server.ports.measures import StoreMeasures
from ryusen_server.ports.retention import PruneWrite, ReclaimWrite
from ryusen_server.ports.store import (
    DischargeWrite,
    EventWrite,
    FanOutWrite,
    ManifestWrite,
    ObligationWrite,
    OperatorWrite,
    ReleaseWrite,
    RunWrite,
    Unit,
    obligation_key,
)
from ryusen_server.store.sqlite import sql
from ryusen_server.store.sqlite.retention import prune, reclaim

Row = tuple[Any, ...]

_row: Callable[[msgspec.Struct], Row] = msgspec.structs.astuple
_run_update: Callable[[RunRow], Row] = operator.attrgetter(*sql.RUN_CHANGING, "run_id")
_run_indexed: Callable[[RunRow], Row] = operator.attrgetter(*sql.UPDATE_RUN_INDEXED_PARAMETERS)


class Batch:
    """The rows of one commit."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of records, payloads and documents."""
        self._history: list[Row] = []
        self._new_runs: dict[RunId, RunRow] = {}
        self._runs: dict[RunId, RunRow] = {}
        self._attempts: dict[AttemptId, AttemptRow] = {}
        self._waits: dict[RunId, WaitRow | None] = {}
        """None: over. A wait that began and ended in this commit was never there."""
        self._unknown: dict[RunId, bool] = {}
        self._obligations: dict[tuple[RunId, str], Row | None] = {}
        """None: carried out."""
        self._events: list[Row] = []
        self._event_keys: list[Row] = []
        self._fan_outs: list[Row] = []
        self._manifests: list[Row] = []
        self._routings: list[Row] = []
        self._applications: list[Row] = []
        self._workspaces: list[Row] = []
        self._releases: list[Row] = []
        self._operator_commands: list[Row] = []
        self._logs: dict[AttemptId, LogRow] = {}
        self._prunes: list[PruneWrite] = []
        self._reclaims: list[ReclaimWrite] = []

    def add(self, unit: Unit, last_position: int) -> None:  # noqa: C901, PLR0912  # one branch a kind of write
        """Take a unit whose last write commits at `last_position`."""
        position = last_position - len(unit.writes)
        for write in unit.writes:
            position += 1
            match write:
                case RunWrite():
                    self._add_run(write, position)
                case EventWrite():
                    self._add_event(write, position)
                case FanOutWrite():
                    self._fan_outs.append((write.fan_out_next, write.event_id))
                case ObligationWrite():
                    owed = (write.workspace, write.application, msgspec.json.encode(write.obligation))
                    self._obligations[obligation_key(write.obligation)] = owed
                case DischargeWrite():
                    self._obligations[obligation_key(write.obligation)] = None
                case ManifestWrite():
                    self._add_manifest(write, position)
                case OperatorWrite():
                    self._operator_commands.append(_row(write.command))
                case ReleaseWrite():
                    self._add_release(write, position)
                case LogWrite():
                    self._logs[write.row.attempt_id] = write.row
                    self.bytes += len(write.row.lines)
                case PruneWrite():
                    self._add_history(position, write.workspace, None, write.at_ms, write.records)
                    self._prunes.append(write)
                case ReclaimWrite():
                    self._reclaims.append(write)
                case _:
                    assert_never(write)

    def rows(self) -> int:
        """How many rows the commit writes."""
        removed = sum(len(run.attempt_ids) + 2 for write in self._prunes for run in write.runs) + sum(len(w.events) for w in self._prunes)
        moved = sum(write.pages_max for write in self._reclaims)
        return sum(len(rows) for _, rows in self._sized()) + removed + moved

    def tally(self, measures: StoreMeasures) -> None:
        """Count what the commit left its attempts and runs in. A run's row is written by its end for the last time."""
        measures.attempts.update(attempt.state for attempt in self._attempts.values())
        for runs in (self._new_runs, self._runs):
            measures.runs_ended.update(run.outcome for run in runs.values() if run.ended_at_ms is not None and run.outcome is not None)

    def write(self, connection: sqlite3.Connection) -> None:  # noqa: C901  # one branch a table
        """Write every row, inside the caller's transaction.

        Raises `sqlite3.Error`, or `LookupError` for a run or event that must be there and is not.
        """
        many = connection.executemany
        for statement, rows in self._plain():
            if rows:
                many(statement, rows)
        if self._new_runs:
            many(sql.INSERT_RUN, map(_row, self._new_runs.values()))
        if self._runs:
            _update(connection, sql.UPDATE_RUN, [_run_update(run) for run in self._runs.values()])
            many(sql.UPDATE_RUN_INDEXED, map(_run_indexed, self._runs.values()))
        if self._unknown:
            many(sql.CARRY_UNKNOWN, [(run_id if unknown else None, run_id) for run_id, unknown in self._unknown.items()])
        self._write_waits(connection)
        if self._attempts:
            many(sql.UPSERT_ATTEMPT, map(_row, self._attempts.values()))
        if self._fan_outs:
            _update(connection, sql.UPDATE_FAN_OUT, self._fan_outs)
        if self._logs:
            many(sql.KEEP_LOG, [_row(log)[:-1] for log in self._logs.values()])
        for write in self._prunes:
            prune(connection, write)
        for write in self._reclaims:
            reclaim(connection, write)

    def _write_waits(self, connection: sqlite3.Connection) -> None:
        many = connection.executemany
        if self._waits:
            many(sql.DELETE_WAIT, [(run_id,) for run_id, wait in self._waits.items() if wait is None])
            many(sql.INSERT_WAIT, [_row(wait) for wait in self._waits.values() if wait is not None])
        if self._obligations:
            many(sql.DELETE_OBLIGATION, [key for key, owed in self._obligations.items() if owed is None])
            many(sql.INSERT_OBLIGATION, [(*key, *owed) for key, owed in self._obligations.items() if owed is not None])

    def _plain(self) -> Iterable[tuple[str, list[Row]]]:
        return (
            (sql.INSERT_HISTORY, self._history),
            (sql.INSERT_EVENT, self._events),
            (sql.INSERT_EVENT_KEY, self._event_keys),
            (sql.INSERT_MANIFEST, self._manifests),
            (sql.INSERT_ROUTING, self._routings),
            (sql.MOVE_APPLICATION, self._applications),
            (sql.MOVE_WORKSPACE, self._workspaces),
            (sql.INSERT_RELEASE, self._releases),
            (sql.INSERT_OPERATOR_COMMAND, self._operator_commands),
        )

    def _sized(self) -> Iterable[tuple[str, Sized]]:
        return (
            *self._plain(),
            (sql.INSERT_RUN, self._new_runs),
            (sql.UPDATE_RUN, self._runs),
            (sql.UPSERT_ATTEMPT, self._attempts),
            (sql.UPDATE_FAN_OUT, self._fan_outs),
            (sql.INSERT_WAIT, self._waits),
            (sql.KEEP_LOG, self._logs),
            (sql.INSERT_OBLIGATION, self._obligations),
        )

    def _add_history(self, position: int, workspace: str, run_id: str | None, at_ms: int, records: bytes) -> None:
        self._history.append((position, workspace, run_id, at_ms, records))
        self.bytes += len(records)

    def _add_run(self, write: RunWrite, position: int) -> None:
        self._add_history(position, write.workspace, write.run_id, write.at_ms, write.records)
        run = write.run
        if run is not None:
            if write.new_run or run.run_id in self._new_runs:
                self._new_runs[run.run_id] = run
            else:
                self._runs[run.run_id] = run
        if write.wait is not None:
            self._waits[write.run_id] = msgspec.structs.replace(write.wait, position=position)
        elif write.wait_over:
            self._waits[write.run_id] = None
        if write.unknown_moved and run is not None:
            self._unknown[write.run_id] = run.attention == "unknown"
        for attempt in write.attempts:
            self._attempts[attempt.attempt_id] = attempt

    def _add_event(self, write: EventWrite, position: int) -> None:
        event = write.event
        self._add_history(position, event.workspace, None, event.received_at_ms, write.records)
        self.bytes += len(event.payload)
        self._events.append(_row(msgspec.structs.replace(event, metadata=_json(event.metadata), position=position)))
        if write.key is not None:
            self._event_keys.append(_row(write.key))

    def _add_manifest(self, write: ManifestWrite, position: int) -> None:
        manifest, routing = write.manifest, write.routing
        self._add_history(position, manifest.workspace, None, manifest.activated_at_ms, write.records)
        self.bytes += len(manifest.document)
        self._manifests.append(_row(manifest))
        self._routings.append(_row(msgspec.structs.replace(routing, applications=_json(routing.applications), position=position)))
        self._applications.append((manifest.workspace, manifest.application, manifest.manifest_generation))
        self._workspaces.append((routing.workspace, routing.routing_generation))

    def _add_release(self, write: ReleaseWrite, position: int) -> None:
        release = write.release
        self._add_history(position, release.workspace, None, release.first_seen_at_ms, write.records)
        self._releases.append(_row(msgspec.structs.replace(release, position=position)))


def _json(document: object) -> str:
    return msgspec.json.encode(document, order="sorted").decode()


def _update(connection: sqlite3.Connection, statement: str, rows: list[Row]) -> None:
    changed = connection.executemany(statement, rows).rowcount
    if changed != len(rows):
        raise LookupError(f"{len(rows) - changed} of {len(rows)} rows to update do not exist: {statement.partition(' SET')[0]}")
