"""Projects a run into the rows that lists read. Pure, so every store shows the same."""

from __future__ import annotations

from collections.abc import Iterable

from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.ids import AttemptId
from ryusen_server.core.agenda import wake_at_ms
from ryusen_server.core.correlation import digest_of, shape_of
from ryusen_server.core.records import (
    AttemptAuthorized,
    AttemptQueued,
    AttemptRequeued,
    AttemptSettled,
    AttemptUnknown,
    Record,
)
from ryusen_server.core.rows import AttemptRow, RunRow, WaitRow
from ryusen_server.core.state import Attempt, Run

_OF_ATTEMPTS = (AttemptQueued, AttemptAuthorized, AttemptSettled, AttemptUnknown, AttemptRequeued)


def run_row(run: Run) -> RunRow:
    """The run as lists show it."""
    unwind = run.unwind_counts
    return RunRow(
        run_id=run.run_id,
        workspace=run.workspace,
        application=run.application,
        function=run.function,
        event_id=run.event_id,
        trigger_id=run.trigger_id,
        parent_run_id=None if run.parent is None else run.parent.run_id,
        parent_step_id=None if run.parent is None else run.parent.step_id,
        manifest_generation=run.manifest_generation,
        routing_generation=run.routing_generation,
        status=run.status,
        outcome=run.outcome,
        recovery=run.recovery,
        recovery_reason=run.recovery_reason,
        stop_reason=None if run.stop is None else run.stop.reason,
        stop_requested_at_ms=None if run.stop is None else run.stop.requested_at_ms,
        deadline_at_ms=None if run.deadline is None else run.deadline.at_ms,
        deadline_source=None if run.deadline is None else run.deadline.source,
        attention=_attention(run),
        created_at_ms=run.created_at_ms,
        ended_at_ms=run.ended_at_ms,
        wake_at_ms=wake_at_ms(run),
        steps_declared=len(run.steps),
        steps_completed=len(run.completed),
        unwind_pending=unwind.get("pending", 0),
        unwind_succeeded=unwind.get("succeeded", 0),
        unwind_failed=unwind.get("failed", 0),
        unwind_skipped=unwind.get("skipped", 0),
        work_queued=int(has_queued_work(run)),
    )


def has_queued_work(run: Run) -> bool:
    """Whether the run waits for a worker to take something, at once or after its backoff. A pass that is out counts: it may come back."""
    if run.status == "ended":
        return False
    if run.discovery_pass is not None:
        return True
    attempt = run.current_attempt()
    return attempt is not None and attempt.state == "queued"


def wait_row(run: Run) -> WaitRow | None:
    """The run's registered wait, if it has one."""
    step = run.pending_step()
    if step is None or not isinstance(step.declaration, EventWaitDeclaration) or step.due_at_ms is None:
        return None
    correlation = step.declaration.correlation
    shape = shape_of(correlation)
    digest = digest_of(shape, correlation)
    if digest is None:
        raise AssertionError("a correlation holds the keys of its own shape")
    return WaitRow(
        run_id=run.run_id,
        workspace=run.workspace,
        application=run.application,
        event_name=step.declaration.event_name,
        shape=shape,
        digest=digest,
        step_id=step.step_id,
        timeout_at_ms=step.due_at_ms,
    )


def _attention(run: Run) -> str | None:
    if run.status == "definition_blocked":
        return "blocked"
    attempt = run.current_attempt()
    return "unknown" if attempt is not None and attempt.state == "unknown" else None


def touched_attempts(records: Iterable[Record]) -> list[AttemptId]:
    """The attempts a transaction changes, each once."""
    found: list[AttemptId] = []
    for record in records:
        if isinstance(record, _OF_ATTEMPTS) and record.attempt_id not in found:  # a transaction touches one or two
            found.append(record.attempt_id)
    return found


def attempt_row(run: Run, attempt: Attempt) -> AttemptRow:
    """The attempt as lists show it."""
    worker = attempt.worker
    return AttemptRow(
        attempt_id=attempt.attempt_id,
        workspace=run.workspace,
        application=run.application,
        function=run.function,
        run_id=run.run_id,
        step_id=attempt.step_id,
        phase=attempt.phase,
        attempt=attempt.attempt,
        attempt_generation=attempt.attempt_generation,
        operation_id=attempt.operation_id,
        state=attempt.state,
        request_id=attempt.request_id,
        instance_id=None if worker is None else worker.instance_id,
        session_id=None if worker is None else worker.session_id,
        release_id=None if worker is None else worker.release_id,
        transport=None if worker is None else worker.transport,
        queued_at_ms=attempt.queued_at_ms,
        due_at_ms=attempt.due_at_ms,
        authorized_at_ms=attempt.authorized_at_ms,
        lease_until_ms=attempt.lease_until_ms,
        unknown_at_ms=attempt.unknown_at_ms,
        settled_at_ms=attempt.settled_at_ms,
    )
