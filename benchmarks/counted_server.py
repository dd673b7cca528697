"""The server as it is, with a count of its commits: `counted_server.py DATABASE PORT_FILE COMMITS_FILE`.

The wiring is the product's; only the store's hooks differ. SIGUSR1 writes the count of commits so far to COMMITS_FILE. One commit of the
write-ahead log under `synchronous=FULL` is one fsync; checkpoints add theirs, a few for every thousand pages.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from ryusen_server.bootstrap.server import Server
from ryusen_server.bootstrap.settings import ServerSettings
from ryusen_server.ports.store import Unit
from ryusen_server.store.sqlite import SqliteStore


class Counted:
    """Counts commits, on the writer's thread."""

    commits = 0

    def before_commit(self, units: Sequence[Unit], /) -> None:
        """Nothing to do."""

    def after_commit(self, units: Sequence[Unit], /) -> None:
        """One more commit."""
        del units
        self.commits += 1


async def serve(database: Path, port_file: Path, commits_file: Path) -> None:
    """Run until SIGTERM."""
    counted = Counted()

    async def open_store(path: Path | None, on_fatal: Callable[[str], None]) -> SqliteStore:
        return await SqliteStore.open(path, on_fatal=on_fatal, hooks=counted)

    server = Server(ServerSettings(db=database, port=0, log_level="WARNING"), store_factory=open_store)
    await server.start()
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _write(commits_file, str(counted.commits)))
    _write(port_file, server.url.rsplit(":", 1)[1])
    await ended.wait()
    await server.stop(drain_ms=1_000)


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(*(Path(argument) for argument in sys.argv[1:4])))
