"""Steps as user code writes them: `Step` for async functions, `SyncStep` for sync ones.

Owns the surface and its types. A kind of step is one thin method on each; what it declares is in `boundaries`, what a boundary
answers is decided by the machine, and where a callback runs by the host.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from typing_extensions import TypeVarTuple, Unpack

from ryusen_sdk.boundaries import RunStep, StepBoundary, step_failed
from ryusen_sdk.errors import MisuseError
from ryusen_sdk.machine import Execute, Raise, Replay
from ryusen_sdk.options import Compensate, Retry, Span

if TYPE_CHECKING:
    from ryusen_sdk.latch import Pass

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class StepCall(Coroutine[Any, Any, R]):
    """One step of an async body, reached when it is awaited. A coroutine to every checker and to `asyncio`."""

    __slots__ = ("_boundary", "_pass", "_started")

    def __init__(self, pass_: Pass, boundary: StepBoundary) -> None:
        self._pass = pass_
        self._boundary = boundary
        self._started: Generator[Any, Any, R] | None = None
        pass_.open_calls[id(self)] = boundary

    def __await__(self) -> Generator[Any, Any, R]:
        pass_ = self._pass
        boundary = self._boundary
        pass_.open_calls.pop(id(self), None)
        if pass_.executing is not None:
            pass_.refuse_inside_callback(boundary.step_id)
            # A sibling task is running the target's callback: its end is the end of the pass, for this call too.
            yield from pass_.executing.wait().__await__()
        reaction = pass_.meet(boundary)
        # Replay first and by its type: a long run replays far more steps than it runs.
        if type(reaction) is Replay:
            return cast("R", boundary.read(reaction.value))
        if isinstance(reaction, Execute):
            return (yield from self._execute(reaction).__await__())
        raise step_failed(boundary.step_id, cast("Raise", reaction).failure)

    async def _execute(self, reaction: Execute) -> R:
        pass_ = self._pass
        finished = pass_.begin_async()
        try:
            callback = self._boundary.callback(pass_, reaction)
            result = await pass_.effects.from_async(callback)
        except BaseException as error:  # noqa: BLE001 - whatever a callback raises is its failure
            pass_.failed(error)
        else:
            pass_.called(self._boundary.step_id, result, self._boundary.recorder(reaction))
        finally:
            finished.set()

    # A Coroutine, so that create_task, gather and type checkers take it as what it is.

    def send(self, value: Any) -> Any:
        if self._started is None:
            self._started = self.__await__()
        return self._started.send(value)

    def throw(self, *error: Any) -> Any:
        self._pass.open_calls.pop(id(self), None)
        if self._started is None:
            self._started = self.__await__()
        return self._started.throw(*error)

    def close(self) -> None:
        self._pass.open_calls.pop(id(self), None)
        if self._started is not None:
            self._started.close()


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

    def _reach(self, boundary: StepBoundary) -> object:
        pass_ = self._pass
        if get_ident() != self._thread:
            raise MisuseError(f"step {boundary.step_id!r} is called from another thread; steps belong to the function's own")
        reaction = pass_.meet(boundary)
        match reaction:
            case Replay(value):
                return boundary.read(value)
            case Raise(failure):
                raise step_failed(boundary.step_id, failure)
            case Execute():
                pass_.begin_sync()
                try:
                    result = pass_.effects.from_sync(boundary.callback(pass_, reaction))
                except BaseException as error:  # noqa: BLE001 - whatever a callback raises is its failure
                    pass_.failed(error)
                else:
                    pass_.called(boundary.step_id, result, boundary.recorder(reaction))
