"""Answer a discovery pass.

| the answer | when | effect |
|---|---|---|
| any | not the current dispatch, or no longer `running` or `definition_blocked` | discarded, nothing changes |
| any response | deadline reached | discarded; stop intent `timed_out`, settlement gate |
| `declared` | it can be accepted | see `declaring` |
| `declared` | it contradicts the record, is not valid, or does not fit | blocked with the reason, see `declaring`; nothing of the step is committed |
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
from ryusen_protocol.declarations import Location
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import ReleaseId, RequestId, StepId
from ryusen_protocol.limits import ID_BYTES_MAX
from ryusen_protocol.outcome import (
    BlockReason,
    Completed,
    Declared,
    DefinitionBlocked,
    DiscoveryOutcome,
    RejectedBeforeStart,
    Uncaught,
)
from ryusen_server.core.blockers import blocker_message
from ryusen_server.core.children import ChildTarget
from ryusen_server.core.commands import lose_discovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.declaring import accept, refusal
from ryusen_server.core.outcomes import portable
from ryusen_server.core.records import DiscoveryQueued, OutcomeDecided, RunBlocked, RunEnded
from ryusen_server.core.settlement import enter_gate, past_deadline, record_stop
from ryusen_server.core.state import Run


class AnswerDiscovery(msgspec.Struct, frozen=True):
    """A worker's response.

    `assignee` is set when the dispatcher chose the declaring worker for what it may declare, `child` when the response declares a child of a
    function that the application's active manifest has.
    """

    request_id: RequestId
    outcome: DiscoveryOutcome | RejectedBeforeStart
    release_id: ReleaseId | None
    preferred_release: ReleaseId | None
    assignee: AuthorizeAttempt | None
    child: ChildTarget | None = None


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
    refused = refusal(run, declaration, command.child)
    if refused is None:
        accept(decision, run, declaration, command.child, command.assignee, moment)
        return
    reason, detail = refused
    shown = StepId(declaration.step_id[:ID_BYTES_MAX])  # an id that is refused for its length is not recorded at that length
    message = blocker_message(reason, shown, declaration.location, None, detail)
    _block(decision, run, command, reason, shown, (declaration.location, None), message)


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
