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
from ryusen_protocol.ids import InstanceId, RequestId
from ryusen_protocol.outcome import CallbackFailed, EffectOutcome, RejectedBeforeStart, Succeeded, TargetNotFound
from ryusen_server.core.commands import never_began
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import portable, recordable, replayable
from ryusen_server.core.records import SubmissionStale
from ryusen_server.core.results import Origin, fail, miss, succeed
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
    else:
        _settle(decision, run, attempt, outcome, Origin(answer_digest=command.answer_digest), moment)
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


def _settle(decision: Decision, run: Run, attempt: Attempt, outcome: EffectOutcome, origin: Origin, moment: Moment) -> None:
    match outcome:
        case Succeeded():
            value = replayable(run, outcome.result) if attempt.phase == "forward" else portable(outcome.result)
            succeed(decision, run, attempt, value, origin, moment)
        case CallbackFailed():
            failure = recordable(run, outcome.failure) if attempt.phase == "forward" else clip_error(outcome.failure)
            fail(decision, run, attempt, failure, origin, moment)
        case TargetNotFound():
            miss(decision, run, attempt, outcome, origin, moment)
        case _:
            assert_never(outcome)
