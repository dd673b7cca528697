"""Runs callbacks where they belong: coroutines on the user loop, sync functions in the pool.

Owns attempt timeouts and the current operation of a callback. Knows nothing of machines or transports.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import TYPE_CHECKING, Any, cast

from ryusen_sdk.latch import AttemptTimedOut, Callback
from ryusen_sdk.manifest import is_async_callable
from ryusen_sdk.operation import current_operation

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ryusen_sdk.threads import ThreadPool


class LoopAndPool:
    """The `Effects` of a host: `loop` runs user coroutines, `pool` sync code."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: ThreadPool) -> None:
        self._loop = loop
        self._pool = pool
        self.is_abandoned = False
        """The worker ends at once: nobody waits for a thread any more."""

    async def from_async(self, callback: Callback) -> object:
        token = current_operation.set(callback.operation)
        try:
            if is_async_callable(callback.function):
                return await self._in_task(callback.function(*callback.args), callback.timeout_ms)
            result = await self._in_pool(callback)
            # A lambda around a coroutine function looks sync until it is called.
            return await self._in_task(result, callback.timeout_ms) if inspect.isawaitable(result) else result
        finally:
            current_operation.reset(token)

    def from_sync(self, callback: Callback) -> object:
        # Of its own: the body may go on after it, and is to find no context variable as the callback has set it.
        context = contextvars.copy_context()
        context.run(current_operation.set, callback.operation)
        # Called here either way: a coroutine function only makes its coroutine.
        result = context.run(callback.function, *callback.args)
        if not inspect.isawaitable(result):
            return result
        waiting = cast("Awaitable[object]", result)
        return _on_loop(waiting if callback.timeout_ms is None else _bounded(waiting, callback.timeout_ms), self._loop, context)

    async def _in_task(self, result: object, timeout_ms: int | None) -> object:
        """In a task of its own, which the body's cancellations (a timeout, a task group) do not reach: what has begun counts."""
        waiting = cast("Awaitable[object]", result)
        loop = asyncio.get_running_loop()
        ending = _Ending(loop)
        task = loop.create_task(ending.of(waiting if timeout_ms is None else _bounded(waiting, timeout_ms)))
        while not ending.is_reached:
            try:
                await ending.waiter
            except asyncio.CancelledError:
                if self.is_abandoned:
                    task.cancel()
                    raise
                ending.wait_again()
        return _outcome(ending.carried)

    async def _in_pool(self, callback: Callback) -> object:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[object] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(callback.function, *callback.args)
            except BaseException as error:  # noqa: BLE001 - carried to the body's task, which sorts it
                _hand_over(loop, finished, None, error)
            else:
                _hand_over(loop, finished, result, None)

        self._pool.submit(work)
        while not finished.done():
            try:
                await asyncio.shield(finished)
            except asyncio.CancelledError:
                # The body gave up waiting, but a thread cannot be stopped: what it does still counts.
                if self.is_abandoned:
                    raise
        return _outcome(finished.result())


class _Raised:
    """An exception on its way through a future, which cannot carry StopIteration and treats CancelledError as its own."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _outcome(carried: object) -> object:
    if isinstance(carried, _Raised):
        raise carried.error
    return carried


def _hand_over(loop: asyncio.AbstractEventLoop, finished: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    carried = result if error is None else _Raised(error)

    def settle() -> None:
        if not finished.done():
            finished.set_result(carried)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the loop is closed: the worker was stopped at once, and nobody waits any more


class _Ending:
    """The end of a callback's task, told by its last step itself: a done-callback would cost another turn of the loop."""

    __slots__ = ("_loop", "carried", "is_reached", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_reached = False
        self.carried: object = None
        self.waiter: asyncio.Future[None] = loop.create_future()

    async def of(self, waiting: Awaitable[object]) -> None:
        self.carried = await _carried(waiting)
        self.is_reached = True
        if not self.waiter.done():
            self.waiter.set_result(None)

    def wait_again(self) -> None:
        """The waiter was cancelled with the body's task; the callback was not."""
        if not self.is_reached:
            self.waiter = self._loop.create_future()


async def _carried(waiting: Awaitable[object]) -> object:
    """What it raises as a value, for whoever waits to sort: a task would treat some of it as its own."""
    try:
        return await waiting
    except BaseException as error:  # noqa: BLE001 - carried to the body
        return _Raised(error)


async def _bounded(result: Awaitable[object], timeout_ms: int) -> object:
    """Awaits within the timeout; cancelled then, it has until it unwinds. What it returns even so is its real result."""
    scope = asyncio.timeout(timeout_ms / 1000)
    try:
        async with scope:
            return await result
    except BaseException as error:
        if not scope.expired() or isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        own = None if isinstance(error, TimeoutError) and isinstance(error.__cause__, asyncio.CancelledError) else error
        raise AttemptTimedOut(timeout_ms, own) from None


def _on_loop(waiting: Any, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> object:
    """Runs a coroutine on the user loop from a pool thread, in this context, and waits for it."""
    from concurrent.futures import Future

    finished: Future[object] = Future()

    def start() -> None:
        task = loop.create_task(_carried(waiting), context=context)
        task.add_done_callback(lambda done: finished.set_result(None if done.cancelled() else done.result()))

    loop.call_soon_threadsafe(start)
    return _outcome(finished.result())
