"""Looks at a database file without a server: whether it can be used, and if not, why. Changes nothing, not even beside the file."""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from pathlib import Path
from typing import Final, Literal

import msgspec

from ryusen_server.store.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION

_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\x00"
_CHECKED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Up to this size every page is looked at."""


class Fault(msgspec.Struct, frozen=True):
    """What keeps a server from using the file, why that is, and what to do."""

    code: Literal["database_missing", "no_write_permission", "not_a_database", "newer_database", "damaged_database", "open_to_others"]
    what: str
    why: str
    fix: str


def examine(path: Path) -> list[Fault]:
    """Every fault of the database at `path`; a file that is not there yet is judged by whether it could be made."""
    if not path.exists():
        return _examine_place(path)
    faults = _examine_permissions(path)
    try:
        header = _header(path)
    except OSError:
        return faults  # not even readable, which the permissions tell
    if not header and path.is_file():
        return faults
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES or struct.unpack_from(">I", header, 68)[0] != APPLICATION_ID:
        return [*faults, Fault("not_a_database", f"{path} is no database of Ryusen", "its beginning says so", "choose another --db")]
    found = _version(path, struct.unpack_from(">I", header, 60)[0])
    if found > SCHEMA_VERSION:
        why = f"it has schema {found}, and this program knows {SCHEMA_VERSION}"
        fix = "upgrade Ryusen in this environment, or choose another --db"
        return [*faults, Fault("newer_database", f"{path} was written by a newer Ryusen", why, fix)]
    return [*faults, *_examine_pages(path)]


def _header(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(_HEADER_BYTES)


def _examine_place(path: Path) -> list[Fault]:
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} may not be written by this user"
        return [Fault("no_write_permission", f"{path} cannot be created", why, f"chmod u+wx {folder}, or choose another --db")]
    if not path.parent.exists() and path.parent.name != ".ryusen":
        why = f"there is no folder {path.parent}"
        return [Fault("database_missing", f"{path} cannot be created", why, f"mkdir -p {path.parent}, or choose another --db")]
    return []


def _examine_permissions(path: Path) -> list[Fault]:
    faults: list[Fault] = []
    for place, need in ((path.parent, os.W_OK | os.X_OK), (path, os.R_OK | os.W_OK)):
        if not os.access(place, need):
            what = f"{place} may not be written by this user"
            why = "a database is written, and so are its log and its lock beside it"
            faults.append(Fault("no_write_permission", what, why, f"chmod u+rw{'x' if place.is_dir() else ''} {place}"))
    if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        why = "events and results stand in it as they are"
        faults.append(Fault("open_to_others", f"{path} can be read by other users", why, f"chmod 600 {path}"))
    return faults


def _version(path: Path, in_header: int) -> int:
    """The schema version; that of the header where the log beside the file cannot be read."""
    try:
        with _opened(path) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error:
        return in_header


def _examine_pages(path: Path) -> list[Fault]:
    if path.stat().st_size > _CHECKED_BYTES_MAX:
        return []
    try:
        with _opened(path) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return []  # locked or not readable just now, which says nothing of its content
        found = str(error)
    if found == "ok":
        return []
    why = " ".join(found.split())
    return [Fault("damaged_database", f"{path} is damaged", why, "stop the server, keep a copy of the file, and restore a backup")]


class _opened:  # noqa: N801 - reads as a verb where it is used
    """A connection that cannot write."""

    def __init__(self, path: Path) -> None:
        # Without a log beside it the file is whole by itself; `immutable` then keeps SQLite from making one.
        alone = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{alone}", uri=True, timeout=1)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()
