"""What callbacks did, and what a test wants them to do instead.

Owns the record of every call of a callback or compensator, and the stubs. A stub stands in for the callback alone: its step is declared,
retried, recorded and undone as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ryusen_protocol.invocation import Phase
from ryusen_sdk.effects import LoopAndPool
from ryusen_sdk.latch import Callback
from ryusen_sdk.operation import Operation
from ryusen_sdk.threads import ThreadPool


@dataclass(slots=True)
class Call:
    """One call of a callback (`phase` is `forward`) or a compensator (`compensation`). `error` is what it raised, if it did."""

    step_id: str
    phase: Phase
    args: tuple[object, ...]
    operation: Operation
    result: object = None
    error: BaseException | None = None
    is_stubbed: bool = False

    @property
    def attempt(self) -> int:
        """Which physical attempt this was, from 1."""
        return self.operation.attempt


class Stub:
    """What a step's callback does instead. Each of `script` is for one call, the last one for all calls after it."""

    def __init__(self, script: Sequence[Callable[..., object] | None]) -> None:
        self._script = list(script)

    def next(self) -> Callable[..., object] | None:
        """What the next call does; none leaves it to the step's own callback."""
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]


def giving(value: object) -> Callable[..., object]:
    """A callback that returns this."""
    return lambda *_: value


def raising(error: BaseException) -> Callable[..., object]:
    """A callback that raises this."""

    def callback(*_: object) -> object:
        raise error

    return callback


class Watch:
    """One harness's record and stubs, over all of its workers."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.stubs: dict[tuple[str, Phase], Stub] = {}
        self.losing: list[tuple[str, Phase]] = []
        """Steps whose next result is to be lost on its way."""
        self.lost: set[str] = set()
        """Operations whose result has been lost; the worker that had it is to die."""

    def begin(self, callback: Callback) -> tuple[Call, Callback]:
        """A callback starts: its entry in the record, and what runs."""
        operation = callback.operation
        key = (operation.step_id, operation.phase)
        stub = self.stubs.get(key)
        instead = None if stub is None else stub.next()
        call = Call(operation.step_id, operation.phase, callback.args, operation, is_stubbed=instead is not None)
        self.calls.append(call)
        if instead is None:
            return call, callback
        return call, Callback(instead, callback.args, operation, callback.timeout_ms)

    def ended(self, call: Call, result: object, error: BaseException | None) -> None:
        """It is over."""
        call.result = result
        call.error = error
        key = (call.step_id, call.phase)
        if key in self.losing:
            self.losing.remove(key)
            self.lost.add(call.operation.id)


class WatchedEffects(LoopAndPool):
    """Runs callbacks as a worker does, under a watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: ThreadPool, watch: Watch) -> None:
        super().__init__(loop, pool)
        self._watch = watch

    async def from_async(self, callback: Callback) -> object:
        call, real = self._watch.begin(callback)
        try:
            result = await super().from_async(real)
        except BaseException as error:
            self._watch.ended(call, None, error)
            raise
        self._watch.ended(call, result, None)
        return result

    def from_sync(self, callback: Callback) -> Any:
        call, real = self._watch.begin(callback)
        try:
            result = super().from_sync(real)
        except BaseException as error:
            self._watch.ended(call, None, error)
            raise
        self._watch.ended(call, result, None)
        return result
