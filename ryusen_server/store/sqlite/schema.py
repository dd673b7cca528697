"""What is in the file: tables, indexes, and the migrations that lead to them.

Each migration is one transaction and is never changed once released; `user_version` counts those that ran. Rows are projections of
`history`, which is append-only; `history.position` orders every commit, and whoever deletes its last rows one day must keep their
position in `meta` under `position`, since positions are never reused. Columns of a projection stand in the order of its row's fields.
"""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION_ID: Final = 0x52797573
"""Marks a file as ours, in the header where any tool can see it."""

_V1: Final = """
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE history (
  position INTEGER PRIMARY KEY,
  workspace TEXT NOT NULL,
  run_id TEXT,                        -- NULL: an event, a manifest or a release
  at_ms INTEGER NOT NULL,
  records BLOB NOT NULL               -- JSON array
) STRICT;
CREATE INDEX history_by_run ON history (run_id) WHERE run_id IS NOT NULL;   -- and by position, which is the rowid

CREATE TABLE runs (
  run_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  function TEXT NOT NULL,
  event_id TEXT,
  trigger_id TEXT,
  parent_run_id TEXT,
  parent_step_id TEXT,
  manifest_generation TEXT,
  routing_generation TEXT,
  status TEXT NOT NULL,
  outcome TEXT,
  recovery TEXT,
  recovery_reason TEXT,
  stop_reason TEXT,
  stop_requested_at_ms INTEGER,
  deadline_at_ms INTEGER,
  deadline_source TEXT,
  attention TEXT,
  created_at_ms INTEGER NOT NULL,
  ended_at_ms INTEGER,
  wake_at_ms INTEGER,
  steps_declared INTEGER NOT NULL,
  steps_completed INTEGER NOT NULL,
  unwind_pending INTEGER NOT NULL,
  unwind_succeeded INTEGER NOT NULL,
  unwind_failed INTEGER NOT NULL,
  unwind_skipped INTEGER NOT NULL,
  work_queued INTEGER NOT NULL,
  unknown_below_run_id TEXT,          -- carried up from a child, never written by a row of the run's own
  shown_attention TEXT GENERATED ALWAYS AS (coalesce(attention, iif(unknown_below_run_id IS NULL, NULL, 'unknown'))) VIRTUAL
) STRICT;
CREATE UNIQUE INDEX runs_by_id ON runs (run_id);
CREATE INDEX runs_by_creation ON runs (workspace, created_at_ms, run_id);
CREATE INDEX runs_by_application ON runs (workspace, application, created_at_ms, run_id);
CREATE INDEX runs_by_function ON runs (workspace, function, created_at_ms, run_id);
CREATE INDEX runs_by_event ON runs (event_id, created_at_ms, run_id) WHERE event_id IS NOT NULL;
CREATE INDEX runs_by_wake ON runs (wake_at_ms, run_id) WHERE wake_at_ms IS NOT NULL;
CREATE INDEX runs_by_status ON runs (workspace, status, created_at_ms, run_id) WHERE status <> 'ended';
CREATE INDEX runs_by_outcome ON runs (workspace, outcome, created_at_ms, run_id) WHERE outcome <> 'succeeded';
CREATE INDEX runs_by_recovery ON runs (workspace, recovery, created_at_ms, run_id) WHERE recovery <> 'not_required';
CREATE INDEX runs_by_attention ON runs (workspace, shown_attention, created_at_ms, run_id) WHERE shown_attention IS NOT NULL;
CREATE INDEX runs_by_end ON runs (workspace, ended_at_ms, run_id) WHERE ended_at_ms IS NOT NULL AND parent_run_id IS NULL;
CREATE INDEX runs_blocked ON runs (workspace, application, function) WHERE status = 'definition_blocked';

CREATE TABLE attempts (
  attempt_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  function TEXT NOT NULL,
  run_id TEXT NOT NULL,
  step_id TEXT NOT NULL,
  phase TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  attempt_generation INTEGER NOT NULL,
  operation_id TEXT NOT NULL,
  state TEXT NOT NULL,
  request_id TEXT,
  instance_id TEXT,
  session_id TEXT,
  release_id TEXT,
  transport TEXT,
  queued_at_ms INTEGER NOT NULL,
  due_at_ms INTEGER NOT NULL,
  authorized_at_ms INTEGER,
  lease_until_ms INTEGER,
  unknown_at_ms INTEGER,
  settled_at_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX attempts_by_id ON attempts (attempt_id);
CREATE INDEX attempts_by_queue ON attempts (workspace, queued_at_ms, attempt_id);
CREATE INDEX attempts_queued ON attempts (workspace, queued_at_ms, attempt_id) WHERE state = 'queued';
CREATE INDEX attempts_authorized ON attempts (workspace, queued_at_ms, attempt_id) WHERE state = 'authorized';
CREATE INDEX attempts_unknown ON attempts (workspace, queued_at_ms, attempt_id) WHERE state = 'unknown';
CREATE INDEX attempts_unusual ON attempts (workspace, state, queued_at_ms, attempt_id)
  WHERE state NOT IN ('queued', 'authorized', 'unknown', 'succeeded');

CREATE TABLE events (
  event_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  name TEXT NOT NULL,
  payload BLOB NOT NULL,
  metadata TEXT NOT NULL,             -- JSON object
  received_at_ms INTEGER NOT NULL,
  routing_generation TEXT,
  matched INTEGER NOT NULL,
  fan_out_next INTEGER,
  position INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_id ON events (event_id);
CREATE INDEX events_by_time ON events (workspace, received_at_ms, event_id);
CREATE INDEX events_by_name ON events (workspace, name, received_at_ms, event_id);
CREATE INDEX events_to_expand ON events (event_id) WHERE fan_out_next IS NOT NULL;
CREATE INDEX events_expanding ON events (workspace, name, position) WHERE fan_out_next IS NOT NULL;

CREATE TABLE waits (
  run_id TEXT PRIMARY KEY,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  event_name TEXT NOT NULL,
  shape TEXT NOT NULL,                -- JSON array of metadata keys, in order
  digest BLOB NOT NULL,               -- of the values asked for under them
  step_id TEXT NOT NULL,
  timeout_at_ms INTEGER NOT NULL,
  position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX waits_by_match ON waits (workspace, event_name, shape, digest, position);

CREATE TABLE obligations (
  child_run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  obligation BLOB NOT NULL,           -- JSON object
  PRIMARY KEY (child_run_id, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE event_keys (
  workspace TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  event_id TEXT NOT NULL,
  routing_generation TEXT,
  matched INTEGER NOT NULL,
  PRIMARY KEY (workspace, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE operator_commands (
  workspace TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  attempt_id TEXT NOT NULL,
  applied_at_ms INTEGER NOT NULL,
  acknowledgement BLOB NOT NULL,      -- JSON object
  PRIMARY KEY (workspace, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE manifests (
  manifest_generation TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  expected_parent TEXT,
  digest TEXT NOT NULL,
  document BLOB NOT NULL,             -- JSON object
  routing_generation TEXT NOT NULL,
  activated_at_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX manifests_by_generation ON manifests (workspace, manifest_generation);

CREATE TABLE applications (
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  manifest_generation TEXT NOT NULL,
  PRIMARY KEY (workspace, application)
) STRICT, WITHOUT ROWID;

CREATE TABLE routing (
  routing_generation TEXT NOT NULL,
  workspace TEXT NOT NULL,
  expected_parent TEXT,
  content_hash TEXT NOT NULL,
  applications TEXT NOT NULL,         -- JSON object
  activated_at_ms INTEGER NOT NULL,
  position INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX routing_by_generation ON routing (workspace, routing_generation);
CREATE INDEX routing_by_position ON routing (workspace, position);

CREATE TABLE workspaces (
  workspace TEXT PRIMARY KEY,
  routing_generation TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE releases (
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  release_id TEXT NOT NULL,
  contract TEXT NOT NULL,             -- JSON object
  first_seen_at_ms INTEGER NOT NULL,
  position INTEGER NOT NULL,
  PRIMARY KEY (workspace, application, release_id)
) STRICT, WITHOUT ROWID;
"""

_V2: Final = """
CREATE TABLE attempt_logs (
  number INTEGER PRIMARY KEY,
  attempt_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  run_id TEXT NOT NULL,
  step_id TEXT NOT NULL,
  phase TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  attempt_generation INTEGER NOT NULL,
  lines BLOB NOT NULL                 -- JSON array
) STRICT;
CREATE UNIQUE INDEX attempt_logs_by_attempt ON attempt_logs (attempt_id);
CREATE INDEX attempt_logs_by_run ON attempt_logs (run_id);      -- and by number, which is the rowid
"""

MIGRATIONS: Final[tuple[str, ...]] = (_V1, _V2)
"""Script `i` takes a file of schema version `i` to `i + 1`."""

SCHEMA_VERSION: Final = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the file forward, one transaction a version. A crash leaves the version before or the version after."""
    version = schema_version(connection)
    for number, script in enumerate(migrations[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def schema_version(connection: sqlite3.Connection) -> int:
    """Which migrations the file has seen; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> list[str]:
    """The statements of a script: `executescript` would commit the transaction around it."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending.strip())
            pending = ""
    return statements
