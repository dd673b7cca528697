"""The settlement gate, and the walk of the unwind.

Forward execution is over once a stop is recorded or a failure is uncaught. Then, in this order:

| what is true | what the gate adds |
|---|---|
| an effect is authorized or Unknown, or a child has not ended | nothing: the run waits for it |
| no completed `run` step succeeded | the outcome; ended, `not_required (empty_unwind)`, never `compensating` |
| some did | the outcome; the unwind plan in reverse completion order; its first attempt queued |

The plan is made in the transaction that settles the last effect, so a run is never `compensating` without work.

| an unwind target settles as | and it was | what `advance` adds |
|---|---|---|
| anything | not the last | the next target's attempt queued |
| anything | the last | ended with the recovery that all targets together give |
"""

from __future__ import annotations

from ryusen_protocol.declarations import DEFAULT_RETRY, CompensationPolicy, RunDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import attempt_id, operation_id
from ryusen_protocol.ids import StepId
from ryusen_server.core.decision import Decision
from ryusen_server.core.records import (
    AttemptQueued,
    AttemptSettled,
    CompensationStarted,
    Outcome,
    OutcomeDecided,
    Recovery,
    RunEnded,
    StepStopped,
    StopReason,
    StopRequested,
    TargetSettled,
    UnwindTarget,
)
from ryusen_server.core.state import UNRESOLVED, Run

_OUTCOME_OF: dict[StopReason, Outcome] = {"cancelled": "cancelled", "timed_out": "timed_out"}

DEFAULT_COMPENSATION = CompensationPolicy(retry=DEFAULT_RETRY)
"""What a compensator that was added after its step's declaration gets."""


def past_deadline(run: Run, now_ms: int) -> bool:
    """Whether the run's deadline is reached."""
    return run.deadline is not None and now_ms >= run.deadline.at_ms


def compensation_policy(run: Run, step_id: StepId) -> CompensationPolicy:
    """The policy recorded with the step's declaration, or the default."""
    declaration = run.steps[step_id].declaration
    if isinstance(declaration, RunDeclaration) and declaration.compensation is not None:
        return declaration.compensation
    return DEFAULT_COMPENSATION


def record_stop(draft: Decision, run: Run, reason: StopReason, by: str) -> None:
    """Record stop intent, drop a pending timer or wait and fence forward work that no authorization has let out.

    The gate is the caller's next word. A pending child is asked to stop by the obligation that `obligations` reads off the stop intent.
    """
    draft.add(StopRequested(reason, by))
    step = run.pending_step()
    if step is not None and step.kind in ("timer", "event_wait"):
        draft.add(StepStopped(step.step_id))
    attempt = run.current_attempt()
    if attempt is not None and attempt.state == "queued" and attempt.phase == "forward":
        draft.add(AttemptSettled(attempt.attempt_id, "fenced", reason=reason), StepStopped(attempt.step_id))


def has_unresolved(run: Run) -> bool:
    """Whether an effect has begun, or may have, and has no outcome; an invoked child counts until it has ended."""
    step = run.pending_step()
    if step is not None and step.kind == "child":
        return True
    attempt = run.current_attempt()
    return attempt is not None and attempt.state in UNRESOLVED


def enter_gate(
    draft: Decision, run: Run, outcome: Outcome, now_ms: int, *, failure: ErrorRecord | None = None, also: StepId | None = None
) -> None:
    """Decide the outcome and begin the unwind, or end. `also` is a `run` step that succeeds in this very transaction.

    The caller has made sure that no effect is unresolved.
    """
    draft.add(OutcomeDecided(outcome, failure=failure))
    completed = [*run.completed, also] if also is not None else run.completed
    targets = tuple(
        UnwindTarget(step_id, operation_id(run.run_id, step_id, "compensation"))
        for step_id in reversed(completed)
        if step_id == also or _is_reversible(run, step_id)
    )
    if not targets:
        draft.add(RunEnded("not_required", "empty_unwind"))
        return
    draft.add(CompensationStarted(targets), _first_attempt(run, targets[0], now_ms))


def stopped_outcome(run: Run, draft: Decision) -> Outcome:
    """The outcome that the recorded stop intent, or the one this decision records, asks for."""
    for record in draft.records:
        if isinstance(record, StopRequested):
            return _OUTCOME_OF[record.reason]
    if run.stop is None:
        raise AssertionError("a stopped run has stop intent")
    return _OUTCOME_OF[run.stop.reason]


def advance(draft: Decision, run: Run, settled: TargetSettled, now_ms: int) -> None:
    """Settle the current unwind target and queue the next one, or end the run."""
    draft.add(settled)
    following = run.unwind_index + 1
    if following < len(run.unwind):
        target = run.unwind[following]
        draft.add(_first_attempt(run, UnwindTarget(target.step_id, target.operation_id), now_ms))
        return
    draft.add(RunEnded(_recovery(run, settled), None))


def _recovery(run: Run, last: TargetSettled) -> Recovery:
    states = {last.state, *(state for state, count in run.unwind_counts.items() if count)}
    if "failed" in states:
        return "compensation_failed"
    return "partially_compensated" if "skipped" in states else "fully_compensated"


def _is_reversible(run: Run, step_id: StepId) -> bool:
    step = run.steps[step_id]
    return step.state == "succeeded" and isinstance(step.declaration, RunDeclaration)


def _first_attempt(run: Run, target: UnwindTarget, now_ms: int) -> AttemptQueued:
    return AttemptQueued(
        attempt_id=attempt_id(run.run_id, target.step_id, "compensation", 1),
        step_id=target.step_id,
        phase="compensation",
        attempt=1,
        attempt_generation=1,
        operation_id=target.operation_id,
        due_at_ms=now_ms,
    )
