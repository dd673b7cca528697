"""What a result comes to, whoever brings it: an attempt's worker in time or late, an operator, a clock, an event, or a child run.

The caller has made sure that the attempt is unresolved, or the step pending, and brought the value or the failure into a form that can be
recorded. The tables stand with the commands: `answer_attempt` and `resolve_attempt`, `settle_timer`, `settle_wait` and `settle_child`.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.declarations import RetryPolicy, RunDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import attempt_id
from ryusen_protocol.ids import StepId
from ryusen_protocol.outcome import TargetNotFound
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import NULL_VALUE
from ryusen_server.core.pacing import backoff_ms, may_retry, pace_ms
from ryusen_server.core.records import (
    AttemptQueued,
    AttemptSettled,
    DiscoveryQueued,
    StepCompleted,
    StepObsolete,
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
from ryusen_server.core.state import Attempt, Run, Step


class Origin(msgspec.Struct, frozen=True):
    """Where a result comes from: the digest of a worker's submission, or the name of an operator."""

    answer_digest: str | None = None
    operator: str | None = None


def succeed(decision: Decision, run: Run, attempt: Attempt, value: msgspec.Raw | ErrorRecord, origin: Origin, moment: Moment) -> None:
    """The callback succeeded. A value that cannot be recorded fails a step for good, and is only left out of a compensation."""
    if attempt.phase == "forward":
        if isinstance(value, ErrorRecord):
            fail(decision, run, attempt, value, origin, moment)
            return
        decision.add(
            AttemptSettled(attempt.attempt_id, "succeeded", answer_digest=origin.answer_digest, operator=origin.operator),
            StepCompleted(attempt.step_id, len(run.completed) + 1, result=value),
        )
        _go_on(decision, run, moment, also=attempt.step_id)
        return
    if isinstance(value, ErrorRecord):
        settled = TargetSettled(attempt.step_id, "succeeded", result=NULL_VALUE, diagnostic=value.message)
    else:
        settled = TargetSettled(attempt.step_id, "succeeded", result=value)
    decision.add(AttemptSettled(attempt.attempt_id, "succeeded", answer_digest=origin.answer_digest, operator=origin.operator))
    advance(decision, run, settled, moment.now_ms)


def fail(decision: Decision, run: Run, attempt: Attempt, failure: ErrorRecord, origin: Origin, moment: Moment) -> None:
    """The callback failed: the next attempt after its backoff, or the end of the retries."""
    decision.add(
        AttemptSettled(attempt.attempt_id, "failed", failure=failure, answer_digest=origin.answer_digest, operator=origin.operator)
    )
    if attempt.phase == "forward":
        _forward_failed(decision, run, attempt, failure, moment)
    else:
        _compensation_failed(decision, run, attempt, failure, moment)


def _forward_failed(decision: Decision, run: Run, attempt: Attempt, failure: ErrorRecord, moment: Moment) -> None:
    step = run.steps[attempt.step_id]
    policy = step.declaration.retry if isinstance(step.declaration, RunDeclaration) else RetryPolicy(max_attempts=1)
    active = run.status == "running" and not past_deadline(run, moment.now_ms)
    if active and may_retry(policy, step.failures + 1, retryable=failure.retryable):
        decision.add(next_attempt(run, attempt, moment.now_ms + backoff_ms(policy, step.failures + 1, moment.entropy.jitter())))
        return
    decision.add(StepCompleted(attempt.step_id, len(run.completed) + 1, failure=failure))
    _go_on(decision, run, moment)


def _compensation_failed(decision: Decision, run: Run, attempt: Attempt, failure: ErrorRecord, moment: Moment) -> None:
    target = run.unwind[run.unwind_index]
    policy = compensation_policy(run, attempt.step_id).retry
    if may_retry(policy, target.failures + 1, retryable=failure.retryable):
        decision.add(next_attempt(run, attempt, moment.now_ms + backoff_ms(policy, target.failures + 1, moment.entropy.jitter())))
        return
    advance(decision, run, TargetSettled(attempt.step_id, "failed", failure=failure), moment.now_ms)


def miss(decision: Decision, run: Run, attempt: Attempt, missing: TargetNotFound, origin: Origin, moment: Moment) -> None:
    """The current code does not reach the target, or has no compensator for it; no callback ran."""
    if attempt.phase == "forward":
        decision.add(
            AttemptSettled(attempt.attempt_id, "obsolete", reason=missing.reason, answer_digest=origin.answer_digest),
            StepObsolete(attempt.step_id, missing.reason, missing.hidden_by),
        )
        _go_on(decision, run, moment, wait_ms=pace_ms(run.steps[attempt.step_id].obsolete_count))
        return
    decision.add(AttemptSettled(attempt.attempt_id, "skipped", reason=missing.reason, answer_digest=origin.answer_digest))
    advance(decision, run, TargetSettled(attempt.step_id, "skipped", reason=missing.reason, hidden_by=missing.hidden_by), moment.now_ms)


def next_attempt(run: Run, attempt: Attempt, due_at_ms: int) -> AttemptQueued:
    """The successor of a settled attempt: the next ordinal and generation of the same operation."""
    ordinal = attempt.attempt + 1
    return AttemptQueued(
        attempt_id=attempt_id(run.run_id, attempt.step_id, attempt.phase, ordinal),
        step_id=attempt.step_id,
        phase=attempt.phase,
        attempt=ordinal,
        attempt_generation=ordinal,
        operation_id=attempt.operation_id,
        due_at_ms=due_at_ms,
    )


def complete(decision: Decision, run: Run, step: Step, outcome: msgspec.Raw | ErrorRecord, moment: Moment) -> None:
    """A timer, wait or child has its outcome, already in a form that can be recorded. Such a step is never part of an unwind."""
    order = len(run.completed) + 1
    if isinstance(outcome, ErrorRecord):
        decision.add(StepCompleted(step.step_id, order, failure=outcome))
    else:
        decision.add(StepCompleted(step.step_id, order, result=outcome))
    _go_on(decision, run, moment)


def drop_if_late(decision: Decision, run: Run, moment: Moment) -> bool:
    """Past the deadline a running run stops instead of settling its timer or wait, which is dropped. Whether it was so."""
    if not past_deadline(run, moment.now_ms):
        return False
    record_stop(decision, run, "timed_out", "deadline")
    enter_gate(decision, run, "timed_out", moment.now_ms)
    return True


def _go_on(decision: Decision, run: Run, moment: Moment, *, also: StepId | None = None, wait_ms: int = 0) -> None:
    """After a forward step has settled: rediscover, or pass the settlement gate when the run is to stop. `also` joins the unwind."""
    if run.status == "running" and not past_deadline(run, moment.now_ms):
        decision.add(DiscoveryQueued(run.passes + 1, moment.now_ms + wait_ms if wait_ms else 0))
        return
    if run.status == "running":
        record_stop(decision, run, "timed_out", "deadline")
    enter_gate(decision, run, stopped_outcome(run, decision), moment.now_ms, also=also)
