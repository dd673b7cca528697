"""Runs one seed from its beginning to its verdict. The same seed and options give the same run, to the byte of its trace."""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec

from ryusen_server.engine import runs as runs_module
from tests.simulation.calm import calm, verdict
from tests.simulation.life import Life
from tests.simulation.options import Options
from tests.simulation.workers import installed
from tests.simulation.world import World

CPU_S_MAX = 60
"""A life takes a tenth of a second. What goes round within one turn, no count of turns notices."""


class Result(msgspec.Struct):
    """What came of one seed. `digest` names its whole trace."""

    seed: int
    options: Options
    violation: str | None
    details: str
    digest: str
    transitions: int
    edges: Counter[str]
    acts: dict[str, int]
    runs: int
    callbacks: int
    lives: int
    virtual_ms: int
    outcomes: Counter[str]
    trace: list[str] | None

    @property
    def replay(self) -> str:
        """The command that repeats it."""
        return f"python -m tests.simulation --from {self.seed} --seeds 1 {self.options.words()} --trace"


def simulate(seed: int, options: Options | None = None, *, keep_trace: bool = False) -> Result:
    """One seed."""
    options = options or Options()
    world = World(seed, options, keep_trace=keep_trace)
    life = Life(world)
    loop = world.loop
    server_log = logging.getLogger("ryusen_server")
    sdk_logs = [logging.getLogger("ryusen.sdk"), logging.getLogger("ryusen.worker")]
    before = (server_log.propagate, server_log.level, [sdk.disabled for sdk in sdk_logs], gc.isenabled())
    server_log.addHandler(world.verdicts)
    server_log.propagate = False
    for sdk in sdk_logs:
        sdk.disabled = True
    loop.set_exception_handler(world.verdicts.unhandled)
    gc.disable()  # a collection would run the `finally` of dead processes wherever it happened to come
    try:
        with _bounded(world), _observed(world), installed(world.connector, loop, world.conditions.chance):
            main = loop.spawn(None, _whole(life))
            main.add_done_callback(lambda _: loop.stop())
            try:
                loop.run_forever()
            except (AssertionError, TimeoutError) as stuck:
                world.verdicts.fail(str(stuck))
            if main.done() and not main.cancelled() and main.exception() is not None:
                error = main.exception()
                world.verdicts.fail(str(error) or repr(error), _traceback(error))
    finally:
        _bury(world)
        server_log.removeHandler(world.verdicts)
        server_log.propagate = before[0]
        for sdk, disabled in zip(sdk_logs, before[2], strict=True):
            sdk.disabled = disabled
        if before[3]:
            gc.enable()
    return _result(world, life)


async def _whole(life: Life) -> None:
    await life.live()
    await calm(life)
    life.world.verdicts.guard(verdict)(life)


@contextlib.contextmanager
def _bounded(world: World) -> Iterator[None]:
    """Fail a life that takes for ever, where a signal can reach it."""

    def out_of_time(number: int, frame: Any) -> None:
        world.verdicts.fail(f"no end within {CPU_S_MAX} s of processor time", "".join(traceback.format_stack(frame)))
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _observed(world: World) -> Any:
    decide = runs_module.decide

    def observed(run: Any, command: Any, moment: Any) -> Any:
        answer = decide(run, command, moment)
        world.auditor.observed(run, command, moment.now_ms, answer)
        return answer

    return mock.patch.object(runs_module, "decide", observed)


def _bury(world: World) -> None:
    """Let nothing of this simulation run any more, whatever its `finally` clauses would like to do."""
    loop = world.loop
    loop.set_exception_handler(_unheard)
    hook, sys.unraisablehook = sys.unraisablehook, _unheard
    try:
        for task, _ in loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task._log_traceback = False
            if not task.done():
                _close(task.get_coro())
        loop.forget()
        loop.close()
    finally:
        sys.unraisablehook = hook


def _unheard(*what: object) -> None:
    """Nobody is left to hear it."""


def _close(coroutine: Any) -> None:
    frame = getattr(coroutine, "cr_frame", None)
    if frame is not None and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        for given in frame.f_locals.values():  # a coroutine it was to await
            if inspect.iscoroutine(given):
                _close(given)
    try:
        coroutine.close()
    except BaseException:  # whatever it does at its end no longer matters
        return


def _traceback(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def _result(world: World, life: Life) -> Result:
    shadows = [audit.shadow for audit in world.auditor.runs.values()]
    return Result(
        seed=world.seed,
        options=world.options,
        violation=world.verdicts.violation,
        details=world.verdicts.details,
        digest=world.digest,
        transitions=world.auditor.transitions,
        edges=world.auditor.edges,
        acts=life.counts,
        runs=len(shadows),
        callbacks=len(world.outside.effects),
        lives=world.server.lives,
        virtual_ms=world.wall.elapsed_ms(),
        outcomes=Counter(f"{run.outcome}/{run.recovery}" if run.status == "ended" else f"{run.status}" for run in shadows),
        trace=world.trace_lines,
    )
