"""The files of one database: where they may be, who may read them, which server owns them, and whether they are still there.

Owns the lock file beside the database. Never opens the database itself once SQLite has: closing any descriptor of a file drops the
process's POSIX locks on it, those of SQLite included.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import Final, Self

import msgspec

from ryusen_server.store.sqlite.faults import FileLost, StoreRefused
from ryusen_server.store.sqlite.schema import APPLICATION_ID

_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
_STATE_FOLDER: Final = ".ryusen"
"""The one folder that is made when it is missing: any other missing folder is more likely a misspelt path."""


def prepare(path: Path) -> None:
    """Make `path` ready to be opened: its folder there, the file there with mode 0600, and ours if it has content.

    Raises `StoreRefused`, with nothing changed.
    """
    try:
        if path.is_dir():
            raise StoreRefused(f"{path} is a folder; --db takes the path of a file")
        if not path.parent.exists() and path.parent.name == _STATE_FOLDER:
            path.parent.mkdir(mode=0o700)
            path.parent.chmod(0o700)
        if not path.parent.is_dir():
            raise StoreRefused(f"{path} cannot be created: the folder {path.parent} does not exist; create it or choose another --db")
    except OSError as error:
        raise StoreRefused(f"{path} cannot be opened: {_strerror(error)}; choose another --db or fix the folder's permissions") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreRefused(f"{path.parent} is read-only, and the database needs to write there; make it writable or choose another --db")


def claim(path: Path) -> None:
    """Create the file, or check that it is ours and private. Only while the lock is held."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = "is read-only" if error.errno in {errno.EACCES, errno.EROFS, errno.EPERM} else f"cannot be opened: {_strerror(error)}"
        raise StoreRefused(f"{path} {what}; make it writable or choose another --db") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise StoreRefused(f"{path} is not a regular file; --db takes the path of a file")
        if found.st_size:
            _check_header(path, os.pread(descriptor, _HEADER_BYTES, 0))
        # umask cannot loosen a mode but can take the owner's bits; files of other hands may be wide open.
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o600)
            for companion in companions(path):
                if companion.exists():
                    companion.chmod(0o600)
    finally:
        os.close(descriptor)


def companions(path: Path) -> tuple[Path, Path]:
    """The write-ahead log and its shared index."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _check_header(path: Path, header: bytes) -> None:
    # The first transaction of a file of ours is made before the write-ahead log is turned on, so its mark is always in the file itself.
    if not header.startswith(_MAGIC[: len(header)]):
        raise StoreRefused(f"{path} is not a database, or its beginning is damaged; choose another --db or restore a backup")
    if len(header) < _HEADER_BYTES:
        raise StoreRefused(f"{path} is damaged: it is cut off after {len(header)} bytes; restore a backup")
    if struct.unpack_from(">I", header, 68)[0] != APPLICATION_ID:
        raise StoreRefused(f"{path} is a database of another program; choose another --db")


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)


class Owner(msgspec.Struct, frozen=True):
    """Who holds the lock, as written in the lock file."""

    pid: int
    url: str | None = None


class OwnerLock:
    """The lock of one server on one database: `<database>.lock`, released by the kernel when the process dies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, database: Path) -> Self:
        """Raises `StoreRefused` that names the owner."""
        path = database.with_name(f"{database.name}.lock")
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise StoreRefused(
                    f"{path} cannot be written: {_strerror(error)}; make its folder writable or choose another --db"
                ) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = _read_owner(descriptor)
                os.close(descriptor)
                if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                    raise StoreRefused(f"{path} cannot be locked: {_strerror(error)}; choose a --db on a local disk") from error
                raise StoreRefused(_in_use(database, owner)) from error
            # A server that has just closed may have removed the file between our open and our lock.
            if _identity(path) == _identity_of(os.fstat(descriptor)):
                lock = cls(path, descriptor)
                lock.set_url(None)
                return lock
            os.close(descriptor)

    def set_url(self, url: str | None) -> None:
        """Say where this server answers, for whoever is refused."""
        content = msgspec.json.encode(Owner(os.getpid(), url))
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its text
            os.fchmod(self._descriptor, 0o600)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content, 0)

    def release(self) -> None:
        """Remove the lock file and let go."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def _read_owner(descriptor: int) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Owner)
    except (msgspec.DecodeError, OSError):
        return None


def _in_use(database: Path, owner: Owner | None) -> str:
    if owner is None:
        return f"{database} is in use by another Ryusen server; stop it first or choose another --db"
    at = f" at {owner.url}" if owner.url else ""
    return f"{database} is in use by the Ryusen server with pid {owner.pid}{at}; use that one, stop it first, or choose another --db"


Identity = tuple[int, int]


def _identity_of(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _identity(path: Path) -> Identity | None:
    try:
        return _identity_of(path.stat())
    except OSError:
        return None


class Presence:
    """Watches that the database, its log and its index are the files that were opened.

    SQLite creates the log and the index when it opens the database and removes them when the last connection closes, so while the writer is
    open none of them changes by itself. A write to a file that was removed or replaced would succeed and be gone at the next start.
    """

    def __init__(self, database: Path) -> None:
        self._opened = [(os.fspath(path), _identity(path)) for path in (database, *companions(database))]

    def verify(self) -> None:
        """Raises `FileLost`."""
        for path, opened in self._opened:
            try:
                found = os.stat(path)  # noqa: PTH116 — once a commit: three times as fast as through Path
            except OSError:
                raise FileLost(f"{path} was removed or moved away while the server runs") from None
            if (found.st_dev, found.st_ino) != opened:
                raise FileLost(f"{path} was replaced by another file while the server runs")
