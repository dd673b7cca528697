"""The event loop of a simulation: virtual time, no I/O, and an order of turns that the seed chooses.

Every handle belongs to a process by the context it runs in. A process that is killed never gets another turn, whatever it had scheduled, as
`kill -9` has it; one that is stopped gets its turns when it goes on, late. Nothing here knows what runs in them.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from ryusen_protocol.ids import RequestId

EPOCH_MS = 1_700_000_000_000


class Process:
    """One simulated process. `context` marks what belongs to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.parked: list[asyncio.Handle] = []
        self.context: Context = copy_context()
        self.context.run(_process.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"


_process: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


def current_process() -> Process | None:
    """The process whose turn it is; none in the world outside."""
    return _process.get()


class Stuck(AssertionError):
    """Nothing is scheduled any more, yet the simulation has not ended."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """`shuffle` picks among what is ready at random; without it turns are taken in order, as asyncio takes them."""

    def __init__(self, chance: random.Random, *, shuffle: bool) -> None:
        super().__init__()
        self._chance = chance
        self._shuffle = shuffle
        self._now = 0.0
        self._turns: list[asyncio.Handle] = []
        self._next = 0
        self.turns_taken = 0
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept, so that no task of a dead process is collected, with whatever its `finally` would do, in the middle of a run."""

    # what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._turns.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        del name  # asyncio counts tasks for names, over all loops of a process
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name="task", context=context)
        self.tasks.append(task)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        while not self._stopping:  # type: ignore[attr-defined]
            handle = self._take()
            if handle is None:
                self._advance()
                continue
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(_process)  # type: ignore[attr-defined]
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.parked.append(handle)
                    continue
            self.turns_taken += 1
            handle._run()  # type: ignore[attr-defined]

    def _take(self) -> asyncio.Handle | None:
        turns = self._turns
        if self._next >= len(turns):
            turns.clear()
            self._next = 0
            return None
        if self._shuffle:
            chosen = self._chance.randrange(self._next, len(turns))
            turns[self._next], turns[chosen] = turns[chosen], turns[self._next]
        handle = turns[self._next]
        self._next += 1
        if self._next > 256:
            del turns[: self._next]
            self._next = 0
        return handle

    def _advance(self) -> None:
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        if not scheduled:
            raise Stuck("nothing is scheduled any more")
        self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            self._turns.append(heapq.heappop(scheduled))

    # processes

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a process, or in the world outside."""
        context = copy_context() if process is None else process.context.copy()
        if process is None:
            context.run(_process.set, None)
        return self.create_task(work, context=context)

    def resume(self, process: Process) -> None:
        """Let a stopped process go on: what it missed comes at once."""
        process.paused = False
        parked, process.parked = process.parked, []
        self._turns.extend(parked)


class Wall:
    """The server's wall clock: it runs with the loop, and jumps."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset_ms = EPOCH_MS

    def now_ms(self) -> int:
        return self.offset_ms + int(self._loop.time() * 1000 + 1e-6)

    def elapsed_ms(self) -> int:
        """What passes whatever the clock says."""
        return int(self._loop.time() * 1000 + 1e-6)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, callback)


class CountedEntropy:
    """Ids are counted over the whole simulation, jitter comes from the seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = 0

    def request_id(self) -> RequestId:
        return RequestId(self.token("rq"))

    def token(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count:022d}"

    def jitter(self) -> float:
        return self._chance.uniform(-1, 1)
