"""The event loop of a simulation: virtual time, no I/O, and an order of turns that the seed chooses.

Every handle belongs to a process by the context it runs in. A process that is killed never gets another turn, whatever it had scheduled, as
`kill -9` has it; one that is stopped gets its turns when it goes on, late. Nothing here knows what runs in them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any

import msgspec

from ryusen_protocol.ids import RequestId

TURNS_MAX = 1_000_000
"""More than any life needs: what takes more goes round in circles."""

EPOCH_MS = 1_700_000_000_000


class Process:
    """One simulated process. `context` marks what belongs to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.is_hindered = False
        self.parked: list[Turn] = []
        self.context: Context = copy_context()
        self.context.run(_process.set, self)

    def end(self) -> None:
        """No more turns."""
        self.alive = False
        self.paused = False
        self.is_hindered = True
        self.parked.clear()

    def pause(self) -> None:
        """No turns until it goes on."""
        if self.alive:
            self.paused = self.is_hindered = True

    def __repr__(self) -> str:
        return f"<{self.name}>"


_process: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


def current_process() -> Process | None:
    """The process whose turn it is; none in the world outside."""
    return _process.get()


class Stuck(AssertionError):
    """Nothing is scheduled any more, yet the simulation has not ended."""


class Turn(msgspec.Struct, eq=False):
    """What is scheduled: asyncio's handle without what only debugging needs."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    when_s: float = 0.0
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


def _nothing() -> None:
    """What is left of a cancelled turn."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """`shuffle` picks among what is ready at random; without it turns are taken in order, as asyncio takes them."""

    def __init__(self, chance: random.Random, *, shuffle: bool) -> None:
        super().__init__()
        self._chance = chance
        self._shuffle = shuffle
        self._now = 0.0
        self._turns: deque[Turn] = deque()
        self._timers: list[tuple[float, int, Turn]] = []
        self._order = itertools.count()
        self._ending = False
        self.turns_taken = 0
        self.tasks: list[tuple[asyncio.Task[Any], Process | None]] = []
        """Kept, so that no task of a dead process is collected, with whatever its `finally` would do, in the middle of a run."""

    # what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        turn = Turn(callback, args, copy_context() if context is None else context)
        self._turns.append(turn)
        return turn

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        turn = Turn(callback, args, copy_context() if context is None else context, when)
        heappush(self._timers, (when, next(self._order), turn))
        return turn

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        when = self._now + delay if delay > 0 else self._now
        turn = Turn(callback, args, copy_context() if context is None else context, when)
        heappush(self._timers, (when, next(self._order), turn))
        return turn

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        del name  # asyncio counts tasks for names, over all loops of a process
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name="task", context=context)
        self.tasks.append((task, _process.get() if context is None else context.get(_process)))
        return task

    def stop(self) -> None:
        self._ending = True
        super().stop()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        turns = self._turns
        while not self._ending:
            if not turns:
                self._advance()
                continue
            if self._shuffle and len(turns) > 1:
                turns.rotate(-int(self._chance.random() * len(turns)))
            turn = turns.popleft()
            if turn.is_cancelled:
                continue
            process = turn.context.get(_process)
            if process is not None and process.is_hindered:
                if process.alive:
                    process.parked.append(turn)
                continue
            self.turns_taken += 1
            if self.turns_taken > TURNS_MAX:
                raise Stuck(f"no end after {TURNS_MAX:,} turns, at {self._now:.3f} s")
            try:
                turn.context.run(turn.callback, *turn.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # as asyncio does
                self.call_exception_handler({"message": f"in {turn.callback}", "exception": error})

    def _advance(self) -> None:
        timers, turns = self._timers, self._turns
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
        if not timers:
            raise Stuck("nothing is scheduled any more")
        self._now = now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= now:
            turns.append(heappop(timers)[2])

    def forget(self) -> None:
        """Nothing gets a turn any more."""
        self.tasks.clear()
        self._turns.clear()
        self._timers.clear()

    # processes

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a process, or in the world outside."""
        context = copy_context() if process is None else process.context.copy()
        if process is None:
            context.run(_process.set, None)
        return self.create_task(work, context=context)

    def resume(self, process: Process) -> None:
        """Let a stopped process go on: what it missed comes at once."""
        if not process.alive:
            return
        process.paused = process.is_hindered = False
        parked, process.parked = process.parked, []
        self._turns.extend(parked)


class Wall:
    """The server's wall clock: it runs with the loop, and jumps."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset_ms = self._furthest_ms = EPOCH_MS

    def jump(self, ms: int) -> None:
        """Set it forward or back."""
        self.offset_ms += ms
        self._furthest_ms = max(self._furthest_ms, self.offset_ms)

    def mend(self) -> None:
        """Set it right: at least as far as it ever was, so that what waits for an instant need not wait long."""
        self.offset_ms = self._furthest_ms

    def now_ms(self) -> int:
        return self.offset_ms + int(self._loop.time() * 1000 + 1e-6)

    def elapsed_ms(self) -> int:
        """What passes whatever the clock says."""
        return int(self._loop.time() * 1000 + 1e-6)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Turn:
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
