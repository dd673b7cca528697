"""The server with a store that can be killed at a named boundary: `wired_server.py FOLDER PORT LEASE_MS [plain]`.

While FOLDER/kill holds `BOUNDARY MOMENT`, the next commit that contains that boundary kills the process with SIGKILL: MOMENT `before` the
commit, or `after` it and before anything that waits for it is told. The order is taken up by removing the file first, so that the next
server lives.
`plain` switches merging and early departure off, so that every boundary is a commit of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from ryusen_server.bootstrap.server import Server
from ryusen_server.bootstrap.settings import ServerSettings
from ryusen_server.engine.config import EngineConfig
from ryusen_server.ports.store import (
    DischargeWrite,
    EventWrite,
    FanOutWrite,
    ManifestWrite,
    ObligationWrite,
    OperatorWrite,
    ReleaseWrite,
    RunWrite,
    Unit,
    Write,
)
from ryusen_server.store.sqlite import SqliteStore
from ryusen_server.store.sqlite.config import SqliteConfig


def boundaries(write: Write) -> set[str]:
    """The names under which a test can ask for this write."""
    match write:
        case EventWrite():
            return {"event_accepted"}
        case FanOutWrite():
            return {"fan_out_advanced"}
        case ManifestWrite():
            return {"manifest_activated"}
        case ReleaseWrite():
            return {"release_seen"}
        case OperatorWrite():
            return {"operator_command"}
        case ObligationWrite():
            return {"obligation_incurred"}
        case DischargeWrite():
            return {"obligation_discharged"}
        case RunWrite():
            return {name for record in json.loads(write.records) for name in names_of(record)}
        case _:
            return set()


def names_of(record: dict[str, Any]) -> set[str]:
    """A record's kind, and what it came to where that makes a difference."""
    kind = record["kind"]
    match kind:
        case "attempt_settled":
            return {kind, f"attempt_{record['state']}"}
        case "step_completed":
            return {kind, "step_failed" if "failure" in record else "step_succeeded"}
        case "outcome_decided":
            return {kind, f"outcome_{record['outcome']}"}
        case _:
            return {kind}


class Killer:
    """Kills this process where the test asked for it."""

    def __init__(self, folder: Path) -> None:
        self._order = folder / "kill"
        self._armed = False

    def before_commit(self, units: Sequence[Unit], /) -> None:
        self._armed = False
        try:
            wanted, moment = self._order.read_text().split()
        except (FileNotFoundError, ValueError):
            return
        if any(wanted in boundaries(write) for unit in units for write in unit.writes):
            self._order.unlink()
            if moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            self._armed = True

    def after_commit(self, units: Sequence[Unit], /) -> None:
        del units
        if self._armed:
            os.kill(os.getpid(), signal.SIGKILL)


async def serve(folder: Path, port: int, lease_ms: int, *, plain: bool) -> None:
    async def open_store(path: Path | None, on_fatal: Callable[[str], None]) -> SqliteStore:
        return await SqliteStore.open(path, on_fatal=on_fatal, hooks=Killer(folder), config=SqliteConfig(busy_timeout_ms=500))

    config = EngineConfig(
        lease_ms=lease_ms, heartbeat_ms=lease_ms // 4, reconnect_grace_ms=lease_ms, tick_ms=50, merge=not plain, early=not plain
    )
    settings = ServerSettings(db=folder / "ryusen.db", port=port, log_level="WARNING")
    server = Server(settings, store_factory=open_store, engine_config=config)
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    partial = folder / "url.partial"
    partial.write_text(server.url)
    partial.rename(folder / "url")
    await ended.wait()
    await server.stop(drain_ms=2_000)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), plain=sys.argv[4:] == ["plain"]))
