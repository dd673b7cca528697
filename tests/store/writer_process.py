"""A process of its own that writes to a store, for tests to kill. Usage: writer_process.py DB MODE.

`kill-before N` and `kill-after N` kill it at the N-th commit; `hold` opens the store and waits. Each acknowledged run id is printed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ryusen_server.ports.store import StorageUnavailable, Unit
from ryusen_server.store.sqlite import NoHooks, SqliteStore
from tests.store.builders import begins, run_row


class Kill(NoHooks):
    def __init__(self, where: str, at: int) -> None:
        self._where = where
        self._left = at

    def before_commit(self, units: Sequence[Unit], /) -> None:
        self._left -= 1
        if self._left == 0 and self._where == "kill-before":
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(self, units: Sequence[Unit], /) -> None:
        if self._left == 0 and self._where == "kill-after":
            os.kill(os.getpid(), signal.SIGKILL)


def fatal(reason: str) -> None:
    print(f"fatal {reason}", flush=True)
    os._exit(70)


async def main() -> None:
    path, mode = Path(sys.argv[1]), sys.argv[2]
    at = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    store = await SqliteStore.open(path, on_fatal=fatal, hooks=Kill(mode, at))
    store.set_owner_url("http://127.0.0.1:7878")
    print("ready", flush=True)
    if mode == "hold":
        await asyncio.to_thread(sys.stdin.readline)
        await store.close()
        return
    number = 0
    while True:
        told = asyncio.get_running_loop().create_future()
        for _ in range(3):
            run_id = f"run_{number}"
            number += 1

            def done(failure: StorageUnavailable | None, run_id: str = run_id, told: asyncio.Future[None] = told) -> None:
                print(f"{'acknowledged' if failure is None else 'failed'} {run_id}", flush=True)
                if not told.done():
                    told.set_result(None)

            store.submit(Unit((begins(run_row(run_id)),)), done)
        await told


asyncio.run(main())
