"""Stop a run: a cancel, or its deadline.

| status | by cancel | by the deadline |
|---|---|---|
| `running`, `definition_blocked` | stop intent (`timed_out` when the deadline is reached); queued work fenced; gate | the same, once the deadline is reached |
| `stopping` | acknowledged as replayed, the first reason kept | nothing |
| `compensating`, `ended`, its stop reason `cancelled` | acknowledged as replayed | nothing |
| `compensating`, `ended`, otherwise | refused `not_cancellable`, naming the outcome | nothing: a deadline never cuts recovery short |
| any | | before its instant: nothing, the timer stays armed |

The acknowledgement does not claim that an authorized callback has stopped.
"""

from __future__ import annotations

import msgspec

from ryusen_server.core.decision import Decision, Moment, Refusal
from ryusen_server.core.records import StopReason
from ryusen_server.core.settlement import enter_gate, has_unresolved, past_deadline, record_stop
from ryusen_server.core.state import Run


class Cancel(msgspec.Struct, frozen=True):
    """Somebody asks for the run to stop. `by` names them in the history."""

    by: str


class DeadlineReached(msgspec.Struct, frozen=True):
    """The run's deadline timer fired."""


def decide(run: Run, command: Cancel | DeadlineReached, moment: Moment) -> Decision | Refusal:
    """See the table above."""
    late = past_deadline(run, moment.now_ms)
    if isinstance(command, DeadlineReached):
        if late and run.status in ("running", "definition_blocked"):
            return _stop(run, "timed_out", "deadline", moment)
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
