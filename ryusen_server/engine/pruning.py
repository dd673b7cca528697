"""Removes ended runs and their events once they are older than somebody wants to keep: in small transactions, between those of moving runs.

Nothing that lives is touched. A family (a run that an event started and every run below it) goes as a whole, once all of it has ended; an
event goes when it is expanded and no run of it is left. What stays for ever: idempotency keys, operators' commands, deployments, releases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from ryusen_protocol.ids import Workspace
from ryusen_server.engine.runs import Runs
from ryusen_server.ports.retention import OldEvent, OldRun, PruneWrite, ReclaimWrite
from ryusen_server.ports.store import StorageUnavailable, Store, Unit, Write
from ryusen_server.ports.time import Clock

log = logging.getLogger(__name__)

FAMILIES_A_COMMIT: Final = 32
EVENTS_A_COMMIT: Final = 128
PAGES_A_COMMIT: Final = 256
"""One MiB of pages is moved and cut off in one commit."""


class Pruned(msgspec.Struct):
    """What one removal came to. `complete`: nothing that is old and may go is left."""

    before_ms: int
    runs: int = 0
    events: int = 0
    freed_bytes: int = 0
    complete: bool = False


class Pruner:
    """Removes on request, one request at a time."""

    def __init__(self, *, store: Store, runs: Runs, clock: Clock) -> None:
        self._store = store
        self._runs = runs
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    async def prune(self, workspace: Workspace, *, older_than_ms: int, bound_ms: int) -> Pruned:
        """Remove the runs that ended so long ago, and the events left without one. Stops at the bound. Raises `StorageUnavailable`."""
        async with self._one_at_a_time:
            pruned = Pruned(max(0, self._clock.now_ms() - older_than_ms))
            until_ms = self._clock.now_ms() + bound_ms
            before = (await self._store.space()).bytes
            complete = await self._remove_families(workspace, pruned, until_ms) and await self._remove_events(workspace, pruned, until_ms)
            pruned.complete = await self._reclaim(until_ms) and complete
            pruned.freed_bytes = max(0, before - (await self._store.space()).bytes)
            told = "%d runs and %d events are removed from workspace %s"
            log.info(told, pruned.runs, pruned.events, workspace, extra={"workspace": workspace})
            return pruned

    async def _remove_families(self, workspace: Workspace, pruned: Pruned, until_ms: int) -> bool:
        after = None
        while True:
            page = await self._store.old_families(workspace, before_ms=pruned.before_ms, after=after, limit=FAMILIES_A_COMMIT)
            going = [family for family in page.families if self._runs.part_with([run.run_id for run in family])]
            runs = [run for family in going for run in family]
            try:
                if runs:
                    await self._remove(workspace, pruned, runs, ())
            finally:
                self._runs.parted([run.run_id for run in runs])
            if page.after is None:
                return True
            if self._clock.now_ms() >= until_ms:
                return False
            after = page.after

    async def _remove_events(self, workspace: Workspace, pruned: Pruned, until_ms: int) -> bool:
        after = None
        while True:
            page = await self._store.old_events(workspace, before_ms=pruned.before_ms, after=after, limit=EVENTS_A_COMMIT)
            if page.events:
                await self._remove(workspace, pruned, (), page.events)
            if page.after is None:
                return True
            if self._clock.now_ms() >= until_ms:
                return False
            after = page.after

    async def _remove(self, workspace: Workspace, pruned: Pruned, runs: Sequence[OldRun], events: Sequence[OldEvent]) -> None:
        records = msgspec.json.encode([{"kind": "pruned", "before_ms": pruned.before_ms, "runs": len(runs), "events": len(events)}])
        await self._commit(PruneWrite(workspace, self._clock.now_ms(), tuple(runs), tuple(events), records))
        pruned.runs += len(runs)
        pruned.events += len(events)

    async def _reclaim(self, until_ms: int) -> bool:
        """Give the file's free pages back, a few a commit; whether none is left that can be."""
        free = (await self._store.space()).free_pages
        while free:
            await self._commit(ReclaimWrite(PAGES_A_COMMIT))
            before, free = free, (await self._store.space()).free_pages
            if free >= before:
                return True  # a file that was made before this was meant, or one that grows as fast: its free pages are used again
            if free and self._clock.now_ms() >= until_ms:
                return False  # after one step at least, so that whoever asks again gets to the end
        return True

    async def _commit(self, write: Write) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: StorageUnavailable | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self._store.submit(Unit((write,)), done)
        await durable
