"""Settle a child step: the run it invoked has ended, its own unwind included.

| the run | deadline | effect |
|---|---|---|
| `running`, this child pending | ahead or none | step complete with the child's result or failure; discovery |
| same | reached | stop `timed_out`; step complete; settlement gate |
| `stopping`, this child pending | | step complete; settlement gate; no discovery |
| anything else: the step has its outcome | | nothing |

A result that the parent's record cannot carry completes the step with `sdk.invalid_result`.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.declarations import ChildDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_server.core.children import ChildEnd, failure_of
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import recordable, replayable
from ryusen_server.core.results import complete
from ryusen_server.core.state import Run


class ChildEnded(msgspec.Struct, frozen=True):
    """The child run ended so."""

    end: ChildEnd


def decide(run: Run, command: ChildEnded, moment: Moment) -> Decision:
    """See the table above."""
    decision = Decision()
    step = run.pending_step()
    end = command.end
    if step is None or step.child_run_id != end.child_run_id or not isinstance(step.declaration, ChildDeclaration):
        return decision
    outcome: msgspec.Raw | ErrorRecord
    if end.result is not None and end.outcome == "succeeded":
        outcome = replayable(run, end.result)
    else:
        outcome = recordable(run, failure_of(end, step.declaration.function))
    complete(decision, run, step, outcome, moment)
    return decision
