"""Answer an attempt: a worker's result of a forward or compensation callback, in time or late.

First, whether it counts:

| the submission | effect | acknowledged |
|---|---|---|
| its request was never authorized in this run | nothing | `discarded` |
| attempt or generation differ from the authorization's | kept once as a stale submission | `stale` |
| same request and digest as an answer that was accepted, a rejection too | nothing | `replayed` |
| the attempt is settled, or was requeued and is out under another request | kept once as a stale submission | `stale` |
| the attempt is `authorized` or `unknown` under this request | the tables below | `accepted` |

Forward:

| result | `running`, before the deadline | `running`, past the deadline | `stopping` |
|---|---|---|---|
| succeeded | step complete; discovery | stop `timed_out`; step complete; gate, the step joins the unwind | step complete; gate |
| not portable, too large, over budget | as a failure that is not retried, `sdk.invalid_result` | likewise | likewise |
| failed, retryable, attempts left | next attempt queued after backoff, same operation id | stop `timed_out`; step complete with failure; gate | step complete with failure; gate |
| failed, terminal | step complete with failure; discovery | same | same |
| target_not_found | attempt and step obsolete; discovery, paced when it repeats | stop `timed_out`; obsolete; gate | obsolete; gate |
| rejected_before_start | see `never_began` | | |

Compensation (`compensating`, whatever the stop reason or the deadline):

| result | effect |
|---|---|
| succeeded | target succeeded; the next target, or the end. A value that cannot be recorded becomes null with a diagnostic |
| failed, retryable, attempts left | next attempt queued after backoff |
| failed, terminal | target failed; the unwind goes on |
| target_not_found | target skipped, with the reason given; the unwind goes on |
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from ryusen_protocol.clipping import clip_error
from ryusen_protocol.declarations import RetryPolicy, RunDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import attempt_id
from ryusen_protocol.ids import InstanceId, RequestId
from ryusen_protocol.outcome import CallbackFailed, EffectOutcome, RejectedBeforeStart, Succeeded, TargetNotFound
from ryusen_server.core.commands import never_began
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import NULL_VALUE, portable, recordable, replayable
from ryusen_server.core.pacing import backoff_ms, may_retry, pace_ms
from ryusen_server.core.records import (
    AttemptQueued,
    AttemptSettled,
    DiscoveryQueued,
    StepCompleted,
    StepObsolete,
    SubmissionStale,
    TargetSettled,
)
from ryusen_server.core.settlement import (
    advance,
    compensation_policy,
    enter_gate,
    past_deadline,
    record_stop,
    stopped_outcome,
)
from ryusen_server.core.state import UNRESOLVED, Attempt, Run


class AnswerAttempt(msgspec.Struct, frozen=True):
    """A worker's submission. `answer_digest` identifies its exact content."""

    request_id: RequestId
    outcome: EffectOutcome | RejectedBeforeStart
    answer_digest: str
    instance_id: InstanceId


def decide(run: Run, command: AnswerAttempt, moment: Moment) -> Decision:
    """See the tables above."""
    decision = Decision(disposition="accepted")
    known = run.requests.get(command.request_id)
    if known is None:
        decision.disposition = "discarded"
        return decision
    attempt = run.attempts[known]
    outcome = command.outcome
    if (outcome.attempt, outcome.attempt_generation) != (attempt.attempt, attempt.attempt_generation):
        return _stale(decision, run, attempt, command, "it names another attempt or generation")
    settled_it = attempt.request_id == command.request_id and attempt.answer_digest == command.answer_digest
    if settled_it or (command.request_id, command.answer_digest) in run.rejections:
        decision.disposition = "replayed"
        return decision
    if attempt.request_id != command.request_id:
        return _stale(decision, run, attempt, command, "the attempt was sent again under another request")
    if attempt.state not in UNRESOLVED:
        return _stale(decision, run, attempt, command, f"the attempt is {attempt.state}")
    if isinstance(outcome, RejectedBeforeStart):
        why = f"rejected before start: {outcome.reason}"
        never_began.requeue(decision, run, attempt, why, moment, answer_digest=command.answer_digest)
    elif attempt.phase == "forward":
        _forward(decision, run, attempt, outcome, command.answer_digest, moment)
    else:
        _compensation(decision, run, attempt, outcome, command.answer_digest, moment)
    return decision


def _stale(decision: Decision, run: Run, attempt: Attempt, command: AnswerAttempt, reason: str) -> Decision:
    decision.disposition = "stale"
    if (command.request_id, command.answer_digest) not in run.stale_answers:
        decision.add(
            SubmissionStale(
                attempt_id=attempt.attempt_id,
                request_id=command.request_id,
                answer=str(command.outcome.__struct_config__.tag),
                answer_digest=command.answer_digest,
                instance_id=command.instance_id,
                reason=reason,
            )
        )
    return decision


def _forward(decision: Decision, run: Run, attempt: Attempt, outcome: EffectOutcome, digest: str, moment: Moment) -> None:
    match outcome:
        case Succeeded():
            value = replayable(run, outcome.result)
            if isinstance(value, ErrorRecord):
                forward_failed(decision, run, attempt, value, digest, moment)
                return
            decision.add(
                AttemptSettled(attempt.attempt_id, "succeeded", answer_digest=digest),
                StepCompleted(attempt.step_id, len(run.completed) + 1, result=value),
            )
            _go_on(decision, run, attempt, moment, succeeded=True)
        case CallbackFailed():
            forward_failed(decision, run, attempt, outcome.failure, digest, moment)
        case TargetNotFound():
            decision.add(
                AttemptSettled(attempt.attempt_id, "obsolete", reason=outcome.reason, answer_digest=digest),
                StepObsolete(attempt.step_id, outcome.reason, outcome.hidden_by),
            )
            repeats = run.steps[attempt.step_id].obsolete_count
            _go_on(decision, run, attempt, moment, succeeded=False, wait_ms=pace_ms(repeats))
        case _:
            assert_never(outcome)


def forward_failed(decision: Decision, run: Run, attempt: Attempt, failure: ErrorRecord, digest: str | None, moment: Moment) -> None:
    """Apply a reported failure of a forward attempt."""
    step = run.steps[attempt.step_id]
    recorded = recordable(run, failure)
    decision.add(AttemptSettled(attempt.attempt_id, "failed", failure=recorded, answer_digest=digest))
    policy = step.declaration.retry if isinstance(step.declaration, RunDeclaration) else RetryPolicy(max_attempts=1)
    active = run.status == "running" and not past_deadline(run, moment.now_ms)
    if active and may_retry(policy, step.failures + 1, retryable=failure.retryable):
        decision.add(_next_attempt(run, attempt, policy, step.failures + 1, moment))
        return
    decision.add(StepCompleted(attempt.step_id, len(run.completed) + 1, failure=recorded))
    _go_on(decision, run, attempt, moment, succeeded=False)


def _go_on(decision: Decision, run: Run, attempt: Attempt, moment: Moment, *, succeeded: bool, wait_ms: int = 0) -> None:
    """After a forward effect has settled: rediscover, or pass the settlement gate when the run is to stop."""
    if run.status == "running" and not past_deadline(run, moment.now_ms):
        decision.add(DiscoveryQueued(run.passes + 1, moment.now_ms + wait_ms if wait_ms else 0))
        return
    if run.status == "running":
        record_stop(decision, run, "timed_out", "deadline")
    enter_gate(decision, run, stopped_outcome(run, decision), moment.now_ms, also=attempt.step_id if succeeded else None)


def _compensation(decision: Decision, run: Run, attempt: Attempt, outcome: EffectOutcome, digest: str, moment: Moment) -> None:
    match outcome:
        case Succeeded():
            value = portable(outcome.result)
            if isinstance(value, ErrorRecord):
                settled = TargetSettled(attempt.step_id, "succeeded", result=NULL_VALUE, diagnostic=value.message)
            else:
                settled = TargetSettled(attempt.step_id, "succeeded", result=value)
            decision.add(AttemptSettled(attempt.attempt_id, "succeeded", answer_digest=digest))
            advance(decision, run, settled, moment.now_ms)
        case CallbackFailed():
            compensation_failed(decision, run, attempt, outcome.failure, digest, moment)
        case TargetNotFound():
            decision.add(AttemptSettled(attempt.attempt_id, "skipped", reason=outcome.reason, answer_digest=digest))
            settled = TargetSettled(attempt.step_id, "skipped", reason=outcome.reason, hidden_by=outcome.hidden_by)
            advance(decision, run, settled, moment.now_ms)
        case _:
            assert_never(outcome)


def compensation_failed(decision: Decision, run: Run, attempt: Attempt, failure: ErrorRecord, digest: str | None, moment: Moment) -> None:
    """Apply a reported failure of a compensation attempt. No replay carries it, so that only the limits of one error bound it."""
    target = run.unwind[run.unwind_index]
    recorded = clip_error(failure)
    decision.add(AttemptSettled(attempt.attempt_id, "failed", failure=recorded, answer_digest=digest))
    policy = compensation_policy(run, attempt.step_id).retry
    if may_retry(policy, target.failures + 1, retryable=failure.retryable):
        decision.add(_next_attempt(run, attempt, policy, target.failures + 1, moment))
        return
    advance(decision, run, TargetSettled(attempt.step_id, "failed", failure=recorded), moment.now_ms)


def _next_attempt(run: Run, attempt: Attempt, policy: RetryPolicy, failures: int, moment: Moment) -> AttemptQueued:
    ordinal = attempt.attempt + 1
    return AttemptQueued(
        attempt_id=attempt_id(run.run_id, attempt.step_id, attempt.phase, ordinal),
        step_id=attempt.step_id,
        phase=attempt.phase,
        attempt=ordinal,
        attempt_generation=ordinal,
        operation_id=attempt.operation_id,
        due_at_ms=moment.now_ms + backoff_ms(policy, failures, moment.entropy.jitter()),
    )
