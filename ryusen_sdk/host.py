"""Runs invocations against a registry: an invocation in, one outcome out. Transport-neutral.

Owns where function bodies run (coroutines on the user loop, sync functions in the pool), the current pass, and that every invocation
is answered once, unless user code asks the process to stop. What a boundary means is the machine's to decide.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Final

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import encode
from ryusen_protocol.invocation import DiscoveryTarget, FullHistory
from ryusen_protocol.outcome import LogLine, Outcome, OutcomeBody, RejectedBeforeStart, RejectionReason
from ryusen_sdk import capture
from ryusen_sdk.effects import LoopAndPool
from ryusen_sdk.event import Event
from ryusen_sdk.latch import Pass
from ryusen_sdk.operation import current_pass
from ryusen_sdk.standing import CoroutineBody, ThreadBody, Watched
from ryusen_sdk.step import Step, SyncStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_protocol.invocation import Invocation
    from ryusen_sdk.manifest import Function, Registry
    from ryusen_sdk.standing import Body, Standing
    from ryusen_sdk.threads import ThreadPool

_log: Final = logging.getLogger("ryusen.sdk")


class Stopped:
    """Instead of an outcome: user code raised KeyboardInterrupt or SystemExit, so the worker stops and answers nothing."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


Answer = bytes | Stopped
"""The encoded outcome of an invocation, or the wish of user code to stop the process."""


class Host:
    """Runs the functions of one registry. `loop` runs user coroutines, `pool` sync code, `effects` callbacks, if not as usual.

    With `standing` a body may stay at the step where its pass has stopped, and the run's next invocation goes on there.
    """

    def __init__(
        self,
        registry: Registry,
        loop: asyncio.AbstractEventLoop,
        pool: ThreadPool,
        effects: LoopAndPool | None = None,
        standing: Standing | None = None,
    ) -> None:
        self._registry = registry
        self._loop = self.loop = loop
        self._pool = pool
        self._effects = effects or LoopAndPool(loop, pool)
        self._standing = standing
        self._tasks: set[asyncio.Task[None]] = set()
        """A loop holds its tasks weakly."""
        self._event_types: dict[str, type[object] | None] = {}
        self.on_lines: Callable[[capture.Lines], None] | None = None
        """Told, on any thread, that a callback has printed something since its lines were last asked for."""
        capture.install()

    def check(self) -> None:
        """Resolves every annotation now rather than at the first event. Raises `DefinitionError`."""
        for function in self._registry.functions():
            self._event_types[function.id] = function.event_type()

    def abandon(self) -> None:
        """Cancels what still runs; its answers go nowhere. On the user loop."""
        self._effects.is_abandoned = True
        if self._standing is not None:
            self._standing.threads.end_all()
        for task in self._tasks:
            task.cancel()

    def start(self, invocations: list[Invocation], done: Callable[[Invocation, Answer], None]) -> None:
        """Begins them all with at most one hop to the user loop. From any thread; `done` is called once each, on any thread."""
        coroutines: list[tuple[Function, Invocation]] = []
        for invocation in invocations:
            function = self._registry.get(invocation.run.function)
            if function is None:
                done(invocation, rejection(invocation, "unsupported_target"))
            elif not isinstance(invocation.history, FullHistory):
                done(invocation, rejection(invocation, "history_missing"))
            elif function.is_async:
                coroutines.append((function, invocation))
            elif self._standing is None:
                self.begin(function, invocation, done)
            else:
                self._standing.threads.answer(function, invocation, done, self)
        if coroutines:
            self._loop.call_soon_threadsafe(self._start_async, coroutines, done)

    def _start_async(self, started: list[tuple[Function, Invocation]], done: Callable[[Invocation, Answer], None]) -> None:
        for function, invocation in started:
            if self._standing is None:
                self.begin(function, invocation, done)
            else:
                self._standing.coroutines.answer(function, invocation, done, self)

    def begin(self, function: Function, invocation: Invocation, done: Callable[[Invocation, Answer], None]) -> None:
        """Answers an invocation from its function's first line. On the user loop if that is async."""
        if self._effects.is_abandoned:
            return  # the worker has stopped: nobody waits for the answer, and what a callback needs may be closed
        if not function.is_async:
            body = ThreadBody(function, invocation, done, self, self._standing)
            self._pool.submit(lambda: contextvars.copy_context().run(self._run_sync, body))
            return
        body = CoroutineBody(function, invocation, done, self, self._standing)
        body.task = self._loop.create_task(self._run_async(body))
        self._tasks.add(body.task)
        body.task.add_done_callback(self._tasks.discard)
        body.task.add_done_callback(lambda _: self._ended(body))

    async def _run_async(self, body: CoroutineBody) -> None:
        pass_ = body.pass_ = Pass(body.invocation, self._effects, self._registry, body)
        current_pass.set(pass_)
        self.listen(body)
        try:
            call = body.function.call(self._event(body.function, body.invocation), Step(pass_))
            result = await (Watched(call, body.cancelled) if body.may_go_far() else call)
        except BaseException as error:  # noqa: BLE001 - whatever leaves the body ends the pass
            await _callback_ended(pass_)
            pass_.raised(error)
        else:
            await _callback_ended(pass_)
            pass_.returned(result)
        self.answered(body)

    def _run_sync(self, body: ThreadBody) -> None:
        pass_ = body.pass_ = Pass(body.invocation, self._effects, self._registry, thread_keeper=body)
        current_pass.set(pass_)
        self.listen(body)
        try:
            result = body.function.call(self._event(body.function, body.invocation), SyncStep(pass_))
        except BaseException as error:  # noqa: BLE001 - whatever leaves the body ends the pass
            pass_.raised(error)
        else:
            pass_.returned(result)
        try:
            self.answered(body)
        finally:
            self._ended(body)

    def _ended(self, body: Body) -> None:
        body.ends()
        body.ended.set_result(None)

    def answered(self, body: Body) -> None:
        """Gives the answer of a body's pass to whoever waits for it, if it was not given where the body stood."""
        done, body.done = body.done, None
        if done is not None and body.pass_ is not None:
            done(body.invocation, _answer(body.invocation, body.pass_, body.pass_.answer, body.lines))

    def listen(self, body: Body) -> None:
        """Keeps what the body's callback prints, from now on, if its invocation is an effect's. In the context of the body."""
        body.lines = None
        if not isinstance(body.invocation.target, DiscoveryTarget):
            capture.install()  # on the streams that stand now: somebody may have put others in their place
            body.lines = capture.Lines(body.invocation.request_id, self.on_lines)
            capture.current_lines.set(body.lines)

    async def end_standing(self) -> None:
        """Ends every body that only waits for its run's next invocation, and lets it unwind."""
        if self._standing is not None:
            await self._standing.end_all()

    def _event(self, function: Function, invocation: Invocation) -> Event[object]:
        if function.id not in self._event_types:
            self._event_types[function.id] = function.event_type()
        return Event(invocation, self._event_types[function.id])


async def _callback_ended(pass_: Pass) -> None:
    """Waits for the target's callback if a task beside the body is running it: it has begun, so it counts."""
    while pass_.answer is None and pass_.shutdown is None and pass_.executing is not None and not pass_.executing.is_set():
        try:
            await pass_.executing.wait()
        except asyncio.CancelledError:
            if pass_.effects.is_abandoned:
                raise


def rejection(invocation: Invocation, reason: RejectionReason) -> bytes:
    """The encoded answer that no callback was invoked. From any thread."""
    target = invocation.target
    if isinstance(target, DiscoveryTarget):
        return _encoded(invocation, RejectedBeforeStart(reason))
    return _encoded(invocation, RejectedBeforeStart(reason, target.attempt, target.attempt_generation))


def _answer(invocation: Invocation, pass_: Pass, outcome: OutcomeBody | None, lines: capture.Lines | None) -> Answer:
    logs = [] if lines is None else lines.end()
    if outcome is not None:
        return _encoded(invocation, outcome, logs)
    stop = pass_.shutdown or SystemExit("the pass ended without an answer")
    _log.error("run %s: %r in user code stops this worker", invocation.run.run_id, stop)
    return Stopped(stop)


def _encoded(invocation: Invocation, outcome: OutcomeBody, logs: list[LogLine] | None = None) -> bytes:
    return encode(Outcome(PROTOCOL_VERSION, invocation.request_id, invocation.run.run_id, outcome, logs or []))
