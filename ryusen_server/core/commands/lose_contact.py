"""Lose an effect: its lease elapsed, its answer is overdue, or its answer cannot be read.

| attempt under this request | effect |
|---|---|
| `authorized` | `unknown`: in `running` the run waits, in `stopping` the gate waits, in `compensating` the unwind halts |
| any other state | nothing |

Unknown ends by a late answer or an operator, never by a timer.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import RequestId
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.records import AttemptUnknown
from ryusen_server.core.state import Run


class LoseContact(msgspec.Struct, frozen=True):
    """The attempt authorized under this request is beyond reach. `reason` is for people."""

    request_id: RequestId
    reason: str


def decide(run: Run, command: LoseContact, moment: Moment) -> Decision:
    """See the table above."""
    del moment
    decision = Decision()
    known = run.requests.get(command.request_id)
    attempt = None if known is None else run.attempts[known]
    if attempt is not None and attempt.request_id == command.request_id and attempt.state == "authorized":
        decision.add(AttemptUnknown(attempt.attempt_id, command.reason))
    return decision
