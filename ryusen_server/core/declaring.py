"""Accept a step that a pass declares, or say why not.

What each kind commits, all of it in the declaring transaction:

| kind | records | beside them |
|---|---|---|
| `run` | step, attempt 1 queued, authorized too when the dispatcher chose the declaring worker | |
| `run`, an obsolete id | pending again: same operation id, next attempt, the new policy | |
| `timer` | step; armed for acceptance plus the delay, or the deadline, never before acceptance | |
| `event_wait` | step; registered until acceptance plus the timeout | |
| `child` | step; the child's identity | the child run, with its own first records |
| `emission` | step; complete with the event's id; the next discovery | the event, accepted as a submitted one is |

A repeated id is refused before anything of it is looked at, so that what is recorded stays as it is: anchor, registration, child, event.

| refused | blocked with |
|---|---|
| another kind than recorded, or a step with an outcome, whatever else differs | `declaration_conflict` |
| a number outside its domain, a member its kind does not take, a child too deep; see `check_declaration` | `invalid_declaration` |
| a child of a function that is not in the active manifest | `unknown_function` |
| less than the reserve left of the replay budget, so that some outcome (a wait's timeout too) might not be recordable | `replay_budget` |
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from ryusen_protocol.declaration_checks import (
    InvalidDeclaration,
    check_declaration,
    emitted_payload,
    timeout_of,
    timer_deadline_ms,
    timer_delay_ms,
)
from ryusen_protocol.declarations import (
    ChildDeclaration,
    Declaration,
    EmissionDeclaration,
    EventWaitDeclaration,
    RunDeclaration,
    TimerDeclaration,
)
from ryusen_protocol.identity import attempt_id, emitted_event_id, operation_id
from ryusen_protocol.limits import CHILD_DEPTH_MAX, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.outcome import BlockReason
from ryusen_protocol.scope import Scope
from ryusen_protocol.values import I64_MAX, InvalidValue, canonicalize, encode
from ryusen_server.core.children import ChildTarget, birth, depth_of
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt, add_authorization
from ryusen_server.core.decision import Decision, EmittedEvent, Moment
from ryusen_server.core.records import (
    AttemptQueued,
    ChildInvoked,
    DiscoveryQueued,
    StepCompleted,
    StepDeclared,
    TimerArmed,
    WaitRegistered,
)
from ryusen_server.core.state import Run, Step, kind_of


def refusal(run: Run, declaration: Declaration, child: ChildTarget | None) -> tuple[BlockReason, str] | None:
    """Why the declaration cannot be accepted, if it cannot. See the table above."""
    known = run.steps.get(declaration.step_id)
    if known is not None and known.kind != kind_of(declaration):
        return "declaration_conflict", f"It is recorded as a step of the kind `{known.kind}`, and declared as `{kind_of(declaration)}`."
    if known is not None and known.state != "obsolete":
        return "declaration_conflict", _difference(known, declaration)
    try:
        check_declaration(declaration)
    except InvalidDeclaration as invalid:
        return "invalid_declaration", str(invalid)
    if isinstance(declaration, ChildDeclaration):
        if child is None:
            return "unknown_function", f"Its active manifest has no function {declaration.function!r}. Publish it, or call another one."
        if depth_of(run) >= CHILD_DEPTH_MAX:
            return "invalid_declaration", f"{CHILD_DEPTH_MAX} runs stand above it already, and a child would be one level deeper."
    if REPLAY_BUDGET_BYTES_MAX - run.replay_bytes < REPLAY_RESERVE_BYTES:
        return "replay_budget", ""
    return None


def _difference(known: Step, declaration: Declaration) -> str:
    recorded = known.declaration
    if isinstance(recorded, ChildDeclaration) and isinstance(declaration, ChildDeclaration):
        if recorded.function != declaration.function:
            return f"It is recorded as an invocation of {recorded.function!r}, not of {declaration.function!r}."
        if not _same_value(recorded.input, declaration.input):
            return "It is recorded with another input."
    if isinstance(recorded, EmissionDeclaration) and isinstance(declaration, EmissionDeclaration):
        if recorded.event_name != declaration.event_name:
            return f"It is recorded as an emission of {recorded.event_name!r}, not of {declaration.event_name!r}."
        if not _same_value(recorded.payload, declaration.payload):
            return "It is recorded with another payload."
        if recorded.metadata != declaration.metadata:
            return "It is recorded with other metadata."
    return "It has an outcome already, which a replay answers; the worker asked for it again."


def _same_value(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    try:
        return canonicalize(one) == canonicalize(other)
    except InvalidValue:
        return False


def accept(
    decision: Decision,
    run: Run,
    declaration: Declaration,
    child: ChildTarget | None,
    assignee: AuthorizeAttempt | None,
    moment: Moment,
) -> None:
    """Add what accepting the declaration commits. The caller has made sure that nothing refuses it."""
    known = run.steps.get(declaration.step_id)
    operation = known.operation_id if known is not None else operation_id(run.run_id, declaration.step_id, "forward")
    decision.add(StepDeclared(declaration, operation))
    match declaration:
        case RunDeclaration():
            ordinal = 1 + (len(known.attempts) if known is not None else 0)
            queued = AttemptQueued(
                attempt_id=attempt_id(run.run_id, declaration.step_id, "forward", ordinal),
                step_id=declaration.step_id,
                phase="forward",
                attempt=ordinal,
                attempt_generation=ordinal,
                operation_id=operation,
                due_at_ms=moment.now_ms,
            )
            decision.add(queued)
            if assignee is not None:
                add_authorization(decision, queued.attempt_id, declaration.attempt_timeout_ms, assignee, moment)
        case TimerDeclaration():
            decision.add(TimerArmed(declaration.step_id, _due_at_ms(declaration, moment.now_ms)))
        case EventWaitDeclaration():
            decision.add(WaitRegistered(declaration.step_id, min(moment.now_ms + (timeout_of(declaration) or 0), I64_MAX)))
        case ChildDeclaration():
            if child is None:
                raise AssertionError("a child's function is known when the step is accepted")
            decision.birth = birth(run, declaration, child, moment.now_ms)
            decision.add(ChildInvoked(declaration.step_id, decision.birth.created.run_id))
        case EmissionDeclaration():
            _emit(decision, run, declaration)
        case _:
            assert_never(declaration)


def _due_at_ms(declaration: TimerDeclaration, now_ms: int) -> int:
    delay_ms = timer_delay_ms(declaration)
    if delay_ms is not None:
        return min(now_ms + delay_ms, I64_MAX)
    return max(now_ms, timer_deadline_ms(declaration) or 0)


def _emit(decision: Decision, run: Run, declaration: EmissionDeclaration) -> None:
    event_id = emitted_event_id(Scope(run.workspace, run.application), run.run_id, declaration.step_id)
    decision.emitted = EmittedEvent(event_id, declaration.event_name, emitted_payload(declaration), declaration.metadata)
    receipt = msgspec.Raw(encode(str(event_id)))
    decision.add(StepCompleted(declaration.step_id, len(run.completed) + 1, result=receipt), DiscoveryQueued(run.passes + 1))
