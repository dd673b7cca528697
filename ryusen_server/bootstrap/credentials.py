"""Reads the credentials file, and reads it again when it changes or somebody asks for it.

A file that others may read or write is refused: it says what every token may do. A change that cannot be used changes nothing: the
credentials that were good stay, and the log says why, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path
from typing import Final

from ryusen_protocol.scope import Scope
from ryusen_protocol.words import printable
from ryusen_server.api.credentials import Access, Credentials
from ryusen_server.api.credentials_file import CredentialsRefused, parse_credentials

_log = logging.getLogger(__name__)

_BYTES_MAX: Final = 4 * 1024 * 1024
_LOOK_S: Final = 1.0
_OTHERS: Final = 0o077

Signature = tuple[int, ...]


def read_credentials(path: Path) -> Credentials:
    """Everybody the file names. Raises `CredentialsRefused`, whose message names the file."""
    shown = printable(str(path))
    try:
        return parse_credentials(_guarded_text(path))
    except CredentialsRefused as refused:
        raise CredentialsRefused(f"the credentials file {shown} cannot be used: {refused}") from None
    except OSError as error:
        raise CredentialsRefused(f"the credentials file {shown} cannot be read: {error.strerror}; check --credentials") from error


def _guarded_text(path: Path) -> str:
    """The text of a file that its owner alone can use. What is checked is what is read: both go through one descriptor."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - a pipe must not hang the start
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise CredentialsRefused("it is no file")
        if found.st_mode & _OTHERS:
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            raise CredentialsRefused(f"others may use it (mode {mode}); close it to them: chmod 600 {printable(str(path))}")
        if found.st_uid not in {os.geteuid(), 0}:
            raise CredentialsRefused("it belongs to another user; it has to belong to the one who runs the server, or to root")
        text = file.read(_BYTES_MAX + 1)
    if len(text) > _BYTES_MAX:
        raise CredentialsRefused(f"it has more than {_BYTES_MAX} bytes")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise CredentialsRefused(f"not UTF-8 at byte {error.start}") from None


class CredentialsKeeper:
    """Keeps a server's access as its file says. Loop thread only."""

    def __init__(self, path: Path) -> None:
        """Read it for the first time. Raises `CredentialsRefused`."""
        self._path = path
        self._seen = _signature(path)
        self.access = Access(read_credentials(path))
        self._watching: asyncio.Task[None] | None = None

    def executes(self, scope: Scope) -> bool:
        """Whether any token may run work of the application."""
        return self.access.credentials is not None and self.access.credentials.executes(scope)

    def start(self) -> None:
        """Look at the file from now on."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()

    def reload(self) -> None:
        """Read it again. What cannot be used is logged and changes nothing."""
        self._seen = _signature(self._path)
        try:
            credentials = read_credentials(self._path)
        except CredentialsRefused as refused:
            _log.error("%s; what was read before still counts", refused)
            return
        if credentials != self.access.credentials:
            self.access.replace(credentials)
            _log.info("credentials read again: %d tokens", len(credentials.principals))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if _signature(self._path) != self._seen:
                self.reload()


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
