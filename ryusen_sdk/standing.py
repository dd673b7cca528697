"""Bodies that stand at a step: how the next pass of a long run goes on from there, in place of from its first line.

A pass replays every recorded step, so that what a step costs grows with the steps behind it. A body of a long run therefore stays where its
pass has stopped, for a moment, and the run's next invocation goes on in it. That is a cache of the run's history, and never an authority:
the invocation has to build on exactly the history that the body has gone through, and to be the one thing that comes next at this step.
Anything else, a body that did not wait quietly, a failed callback, or too long a pause ends it, and the pass begins at the first line.

Owns which bodies stand, how many, how long and how far. Lives on the user loop. Knows no frames and makes no decisions about steps.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol

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

STEPS_MIN: Final = 100
"""With fewer recorded steps a run is replayed: that costs little, and shows a body that would not replay early."""
STRETCH_MAX: Final = 100
"""After so many steps in one go a pass begins at the first line again: what a body keeps beside its steps grows no further."""
BODIES_MAX: Final = 256
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
        """Answer this invocation from the function's first line."""
        ...


class Body:
    """One call of a function: the invocation it is answering, or where it stands. A `Keeper` of its pass."""

    def __init__(self, function: Function, invocation: Invocation, done: Done, teller: Teller, standing: Standing | None) -> None:
        self.function = function
        self.invocation = invocation
        self.done: Done | None = done
        """Who waits for the answer of its pass; nobody once it was given."""
        self.lines: Lines | None = None
        self.task: asyncio.Task[None] | None = None
        self.pass_: Pass | None = None
        self.stands_until_s = 0.0
        self._teller = teller
        self._standing = standing
        self._boundary: Boundary | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._next: tuple[Invocation, Done] | None = None
        self._stretch = 0

    def may_stand(self) -> bool:
        """Whether its pass may wait here: it is a long run's, and called by the body itself, not by a task beside it."""
        standing = self._standing
        return (
            standing is not None
            and len(self.invocation.history.steps) >= standing.steps_min
            and self._stretch < standing.stretch_max
            and asyncio.current_task() is self.task
        )

    def stand(self, boundary: Boundary) -> Generator[Any, Any, Invocation]:
        """Gives the pass's answer and waits for the invocation that goes on here. Raises `PassStopped` if there is none."""
        standing = self._standing
        if standing is None:
            raise PassStopped
        self._boundary = boundary
        self._stretch += 1
        self._waiter = asyncio.get_running_loop().create_future()
        standing.add(self)
        self._teller.answered(self)
        try:
            yield from self._waiter.__await__()
        except asyncio.CancelledError:
            # A timeout around the step, or the end of the worker: the body ends as if it had done so at once.
            self._give_back()
            raise PassStopped from None
        finally:
            standing.remove(self)
        if self.pass_ is not None and self.pass_.is_disturbed:
            self._give_back()
        if self._next is None:
            raise PassStopped
        (self.invocation, self.done), self._next = self._next, None
        self._teller.listen(self)
        return self.invocation

    def _give_back(self) -> None:
        """What was to go on in it begins at the first line."""
        if self._next is not None:
            (invocation, done), self._next = self._next, None
            self._teller.begin(self.function, invocation, done)

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

    def go_on(self, following: tuple[Invocation, Done] | None) -> None:
        """Let it go on with the next invocation of its run; or, with none, end at its step."""
        self._next = following
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _is_continued(before: FullHistory, after: FullHistory) -> bool:
    """Whether one history begins with the other: they are equal, or the longer was made of the other's very entries."""
    count = len(before.steps)
    if len(after.steps) == count and after.digest == before.digest:
        return True
    return len(after.steps) > count and (count == 0 or after.steps[count - 1] is before.steps[count - 1])


class Standing:
    """The bodies of one process that stand at a step, by run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, steps_min: int = STEPS_MIN, stretch_max: int = STRETCH_MAX) -> None:
        self.steps_min = steps_min
        self.stretch_max = stretch_max
        self._loop = loop
        self._bodies: OrderedDict[RunId, Body] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, body: Body) -> None:
        """It stands. The run's body before it, if one still does, and the one that has stood longest, if there are too many, end."""
        self.end(body.invocation.run.run_id)
        if len(self._bodies) >= BODIES_MAX:
            self.end(next(iter(self._bodies)))
        body.stands_until_s = self._loop.time() + WAIT_S
        self._bodies[body.invocation.run.run_id] = body
        if self._timer is None:
            self._timer = self._loop.call_at(body.stands_until_s, self._sweep)

    def remove(self, body: Body) -> None:
        """It stands no more."""
        run_id = body.invocation.run.run_id
        if self._bodies.get(run_id) is body:
            del self._bodies[run_id]

    def goes_on(self, function: Function, invocation: Invocation, done: Done) -> bool:
        """Whether a body of the run goes on with this invocation. One that stands and cannot ends."""
        body = self._bodies.pop(invocation.run.run_id, None)
        if body is None:
            return False
        is_next = body.function is function and body.leads_to(invocation)
        body.go_on((invocation, done) if is_next else None)
        return is_next

    def end(self, run_id: RunId) -> None:
        """The run's body ends at its step, if one stands."""
        body = self._bodies.pop(run_id, None)
        if body is not None:
            body.go_on(None)

    async def end_all(self) -> None:
        """Every body ends at its step, and has so long as it might have stood to unwind."""
        bodies = list(self._bodies.values())
        for body in bodies:
            self.end(body.invocation.run.run_id)
        tasks = [body.task for body in bodies if body.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=WAIT_S)
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for body in list(self._bodies.values()):
            if body.stands_until_s <= now_s:
                self.end(body.invocation.run.run_id)
        if self._bodies:
            self._timer = self._loop.call_at(next(iter(self._bodies.values())).stands_until_s, self._sweep)
