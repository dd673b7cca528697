"""Every statement of the store. Columns of a projection come from its row struct, so that text and rows cannot drift apart.

A read names the index it walks where the planner has a choice: no read may scan a backlog, and `INDEXED BY` fails rather than scan.
A partial index serves only a query that repeats its condition as a literal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ryusen_server.core.rows import (
    AttemptRow,
    EventKeyRow,
    EventRow,
    LogRow,
    ManifestRow,
    OperatorCommandRow,
    ReleaseRow,
    RoutingRow,
    RunRow,
    WaitRow,
)

Parameters = Sequence[str | int | bytes | None]


def _columns(row: type[msgspec.Struct], *, prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name}" for name in row.__struct_fields__)


def _insert(table: str, row: type[msgspec.Struct]) -> str:
    return f"INSERT INTO {table} ({_columns(row)}) VALUES ({', '.join('?' for _ in row.__struct_fields__)})"  # noqa: S608 — names of ours


RUN_FIXED: Final = frozenset(
    ("run_id", "workspace", "application", "function", "event_id", "trigger_id", "parent_run_id", "parent_step_id", "created_at_ms")
)
"""What never changes about a run. Left out of updates, so that the indexes over it are not written again."""
RUN_INDEXED: Final = ("status", "outcome", "recovery", "attention", "wake_at_ms")
"""What changes seldom and has indexes over it. SQLite writes an index again whenever a statement names its column, changed or not, so these
have a statement of their own that touches only the runs that differ: a third of the time for the rest."""
RUN_CARRIED: Final = frozenset(("unknown_below_run_id",))
"""What other runs write into a run's row."""
RUN_CHANGING: Final = tuple(name for name in RunRow.__struct_fields__ if name not in RUN_FIXED | RUN_CARRIED and name not in RUN_INDEXED)
UPDATE_RUN_INDEXED_PARAMETERS: Final = (*RUN_INDEXED, "run_id", *RUN_INDEXED)
ATTEMPT_FIXED: Final = frozenset(
    (
        "attempt_id",
        "workspace",
        "application",
        "function",
        "run_id",
        "step_id",
        "phase",
        "attempt",
        "attempt_generation",
        "operation_id",
        "queued_at_ms",
    )
)
ATTEMPT_CHANGING: Final = tuple(name for name in AttemptRow.__struct_fields__ if name not in ATTEMPT_FIXED)

# Writes

INSERT_HISTORY: Final = "INSERT INTO history (position, workspace, run_id, at_ms, records) VALUES (?, ?, ?, ?, ?)"
INSERT_RUN: Final = _insert("runs", RunRow)
UPDATE_RUN: Final = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_CHANGING)} WHERE run_id = ?"  # noqa: S608 — field names
UPDATE_RUN_INDEXED: Final = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_INDEXED)} "  # noqa: S608 — field names
    f"WHERE run_id = ? AND ({' OR '.join(f'{name} IS NOT ?' for name in RUN_INDEXED)})"
)
UPSERT_ATTEMPT: Final = (
    _insert("attempts", AttemptRow)
    + f" ON CONFLICT (attempt_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in ATTEMPT_CHANGING)}"
)
INSERT_EVENT: Final = _insert("events", EventRow)
INSERT_EVENT_KEY: Final = _insert("event_keys", EventKeyRow)
UPDATE_FAN_OUT: Final = "UPDATE events SET fan_out_next = ? WHERE event_id = ?"
INSERT_WAIT: Final = _insert("waits", WaitRow).replace("INSERT", "INSERT OR REPLACE", 1)
DELETE_WAIT: Final = "DELETE FROM waits WHERE run_id = ?"
INSERT_OBLIGATION: Final = """
INSERT OR REPLACE INTO obligations (child_run_id, kind, workspace, application, obligation) VALUES (?, ?, ?, ?, ?)
"""
DELETE_OBLIGATION: Final = "DELETE FROM obligations WHERE child_run_id = ? AND kind = ?"
CARRY_UNKNOWN: Final = """
UPDATE runs SET unknown_below_run_id = ? WHERE run_id IN (
  WITH RECURSIVE above (run_id) AS (
    SELECT parent_run_id FROM runs WHERE run_id = ?
    UNION SELECT runs.parent_run_id FROM above JOIN runs ON runs.run_id = above.run_id
  ) SELECT run_id FROM above WHERE run_id IS NOT NULL)
"""
"""A walk from child to parent: as many steps as there are runs above."""
INSERT_MANIFEST: Final = _insert("manifests", ManifestRow)
INSERT_ROUTING: Final = _insert("routing", RoutingRow)
MOVE_APPLICATION: Final = "INSERT OR REPLACE INTO applications (workspace, application, manifest_generation) VALUES (?, ?, ?)"
MOVE_WORKSPACE: Final = "INSERT OR REPLACE INTO workspaces (workspace, routing_generation) VALUES (?, ?)"
INSERT_OPERATOR_COMMAND: Final = _insert("operator_commands", OperatorCommandRow)
INSERT_RELEASE: Final = _insert("releases", ReleaseRow)

# Reads by key

_RUN: Final = _columns(RunRow)
_ATTEMPT: Final = _columns(AttemptRow)
_EVENT: Final = _columns(EventRow)
_EVENT_LISTED: Final = _EVENT.replace("payload", "x''")

LAST_POSITION: Final = """
SELECT max(coalesce((SELECT max(position) FROM history), 0), coalesce((SELECT value FROM meta WHERE key = 'position'), 0))
"""
RUN: Final = f"SELECT {_RUN} FROM runs WHERE run_id = ?"  # noqa: S608 — field names, here and below
ATTEMPT: Final = f"SELECT {_ATTEMPT} FROM attempts WHERE attempt_id = ?"  # noqa: S608
EVENT: Final = f"SELECT {_EVENT} FROM events WHERE event_id = ?"  # noqa: S608
EVENT_KEY: Final = f"SELECT {_columns(EventKeyRow)} FROM event_keys WHERE workspace = ? AND key = ?"  # noqa: S608
OPERATOR_COMMAND: Final = f"SELECT {_columns(OperatorCommandRow)} FROM operator_commands WHERE workspace = ? AND key = ?"  # noqa: S608
MANIFEST: Final = f"SELECT {_columns(ManifestRow)} FROM manifests WHERE workspace = ? AND manifest_generation = ?"  # noqa: S608
ROUTING: Final = f"SELECT {_columns(RoutingRow)} FROM routing WHERE workspace = ? AND routing_generation = ?"  # noqa: S608
HISTORY: Final = """
SELECT position, at_ms, records FROM history INDEXED BY history_by_run
WHERE run_id = ? AND position > ? ORDER BY position LIMIT ?
"""

HISTORIES: Final = """
SELECT history.run_id, position, at_ms, records
FROM json_each(?) CROSS JOIN history INDEXED BY history_by_run ON history.run_id = json_each.value
"""

# Reads of what is due, at a start and in windows

ROUTING_HEADS: Final = "SELECT workspace, routing_generation FROM workspaces"
ACTIVE_MANIFESTS: Final = f"""
SELECT {_columns(ManifestRow, prefix="m.")} FROM applications a
JOIN manifests m ON m.workspace = a.workspace AND m.manifest_generation = a.manifest_generation
ORDER BY a.workspace, a.application
"""  # noqa: S608
RELEASES: Final = f"SELECT {_columns(ReleaseRow)} FROM releases ORDER BY position"  # noqa: S608
WAKES: Final = """
SELECT run_id, wake_at_ms FROM runs INDEXED BY runs_by_wake
WHERE wake_at_ms IS NOT NULL AND wake_at_ms <= ? ORDER BY wake_at_ms, run_id LIMIT ?
"""
WAKES_AFTER: Final = """
SELECT run_id, wake_at_ms FROM runs INDEXED BY runs_by_wake
WHERE wake_at_ms IS NOT NULL AND wake_at_ms <= ? AND (wake_at_ms, run_id) > (?, ?) ORDER BY wake_at_ms, run_id LIMIT ?
"""
AUTHORIZED_RUNS: Final = "SELECT DISTINCT run_id FROM attempts INDEXED BY attempts_authorized WHERE state = 'authorized'"
PENDING_FAN_OUTS: Final = """
SELECT event_id FROM events INDEXED BY events_to_expand WHERE fan_out_next IS NOT NULL AND event_id > ? ORDER BY event_id LIMIT ?
"""
EXPANDING_EVENTS: Final = f"""
SELECT {_EVENT_LISTED} FROM events INDEXED BY events_expanding
WHERE fan_out_next IS NOT NULL AND workspace = ? AND name = ? AND position > ? ORDER BY position LIMIT ?
"""  # noqa: S608
WAITED_NAMES: Final = """
SELECT workspace, event_name, count(*) FROM waits INDEXED BY waits_by_match GROUP BY workspace, event_name
"""
WAIT: Final = f"SELECT {_columns(WaitRow)} FROM waits WHERE run_id = ?"  # noqa: S608
WAIT_SHAPES: Final = """
WITH RECURSIVE shapes (shape) AS (
  SELECT (SELECT shape FROM waits INDEXED BY waits_by_match WHERE workspace = ?1 AND event_name = ?2 ORDER BY shape LIMIT 1)
  UNION ALL
  SELECT (SELECT next.shape FROM waits next INDEXED BY waits_by_match
    WHERE next.workspace = ?1 AND next.event_name = ?2 AND next.shape > shapes.shape ORDER BY next.shape LIMIT 1)
  FROM shapes WHERE shapes.shape IS NOT NULL
) SELECT shape FROM shapes WHERE shape IS NOT NULL
"""
"""From one shape to the next by a look-up each, over whatever waits have it."""
MATCHING_WAITS: Final = f"""
SELECT {_columns(WaitRow)} FROM waits INDEXED BY waits_by_match
WHERE workspace = ? AND event_name = ? AND shape = ? AND digest = ? AND position > ? AND position < ? ORDER BY position LIMIT ?
"""  # noqa: S608
OBLIGATIONS: Final = "SELECT kind, obligation FROM obligations ORDER BY child_run_id, kind LIMIT ?"
OBLIGATIONS_AFTER: Final = (
    "SELECT kind, obligation FROM obligations WHERE (child_run_id, kind) > (?, ?) ORDER BY child_run_id, kind LIMIT ?"
)
BLOCKED_RUNS: Final = """
SELECT run_id FROM runs INDEXED BY runs_blocked
WHERE status = 'definition_blocked' AND workspace = ? AND application = ? AND function IN (SELECT value FROM json_each(?))
"""

# Lists

RUN_LOGS: Final = f"""
SELECT {_columns(LogRow)} FROM attempt_logs INDEXED BY attempt_logs_by_run WHERE run_id = ? AND number > ? ORDER BY number LIMIT ?
"""  # noqa: S608
ATTEMPT_LOG: Final = f"SELECT {_columns(LogRow)} FROM attempt_logs INDEXED BY attempt_logs_by_attempt WHERE attempt_id = ?"  # noqa: S608
LOG_GIVEN: Final = tuple(name for name in LogRow.__struct_fields__ if name != "number")
KEEP_LOG: Final = f"""
INSERT INTO attempt_logs ({", ".join(LOG_GIVEN)})
SELECT {", ".join(f"?{number}" for number in range(1, len(LOG_GIVEN) + 1))}
WHERE EXISTS (SELECT 1 FROM runs WHERE run_id = ?{LOG_GIVEN.index("run_id") + 1})
ON CONFLICT (attempt_id) DO UPDATE SET lines = excluded.lines
"""  # noqa: S608
"""Not for a run that was removed meanwhile: nobody would ever remove its lines."""

EVENT_RUNS: Final = f"""
SELECT {_RUN} FROM runs INDEXED BY runs_by_event WHERE event_id = ? AND event_id IS NOT NULL ORDER BY created_at_ms, run_id
"""  # noqa: S608
COUNTS: Final = """
SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM runs),
  (SELECT count(*) FROM runs INDEXED BY runs_by_status WHERE status <> 'ended'),
  (SELECT count(*) FROM attempts INDEXED BY attempts_unknown WHERE state = 'unknown'),
  (SELECT count(*) FROM runs INDEXED BY runs_blocked WHERE status = 'definition_blocked')
"""

LIVE_RUNS: Final = "SELECT status, count(*) FROM runs INDEXED BY runs_by_status WHERE status <> 'ended' GROUP BY workspace, status"
OPEN_COUNTS: Final = """
SELECT (SELECT count(*) FROM attempts INDEXED BY attempts_queued WHERE state = 'queued'),
  (SELECT count(*) FROM attempts INDEXED BY attempts_authorized WHERE state = 'authorized'),
  (SELECT count(*) FROM attempts INDEXED BY attempts_unknown WHERE state = 'unknown'),
  (SELECT count(*) FROM events INDEXED BY events_to_expand WHERE fan_out_next IS NOT NULL)
"""
COUNTS_IN: Final = """
WITH chosen(workspace) AS (SELECT value FROM json_each(?1))
SELECT (SELECT count(*) FROM chosen CROSS JOIN events INDEXED BY events_by_time USING (workspace)),
  (SELECT count(*) FROM chosen CROSS JOIN runs INDEXED BY runs_by_creation USING (workspace)),
  (SELECT count(*) FROM chosen CROSS JOIN runs INDEXED BY runs_by_status USING (workspace) WHERE status <> 'ended'),
  (SELECT count(*) FROM chosen CROSS JOIN attempts INDEXED BY attempts_unknown USING (workspace) WHERE state = 'unknown'),
  (SELECT count(*) FROM chosen CROSS JOIN runs INDEXED BY runs_blocked USING (workspace) WHERE status = 'definition_blocked')
"""
"""The same of some workspaces."""

LAST: Final = "\U0010ffff"
"""Sorts after any text that continues a prefix."""
ENDLESS: Final = -1
"""LIMIT without a limit."""


def _listed(columns: str, source: str, terms: Sequence[str], order: str) -> str:
    return f"SELECT {columns} FROM {source} WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"  # noqa: S608


def attempts(*, state: str | None, paged: bool) -> str:
    """Parameters: workspace, the state if it is none of the open ones, the key if paged, limit."""
    match state:
        case None:
            index, terms = "attempts_by_queue", ["workspace = ?"]
        case "queued" | "authorized" | "unknown":
            index, terms = f"attempts_{state}", ["workspace = ?", f"state = '{state}'"]
        case "succeeded":
            index, terms = "attempts_by_queue", ["workspace = ?", "state = ?"]
        case _:
            index, terms = (
                "attempts_unusual",
                ["workspace = ?", "state = ?", "state NOT IN ('queued', 'authorized', 'unknown', 'succeeded')"],
            )
    if paged:
        terms.append("(queued_at_ms, attempt_id) > (?, ?)")
    return _listed(_ATTEMPT, f"attempts INDEXED BY {index}", terms, "queued_at_ms, attempt_id")


def events(*, named: bool, paged: bool) -> str:
    """Parameters: workspace, name if named, the key if paged, limit."""
    terms = ["workspace = ?", *(["name = ?"] if named else []), *(["(received_at_ms, event_id) < (?, ?)"] if paged else [])]
    source = f"events INDEXED BY {'events_by_name' if named else 'events_by_time'}"
    return _listed(_EVENT_LISTED, source, terms, "received_at_ms DESC, event_id DESC")


def routings(*, paged: bool) -> str:
    """Parameters: workspace, the position if paged, limit."""
    terms = ["workspace = ?", *(["position < ?"] if paged else [])]
    return _listed(_columns(RoutingRow), "routing INDEXED BY routing_by_position", terms, "position DESC")


def runs(source: str, terms: Sequence[str]) -> str:
    """Newest first; the last parameter is the limit."""
    return _listed(_RUN, source, terms, "created_at_ms DESC, run_id DESC")
