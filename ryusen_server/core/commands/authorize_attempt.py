"""Authorize an attempt: the durable record that its callback may begin.

| phase | status | deadline | effect |
|---|---|---|---|
| forward | `running`, attempt queued and due | ahead or none | authorized under a fresh request, with its lease; sent after the commit |
| forward | same | reached | stop intent `timed_out`, the attempt fenced, settlement gate |
| compensation | `compensating`, attempt queued and due | any | authorized, likewise: a deadline never cuts recovery short |
| any | anything else | | refused `not_ready` |

With an attempt timeout the answer is due two seconds after it, counted from here; then the attempt is Unknown, because nobody can tell an
async callback that was cancelled from a sync one that goes on.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.declarations import RunDeclaration
from ryusen_protocol.ids import AttemptId
from ryusen_server.core.agenda import is_due
from ryusen_server.core.decision import Decision, Moment, Refusal, SendAttempt
from ryusen_server.core.records import AttemptAuthorized, WorkerRef
from ryusen_server.core.settlement import compensation_policy, enter_gate, past_deadline, record_stop
from ryusen_server.core.state import Attempt, Run

ANSWER_GRACE_MS = 2_000
"""Room for the report of a callback that was cancelled at its timeout."""


class AuthorizeAttempt(msgspec.Struct, frozen=True):
    """A worker has room and its slot is taken. `hurry`: whatever pace the attempt waited for is over."""

    worker: WorkerRef
    lease_ms: int
    hurry: bool = False


def decide(run: Run, command: AuthorizeAttempt, moment: Moment) -> Decision | Refusal:
    """See the table above."""
    attempt = run.current_attempt()
    expected = "running" if attempt is not None and attempt.phase == "forward" else "compensating"
    if attempt is None or attempt.state != "queued" or run.status != expected:
        return Refusal("not_ready", "no attempt is queued")
    paced_out = command.hurry and attempt.never_began > 0
    if not is_due(run, attempt, moment.now_ms) and not paced_out:
        return Refusal("not_ready", "the attempt is not due")
    decision = Decision()
    if attempt.phase == "forward" and past_deadline(run, moment.now_ms):
        record_stop(decision, run, "timed_out", "deadline")
        enter_gate(decision, run, "timed_out", moment.now_ms)
        return decision
    authorize(decision, run, attempt, command, moment)
    return decision


def authorize(decision: Decision, run: Run, attempt: Attempt, command: AuthorizeAttempt, moment: Moment) -> None:
    """Add the authorization of a queued attempt that exists already."""
    timeout_ms = (
        _forward_timeout_ms(run, attempt) if attempt.phase == "forward" else compensation_policy(run, attempt.step_id).attempt_timeout_ms
    )
    add_authorization(decision, attempt.attempt_id, timeout_ms, command, moment)


def add_authorization(decision: Decision, attempt_id: AttemptId, timeout_ms: int | None, command: AuthorizeAttempt, moment: Moment) -> None:
    """Add the record and the effect of one authorization."""
    request_id = moment.entropy.request_id()
    decision.add(
        AttemptAuthorized(
            attempt_id=attempt_id,
            request_id=request_id,
            worker=command.worker,
            lease_until_ms=moment.now_ms + command.lease_ms,
            answer_by_ms=None if timeout_ms is None else moment.now_ms + timeout_ms + ANSWER_GRACE_MS,
        )
    )
    decision.effects.append(SendAttempt(attempt_id, request_id, command.worker))


def _forward_timeout_ms(run: Run, attempt: Attempt) -> int | None:
    declaration = run.steps[attempt.step_id].declaration
    return declaration.attempt_timeout_ms if isinstance(declaration, RunDeclaration) else None
