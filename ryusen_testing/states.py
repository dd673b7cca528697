"""What a test sees of a run: committed facts as Python values, and in words what the run waits for.

Reads a run and changes nothing. Instants are epoch milliseconds of the harness's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ryusen_protocol.durations import format_ms
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.invocation import Phase
from ryusen_sdk.convert import from_wire
from ryusen_server.core.agenda import agenda
from ryusen_server.core.state import Attempt, Run, Step


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One physical attempt. `state` is `queued`, `authorized`, `unknown`, `succeeded`, `failed`, `skipped`, …"""

    step_id: str
    phase: Phase
    attempt: int
    attempt_generation: int
    state: str
    failure: ErrorRecord | None


@dataclass(frozen=True, slots=True)
class StepState:
    """One step. `state` is `pending`, `succeeded`, `failed`, `obsolete` or `stopped`; `result` is its value as the function got it."""

    step_id: str
    kind: str
    state: str
    result: object
    failure: ErrorRecord | None
    attempts: tuple[AttemptState, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class UndoneStep:
    """One target of the unwind, in the order it is walked. `state` is `pending`, `succeeded`, `failed` or `skipped`."""

    step_id: str
    state: str
    reason: str | None
    failure: ErrorRecord | None


def step_states(run: Run) -> dict[str, StepState]:
    """The steps in the order they were declared."""
    return {step.step_id: _step_state(run, step) for step in run.steps.values()}


def _step_state(run: Run, step: Step) -> StepState:
    return StepState(
        step_id=step.step_id,
        kind=step.kind,
        state=step.state,
        result=_python(step.result),
        failure=step.failure,
        attempts=tuple([_attempt_state(run.attempts[attempt]) for attempt in step.attempts]),
    )


def _attempt_state(attempt: Attempt) -> AttemptState:
    return AttemptState(attempt.step_id, attempt.phase, attempt.attempt, attempt.attempt_generation, attempt.state, attempt.failure)


def undone_steps(run: Run) -> list[UndoneStep]:
    """The unwind in its order; empty where nothing is or was undone."""
    return [UndoneStep(target.step_id, target.state, target.reason, target.failure) for target in run.unwind]


def result_of(run: Run) -> object:
    """What the function returned."""
    return _python(run.result)


def unknown_attempts(run: Run) -> list[Attempt]:
    """Attempts whose outcome nobody can establish."""
    return [attempt for attempt in run.attempts.values() if attempt.state == "unknown"]


def waits_for(run: Run, now_ms: int) -> str:
    """What moves the run next, and what a test does about it."""
    unknown = unknown_attempts(run)
    if unknown:
        attempt = unknown[0]
        return (
            f"the {attempt.phase} attempt {attempt.attempt} of step {attempt.step_id!r} is Unknown: "
            f"settle it, as an operator does, with run.resolve({attempt.step_id!r}, …)"
        )
    if run.blocker is not None:
        return f"its definition is blocked: {run.blocker.message}"
    step = run.pending_step()
    in_ms = 0 if step is None or step.due_at_ms is None else step.due_at_ms - now_ms
    match agenda(run).need:
        case "timer" if step is not None:
            return f"step {step.step_id!r} sleeps for another {format_ms(max(0, in_ms))}: let time pass with harness.advance(…)"
        case "event" if step is not None:
            name = getattr(step.declaration, "event_name", "")
            return (
                f"step {step.step_id!r} waits for the event {name!r}, at most another {format_ms(max(0, in_ms))}: send it, or let time pass"
            )
        case "child" if step is not None:
            return f"step {step.step_id!r} waits for the run it invoked, {step.child_run_id}"
        case "discovery" | "attempt":
            return f"it is queued, and no worker that can run {run.function!r} has room"
        case "answer":
            return "a worker is executing it"
        case _:
            return "nothing is left to do"


def _python(value: msgspec.Raw | None) -> object:
    return None if value is None else from_wire(value)
