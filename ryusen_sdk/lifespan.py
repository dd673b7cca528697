"""The user's lifespan: an async context manager around whatever serves an application, entered once per process.

Owns that one entry, however many transports hold it and whenever the first and the last of them come and go. The manager is entered and
left by one task of its own, as task groups and cancel scopes require. Knows nothing of transports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from ryusen_sdk.errors import MisuseError

LifespanSource = AbstractAsyncContextManager[Any] | Callable[[], AbstractAsyncContextManager[Any]]
"""An async context manager, or a function that makes one."""


class Lifespan:
    """The lifespan of one application in this process. Entered by the first hold, left with the last one."""

    def __init__(self, source: LifespanSource | None) -> None:
        self._source = source
        self._holds: set[Hold] = set()
        self._entry: _Entry | None = None

    def hold(self) -> Hold:
        """For one transport: `await enter()` before the first invocation, `await leave()` after the last one."""
        return Hold(self)

    async def acquire(self, hold: Hold) -> None:
        """Enters the manager unless it is entered already. Raises what it raises; then it is not held."""
        if self._source is None:
            return
        self._holds.add(hold)
        if self._entry is None:
            self._entry = _Entry(self._source)
        entry = self._entry
        try:
            await entry.until_entered()
        except BaseException:
            self._holds.discard(hold)
            if not self._holds or entry.is_over:
                self._forget(entry)
                entry.cancel()
            raise

    async def release(self, hold: Hold) -> None:
        """Leaves the manager if nobody else holds it. Raises what it raises."""
        self._holds.discard(hold)
        entry = self._entry
        if entry is not None and not self._holds:
            self._forget(entry)
            await entry.leave()

    def _forget(self, entry: _Entry) -> None:
        if self._entry is entry:
            self._entry = None


class Hold:
    """One transport's share of a lifespan. Entering and leaving again do nothing more; several callers may enter at a time."""

    def __init__(self, lifespan: Lifespan) -> None:
        self._lifespan = lifespan
        self.is_entered = False

    async def enter(self) -> None:
        """Returns once the user's manager is entered. Raises what it raises, or `MisuseError` on a second event loop."""
        if not self.is_entered:
            await self._lifespan.acquire(self)
            self.is_entered = True

    async def leave(self) -> None:
        """Returns once the manager is left, if this was the last hold. Raises what it raises."""
        if self.is_entered:
            self.is_entered = False
            await self._lifespan.release(self)

    async def __aenter__(self) -> None:
        await self.enter()

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class _Entry:
    """One entering and leaving of the manager, in one task."""

    def __init__(self, source: LifespanSource) -> None:
        self._loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[None] = self._loop.create_future()
        self._leaving = asyncio.Event()
        self._task = self._loop.create_task(self._live(source), name="ryusen-lifespan")

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def until_entered(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise MisuseError("the lifespan is entered on another event loop of this process; serve an application from one loop")
        await asyncio.wait({self._task, self._entered}, return_when=asyncio.FIRST_COMPLETED)
        if not self._entered.done():
            await self._task  # it ended before it was entered: raises why

    async def leave(self) -> None:
        self._leaving.set()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        self._task.cancel()

    async def _live(self, source: LifespanSource) -> None:
        # A manager first: those of `asynccontextmanager` can be called too, as decorators.
        is_manager = isinstance(source, AbstractAsyncContextManager)
        made = cast("object", source if is_manager else cast("Callable[[], object]", source)())
        if not hasattr(made, "__aenter__"):
            raise MisuseError(f"lifespan= made {made!r:.80}, which is no async context manager; decorate it with @asynccontextmanager")
        async with cast("AbstractAsyncContextManager[object]", made):
            self._entered.set_result(None)
            await self._leaving.wait()
