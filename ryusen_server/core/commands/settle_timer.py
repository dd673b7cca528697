"""Settle a timer: its instant has come.

| the run | the clock | effect |
|---|---|---|
| `running`, this timer pending | the run's deadline reached | stop `timed_out`; the timer dropped; settlement gate |
| same | before the timer's instant: the clock went back | nothing, it stays armed |
| same | at its instant or later | step complete with null; discovery |
| anything else: it has settled, or a stop, which ends `running`, dropped it | | nothing |
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import StepId
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import NULL_VALUE
from ryusen_server.core.results import complete, drop_if_late
from ryusen_server.core.state import Run


class TimerDue(msgspec.Struct, frozen=True):
    """The timer of this step is due, says whoever watches the clock."""

    step_id: StepId


def decide(run: Run, command: TimerDue, moment: Moment) -> Decision:
    """See the table above."""
    decision = Decision()
    step = run.pending_step()
    if step is None or step.step_id != command.step_id or step.kind != "timer":
        return decision
    if drop_if_late(decision, run, moment):
        return decision
    if step.due_at_ms is not None and moment.now_ms >= step.due_at_ms:
        complete(decision, run, step, NULL_VALUE, moment)
    return decision
