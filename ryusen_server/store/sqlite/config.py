"""What may be set about the SQLite store, and the seam for crash tests. Refuses to know where settings come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ryusen_server.ports.store import Unit


class SqliteConfig(msgspec.Struct, frozen=True):
    """Budgets and sizes; the defaults are what servers run with."""

    busy_timeout_ms: int = 5_000
    """How long a commit waits for another program that holds the database before it fails."""
    ride_wait_ms: int = 3
    """How long a unit that rides waits for one that does not."""
    batch_units_max: int = 512
    """Units of one commit."""
    readers: int = 4
    """Connections for reads, hence reads at one time."""
    checkpoint_pages: int = 1_000
    """Pages in the write-ahead log after which they are copied into the database."""
    checkpoint_idle_ms: int = 500
    """Quiet time after which the rest of the log is copied too."""
    probe_bytes_max: int = 8 * 1024 * 1024
    """Size up to which opening checks every page; of a larger file only the entry points are."""
    pages_max: int | None = None
    """Limit on the pages of the database; none for what the disk holds."""


class CommitHooks(Protocol):
    """Called on the writer's thread around each commit, so that a test can kill the process there.

    An exception from `before_commit` fails the batch as a fault of the disk would.
    """

    def before_commit(self, units: Sequence[Unit], /) -> None: ...

    def after_commit(self, units: Sequence[Unit], /) -> None: ...


class NoHooks:
    """What servers run with."""

    def before_commit(self, units: Sequence[Unit], /) -> None:
        """Do nothing."""

    def after_commit(self, units: Sequence[Unit], /) -> None:
        """Do nothing."""
