"""Resolve an Unknown attempt: an operator's word, fenced to the exact attempt and generation.

The checks that need no run (permission, envelope, limits, idempotency key) come before. Here, in order:

| check | answer |
|---|---|
| the attempt is missing, not Unknown, or of another generation | refused `stale` |
| `authorize_retry`, forward, stop reason `cancelled` | refused `retry_forbidden` |
| `authorize_retry`, forward, stop reason `timed_out`, or the deadline reached | refused `deadline_elapsed`; not even the timeout is recorded |
| the settled record (declaration beside outcome) would be too large | refused `limit_exceeded` |
| the outcome does not fit the run's replay budget (forward); a failure may take the reserve, as a worker's may | refused `limit_exceeded` |

| command | forward, `running`, before the deadline | forward, `running`, past it | forward, `stopping` | compensation |
|---|---|---|---|---|
| supply_success | step complete; discovery | stop `timed_out`, complete, gate | complete, gate | target succeeded; the unwind goes on |
| declare_failure | as a reported failure: the retry policy applies | stop `timed_out`, failed, gate | failed, no retry, gate | as a reported failure |
| authorize_retry | settled `retry_authorized`; the next generation queued, same operation id | refused | refused | likewise, whatever the stop reason |

A refusal decides nothing, so that nothing is left to roll back.
"""

from __future__ import annotations

from typing import Literal, assert_never

import msgspec

from ryusen_protocol.ids import AttemptId
from ryusen_protocol.limits import MIB, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, SupplySuccess
from ryusen_server.core.decision import Decision, Moment, Refusal
from ryusen_server.core.outcomes import ENTRY_OVERHEAD_BYTES
from ryusen_server.core.records import AttemptSettled
from ryusen_server.core.results import Origin, fail, next_attempt, succeed
from ryusen_server.core.settlement import past_deadline
from ryusen_server.core.state import Attempt, Run

SETTLED_RECORD_BYTES_MAX = 4 * MIB
"""A step's declaration beside its outcome. A declaration is bounded by the frame it came in only."""

CommandName = Literal["supply_success", "declare_failure", "authorize_retry"]
COMMANDS: tuple[CommandName, ...] = ("supply_success", "declare_failure", "authorize_retry")

_encode = msgspec.json.Encoder().encode


class ResolveAttempt(msgspec.Struct, frozen=True):
    """A well-formed command. `by` names the operator in the history."""

    attempt_id: AttemptId
    attempt_generation: int
    resolution: SupplySuccess | DeclareFailure | AuthorizeRetry
    by: str


def decide(run: Run, command: ResolveAttempt, moment: Moment) -> Decision | Refusal:
    """See the tables above."""
    attempt = run.attempts.get(command.attempt_id)
    if attempt is None or attempt.attempt_generation != command.attempt_generation:
        return Refusal("stale", "The run has no such attempt of that generation. Read the attempt again and name what it says.")
    if attempt.state != "unknown":
        return Refusal("stale", _not_unknown(attempt))
    resolution = command.resolution
    decision = Decision()
    match resolution:
        case AuthorizeRetry():
            forbidden = retry_refusal(run, attempt, moment.now_ms)
            if forbidden is not None:
                return forbidden
            decision.add(
                AttemptSettled(attempt.attempt_id, "retry_authorized", operator=command.by),
                next_attempt(run, attempt, moment.now_ms),
            )
        case SupplySuccess():
            too_large = _over_a_bound(run, attempt, len(bytes(resolution.result)), kept=REPLAY_RESERVE_BYTES)
            if too_large is not None:
                return too_large
            succeed(decision, run, attempt, resolution.result, Origin(operator=command.by), moment)
        case DeclareFailure():
            too_large = _over_a_bound(run, attempt, len(_encode(resolution.failure)), kept=0)  # the reserve is there for failures
            if too_large is not None:
                return too_large
            fail(decision, run, attempt, resolution.failure, Origin(operator=command.by), moment)
        case _:
            assert_never(resolution)
    return decision


def retry_refusal(run: Run, attempt: Attempt, now_ms: int) -> Refusal | None:
    """Why this attempt may not be tried again, if it may not. A committed stop reason decides whatever the clock says now."""
    if attempt.phase == "compensation":
        return None
    reason = run.stop.reason if run.stop is not None else None
    if reason == "cancelled":
        return Refusal(
            "retry_forbidden", "The run is cancelled: no forward work starts any more. Supply the result, or declare the failure."
        )
    if reason == "timed_out" or past_deadline(run, now_ms):
        return Refusal(
            "deadline_elapsed",
            "The run's deadline has passed: no forward work starts any more. Supply the result, or declare the failure.",
        )
    return None


def allowed_commands(run: Run, attempt: Attempt, now_ms: int) -> tuple[list[CommandName], list[tuple[CommandName, Refusal]]]:
    """What an operator may do with an attempt now, and why not the rest."""
    if attempt.state != "unknown":
        refusal = Refusal("stale", _not_unknown(attempt))
        return [], [(name, refusal) for name in COMMANDS]
    forbidden = retry_refusal(run, attempt, now_ms)
    if forbidden is None:
        return list(COMMANDS), []
    return ["supply_success", "declare_failure"], [("authorize_retry", forbidden)]


def _not_unknown(attempt: Attempt) -> str:
    if attempt.settled_at_ms is not None:
        return f"The attempt is settled already ({attempt.state}); there is nothing left to resolve."
    return f"The attempt is {attempt.state}, not Unknown; only an Unknown attempt is resolved by an operator."


def _over_a_bound(run: Run, attempt: Attempt, outcome_bytes: int, *, kept: int) -> Refusal | None:
    declaration_bytes = len(_encode(run.steps[attempt.step_id].declaration))
    if declaration_bytes + outcome_bytes + ENTRY_OVERHEAD_BYTES > SETTLED_RECORD_BYTES_MAX:
        return Refusal(
            "limit_exceeded",
            f"The outcome of {outcome_bytes:,} bytes does not fit beside the step's declaration of {declaration_bytes:,} bytes: "
            f"together they may take {SETTLED_RECORD_BYTES_MAX:,}. Give a smaller one.",
        )
    left = REPLAY_BUDGET_BYTES_MAX - kept - run.replay_bytes
    if attempt.phase == "forward" and outcome_bytes + ENTRY_OVERHEAD_BYTES > left:
        return Refusal(
            "limit_exceeded",
            f"The outcome of {outcome_bytes:,} bytes does not fit what the run may still remember "
            f"({max(0, left - ENTRY_OVERHEAD_BYTES):,} bytes). Give a smaller one.",
        )
    return None
