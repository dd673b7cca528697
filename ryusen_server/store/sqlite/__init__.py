"""The store in one SQLite file.

`writer` owns the only connection that writes and checkpoints, on a thread of its own; `readers` owns the connections beside it. `files`
guards the files on disk, `connection` opens them, `schema` says what is in them, `sql` holds every statement, `batch` turns units into
rows, `faults` turns what SQLite reports into words.
"""

from ryusen_server.store.sqlite.config import CommitHooks, NoHooks, SqliteConfig
from ryusen_server.store.sqlite.faults import StoreRefused
from ryusen_server.store.sqlite.store import SqliteStore

__all__ = ["CommitHooks", "NoHooks", "SqliteConfig", "SqliteStore", "StoreRefused"]
