"""What SQLite and the file system report, in words for people: what happened, why, what to do. Decides which faults are fatal."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from ryusen_server.ports.store import StorageUnavailable


class StoreRefused(Exception):
    """The database cannot be opened as it is. The message is one line for people; nothing was changed."""


class FileLost(Exception):
    """A file of the database is no longer where it was opened."""


FATAL_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
    }
)
"""After these nobody can tell what reached the disk: the kernel may have dropped pages that a second sync would report as written."""

_GOES_ON: Final = "the server goes on by itself"


def is_fatal(error: Exception) -> bool:
    """Whether nothing may be retried past `error`."""
    return isinstance(error, sqlite3.Error) and code_of(error) in FATAL_CODES


def code_of(error: sqlite3.Error) -> int:
    """The extended result code; 0 for errors that come from the driver."""
    return getattr(error, "sqlite_errorcode", 0)


def explain(error: Exception, path: Path, *, busy_timeout_ms: int) -> str:
    """Why the store cannot answer, and what to do about it."""
    if isinstance(error, FileLost):
        return f"{error}. Nothing is accepted until it is put back or the server is restarted"
    if not isinstance(error, sqlite3.Error):
        what = f"{type(error).__name__}: {error}"
        return f"The database {path} could not take the data ({what}). This is a defect of the server; please report it"
    code = code_of(error)
    if code in FATAL_CODES:
        return (
            f"The disk did not confirm a write to {path} ({_name(error)}), so nobody can tell what it holds; "
            "check the disk, then start the server again: it continues from what was confirmed"
        )
    return _explain_primary(code & 0xFF, error, path, busy_timeout_ms)


def _explain_primary(primary: int, error: sqlite3.Error, path: Path, busy_timeout_ms: int) -> str:
    if primary == sqlite3.SQLITE_FULL:
        return f"The disk is full: {path} cannot grow. Free some space; {_GOES_ON}"
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return f"Another program has locked {path} for more than {busy_timeout_ms / 1000:g} s. Close that program; {_GOES_ON}"
    if primary in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return f"{path} is read-only. Make the file and its folder writable; {_GOES_ON}"
    if primary == sqlite3.SQLITE_CANTOPEN:
        return f"{path} cannot be opened ({error}). Check that the file and its folder exist and are readable and writable"
    if primary == sqlite3.SQLITE_IOERR:
        return f"The disk failed on {path} ({_name(error)}). Check its free space and health; {_GOES_ON}"
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return f"{path} is damaged ({error}). With the server stopped, keep a copy of the file and restore a backup"
    return f"The database {path} answered {_name(error)}: {error}"


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", type(error).__name__)


def unavailable(error: Exception, path: Path, *, busy_timeout_ms: int) -> StorageUnavailable:
    """`error` as the port knows it."""
    return StorageUnavailable(explain(error, path, busy_timeout_ms=busy_timeout_ms))
