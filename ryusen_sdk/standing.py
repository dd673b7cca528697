"""Bodies that stand at a step: how the next pass of a long run goes on from there, in place of from its first line.

A pass replays every recorded step, so that what a step costs grows with the steps behind it. A body of a long run therefore stays where its
pass has stopped, for a moment, and the run's next invocation goes on in it. That is a cache of the run's history, and never an authority:
the invocation has to build on exactly the history that the body has gone through, and to be the one thing that comes next at this step.
Anything else, a body that did not wait quietly, a failed callback, or too long a pause ends it, and the pass begins at the first line.

Owns which bodies stand, how many, how long and how far: coroutines on the user loop, and the bodies of sync functions with their threads.
Knows no frames and makes no decisions about steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from msgspec import UNSET

from ryusen_protocol.invocation import DiscoveryTarget, ForwardTarget, FullHistory
from ryusen_sdk.latch import PassStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ryusen_protocol.ids import RunId
    from ryusen_protocol.invocation import Invocation
    from ryusen_sdk.capture import Lines
    from ryusen_sdk.latch import Pass
    from ryusen_sdk.machine import Boundary
    from ryusen_sdk.manifest import Function

    Done = Callable[[Invocation, Any], None]
    Following = tuple[Invocation, Done]

STEPS_MIN: Final = 100
"""With fewer recorded steps a run is replayed: that costs little, and shows a body that would not replay early."""
STRETCH_MAX: Final = 100
"""After so many steps in one go a pass begins at the first line again: what a body keeps beside its steps grows no further."""
COROUTINES_MAX: Final = 256
THREADS_MAX: Final = 16
"""Each holds a thread of the pool, which has so many more."""
WAIT_S: Final = 1.0
"""How long a body stands. It may hold a lock, and the next invocation of a run that moves comes within milliseconds."""


class Teller(Protocol):
    """The host, as a body needs it."""

    def answered(self, body: Body) -> None:
        """Give the answer of the body's pass to whoever asked, once."""
        ...

    def listen(self, body: Body) -> None:
        """Keep what the body's callback prints from now on, in this context, if its invocation is an effect's."""
        ...

    def begin(self, function: Function, invocation: Invocation, done: Done) -> None:
        """Answer this invocation from the function's first line. On the user loop if the function is async."""
        ...


class Body:
    """One call of a function: the invocation it is answering, or where it stands."""

    def __init__(self, function: Function, invocation: Invocation, done: Done, teller: Teller, standing: Standing | None) -> None:
        self.function = function
        self.invocation = invocation
        self.done: Done | None = done
        """Who waits for the answer of its pass; nobody once it was given."""
        self.lines: Lines | None = None
        self.pass_: Pass | None = None
        self._teller = teller
        self._standing = standing
        self._boundary: Boundary | None = None
        self._stretch = 0

    @property
    def run_id(self) -> RunId:
        """Its run's."""
        return self.invocation.run.run_id

    def go_on(self, following: Following | None) -> None:
        """Let it go on with the next invocation of its run; or, with none, end at its step."""
        raise NotImplementedError

    def _may_go_far(self) -> bool:
        standing = self._standing
        return standing is not None and len(self.invocation.history.steps) >= standing.steps_min and self._stretch < standing.stretch_max

    def _stops_at(self, boundary: Boundary) -> None:
        self._boundary = boundary
        self._stretch += 1

    def _goes_on_with(self, following: Following | None) -> Invocation:
        """Takes up the invocation. Raises `PassStopped` if there is none, or if it is not for this body after all."""
        if following is not None and self.pass_ is not None and self.pass_.is_disturbed:
            self._teller.begin(self.function, *following)
            following = None
        if following is None:
            raise PassStopped
        self.invocation, self.done = following
        self._teller.listen(self)
        return self.invocation

    def leads_to(self, invocation: Invocation) -> bool:
        """Whether a replay of this invocation would come to this very step, and go on from it."""
        at = self._boundary
        before, after = self.invocation.history, invocation.history
        if at is None or not isinstance(before, FullHistory) or not isinstance(after, FullHistory) or not _is_continued(before, after):
            return False
        is_executed = isinstance(self.invocation.target, ForwardTarget)
        match invocation.target:
            case ForwardTarget(step_id=step_id):
                return not is_executed and step_id == at.step_id and len(after.steps) == len(before.steps)
            case DiscoveryTarget():
                news = [entry for entry in after.steps[len(before.steps) :] if entry.step_id == at.step_id and entry.kind == at.kind]
                return bool(news) and (not is_executed or news[0].outcome.success is not UNSET)
            case _:
                return False


def _is_continued(before: FullHistory, after: FullHistory) -> bool:
    """Whether one history begins with the other: they are equal, or the longer was made of the other's very entries."""
    count = len(before.steps)
    if len(after.steps) == count and after.digest == before.digest:
        return True
    return len(after.steps) > count and (count == 0 or after.steps[count - 1] is before.steps[count - 1])


class CoroutineBody(Body):
    """The body of an async function. A `Keeper` of its pass."""

    task: asyncio.Task[None] | None = None
    _waiter: asyncio.Future[None] | None = None
    _next: Following | None = None

    def may_stand(self) -> bool:
        """Whether its pass may wait here: it is a long run's, and called by the body itself, not by a task beside it."""
        return self._may_go_far() and asyncio.current_task() is self.task

    def stand(self, boundary: Boundary) -> Generator[Any, Any, Invocation]:
        """Gives the pass's answer and waits for the invocation that goes on here. Raises `PassStopped` if there is none."""
        if self._standing is None:
            raise PassStopped
        shelf = self._standing.coroutines
        loop = asyncio.get_running_loop()
        self._stops_at(boundary)
        self._waiter = loop.create_future()
        timer = loop.call_later(WAIT_S, shelf.end, self)
        shelf.add(self)
        self._teller.answered(self)
        try:
            yield from self._waiter.__await__()
        except asyncio.CancelledError:
            # A timeout around the step, or the end of the worker: the body ends as if it had done so at once.
            if self._next is not None:
                self._teller.begin(self.function, *self._next)
            raise PassStopped from None
        finally:
            timer.cancel()
            shelf.remove(self)
        following, self._next = self._next, None
        return self._goes_on_with(following)

    def go_on(self, following: Following | None) -> None:
        """As `Body.go_on`. On the user loop."""
        self._next = following
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ThreadBody(Body):
    """The body of a sync function, in its thread. A `ThreadKeeper` of its pass."""

    def __init__(self, function: Function, invocation: Invocation, done: Done, teller: Teller, standing: Standing | None) -> None:
        super().__init__(function, invocation, done, teller, standing)
        self.ended: Future[None] = Future()
        """Its thread has left it."""
        self._next: SimpleQueue[Following | None] = SimpleQueue()

    def may_stand(self) -> bool:
        """Whether its pass may wait here: it is a long run's."""
        return self._may_go_far()

    def stand(self, boundary: Boundary) -> Invocation:
        """As `CoroutineBody.stand`, in the body's thread."""
        if self._standing is None:
            raise PassStopped
        shelf = self._standing.threads
        self._stops_at(boundary)
        shelf.add(self)
        self._teller.answered(self)
        try:
            following = self._next.get(timeout=WAIT_S)
        except Empty:
            # Whoever has taken it off the shelf in this moment says what it goes on with.
            following = None if shelf.remove(self) else self._next.get()
        return self._goes_on_with(following)

    def go_on(self, following: Following | None) -> None:
        """As `Body.go_on`. From any thread."""
        self._next.put(following)


B = TypeVar("B", bound=Body)


class Shelf(Generic[B]):
    """The bodies of one sort that stand, by run: at most so many. From any thread; it wakes a body in the caller's."""

    def __init__(self, bodies_max: int) -> None:
        self.bodies_max = bodies_max
        self._lock = threading.Lock()
        self._bodies: OrderedDict[RunId, B] = OrderedDict()

    def add(self, body: B) -> None:
        """It stands. The run's body before it, if one still does, and the one that has stood longest, if there are too many, end."""
        with self._lock:
            ending = [self._bodies.pop(body.run_id, None)]
            if len(self._bodies) >= self.bodies_max:
                ending.append(self._bodies.popitem(last=False)[1])
            self._bodies[body.run_id] = body
        for other in ending:
            if other is not None:
                other.go_on(None)

    def remove(self, body: B) -> bool:
        """It stands no more; whether it did."""
        with self._lock:
            if self._bodies.get(body.run_id) is not body:
                return False
            del self._bodies[body.run_id]
            return True

    def end(self, body: B) -> None:
        """It ends at its step, if it still stands."""
        if self.remove(body):
            body.go_on(None)

    def goes_on(self, function: Function, invocation: Invocation, done: Done) -> bool:
        """Whether a body of the run goes on with this invocation. One that stands and cannot ends."""
        with self._lock:
            body = self._bodies.pop(invocation.run.run_id, None)
        if body is None:
            return False
        is_next = body.function is function and body.leads_to(invocation)
        body.go_on((invocation, done) if is_next else None)
        return is_next

    def end_all(self) -> list[B]:
        """Every body ends at its step. Those that did."""
        with self._lock:
            bodies = list(self._bodies.values())
            self._bodies.clear()
        for body in bodies:
            body.go_on(None)
        return bodies


class Standing:
    """The bodies of one process that stand at a step."""

    def __init__(self, *, steps_min: int = STEPS_MIN, stretch_max: int = STRETCH_MAX) -> None:
        self.steps_min = steps_min
        self.stretch_max = stretch_max
        self.coroutines: Shelf[CoroutineBody] = Shelf(COROUTINES_MAX)
        self.threads: Shelf[ThreadBody] = Shelf(THREADS_MAX)

    async def end_all(self) -> None:
        """Every body ends at its step, and has so long as it might have stood to unwind. On the user loop."""
        unwinding: list[asyncio.Future[None]] = [asyncio.wrap_future(body.ended) for body in self.threads.end_all()]
        unwinding += [body.task for body in self.coroutines.end_all() if body.task is not None]
        if unwinding:
            await asyncio.wait(unwinding, timeout=WAIT_S)
