"""Stop a run: a cancel, its deadline, or the stop of its parent.

| status | by cancel | by the deadline |
|---|---|---|
| `running`, `definition_blocked` | stop intent (`timed_out` when the deadline is reached); queued work fenced; gate | the same, once the deadline is reached |
| `stopping` | acknowledged as replayed, the first reason kept | nothing |
| `compensating`, `ended`, its stop reason `cancelled` | acknowledged as replayed | nothing |
| `compensating`, `ended`, otherwise | refused `not_cancellable`, naming the outcome | nothing: a deadline never cuts recovery short |
| any | | before its instant: nothing, the timer stays armed |

| status | by the parent's stop |
|---|---|
| `running`, `definition_blocked` | stop intent with the parent's reason (`timed_out` when its own deadline is reached), the parent being who asked |
| `stopping`, `compensating`, `ended` | nothing: the run just goes on, and its end settles the parent's step |

The acknowledgement does not claim that an authorized callback has stopped.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import RunId
from ryusen_server.core.decision import Decision, Moment, Refusal
from ryusen_server.core.records import StopReason
from ryusen_server.core.settlement import enter_gate, has_unresolved, past_deadline, record_stop
from ryusen_server.core.state import Run


class Cancel(msgspec.Struct, frozen=True):
    """Somebody asks for the run to stop. `by` names them in the history."""

    by: str


class ParentStopped(msgspec.Struct, frozen=True):
    """The run's parent is stopping and waits for this run's end."""

    parent_run_id: RunId
    reason: StopReason


class DeadlineReached(msgspec.Struct, frozen=True):
    """The run's deadline timer fired."""


def decide(run: Run, command: Cancel | DeadlineReached | ParentStopped, moment: Moment) -> Decision | Refusal:
    """See the table above."""
    late = past_deadline(run, moment.now_ms)
    if isinstance(command, DeadlineReached):
        if late and run.status in ("running", "definition_blocked"):
            return _stop(run, "timed_out", "deadline", moment)
        return Decision()
    if isinstance(command, ParentStopped):
        if run.status in ("running", "definition_blocked"):
            return _stop(run, "timed_out" if late else command.reason, command.parent_run_id, moment)
        return Decision()
    if run.status in ("running", "definition_blocked"):
        return _stop(run, "timed_out" if late else "cancelled", command.by, moment)
    if run.status == "stopping" or (run.stop is not None and run.stop.reason == "cancelled"):
        return Decision(replayed=True)
    word = run.outcome or run.status
    return Refusal("not_cancellable", f"The run can no longer be cancelled: its outcome is already decided ({word}).")


def _stop(run: Run, reason: StopReason, by: str, moment: Moment) -> Decision:
    decision = Decision()
    record_stop(decision, run, reason, by)
    if not has_unresolved(run):
        enter_gate(decision, run, reason, moment.now_ms)
    return decision
