"""Answer a discovery pass.

| the answer | when | effect |
|---|---|---|
| any | not the current dispatch, or no longer `running` or `definition_blocked` | discarded, nothing changes |
| any response | deadline reached | discarded; stop intent `timed_out`, settlement gate |
| `declared`, a new id | | step, attempt 1 queued, authorized too when the dispatcher chose the declaring worker |
| `declared`, an obsolete id | same kind | pending again: same operation id, next attempt, the new policy |
| `declared`, a known id | another kind, or completed | blocked, `declaration_conflict`: never adopted |
| `declared` | a number outside its domain, or a kind this server lacks | blocked, `invalid_declaration` |
| `declared` | less than the reserve left of the replay budget | blocked, `replay_budget` |
| `completed` | | outcome `succeeded`, ended, `not_required (succeeded)`; no compensator runs |
| `completed` | the result is not portable or too large | as `uncaught`, `sdk.invalid_result` |
| `uncaught` | | outcome `failed`, settlement gate |
| `definition_blocked` | | blocked with its diagnostics; the same blocker again only updates them |
| blocked, either way | a newer release became preferred since the dispatch | the pass is repeated at once |
| `rejected_before_start` | | the pass is queued again, paced; nothing is consumed |
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from ryusen_protocol.clipping import clip_error
from ryusen_protocol.declarations import Location, RetryPolicy, RunDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import attempt_id, operation_id
from ryusen_protocol.ids import ReleaseId, RequestId, StepId
from ryusen_protocol.limits import ID_BYTES_MAX, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.outcome import (
    BlockReason,
    Completed,
    Declared,
    DefinitionBlocked,
    DiscoveryOutcome,
    RejectedBeforeStart,
    Uncaught,
)
from ryusen_protocol.submission import identifier_problem
from ryusen_server.core.blockers import blocker_message
from ryusen_server.core.commands import lose_discovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt, add_authorization
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import portable
from ryusen_server.core.records import (
    AttemptQueued,
    DiscoveryQueued,
    OutcomeDecided,
    RunBlocked,
    RunEnded,
    StepDeclared,
)
from ryusen_server.core.settlement import enter_gate, past_deadline, record_stop
from ryusen_server.core.state import Run, Step


class AnswerDiscovery(msgspec.Struct, frozen=True):
    """A worker's response. `assignee` is set when the dispatcher chose the declaring worker for what it may declare."""

    request_id: RequestId
    outcome: DiscoveryOutcome | RejectedBeforeStart
    release_id: ReleaseId | None
    preferred_release: ReleaseId | None
    assignee: AuthorizeAttempt | None


def decide(run: Run, command: AnswerDiscovery, moment: Moment) -> Decision:
    """See the table above."""
    decision = Decision()
    current = run.dispatch is not None and run.dispatch.request_id == command.request_id
    if not current or run.status not in ("running", "definition_blocked"):
        decision.disposition = "discarded"
        return decision
    if isinstance(command.outcome, RejectedBeforeStart):
        return lose_discovery.decide(run, lose_discovery.LoseDiscovery(command.request_id), moment)
    decision.disposition = "accepted"
    if past_deadline(run, moment.now_ms):
        decision.disposition = "discarded"
        record_stop(decision, run, "timed_out", "deadline")
        enter_gate(decision, run, "timed_out", moment.now_ms)
        return decision
    match command.outcome:
        case Declared():
            _declared(decision, run, command, command.outcome, moment)
        case Completed():
            _completed(decision, run, command.outcome, moment)
        case Uncaught():
            enter_gate(decision, run, "failed", moment.now_ms, failure=clip_error(command.outcome.failure))
        case DefinitionBlocked():
            blocked = command.outcome
            message = blocker_message(blocked.reason, blocked.step_id, blocked.first, blocked.duplicate)
            _block(decision, run, command, blocked.reason, blocked.step_id, (blocked.first, blocked.duplicate), message)
        case _:
            assert_never(command.outcome)
    return decision


def _completed(decision: Decision, run: Run, outcome: Completed, moment: Moment) -> None:
    result = portable(outcome.result)
    if isinstance(result, ErrorRecord):
        enter_gate(decision, run, "failed", moment.now_ms, failure=result)
        return
    decision.add(OutcomeDecided("succeeded", result=result), RunEnded("not_required", "succeeded"))


def _declared(decision: Decision, run: Run, command: AnswerDiscovery, outcome: Declared, moment: Moment) -> None:
    declaration = outcome.declaration
    step_id = declaration.step_id
    known = run.steps.get(step_id)
    refused = _refusal(run, known, outcome)
    if refused is not None or not isinstance(declaration, RunDeclaration):
        reason, detail = refused or ("invalid_declaration", "")
        shown = StepId(step_id[:ID_BYTES_MAX])  # an id that is refused for its length is not recorded at that length
        message = blocker_message(reason, shown, declaration.location, None, detail)
        _block(decision, run, command, reason, shown, (declaration.location, None), message)
        return
    operation = known.operation_id if known is not None else operation_id(run.run_id, step_id, "forward")
    ordinal = 1 + (len(known.attempts) if known is not None else 0)
    queued = AttemptQueued(
        attempt_id=attempt_id(run.run_id, step_id, "forward", ordinal),
        step_id=step_id,
        phase="forward",
        attempt=ordinal,
        attempt_generation=ordinal,
        operation_id=operation,
        due_at_ms=moment.now_ms,
    )
    decision.add(StepDeclared(declaration, operation), queued)
    if command.assignee is not None:
        add_authorization(decision, queued.attempt_id, declaration.attempt_timeout_ms, command.assignee, moment)


def _refusal(run: Run, known: Step | None, outcome: Declared) -> tuple[BlockReason, str] | None:
    declaration = outcome.declaration
    problem = identifier_problem("step id", declaration.step_id, "$.outcome.declaration.step_id")
    if problem is not None:
        return "invalid_declaration", problem.detail
    if known is not None and type(known.declaration) is not type(declaration):
        return "declaration_conflict", "It is recorded as a step of another kind."
    if known is not None and known.state != "obsolete":
        return "declaration_conflict", "It has an outcome already, which a replay answers; the worker asked for it again."
    if not isinstance(declaration, RunDeclaration):
        return "invalid_declaration", "this server runs steps of the kind `run` only."
    policy_problem = _policy_problem(declaration)
    if policy_problem is not None:
        return "invalid_declaration", policy_problem
    if REPLAY_BUDGET_BYTES_MAX - run.replay_bytes < REPLAY_RESERVE_BYTES:
        return "replay_budget", ""
    return None


def _policy_problem(declaration: RunDeclaration) -> str | None:
    policies = [("retry", declaration.retry, declaration.attempt_timeout_ms)]
    if declaration.compensation is not None:
        policies.append(("compensation", declaration.compensation.retry, declaration.compensation.attempt_timeout_ms))
    for name, retry, timeout_ms in policies:
        problem = _retry_problem(retry)
        if problem is not None:
            return f"its {name} policy has {problem}."
        if timeout_ms is not None and not 0 <= timeout_ms < 2**53:
            return f"its {name} attempt timeout is {timeout_ms} ms; it must be 0 to 2**53 - 1."
    return None


def _retry_problem(retry: RetryPolicy) -> str | None:
    if not 1 <= retry.max_attempts < 2**31:
        return f"max_attempts {retry.max_attempts}; it must be at least 1"
    if not 0 <= retry.initial_ms < 2**53 or not 0 <= retry.maximum_ms < 2**53:
        return "a delay outside 0 to 2**53 - 1 ms"
    if not 1 <= retry.multiplier <= 1e6:
        return f"multiplier {retry.multiplier}; it must be 1 to 1,000,000"
    if not 0 <= retry.jitter <= 1:
        return f"jitter {retry.jitter}; it must be 0 to 1"
    return None


def _block(
    decision: Decision,
    run: Run,
    command: AnswerDiscovery,
    reason: BlockReason,
    step_id: StepId,
    places: tuple[Location | None, Location | None],
    message: str,
) -> None:
    decision.add(RunBlocked(reason, step_id, *places, command.release_id, message))
    if run.dispatch is not None and run.dispatch.preferred_release != command.preferred_release:
        decision.add(DiscoveryQueued(run.passes + 1))
