"""Opens the database file: the writer's connection with its pragmas, the checks of what is in it, and its migrations."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from ryusen_server.store.sqlite import sql
from ryusen_server.store.sqlite.config import SqliteConfig
from ryusen_server.store.sqlite.faults import StoreRefused, explain
from ryusen_server.store.sqlite.files import claim
from ryusen_server.store.sqlite.schema import SCHEMA_VERSION, migrate, schema_version

_LOG_BYTES_KEPT = 16 * 1024 * 1024
_CACHE_KIB = 32 * 1024


def uri(path: Path) -> str:
    """Names an existing file: a connection never creates one."""
    return f"{path.as_uri()}?mode=rw"


def open_writer(path: Path, config: SqliteConfig) -> tuple[sqlite3.Connection, int]:
    """The one connection that writes and checkpoints, over a file that is sound and has the newest schema; and its last position.

    Only while the owner's lock is held. Raises `StoreRefused`, with the content unchanged.
    """
    claim(path)
    try:
        connection = sqlite3.connect(
            uri(path), uri=True, isolation_level=None, check_same_thread=False, timeout=config.busy_timeout_ms / 1000, cached_statements=256
        )
    except sqlite3.Error as error:
        raise StoreRefused(explain(error, path, busy_timeout_ms=config.busy_timeout_ms)) from error
    try:
        _set_up(connection, path, config)
        position = int(connection.execute(sql.LAST_POSITION).fetchone()[0])
    except sqlite3.Error as error:
        connection.close()
        raise StoreRefused(explain(error, path, busy_timeout_ms=config.busy_timeout_ms)) from error
    except BaseException:
        connection.close()
        raise
    return connection, position


def reader_pragmas() -> tuple[str, ...]:
    """What a connection for reads runs first: it never writes and never checkpoints."""
    return (
        "PRAGMA query_only = ON",
        "PRAGMA wal_autocheckpoint = 0",
        f"PRAGMA cache_size = -{_CACHE_KIB // 4}",
        "PRAGMA temp_store = MEMORY",
    )


def _set_up(connection: sqlite3.Connection, path: Path, config: SqliteConfig) -> None:
    for pragma in _writer_pragmas(config):
        connection.execute(pragma)
    version = schema_version(connection)
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only a file without tables takes it
    if version > SCHEMA_VERSION:
        raise StoreRefused(
            f"{path} was written by a newer Ryusen (schema {version}, this one knows {SCHEMA_VERSION}); "
            "run that version or choose another --db"
        )
    _probe(connection, path, config)
    migrate(connection)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreRefused(f"{path} cannot have a write-ahead log on this file system; choose a --db on a local disk")
    # Opens the log and its index, and proves that the file takes a write lock.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")


def _writer_pragmas(config: SqliteConfig) -> tuple[str, ...]:
    pragmas = [
        "PRAGMA synchronous = FULL",
        "PRAGMA foreign_keys = OFF",
        "PRAGMA wal_autocheckpoint = 0",
        f"PRAGMA journal_size_limit = {_LOG_BYTES_KEPT}",
        f"PRAGMA cache_size = -{_CACHE_KIB}",
        "PRAGMA temp_store = MEMORY",
    ]
    if sys.platform == "darwin":
        pragmas += ["PRAGMA fullfsync = ON", "PRAGMA checkpoint_fullfsync = ON"]
    if config.pages_max is not None:
        pragmas.append(f"PRAGMA max_page_count = {config.pages_max}")
    return tuple(pragmas)


def _probe(connection: sqlite3.Connection, path: Path, config: SqliteConfig) -> None:
    """A bounded look at the file: all pages of a small one, the root of every table and index of any."""
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    for (table,) in tables:
        connection.execute(f'SELECT * FROM "{table}" LIMIT 1').fetchone()  # noqa: S608 — a name from the file's own schema
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    if pages * page_bytes <= config.probe_bytes_max:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            detail = " ".join(str(found).split())
            raise StoreRefused(f"{path} is damaged ({detail}). Keep a copy of the file, and restore a backup or choose another --db")
