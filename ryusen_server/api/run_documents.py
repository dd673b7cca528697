"""Turns a run's committed state into the documents readers get. Pure but for two questions about the present, which it is given answers to.

A list shows rows, a detail shows the folded history; both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

import msgspec

from ryusen_protocol.api import (
    JSON_NULL,
    AttemptDocument,
    AttemptWorker,
    Attention,
    Blocker,
    ChildRun,
    Deadline,
    DeadlineSource,
    EventRun,
    ForbiddenCommand,
    OperatorCommand,
    ParentStep,
    Recovery,
    RecoveryReason,
    RunDetail,
    RunOutcome,
    RunStatus,
    RunSummary,
    SettledBy,
    StepDocument,
    Stop,
    StopReason,
    UnwindCounts,
    UnwindDocument,
    UnwindTarget,
)
from ryusen_protocol.declarations import ChildDeclaration, EmissionDeclaration, EventWaitDeclaration, RunDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import emitted_event_id
from ryusen_protocol.ids import AttemptId, RequestId, RunId
from ryusen_protocol.scope import Scope
from ryusen_server.core.commands.resolve_attempt import allowed_commands
from ryusen_server.core.projection import run_row
from ryusen_server.core.rows import RunRow
from ryusen_server.core.state import Attempt, Run, Step, Target
from ryusen_server.engine.views import ContactView

_INSTANT_MS_SHOWN_MAX: Final = 2**53 - 1
"""Numbers of JSON are exact up to this in every language; what is later is as good as never."""

ContactOf = Callable[[RequestId], ContactView | None]
"""The lease of an authorized attempt, as the engine sees it now."""


def run_summary(row: RunRow, *, no_worker: bool) -> RunSummary:
    """The run as lists show it. `no_worker`: it has queued work that no connected worker can run."""
    attention, attention_run_id = _attention(row, no_worker=no_worker)
    parent = None
    if row.parent_run_id is not None and row.parent_step_id is not None:
        parent = ParentStep(run_id=row.parent_run_id, step_id=row.parent_step_id)
    deadline = None
    if row.deadline_at_ms is not None:
        deadline = Deadline(at_ms=row.deadline_at_ms, source=cast("DeadlineSource", row.deadline_source))
    stop = None
    if row.stop_requested_at_ms is not None:
        stop = Stop(reason=cast("StopReason", row.stop_reason), requested_at_ms=row.stop_requested_at_ms)
    return RunSummary(
        run_id=row.run_id,
        status=cast("RunStatus", row.status),
        stop=stop,
        outcome=cast("RunOutcome | None", row.outcome),
        recovery=cast("Recovery | None", row.recovery),
        recovery_reason=cast("RecoveryReason | None", row.recovery_reason),
        function=row.function,
        application=row.application,
        event_id=row.event_id,
        trigger_id=row.trigger_id,
        manifest_generation=row.manifest_generation,
        routing_generation=row.routing_generation,
        parent=parent,
        deadline=deadline,
        attention=attention,
        attention_run_id=attention_run_id,
        created_at_ms=row.created_at_ms,
        ended_at_ms=row.ended_at_ms,
        steps_declared=row.steps_declared,
        steps_completed=row.steps_completed,
        unwind_counts=UnwindCounts(
            pending=row.unwind_pending, succeeded=row.unwind_succeeded, failed=row.unwind_failed, skipped=row.unwind_skipped
        ),
    )


def _attention(row: RunRow, *, no_worker: bool) -> tuple[Attention | None, RunId | None]:
    """What somebody should look at, and at which run: a child's Unknown is settled at the child."""
    if row.attention is not None:
        return cast("Attention", row.attention), row.run_id
    if row.unknown_below_run_id is not None:
        return "unknown", row.unknown_below_run_id
    return ("no_worker", row.run_id) if no_worker else (None, None)


def run_detail(
    run: Run,
    run_input: msgspec.Raw,
    contact: ContactOf,
    now_ms: int,
    *,
    no_worker_reason: str | None,
    unknown_below_run_id: RunId | None = None,
    children: Iterable[RunRow] = (),
) -> RunDetail:
    """Everything of the run. `run_input` is the wire document of its input, `children` the rows of the runs it invoked.

    `no_worker_reason` is why no worker can run what it has queued, if that is so.
    """
    row = msgspec.structs.replace(run_row(run), unknown_below_run_id=unknown_below_run_id)
    summary = run_summary(row, no_worker=no_worker_reason is not None)
    return RunDetail(
        **msgspec.structs.asdict(summary),
        input=run_input,
        result=run.result or JSON_NULL,
        failure=run.failure,
        steps=[_step(run, step, contact, now_ms) for step in run.steps.values()],
        unwind=UnwindDocument(targets=[_target(run, target, contact, now_ms) for target in run.unwind]),
        blocker=_blocker(run),
        children=[_child(row) for row in children],
        position=run.position,
        no_worker_reason=no_worker_reason,
    )


def _child(row: RunRow) -> ChildRun:
    if row.parent_step_id is None:
        raise AssertionError("a child names the step that invoked it")
    return ChildRun(
        run_id=row.run_id,
        step_id=row.parent_step_id,
        function=row.function,
        status=cast("RunStatus", row.status),
        outcome=cast("RunOutcome | None", row.outcome),
    )


def event_run(row: RunRow, result: msgspec.Raw | None, failure: ErrorRecord | None) -> EventRun:
    """What became of a run, for a caller that waits. Result and failure are those of a run that has ended."""
    return EventRun(
        run_id=row.run_id,
        status=cast("RunStatus", row.status),
        outcome=cast("RunOutcome | None", row.outcome),
        recovery=cast("Recovery | None", row.recovery),
        result=JSON_NULL if result is None else result,
        failure=failure,
    )


def attempt_document(run: Run, attempt: Attempt, contact: ContactOf, now_ms: int) -> AttemptDocument:
    """One attempt, with the commands it allows now."""
    lease = contact(attempt.request_id) if attempt.state == "authorized" and attempt.request_id is not None else None
    away = lease is not None and lease.out_of_contact
    allowed, forbidden = _commands(run, attempt, now_ms)
    return AttemptDocument(
        attempt_id=attempt.attempt_id,
        run_id=run.run_id,
        step_id=attempt.step_id,
        phase=attempt.phase,
        attempt=attempt.attempt,
        attempt_generation=attempt.attempt_generation,
        operation_id=attempt.operation_id,
        request_id=attempt.request_id,
        state=attempt.state,
        worker=_worker(attempt),
        out_of_contact=away,
        due_at_ms=attempt.due_at_ms if attempt.state == "queued" else None,
        authorized_at_ms=attempt.authorized_at_ms,
        unknown_at_ms=lease.unknown_at_ms if lease is not None and away else attempt.unknown_at_ms,
        unknown_reason=attempt.unknown_reason,
        settled_at_ms=attempt.settled_at_ms,
        settled_by=_settled_by(attempt),
        error=attempt.failure,
        allowed_commands=allowed,
        forbidden_commands=forbidden,
    )


def _commands(run: Run, attempt: Attempt, now_ms: int) -> tuple[list[OperatorCommand], list[ForbiddenCommand]]:
    allowed, forbidden = allowed_commands(run, attempt, now_ms)
    return list(allowed), [ForbiddenCommand(command=name, code=why.code, reason=why.message) for name, why in forbidden]


def _worker(attempt: Attempt) -> AttemptWorker | None:
    worker = attempt.worker
    if worker is None:
        return None
    return AttemptWorker(
        instance_id=worker.instance_id, session_id=worker.session_id, release_id=worker.release_id, transport=worker.transport
    )


def _settled_by(attempt: Attempt) -> SettledBy | None:
    if attempt.settled_at_ms is None:
        return None
    if attempt.settled_by_operator is not None:
        return "operator"
    return "server" if attempt.answer_digest is None else "worker"


def _attempts(run: Run, attempts: Iterable[AttemptId], contact: ContactOf, now_ms: int) -> list[AttemptDocument]:
    return [attempt_document(run, run.attempts[attempt_id], contact, now_ms) for attempt_id in attempts]


def _step(run: Run, step: Step, contact: ContactOf, now_ms: int) -> StepDocument:
    declaration = step.declaration
    waits = isinstance(declaration, EventWaitDeclaration)
    emits = isinstance(declaration, EmissionDeclaration)
    return StepDocument(
        step_id=step.step_id,
        kind=step.kind,
        name=declaration.name,
        location=declaration.location,
        state=step.state,
        has_compensation=isinstance(declaration, RunDeclaration) and declaration.has_compensation,
        declared_at_ms=step.declared_at_ms,
        completed_at_ms=step.completed_at_ms,
        result=step.result or JSON_NULL,
        failure=step.failure,
        attempts=_attempts(run, step.attempts, contact, now_ms),
        due_at_ms=None if step.due_at_ms is None else min(step.due_at_ms, _INSTANT_MS_SHOWN_MAX),
        event_name=declaration.event_name if waits or emits else None,
        correlation=declaration.correlation if waits else declaration.metadata if emits else None,
        event_id=emitted_event_id(Scope(run.workspace, run.application), run.run_id, step.step_id) if emits else None,
        function=declaration.function if isinstance(declaration, ChildDeclaration) else None,
        child_run_id=step.child_run_id,
    )


def _target(run: Run, target: Target, contact: ContactOf, now_ms: int) -> UnwindTarget:
    return UnwindTarget(
        step_id=target.step_id,
        state=target.state,
        reason=target.reason,
        hidden_by=target.hidden_by,
        error=target.failure,
        attempts=_attempts(run, target.attempts, contact, now_ms),
    )


def _blocker(run: Run) -> Blocker | None:
    found = run.blocker
    if found is None:
        return None
    return Blocker(
        reason=found.reason,
        step_id=found.step_id,
        message=found.message,
        first=found.first,
        duplicate=found.duplicate,
        count=found.count,
        first_seen_at_ms=found.first_seen_at_ms,
        last_seen_at_ms=found.last_seen_at_ms,
        release_id=found.release_id,
    )
