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
    from collections.abc import Awaitable, Callable, Generator

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
COROUTINES_MAX: Final = 64
"""Twice what a worker runs at a time unless told otherwise. Each keeps its history alive, beyond what `histories` may hold."""
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
        self.ended: Future[None] = Future()
        """Nothing of it runs any more."""
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

    def ends(self) -> None:
        """Nothing of it runs any more. What waited for that begins."""
        self.pass_ = None  # which knows the body: only a collection would free what it holds
        if self._shelf is not None:
            self._shelf.ended(self)

    @property
    def _shelf(self) -> Shelf[Any] | None:
        """Where it stands, if it may."""
        raise NotImplementedError

    def _ends_before(self, shelf: Shelf[Any], following: Following) -> None:
        """It ends, and this is answered from the first line then."""
        shelf.ends_before(self, lambda: self._teller.begin(self.function, *following))

    def may_go_far(self) -> bool:
        """Whether it may stand at its next step, for all that is known of its run."""
        standing = self._standing
        return standing is not None and len(self.invocation.history.steps) >= standing.steps_min and self._stretch < standing.stretch_max

    def _stops_at(self, boundary: Boundary) -> None:
        self._boundary = boundary
        self._stretch += 1

    def _goes_on_with(self, following: Following | None, shelf: Shelf[Any]) -> Invocation:
        """Takes up the invocation. Raises `PassStopped` if there is none, or if it is not for this body after all."""
        if following is not None and self.pass_ is not None and self.pass_.is_disturbed:
            self._ends_before(shelf, following)
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
    _was_cancelled = False

    def cancelled(self) -> None:
        """Its task is cancelled, and is about to be told.

        That may be by a timeout or a task group which an earlier pass has entered, and so by what a replay would not meet. A body that has
        gone on is not the one to answer then, nor one to stand later, when a callback that had begun has held off the cancellation.
        """
        self._was_cancelled = True
        done, shelf = self.done, self._shelf
        if self._stretch and done is not None and shelf is not None and self.pass_ is not None and self.pass_.give_up():
            self.done = None
            self._ends_before(shelf, (self.invocation, done))

    def may_stand(self) -> bool:
        """Whether its pass may wait here: it is a long run's, and called by the body itself, not by a task beside it."""
        return self.may_go_far() and not self._was_cancelled and asyncio.current_task() is self.task

    def stand(self, boundary: Boundary) -> Generator[Any, Any, Invocation]:
        """Gives the pass's answer and waits for the invocation that goes on here. Raises `PassStopped` if there is none."""
        shelf = self._shelf
        if shelf is None:
            raise PassStopped
        loop = asyncio.get_running_loop()
        self._stops_at(boundary)
        self._waiter = loop.create_future()
        timer = loop.call_later(WAIT_S, shelf.end, self)
        shelf.add(self)
        try:
            self._teller.answered(self)
            yield from self._waiter.__await__()
        except asyncio.CancelledError:
            # A timeout around the step, or the end of the worker: the body ends as if it had done so at once.
            if self._next is not None:
                self._ends_before(shelf, self._next)
            raise PassStopped from None
        finally:
            timer.cancel()
            shelf.remove(self)
        following, self._next = self._next, None
        return self._goes_on_with(following, shelf)

    @property
    def _shelf(self) -> Shelf[CoroutineBody] | None:
        return None if self._standing is None else self._standing.coroutines

    def ends(self) -> None:
        """As `Body.ends`. On the user loop."""
        self.task = None  # whose context knows the pass
        super().ends()

    def go_on(self, following: Following | None) -> None:
        """As `Body.go_on`. On the user loop."""
        self._next = following
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Watched:
    """A call of an async function: awaits it as it is, and tells of a cancellation before the function finds out."""

    __slots__ = ("_call", "_cancelled")

    def __init__(self, call: Awaitable[object], cancelled: Callable[[], None]) -> None:
        self._call = call
        self._cancelled = cancelled

    def __await__(self) -> Generator[Any, Any, object]:
        inside = _awaited(self._call).__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waited = inside.send(sent) if thrown is None else inside.throw(thrown)
            except StopIteration as ended:
                return ended.value
            sent = thrown = None
            try:
                sent = yield waited
            except BaseException as error:  # noqa: BLE001 - thrown in below: here it would be the context of whatever is raised inside
                thrown = error
            if isinstance(thrown, asyncio.CancelledError):
                self._cancelled()


async def _awaited(call: Awaitable[object]) -> object:
    """A coroutine, whatever it is that a decorated function gives to await."""
    return await call


class ThreadBody(Body):
    """The body of a sync function, in its thread. A `ThreadKeeper` of its pass."""

    def __init__(self, function: Function, invocation: Invocation, done: Done, teller: Teller, standing: Standing | None) -> None:
        super().__init__(function, invocation, done, teller, standing)
        self._next: SimpleQueue[Following | None] = SimpleQueue()

    def may_stand(self) -> bool:
        """Whether its pass may wait here: it is a long run's."""
        return self.may_go_far()

    def stand(self, boundary: Boundary) -> Invocation:
        """As `CoroutineBody.stand`, in the body's thread."""
        shelf = self._shelf
        if shelf is None:
            raise PassStopped
        self._stops_at(boundary)
        shelf.add(self)
        try:
            self._teller.answered(self)
            following = self._next.get(timeout=WAIT_S)
        except Empty:
            # Whoever has taken it off the shelf in this moment says what it goes on with.
            following = None if shelf.remove(self) else self._next.get()
        return self._goes_on_with(following, shelf)

    @property
    def _shelf(self) -> Shelf[ThreadBody] | None:
        return None if self._standing is None else self._standing.threads

    def go_on(self, following: Following | None) -> None:
        """As `Body.go_on`. From any thread."""
        self._next.put(following)


B = TypeVar("B", bound=Body)


class Shelf(Generic[B]):
    """The bodies of one sort that stand, by run: at most so many. From any thread; it wakes a body in the caller's.

    A body that has stood gave its answer before it unwinds. What begins at the first line of its run waits for its end, as it would have
    had to for an answer after that: the two are never in the body's code at once, and may both make what its `finally` removes.
    """

    def __init__(self, bodies_max: int) -> None:
        self.bodies_max = bodies_max
        self._lock = threading.Lock()
        self._bodies: OrderedDict[RunId, B] = OrderedDict()
        self._ending: dict[RunId, list[B]] = {}
        """Those that have stood, go on with nothing, and have not ended yet."""
        self._waiting: dict[RunId, list[Callable[[], None]]] = {}
        """What begins when the last of them has."""

    def add(self, body: B) -> None:
        """It stands. The run's body before it, if one still does, and the one that has stood longest, if there are too many, end."""
        with self._lock:
            others = [self._bodies.pop(body.run_id, None)]
            if len(self._bodies) >= self.bodies_max:
                others.append(self._bodies.popitem(last=False)[1])
            self._bodies[body.run_id] = body
            ending = [other for other in others if other is not None]
            for other in ending:
                self._ends(other)
        for other in ending:
            other.go_on(None)

    def remove(self, body: B) -> bool:
        """It stands no more, and ends; whether it did stand."""
        with self._lock:
            if self._bodies.get(body.run_id) is not body:
                return False
            del self._bodies[body.run_id]
            self._ends(body)
            return True

    def ends_before(self, body: B, begin: Callable[[], None]) -> None:
        """It ends, though it was to go on: this begins then, in its place."""
        with self._lock:
            self._ends(body)
            self._waiting.setdefault(body.run_id, []).append(begin)

    def ended(self, body: B) -> None:
        """It has ended, whether it ever stood or not."""
        begins: list[Callable[[], None]] = []
        with self._lock:
            ending = self._ending.get(body.run_id, [])
            if body in ending:
                ending.remove(body)
                if not ending:
                    del self._ending[body.run_id]
                    begins = self._waiting.pop(body.run_id, [])
        for begin in begins:
            begin()

    def _ends(self, body: B) -> None:
        self._ending.setdefault(body.run_id, []).append(body)

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
            if not is_next:
                self._ends(body)
        body.go_on((invocation, done) if is_next else None)
        return is_next

    def answer(self, function: Function, invocation: Invocation, done: Done, teller: Teller) -> None:
        """A body goes on with this invocation, or it begins at the first line, once no body of its run is only ending."""
        if self.goes_on(function, invocation, done):
            return
        with self._lock:
            if invocation.run.run_id in self._ending:
                begins = self._waiting.setdefault(invocation.run.run_id, [])
                begins.append(lambda: teller.begin(function, invocation, done))
                return
        teller.begin(function, invocation, done)

    def end_all(self) -> list[B]:
        """Every body ends at its step. Those that do, and those that were ending."""
        with self._lock:
            bodies = list(self._bodies.values())
            self._bodies.clear()
            for body in bodies:
                self._ends(body)
            ending = [body for ones in self._ending.values() for body in ones]
        for body in bodies:
            body.go_on(None)
        return ending


class Standing:
    """The bodies of one process that stand at a step."""

    def __init__(self, *, steps_min: int = STEPS_MIN, stretch_max: int = STRETCH_MAX) -> None:
        self.steps_min = steps_min
        self.stretch_max = stretch_max
        self.coroutines: Shelf[CoroutineBody] = Shelf(COROUTINES_MAX)
        self.threads: Shelf[ThreadBody] = Shelf(THREADS_MAX)

    async def end_all(self) -> None:
        """Every body ends at its step, and unwinds, however long it takes: without standing its answer would have come after that.

        On the user loop.
        """
        bodies: list[Body] = [*self.threads.end_all(), *self.coroutines.end_all()]
        if bodies:
            await asyncio.wait([asyncio.wrap_future(body.ended) for body in bodies])
