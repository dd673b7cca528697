"""Copies a database to a file, whole as of one moment, while its server goes on. The copy is complete or it is not there."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from ryusen_server.bootstrap.checkup import examine
from ryusen_server.store.sqlite.schema import schema_version

_REFUSED: Final = frozenset({"not_a_database", "newer_database", "damaged_database", "database_missing"})
_PATIENCE_S: Final = 30.0


class BackupRefused(Exception):
    """There is no copy, and nothing was changed. The message is one line for people, `hint` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Copied(msgspec.Struct, frozen=True):
    """A copy that is on the disk and was read once."""

    path: str
    bytes: int
    schema_version: int


def back_up(source: Path, to: Path) -> Copied:
    """Copy `source` to the new file `to` (0600). Raises `BackupRefused`."""
    if not source.exists():
        raise BackupRefused(f"there is no database {source}", "name it with --db")
    for fault in examine(source):
        if fault.code in _REFUSED:
            raise BackupRefused(f"{fault.what}: {fault.why}", fault.fix)
    if to.exists():
        raise BackupRefused(f"{to} exists already, and nothing is overwritten", "name another file")
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        try:
            version = _copy(source, part)
            _keep(part, to)
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError as error:
        raise BackupRefused(f"{to} exists already, and nothing is overwritten", "name another file") from error
    except OSError as error:
        raise BackupRefused(
            f"{to} cannot be written: {error.strerror}", "name a file in a folder you may write to, with room for it"
        ) from error
    except sqlite3.Error as error:
        raise BackupRefused(f"{source} cannot be copied to {to}: {error}", "see `ryusen doctor`, and that the disk has room") from error
    return Copied(str(to), to.stat().st_size, version)


def _copy(source: Path, part: Path) -> int:
    """One read transaction from the first page to the last: writers go on, and the copy does not see them."""
    with contextlib.closing(_reading(source)) as reader, contextlib.closing(sqlite3.connect(part, isolation_level=None)) as writer:
        reader.backup(writer, pages=-1)
        writer.execute("PRAGMA journal_mode = DELETE")  # one file by itself
        found = str(writer.execute("PRAGMA quick_check(1)").fetchone()[0])
        if found != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged ({' '.join(found.split())})")
        return schema_version(writer)


def _reading(source: Path) -> sqlite3.Connection:
    place = source.resolve().as_uri()
    try:
        reader = sqlite3.connect(f"{place}?mode=ro", uri=True, timeout=_PATIENCE_S)
        reader.execute("SELECT 1 FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError:  # the log's index has to be made, which a reader may not
        reader = sqlite3.connect(f"{place}?mode=rw", uri=True, timeout=_PATIENCE_S)
    return reader


def _keep(part: Path, to: Path) -> None:
    """Under its name at last, on the disk, and in nobody's place."""
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.link(part, to)
    folder = os.open(to.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
