"""Steps as user code writes them: `Step` for async functions, `SyncStep` for sync ones.

Owns the surface and its types. A kind of step is one thin method on each; what it declares is in `boundaries`, what a boundary
answers is decided by the machine, and where a callback runs by the host.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from typing_extensions import TypeVarTuple, Unpack

from ryusen_sdk.boundaries import RunStep, StepBoundary, step_failed
from ryusen_sdk.errors import MisuseError
from ryusen_sdk.event import Event, EventPayload
from ryusen_sdk.kinds import InvokeStep, SendStep, SleepStep, SleepUntilStep, WaitStep
from ryusen_sdk.latch import PassStopped
from ryusen_sdk.machine import Execute, PassOver, Raise, Replay
from ryusen_sdk.options import Compensate, Retry, Span
from ryusen_sdk.recall import recalled

if TYPE_CHECKING:
    from ryusen_sdk.latch import Pass

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StepCall(Coroutine[Any, Any, R]):
    """One step of an async body, reached when it is awaited. A coroutine to every checker and to `asyncio`."""

    __slots__ = ("_boundary", "_number", "_pass", "_started")

    def __init__(self, pass_: Pass, boundary: StepBoundary) -> None:
        self._pass = pass_
        self._boundary = boundary
        self._started: Generator[Any, Any, R] | None = None
        self._number = pass_.opened(boundary)
        """What the pass knows this call by until it is awaited; 0 from then on."""

    def __repr__(self) -> str:
        return f"<call of step {self._boundary.step_id!r}>"

    def __del__(self) -> None:
        if self._number:
            self._pass.forgotten(self._number)

    def __await__(self) -> Generator[Any, Any, R]:
        pass_ = self._pass
        boundary = self._boundary
        if not self._number:
            raise MisuseError(f"step {boundary.step_id!r} is awaited twice; keep what the first `await` gave")
        pass_.open_calls.pop(self._number, None)
        self._number = 0
        if pass_.executing is not None:
            pass_.refuse_inside_callback(boundary.step_id)
            # A sibling task is running the target's callback: its end is the end of the pass, for this call too.
            yield from pass_.executing.wait().__await__()
        recorded = pass_.replayed(boundary)
        if recorded is not None:
            return cast("R", boundary.read(recorded))
        while True:
            try:
                reaction = pass_.meet(boundary)
                if isinstance(reaction, Execute):
                    return (yield from self._execute(reaction).__await__())
                break
            except PassStopped:
                if not pass_.may_stand(boundary):
                    _expected_of_task()
                    raise
            yield from pass_.stand(boundary)
        if isinstance(reaction, Replay):
            return cast("R", boundary.read(reaction.value))
        if isinstance(reaction, PassOver):
            return cast("R", recalled(reaction.value))
        raise step_failed(boundary.step_id, reaction.failure)

    async def _execute(self, reaction: Execute) -> R:
        pass_ = self._pass
        finished = pass_.begin_async()
        try:
            callback = self._boundary.callback(pass_, reaction)
            result = await pass_.effects.from_async(callback)
        except BaseException as error:  # noqa: BLE001 - whatever a callback raises is its failure
            pass_.failed(error)
        else:
            pass_.called(self._boundary, result, self._boundary.recorder(reaction))
        finally:
            finished.set()

    # A Coroutine, so that create_task, gather and type checkers take it as what it is.

    def send(self, value: Any) -> Any:
        if self._started is None:
            self._started = self.__await__()
        return self._started.send(value)

    def throw(self, *error: Any) -> Any:
        self._pass.open_calls.pop(self._number, None)
        if self._started is None:
            self._started = self.__await__()
        return self._started.throw(*error)

    def close(self) -> None:
        self._pass.open_calls.pop(self._number, None)
        if self._started is not None:
            self._started.close()


def _expected_of_task() -> None:
    """A task beside the body ends with the pass. Nobody has to look at that end, so `asyncio` is not to report it as overlooked."""
    import asyncio  # an async body runs, so it is loaded; importing an application stays quick

    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())


class Step:
    """The steps of an async function. Every method is awaited."""

    __slots__ = ("_pass",)

    def __init__(self, pass_: Pass) -> None:
        self._pass = pass_

    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        returns: type[R],
        compensate: Callable[[R], object] | Callable[[R, Unpack[Ts]], object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[[Unpack[Ts]], Awaitable[R]],
        *args: *Ts,
        compensate: Callable[[R], object] | Callable[[R, Unpack[Ts]], object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[[Unpack[Ts]], R],
        *args: *Ts,
        compensate: Callable[[R], object] | Callable[[R, Unpack[Ts]], object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, R]: ...
    def run(
        self,
        step_id: str,
        callback: Callable[..., Any],
        *args: Any,
        compensate: Callable[..., object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        returns: type[Any] | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """One effect, run once and remembered under `step_id`; its recorded result, or `StepFailed`.

        `callback(*args)` is sync or async; keyword arguments go through `functools.partial`. `compensate` undoes it when the run
        fails: `(result)` or `(result, *args)`, all arguments being passed if it takes them. `retry` is a `Retry` or a number of
        attempts, `timeout` bounds one attempt, `returns` names the type of a typed result, `name` is for display.
        """
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return StepCall(self._pass, RunStep(step_id, frame, callback, args, compensate, retry, timeout, returns, name))

    def sleep(self, step_id: str, duration: Span) -> Coroutine[Any, Any, None]:
        """Waits so long, by the server's clock from the moment it accepts the step. Never wakes early; survives every restart.

        `duration` is `"1.5s"`, `"2h30m"`, a `timedelta` or a number of seconds, rounded up to whole milliseconds; zero or less is due at
        once.
        """
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return StepCall(self._pass, SleepStep(step_id, frame, duration))

    def sleep_until(self, step_id: str, when: datetime) -> Coroutine[Any, Any, None]:
        """Waits until an instant, an aware `datetime` rounded up to whole milliseconds. One in the past is due at once."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return StepCall(self._pass, SleepUntilStep(step_id, frame, when))

    def wait_for_event(
        self, step_id: str, event_name: str, match: Mapping[str, str] | None = None, *, timeout: Span
    ) -> Coroutine[Any, Any, EventPayload]:
        """Waits for the first event of that name accepted after this step, whose metadata has every pair of `match`.

        Raises `StepFailed` (`sdk.timeout`) when none came within `timeout`, and (`sdk.invalid_result`) for an event too large to record.
        """
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return StepCall(self._pass, WaitStep(step_id, frame, event_name, match, timeout))

    @overload
    def invoke(
        self, step_id: str, function: Callable[..., object] | str, input: object, timeout: Span | None = None, *, returns: type[R]
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def invoke(
        self, step_id: str, function: Callable[[Event[T], Step], Awaitable[R]], input: T, timeout: Span | None = None
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def invoke(
        self, step_id: str, function: Callable[[Event[T], SyncStep], R], input: T, timeout: Span | None = None
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def invoke(self, step_id: str, function: str, input: object, timeout: Span | None = None) -> Coroutine[Any, Any, Any]: ...
    def invoke(
        self,
        step_id: str,
        function: Callable[..., object] | str,
        input: object,  # noqa: A002 - the public name
        timeout: Span | None = None,
        returns: type[Any] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Runs another function of this application as a run of its own, and gives its result.

        `function` is the function or its id, `input` the portable value it finds in `event.data` (a T for one that takes `Event[T]`),
        `timeout` bounds the whole run. Raises `StepFailed`: `sdk.child_failed`, `sdk.child_cancelled` or `sdk.timeout`, with the run's id
        and error in `details`.
        """
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return StepCall(self._pass, InvokeStep(step_id, frame, self._pass.functions, function, input, timeout, returns))

    def send_event(
        self, step_id: str, name: str, data: object = None, metadata: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, str]:
        """Submits an event, once for this step however often it is repeated, and gives its id without waiting for what it starts.

        `bytes` are sent as they are, anything else as JSON. `metadata` is what is given here; nothing is inherited.
        """
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return StepCall(self._pass, SendStep(step_id, frame, name, data, metadata))


class SyncStep:
    """The steps of a sync function: the same methods, without `await`."""

    __slots__ = ("_pass", "_thread")

    def __init__(self, pass_: Pass) -> None:
        self._pass = pass_
        self._thread = get_ident()

    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        returns: type[R],
        compensate: Callable[[R], object] | Callable[[R, Unpack[Ts]], object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        name: str | None = None,
    ) -> R: ...
    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[[Unpack[Ts]], Awaitable[R]],
        *args: *Ts,
        compensate: Callable[[R], object] | Callable[[R, Unpack[Ts]], object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        name: str | None = None,
    ) -> R: ...
    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[[Unpack[Ts]], R],
        *args: *Ts,
        compensate: Callable[[R], object] | Callable[[R, Unpack[Ts]], object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        name: str | None = None,
    ) -> R: ...
    def run(
        self,
        step_id: str,
        callback: Callable[..., Any],
        *args: Any,
        compensate: Callable[..., object] | Compensate | None = None,
        retry: Retry | int | None = None,
        timeout: Span | None = None,
        returns: type[Any] | None = None,
        name: str | None = None,
    ) -> Any:
        """As `Step.run`, giving the result itself. A callback may be async here too."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return self._reach(RunStep(step_id, frame, callback, args, compensate, retry, timeout, returns, name))

    def sleep(self, step_id: str, duration: Span) -> None:
        """As `Step.sleep`."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        self._reach(SleepStep(step_id, frame, duration))

    def sleep_until(self, step_id: str, when: datetime) -> None:
        """As `Step.sleep_until`."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        self._reach(SleepUntilStep(step_id, frame, when))

    def wait_for_event(self, step_id: str, event_name: str, match: Mapping[str, str] | None = None, *, timeout: Span) -> EventPayload:
        """As `Step.wait_for_event`."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return cast("EventPayload", self._reach(WaitStep(step_id, frame, event_name, match, timeout)))

    @overload
    def invoke(
        self, step_id: str, function: Callable[..., object] | str, input: object, timeout: Span | None = None, *, returns: type[R]
    ) -> R: ...
    @overload
    def invoke(self, step_id: str, function: Callable[[Event[T], Step], Awaitable[R]], input: T, timeout: Span | None = None) -> R: ...
    @overload
    def invoke(self, step_id: str, function: Callable[[Event[T], SyncStep], R], input: T, timeout: Span | None = None) -> R: ...
    @overload
    def invoke(self, step_id: str, function: str, input: object, timeout: Span | None = None) -> Any: ...
    def invoke(
        self,
        step_id: str,
        function: Callable[..., object] | str,
        input: object,  # noqa: A002 - the public name
        timeout: Span | None = None,
        returns: type[Any] | None = None,
    ) -> Any:
        """As `Step.invoke`."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return self._reach(InvokeStep(step_id, frame, self._pass.functions, function, input, timeout, returns))

    def send_event(self, step_id: str, name: str, data: object = None, metadata: Mapping[str, str] | None = None) -> str:
        """As `Step.send_event`."""
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the caller's line, without a stack walk
        return cast("str", self._reach(SendStep(step_id, frame, name, data, metadata)))

    def _reach(self, boundary: StepBoundary) -> object:
        pass_ = self._pass
        if get_ident() != self._thread:
            raise MisuseError(f"step {boundary.step_id!r} is called from another thread; steps belong to the function's own")
        recorded = pass_.replayed(boundary)
        if recorded is not None:
            return boundary.read(recorded)
        if pass_.is_discovery:
            # Told by discovery alone: a callback that was authorized still runs, and no compensator is missed for it.
            _refuse_in_coroutine(boundary.step_id)
        while True:
            try:
                return self._meet(boundary)
            except PassStopped:
                if not pass_.may_stand(boundary):
                    raise
            pass_.stand_in_thread(boundary)

    def _meet(self, boundary: StepBoundary) -> object:
        pass_ = self._pass
        reaction = pass_.meet(boundary)
        match reaction:
            case Replay(value):
                return boundary.read(value)
            case PassOver(value):
                return recalled(value)
            case Raise(failure):
                raise step_failed(boundary.step_id, failure)
            case Execute():
                pass_.begin_sync()
                try:
                    result = pass_.effects.from_sync(boundary.callback(pass_, reaction))
                except BaseException as error:  # noqa: BLE001 - whatever a callback raises is its failure
                    pass_.failed(error)
                else:
                    pass_.called(boundary, result, boundary.recorder(reaction))


def _refuse_in_coroutine(step_id: str) -> None:
    """A sync function that runs a loop of its own around its steps would await what is no coroutine, after the effect."""
    import asyncio  # a worker has it loaded; importing an application stays quick

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise MisuseError(
        f"step {step_id!r} is called in a coroutine of a `def`, whose steps give results and nothing to await; "
        "make the function an `async def`, which is given a Step"
    )
