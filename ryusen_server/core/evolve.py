"""Folds records into a run. The only code that changes a `Run`.

`begin` makes a run from its first record, `evolve` applies the records of one transaction, `annotate` one volatile note, and `fold` a whole
stored history. A record that does not fit the state it meets is a broken invariant, and raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, assert_never

import msgspec

from ryusen_protocol.declarations import ChildDeclaration, Declaration, EventWaitDeclaration, TimerDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import StepId
from ryusen_protocol.invocation import HistoryEntry, RecordedOutcome
from ryusen_server.core import records as r
from ryusen_server.core.rows import HistoryRow
from ryusen_server.core.state import UNRESOLVED, Attempt, Blocker, Run, Step, Stop, Target

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[r.Record]).decode

EMPTY_HISTORY_DIGEST = "sha256:" + hashlib.sha256(b"").hexdigest()
"""Stands for a history without entries."""


class BrokenInvariant(AssertionError):  # it is not an error of input: it says what must never be
    """A record met a state it cannot follow. Never caught on purpose: the run's history is not what the server believes."""


def encode_records(records: Sequence[r.Record]) -> bytes:
    """The JSON array a transaction's records are stored as."""
    return _encode(records)


def decode_records(data: bytes) -> list[r.Record]:
    """The records of one stored transaction."""
    return _decode(data)


def begin(created: r.RunCreated, at_ms: int) -> Run:
    """The run its first record makes."""
    return Run(
        run_id=created.run_id,
        workspace=created.workspace,
        application=created.application,
        function=created.function,
        event_id=created.event_id,
        trigger_id=created.trigger_id,
        manifest_generation=created.manifest_generation,
        routing_generation=created.routing_generation,
        deadline=created.deadline,
        created_at_ms=at_ms,
        parent=created.parent,
        input=_value(created.input),
        history_digest=EMPTY_HISTORY_DIGEST,
        last_record_at_ms=at_ms,
    )


def evolve(run: Run, records: Iterable[r.Record], at_ms: int, position: int) -> Run:
    """Apply one transaction's records, committed at `position`, and return the same run."""
    for record in records:
        _APPLY[type(record)](run, record, at_ms)
    run.last_record_at_ms = at_ms
    run.position = position
    return run


def annotate(run: Run, note: r.Note) -> Run:
    """Apply a volatile note and return the same run."""
    match note:
        case r.DiscoveryDispatched():
            run.dispatch = note
        case r.DiscoveryReturned():
            run.dispatch = None
            run.discovery_repeats += 1
            run.discovery_due_at_ms = note.due_at_ms
        case _:
            assert_never(note)
    return run


def fold(rows: Iterable[HistoryRow]) -> Run | None:
    """The run a stored history gives, or none for an empty one."""
    run: Run | None = None
    for row in rows:
        records = decode_records(row.records)
        if run is None:
            first = records[0]
            if not isinstance(first, r.RunCreated):
                raise BrokenInvariant(f"a history begins with {type(first).__name__}, not with RunCreated")
            run = begin(first, row.at_ms)
        evolve(run, records, row.at_ms, row.position)
    return run


def _value(value: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    return None if isinstance(value, msgspec.UnsetType) else value


def _run_created(run: Run, record: r.RunCreated, at_ms: int) -> None:
    if run.passes or run.run_id != record.run_id:
        raise BrokenInvariant(f"run {run.run_id} is created twice")
    del at_ms


def _discovery_queued(run: Run, record: r.DiscoveryQueued, at_ms: int) -> None:
    del at_ms
    run.passes = record.pass_
    run.discovery_pass = record.pass_
    run.discovery_due_at_ms = record.due_at_ms
    run.discovery_repeats = 0
    run.dispatch = None


def _discovery_consumed(run: Run) -> None:
    run.discovery_pass = None
    run.discovery_due_at_ms = 0
    run.discovery_repeats = 0
    run.dispatch = None


def _step_declared(run: Run, record: r.StepDeclared, at_ms: int) -> None:
    declaration = record.declaration
    known = run.steps.get(declaration.step_id)
    if known is None:
        run.steps[declaration.step_id] = Step(
            step_id=declaration.step_id,
            declaration=declaration,
            operation_id=record.operation_id,
            state="pending",
            declared_at_ms=at_ms,
            attempts=[],
        )
    elif known.state == "obsolete" and known.operation_id == record.operation_id:
        known.declaration = declaration
        known.state = "pending"
    else:
        raise BrokenInvariant(f"step {declaration.step_id!r} of {run.run_id} is declared while {known.state}")
    _discovery_consumed(run)
    run.status = "running"
    run.blocker = None
    run.pending = declaration.step_id


def _timer_armed(run: Run, record: r.TimerArmed, at_ms: int) -> None:
    del at_ms
    _waiting(run, record.step_id, TimerDeclaration).due_at_ms = record.due_at_ms


def _wait_registered(run: Run, record: r.WaitRegistered, at_ms: int) -> None:
    del at_ms
    _waiting(run, record.step_id, EventWaitDeclaration).due_at_ms = record.timeout_at_ms


def _child_invoked(run: Run, record: r.ChildInvoked, at_ms: int) -> None:
    del at_ms
    _waiting(run, record.step_id, ChildDeclaration).child_run_id = record.child_run_id


def _waiting(run: Run, step_id: StepId, kind: type[Declaration]) -> Step:
    step = run.steps[step_id]
    if step.state != "pending" or not isinstance(step.declaration, kind) or (step.due_at_ms, step.child_run_id) != (None, None):
        raise BrokenInvariant(f"step {step_id!r} of {run.run_id} begins to wait a second time, while {step.state}, or as another kind")
    return step


def _attempt_queued(run: Run, record: r.AttemptQueued, at_ms: int) -> None:
    operation = run.steps[record.step_id] if record.phase == "forward" else run.unwind[run.unwind_index]
    if operation.step_id != record.step_id or operation.state != "pending":
        raise BrokenInvariant(f"{record.attempt_id} is queued for {record.step_id!r}, which is not what {run.run_id} waits for")
    if operation.attempts and run.attempts[operation.attempts[-1]].settled_at_ms is None:
        raise BrokenInvariant(f"{record.attempt_id} is queued before {operation.attempts[-1]} has settled")
    run.attempts[record.attempt_id] = Attempt(
        attempt_id=record.attempt_id,
        step_id=record.step_id,
        phase=record.phase,
        attempt=record.attempt,
        attempt_generation=record.attempt_generation,
        operation_id=record.operation_id,
        state="queued",
        queued_at_ms=at_ms,
        due_at_ms=record.due_at_ms,
    )
    operation.attempts.append(record.attempt_id)


def _attempt_authorized(run: Run, record: r.AttemptAuthorized, at_ms: int) -> None:
    attempt = run.attempts[record.attempt_id]
    if attempt.state != "queued":
        raise BrokenInvariant(f"{record.attempt_id} is authorized while {attempt.state}")
    attempt.state = "authorized"
    attempt.request_id = record.request_id
    attempt.worker = record.worker
    attempt.authorized_at_ms = at_ms
    attempt.lease_until_ms = record.lease_until_ms
    attempt.answer_by_ms = record.answer_by_ms
    run.requests[record.request_id] = record.attempt_id


def _attempt_settled(run: Run, record: r.AttemptSettled, at_ms: int) -> None:
    attempt = run.attempts[record.attempt_id]
    if attempt.settled_at_ms is not None:
        raise BrokenInvariant(f"{record.attempt_id} settles a second time")
    if attempt.state not in UNRESOLVED and record.state != "fenced":
        raise BrokenInvariant(f"{record.attempt_id} settles as {record.state} while {attempt.state}")
    attempt.state = record.state
    attempt.settled_at_ms = at_ms
    attempt.failure = record.failure
    attempt.answer_digest = record.answer_digest
    attempt.settled_by_operator = record.operator
    if record.state == "failed":
        if attempt.phase == "forward":
            run.steps[attempt.step_id].failures += 1
        else:
            run.unwind[run.unwind_index].failures += 1


def _attempt_unknown(run: Run, record: r.AttemptUnknown, at_ms: int) -> None:
    attempt = run.attempts[record.attempt_id]
    if attempt.state != "authorized":
        raise BrokenInvariant(f"{record.attempt_id} becomes unknown while {attempt.state}")
    attempt.state = "unknown"
    attempt.unknown_at_ms = at_ms
    attempt.unknown_reason = record.reason


def _attempt_requeued(run: Run, record: r.AttemptRequeued, at_ms: int) -> None:
    del at_ms
    attempt = run.attempts[record.attempt_id]
    if attempt.state not in UNRESOLVED:
        raise BrokenInvariant(f"{record.attempt_id} is requeued while {attempt.state}")
    if record.answer_digest is not None and attempt.request_id is not None:
        run.rejections.add((attempt.request_id, record.answer_digest))
    attempt.state = "queued"
    attempt.due_at_ms = record.due_at_ms
    attempt.never_began += 1
    attempt.worker = None
    attempt.authorized_at_ms = None
    attempt.lease_until_ms = None
    attempt.answer_by_ms = None
    attempt.unknown_at_ms = None
    attempt.unknown_reason = None


def history_entry(step: Step) -> bytes:
    """The encoded history entry of a completed step, as invocations carry it. A failure carries no stack."""
    if step.failure is not None:
        outcome = RecordedOutcome(failure=without_stack(step.failure))
    elif step.result is not None:
        outcome = RecordedOutcome(success=step.result)
    else:
        raise BrokenInvariant(f"step {step.step_id!r} has no outcome")
    return _encode(HistoryEntry(step.step_id, step.kind, outcome))


def without_stack(error: ErrorRecord) -> ErrorRecord:
    """The record without its diagnostic stacks, causes included."""
    if error.stack is None and error.cause is None:
        return error
    cause = None if error.cause is None else without_stack(error.cause)
    return ErrorRecord(error.category, error.message, error.retryable, error.details, cause)


def _step_completed(run: Run, record: r.StepCompleted, at_ms: int) -> None:
    step = run.steps[record.step_id]
    if step.state != "pending" or record.completion_order != len(run.completed) + 1:
        raise BrokenInvariant(f"step {record.step_id!r} of {run.run_id} completes while {step.state}")
    step.state = "succeeded" if record.failure is None else "failed"
    step.completion_order = record.completion_order
    step.completed_at_ms = at_ms
    step.result = _value(record.result)
    step.failure = record.failure
    step.diagnostic = record.diagnostic
    run.completed.append(record.step_id)
    run.pending = None
    entry = history_entry(step)
    run.history_entries.append(entry)
    run.history_digest = "sha256:" + hashlib.sha256(run.history_digest.encode() + entry).hexdigest()
    run.replay_bytes += len(entry)


def _step_obsolete(run: Run, record: r.StepObsolete, at_ms: int) -> None:
    del at_ms
    step = run.steps[record.step_id]
    if step.state != "pending":
        raise BrokenInvariant(f"step {record.step_id!r} of {run.run_id} becomes obsolete while {step.state}")
    step.state = "obsolete"
    step.obsolete_count += 1
    run.pending = None


def _step_stopped(run: Run, record: r.StepStopped, at_ms: int) -> None:
    del at_ms
    step = run.steps[record.step_id]
    if step.state != "pending":
        raise BrokenInvariant(f"step {record.step_id!r} of {run.run_id} is stopped while {step.state}")
    step.state = "stopped"
    run.pending = None


def _submission_stale(run: Run, record: r.SubmissionStale, at_ms: int) -> None:
    del at_ms
    run.stale_answers.add((record.request_id, record.answer_digest))


def _run_blocked(run: Run, record: r.RunBlocked, at_ms: int) -> None:
    before = run.blocker
    again = before is not None and (before.reason, before.step_id) == (record.reason, record.step_id)
    run.blocker = Blocker(
        reason=record.reason,
        step_id=record.step_id,
        first=record.first,
        duplicate=record.duplicate,
        release_id=record.release_id,
        message=record.message,
        count=before.count + 1 if again and before is not None else 1,
        first_seen_at_ms=before.first_seen_at_ms if again and before is not None else at_ms,
        last_seen_at_ms=at_ms,
    )
    run.status = "definition_blocked"
    _discovery_consumed(run)


def _stop_requested(run: Run, record: r.StopRequested, at_ms: int) -> None:
    if run.stop is not None:
        raise BrokenInvariant(f"{run.run_id} is stopped twice")
    run.stop = Stop(record.reason, at_ms, record.by)
    run.status = "stopping"
    run.blocker = None
    _discovery_consumed(run)


def _outcome_decided(run: Run, record: r.OutcomeDecided, at_ms: int) -> None:
    del at_ms
    if run.outcome is not None:
        raise BrokenInvariant(f"{run.run_id} has two outcomes")
    run.outcome = record.outcome
    run.result = _value(record.result)
    run.failure = record.failure
    run.blocker = None
    _discovery_consumed(run)


def _compensation_started(run: Run, record: r.CompensationStarted, at_ms: int) -> None:
    del at_ms
    if run.outcome is None or run.outcome == "succeeded" or run.unwind or run.pending is not None:
        raise BrokenInvariant(f"{run.run_id} begins an unwind while {run.status}, its outcome being {run.outcome}")
    run.status = "compensating"
    run.unwind = [Target(target.step_id, target.operation_id, "pending", []) for target in record.targets]
    run.unwind_counts = {"pending": len(run.unwind)}


def _target_settled(run: Run, record: r.TargetSettled, at_ms: int) -> None:
    target = run.unwind[run.unwind_index]
    if target.step_id != record.step_id or target.state != "pending":
        raise BrokenInvariant(f"unwind target {record.step_id!r} of {run.run_id} settles out of order")
    run.unwind_counts["pending"] -= 1
    run.unwind_counts[record.state] = run.unwind_counts.get(record.state, 0) + 1
    target.state = record.state
    target.reason = record.reason
    target.hidden_by = record.hidden_by
    target.settled_at_ms = at_ms
    target.result = _value(record.result)
    target.failure = record.failure
    target.diagnostic = record.diagnostic
    if run.unwind_index + 1 < len(run.unwind):
        run.unwind_index += 1


def _run_ended(run: Run, record: r.RunEnded, at_ms: int) -> None:
    if run.outcome is None or run.status == "ended" or run.unwind_counts.get("pending"):
        raise BrokenInvariant(f"{run.run_id} ends while {run.status}, its outcome being {run.outcome}")
    run.status = "ended"
    run.recovery = record.recovery
    run.recovery_reason = record.recovery_reason
    run.ended_at_ms = at_ms
    run.pending = None
    _discovery_consumed(run)


_APPLY: dict[type, Callable[[Run, Any, int], None]] = {
    r.RunCreated: _run_created,
    r.DiscoveryQueued: _discovery_queued,
    r.StepDeclared: _step_declared,
    r.TimerArmed: _timer_armed,
    r.WaitRegistered: _wait_registered,
    r.ChildInvoked: _child_invoked,
    r.AttemptQueued: _attempt_queued,
    r.AttemptAuthorized: _attempt_authorized,
    r.AttemptSettled: _attempt_settled,
    r.AttemptUnknown: _attempt_unknown,
    r.AttemptRequeued: _attempt_requeued,
    r.StepCompleted: _step_completed,
    r.StepObsolete: _step_obsolete,
    r.StepStopped: _step_stopped,
    r.SubmissionStale: _submission_stale,
    r.RunBlocked: _run_blocked,
    r.StopRequested: _stop_requested,
    r.OutcomeDecided: _outcome_decided,
    r.CompensationStarted: _compensation_started,
    r.TargetSettled: _target_settled,
    r.RunEnded: _run_ended,
}
"""One handler a record kind; a test holds it against the union."""
