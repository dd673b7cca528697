"""Finds what is old, and removes it: the statements, the look at a family from one state of the store, and the rows of a removal.

Which attempts and children a run had is read off its history: an index for it would cost every attempt a write, to be used once.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ryusen_protocol.ids import AttemptId, EventId, RunId, Workspace
from ryusen_server.ports.retention import EventKey, EventPage, FamilyKey, FamilyPage, OldEvent, OldRun, PruneWrite, ReclaimWrite, Space
from ryusen_server.store.sqlite.changes import pruned_key
from ryusen_server.store.sqlite.readers import Read, Readers

ENDED_FAMILIES: Final = """
SELECT run_id, ended_at_ms FROM runs INDEXED BY runs_by_end
WHERE workspace = ? AND ended_at_ms IS NOT NULL AND parent_run_id IS NULL AND ended_at_ms < ? AND (ended_at_ms, run_id) > (?, ?)
ORDER BY ended_at_ms, run_id LIMIT ?
"""
RUN_END: Final = "SELECT ended_at_ms FROM runs WHERE run_id = ?"
OWED: Final = "SELECT 1 FROM obligations WHERE child_run_id = ?"
RUN_PARTS: Final = """
SELECT json_each.value ->> 'attempt_id', json_each.value ->> 'child_run_id'
FROM history INDEXED BY history_by_run, json_each(CAST(history.records AS TEXT))
WHERE history.run_id = ? AND json_each.value ->> 'kind' IN ('attempt_queued', 'child_invoked')
"""
RUN_LAST: Final = "SELECT max(position) FROM history INDEXED BY history_by_run WHERE run_id = ?"
OLD_EVENTS: Final = """
SELECT event_id, received_at_ms, position,
  fan_out_next IS NULL AND NOT EXISTS (SELECT 1 FROM runs INDEXED BY runs_by_event WHERE runs.event_id = events.event_id)
FROM events INDEXED BY events_by_time
WHERE workspace = ? AND received_at_ms < ? AND (received_at_ms, event_id) > (?, ?) ORDER BY received_at_ms, event_id LIMIT ?
"""
DELETE_RUN: Final = "DELETE FROM runs WHERE run_id = ?"
DELETE_ATTEMPT: Final = "DELETE FROM attempts WHERE attempt_id = ?"
DELETE_RUN_LOGS: Final = "DELETE FROM attempt_logs WHERE run_id = ?"
DELETE_RUN_HISTORY: Final = "DELETE FROM history WHERE run_id = ?"
DELETE_EVENT: Final = "DELETE FROM events WHERE event_id = ?"
DELETE_CHANGE: Final = "DELETE FROM history WHERE position = ?"
RAISE_PRUNED: Final = """
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)
"""


class OldReader:
    """Reads what may be removed."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def old_families(self, workspace: Workspace, *, before_ms: int, after: FamilyKey | None, limit: int) -> FamilyPage:
        """See the port."""
        families: list[tuple[OldRun, ...]] = []
        async with self._readers.snapshot() as read:
            tops = await read(ENDED_FAMILIES, (workspace, before_ms, *(after or (-1, "")), limit))
            for run_id, _ in tops:
                family = await _family(read, RunId(run_id), before_ms)
                if family is not None:
                    families.append(family)
        last = tops[-1] if len(tops) == limit else None
        return FamilyPage(families, None if last is None else (last[1], RunId(last[0])))

    async def old_events(self, workspace: Workspace, *, before_ms: int, after: EventKey | None, limit: int) -> EventPage:
        """See the port."""
        rows = await self._readers.rows(OLD_EVENTS, (workspace, before_ms, *(after or (-1, "")), limit))
        events = [OldEvent(EventId(event_id), position) for event_id, _, position, may_go in rows if may_go]
        last = rows[-1] if len(rows) == limit else None
        return EventPage(events, None if last is None else (last[1], EventId(last[0])))

    async def space(self) -> Space:
        """See the port."""
        async with self._readers.snapshot() as read:
            pages, page_bytes, free = [(await read(f"PRAGMA {name}", ()))[0][0] for name in ("page_count", "page_size", "freelist_count")]
        return Space(int(pages) * int(page_bytes), int(free))


async def _family(read: Read, top: RunId, before_ms: int) -> tuple[OldRun, ...] | None:
    """The run and every one below it; none if one of them has to stay."""
    family: list[OldRun] = []
    looked_at = [top]
    for run_id in looked_at:
        ends = await read(RUN_END, (run_id,))
        if not ends or ends[0][0] is None or ends[0][0] >= before_ms or await read(OWED, (run_id,)):
            return None
        parts = await read(RUN_PARTS, (run_id,))
        looked_at += [RunId(child) for _, child in parts if child is not None]
        last = int((await read(RUN_LAST, (run_id,)))[0][0])
        family.append(OldRun(run_id, tuple(AttemptId(attempt) for attempt, _ in parts if attempt is not None), last))
    return tuple(family)


def prune(connection: sqlite3.Connection, write: PruneWrite) -> None:
    """Remove the rows, inside the caller's transaction, and keep how far the history is no longer whole."""
    many = connection.executemany
    runs = [(run.run_id,) for run in write.runs]
    events = [(event.event_id,) for event in write.events]
    many(DELETE_ATTEMPT, [(attempt_id,) for run in write.runs for attempt_id in run.attempt_ids])
    many(DELETE_RUN_LOGS, runs)
    many(DELETE_RUN_HISTORY, runs)
    many(DELETE_RUN, runs)
    many(DELETE_CHANGE, [(event.position,) for event in write.events])
    many(DELETE_EVENT, events)
    last = max([run.last_position for run in write.runs] + [event.position for event in write.events], default=0)
    connection.execute(RAISE_PRUNED, (pruned_key(write.workspace), last))


def reclaim(connection: sqlite3.Connection, write: ReclaimWrite) -> None:
    """Cut free pages off the file, inside the caller's transaction. Changes nothing in a file that was made without this in mind."""
    free = int(connection.execute("PRAGMA freelist_count").fetchone()[0])
    for _ in range(min(write.pages_max, free)):
        # One page each: the driver stops at the first step of a statement that has no columns.
        connection.execute("PRAGMA incremental_vacuum(1)")
