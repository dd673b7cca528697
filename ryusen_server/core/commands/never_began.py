"""Reconcile an attempt that provably never began: it never left, was rejected before start, or the same process does not hold it.

| attempt | phase, status, deadline | effect |
|---|---|---|
| `authorized`, `unknown` | forward, `running`, before the deadline | queued again, same ordinal and generation, paced when it repeats |
| same | compensation, `compensating`, whatever the stop reason | the same |
| same | forward, `stopping` | fenced, the step stopped, settlement gate |
| same | forward, `running`, deadline reached | stop intent `timed_out`; then as `stopping` |
| any other state, or another request | | nothing |

Anything less than proof is loss of contact.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import RequestId
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.pacing import pace_ms
from ryusen_server.core.records import AttemptRequeued, AttemptSettled, StepStopped
from ryusen_server.core.settlement import enter_gate, past_deadline, record_stop, stopped_outcome
from ryusen_server.core.state import UNRESOLVED, Attempt, Run


class NeverBegan(msgspec.Struct, frozen=True):
    """The proof names the request the attempt was authorized under."""

    request_id: RequestId
    reason: str


def decide(run: Run, command: NeverBegan, moment: Moment) -> Decision:
    """See the table above."""
    decision = Decision()
    known = run.requests.get(command.request_id)
    attempt = None if known is None else run.attempts[known]
    if attempt is not None and attempt.request_id == command.request_id and attempt.state in UNRESOLVED:
        requeue(decision, run, attempt, command.reason, moment)
    return decision


def requeue(decision: Decision, run: Run, attempt: Attempt, reason: str, moment: Moment, *, answer_digest: str | None = None) -> None:
    """Apply the proof to an unresolved attempt. `answer_digest` identifies the rejection that is the proof, if one is."""
    late = run.status == "running" and past_deadline(run, moment.now_ms)
    if attempt.phase == "compensation" or (run.status == "running" and not late):
        due_at_ms = moment.now_ms + pace_ms(attempt.never_began)
        decision.add(AttemptRequeued(attempt.attempt_id, reason, due_at_ms, answer_digest))
        return
    if late:
        record_stop(decision, run, "timed_out", "deadline")
    decision.add(AttemptSettled(attempt.attempt_id, "fenced", reason=reason, answer_digest=answer_digest), StepStopped(attempt.step_id))
    enter_gate(decision, run, stopped_outcome(run, decision), moment.now_ms)
