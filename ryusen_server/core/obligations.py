"""What a decision on one run obliges another to: read off its records, so that no command can forget it.

| the records hold | and the run | obligation |
|---|---|---|
| its end | has a parent | complete the parent's step |
| a stop intent | waits for a child whose step these records do not complete | stop the child, for the same reason |
"""

from __future__ import annotations

from collections.abc import Sequence

from ryusen_server.core.decision import Obligation, SettleParent, StopChild
from ryusen_server.core.records import Record, RunEnded, StepCompleted, StopRequested
from ryusen_server.core.state import Run


def obligations(run: Run, records: Sequence[Record]) -> tuple[Obligation, ...]:
    """What is owed once these records of the run are committed. `run` is as the decision found it."""
    owed: list[Obligation] = []
    for record in records:
        if isinstance(record, RunEnded) and run.parent is not None:
            owed.append(SettleParent(run.run_id, run.parent.run_id, run.parent.step_id))
        elif isinstance(record, StopRequested):
            step = run.pending_step()
            if step is not None and step.child_run_id is not None and not any(isinstance(other, StepCompleted) for other in records):
                owed.append(StopChild(step.child_run_id, run.run_id, record.reason))
    return tuple(owed)
