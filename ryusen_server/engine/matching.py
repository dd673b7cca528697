"""Brings events and the waits they match together.

Owns that the earliest accepted event wins, and that one accepted before a timeout wins over it however late either is processed. What a
match or a timeout comes to is the core's; which waits an event concerns is asked of the store, by look-ups.

| what is due | and | then |
|---|---|---|
| an event's matching, behind its runs | | the waits it matches settle, a page at a time; the expansion goes on when a page is durable |
| a wait of the page | an earlier event of the name is being expanded too and matches | that one is taken |
| a timeout | no event of the name is being expanded | the wait times out |
| a timeout | some are | what was accepted is made durable, the earliest that matches is taken, else the wait times out |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.ids import RunId, StepId
from ryusen_server.core.commands.settle_wait import EventMatched, WaitTimedOut
from ryusen_server.core.correlation import digest_of
from ryusen_server.core.decide import Command
from ryusen_server.core.rows import EventRow, WaitRow
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.engine.waited import UnderWay
from ryusen_server.ports.store import StorageUnavailable, Store

log = logging.getLogger(__name__)

PAGE = 64
"""Waits that settle before the next ones are read."""
EVENTS_AT_ONCE = 16
"""Events that are matched side by side; the others wait their turn, in the order they came."""


class Tasks(Protocol):
    """Who runs what takes time, and goes on with runs once the store answers again."""

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None: ...

    def owe(self, run_id: RunId, *commands: Command) -> None: ...


class Matching:
    """Settles waits, on the loop's thread."""

    def __init__(self, *, store: Store, runs: Runs, dispatcher: Dispatcher, under_way: UnderWay) -> None:
        self._store = store
        self._runs = runs
        self._dispatcher = dispatcher
        self._under_way = under_way
        self._turns = asyncio.Semaphore(EVENTS_AT_ONCE)
        self._contended: set[RunId] = set()
        """Runs whose timeout looks for an event before it."""
        self.tasks: Tasks

    async def settle_waits(self, event: EventRow) -> None:
        """Settle every wait that a durable event matches; its payload may be left out.

        Raises `StorageUnavailable` with the rest unsettled, to be called again.
        """
        async with self._turns:
            whole: EventRow | None = None
            after: WaitRow | None = None
            while page := await self._store.matching_waits(
                event.workspace, event.name, event.metadata, before=event.position, after=after, limit=PAGE
            ):
                whole = whole or await self._whole(event)
                await self._settle_page(page, whole)
                after = page[-1]

    async def _whole(self, event: EventRow) -> EventRow:
        stored = await self._store.event(event.event_id)
        if stored is None:
            raise AssertionError(f"event {event.event_id} is being expanded and is not there")
        return stored

    async def _settle_page(self, page: list[WaitRow], event: EventRow) -> None:
        rivals: list[EventRow] = []
        if self._under_way.has((event.workspace, event.name), besides=event.event_id):
            rivals = await self._being_expanded(event, since=min(wait.position for wait in page))
        await asyncio.gather(*[self._runs.load(wait.run_id) for wait in page])  # so that what they come to shares a commit
        settled: list[LiveRun] = []
        for wait in page:
            try:
                live = await self._settle(wait, [*rivals, event])
            except StorageUnavailable:
                raise
            except Exception:  # one run's defect must keep neither the other waits nor the event from going on
                log.exception("the wait of run %s could not be settled", wait.run_id)
            else:
                if live is not None:
                    settled.append(live)
        await asyncio.gather(*[self._durable(live) for live in settled])

    async def _being_expanded(self, event: EventRow, *, since: int) -> list[EventRow]:
        """Earlier events of the name whose expansion is under way: they may come to the same waits later than this one."""
        found: list[EventRow] = []
        after = since
        while page := await self._store.expanding_events(event.workspace, event.name, after=after, limit=PAGE):
            found += [row for row in page if row.position < event.position]
            after = page[-1].position
            if after >= event.position:
                break
        return found

    async def _settle(self, wait: WaitRow, events: Sequence[EventRow]) -> LiveRun | None:
        chosen = next((event for event in events if _fits(wait, event)), None)
        if chosen is None:
            return None
        command = await self._matched(wait, chosen, whole=chosen is events[-1])
        live = await self._runs.load(wait.run_id)
        if live is not None:
            self._apply(live, command)
        return live

    async def _matched(self, wait: WaitRow, event: EventRow, *, whole: bool) -> EventMatched:
        if not whole:
            event = await self._whole(event)
        return EventMatched(wait.step_id, event.payload, event.received_at_ms, event.position, wait.position)

    def _apply(self, live: LiveRun, command: EventMatched | WaitTimedOut) -> None:
        self._runs.apply(live, command)
        self._dispatcher.offer(live)

    async def _durable(self, live: LiveRun) -> None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: StorageUnavailable | None) -> None:
            if told.done():
                return
            if error is None:
                told.set_result(None)
            else:
                told.set_exception(error)

        self._runs.when_durable(live, settle)
        await told

    # timeouts

    def time_out(self, live: LiveRun) -> None:
        """The timeout of the run's pending wait is due."""
        run = live.run
        step = run.pending_step()
        if step is None or not isinstance(step.declaration, EventWaitDeclaration):
            raise AssertionError("a run whose timeout is due has a pending wait")
        if not self._under_way.has((run.workspace, step.declaration.event_name)):
            self._apply(live, WaitTimedOut(step.step_id))
        elif run.run_id not in self._contended:
            self._contended.add(run.run_id)
            self.tasks.spawn("timeout", self._look_behind(run.run_id, step.step_id))

    async def _look_behind(self, run_id: RunId, step_id: StepId) -> None:
        try:
            await self._store.flush()  # whatever was accepted by now is durable after this, or lost
            wait = await self._store.wait(run_id)
            earliest = None if wait is None or wait.step_id != step_id else await self._earliest(wait)
            live = await self._runs.load(run_id)
            if live is not None:
                self._apply(live, earliest or WaitTimedOut(step_id))
        except StorageUnavailable:
            self.tasks.owe(run_id)
            raise
        finally:
            self._contended.discard(run_id)

    async def _earliest(self, wait: WaitRow) -> EventMatched | None:
        after = wait.position
        while page := await self._store.expanding_events(wait.workspace, wait.event_name, after=after, limit=PAGE):
            for event in page:
                if _fits(wait, event):
                    return await self._matched(wait, event, whole=False)
            after = page[-1].position
        return None


def _fits(wait: WaitRow, event: EventRow) -> bool:
    accepted_in_time = event.position > wait.position and event.received_at_ms < wait.timeout_at_ms
    return accepted_in_time and digest_of(wait.shape, event.metadata) == wait.digest
