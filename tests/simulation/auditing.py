"""Holds every transition of every run against the project's invariants, from what is durable and what was seen to leave the server.

The auditor keeps its own fold of each run's committed history and a `Watch` over it (the checks are those of the core's tests, and
never ask the engine). It is told of each decision before it is committed, so that each committed transaction must be one that somebody
decided, and counts which command met which state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec

from ryusen_protocol.declarations import RunDeclaration
from ryusen_protocol.ids import AttemptId, OperationId, RequestId, RunId, StepId
from ryusen_protocol.outcome import DefinitionBlocked, RejectedBeforeStart
from ryusen_server.core import evolve as folding
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.request_stop import ParentStopped
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt
from ryusen_server.core.commands.settle_child import ChildEnded
from ryusen_server.core.commands.settle_timer import TimerDue
from ryusen_server.core.commands.settle_wait import EventMatched, WaitTimedOut
from ryusen_server.core.decide import Command
from ryusen_server.core.decision import Decision, Refusal
from ryusen_server.core.projection import attempt_row, run_row
from ryusen_server.core.records import (
    AttemptQueued,
    AttemptRequeued,
    AttemptSettled,
    DiscoveryQueued,
    Record,
    RunCreated,
    StepCompleted,
    StepDeclared,
    TargetSettled,
)
from ryusen_server.core.rows import HistoryRow, RunRow
from ryusen_server.core.settlement import DEFAULT_COMPENSATION
from ryusen_server.core.state import Run
from ryusen_server.ports.store import OperatorWrite, RunWrite, Unit
from tests.core import invariants
from tests.core.invariants import Matched, Responded, Started, Submitted, Watch
from tests.simulation.kinship import Change, Kinship
from tests.simulation.waits import Waits

AT_EVERY_TRANSITION: tuple[Callable[[Watch], None], ...] = (
    invariants.invariant_02_1_one_thing_at_a_time,
    invariants.invariant_17_an_ended_run_owns_nothing,
    invariants.invariant_18_a_live_run_is_never_stranded,
)
"""What a later state may hide. Every other check reads the whole history, in which what went wrong stays to be seen."""

CHECK_HISTORY_EVERY = 12


class Observed(msgspec.Struct, frozen=True):
    """A decision that has records, and what was true when it was taken."""

    command: Command
    decision: Decision
    records: tuple[Record, ...]
    open_request: RequestId | None
    open_pass: RequestId | None
    disposition: str | None


class RunAudit:
    """One run as the auditor knows it. `shadow` is what is durable."""

    def __init__(self, created: RunCreated, at_ms: int) -> None:
        self.shadow: Run = folding.begin(created, at_ms)
        self.watch = Watch(self.shadow)
        self.pending: deque[Observed] = deque()
        self.row: RunRow | None = None
        self.unchecked = 0
        self.is_sound = False
        """Every invariant has been checked over exactly what is known of it now."""


class Auditor:
    """Everything the store and the engine did, run by run."""

    def __init__(self, trace: Callable[[str], None], *, thorough: bool) -> None:
        self.runs: dict[RunId, RunAudit] = {}
        self.edges: Counter[str] = Counter()
        self.transitions = 0
        self.refusals: Counter[str] = Counter()
        self.settled: list[Callable[[RunAudit, AttemptSettled, int], None]] = []
        """Who wants to know of each settlement: the world, which knows what really happened."""
        self.requeued: list[Callable[[RunAudit, RequestId], None]] = []
        self.misspoken: set[RequestId] = set()
        """Requests answered wrongly in a worker's name, whose real answer is still to come: the SDK, which knows nothing of the wrong
        one, must not take the word about it for the word about its own."""
        self.kinship = Kinship(self.runs)
        self.waits = Waits()
        self._operations: dict[OperationId, tuple[RunId, StepId, str]] = {}
        self._attempts: dict[AttemptId, RunId] = {}
        self._requests: dict[RequestId, RunId] = {}
        self._early: dict[RunId, deque[Observed]] = {}
        self._trace = trace
        self._thorough = thorough

    # what was decided

    def observed(self, run: Run, command: Command, at_ms: int, answer: Decision | Refusal) -> None:
        """A command was decided; nothing of it is durable yet."""
        word = word_of(command, answer)
        self.edges[f"{state_of(run)}: {word}"] += 1
        if isinstance(answer, Refusal):
            self.refusals[answer.code] += 1
            return
        self._trace(f"{run.run_id[-6:]} {state_of(run)} {word} -> {','.join(str(r.__struct_config__.tag) for r in answer.records)}")
        del at_ms
        if not answer.records:
            return
        attempt = run.current_attempt()
        unresolved = attempt is not None and attempt.state in {"authorized", "unknown"}
        pending = self._pending(run.run_id)
        pending.append(
            Observed(
                command,
                answer,
                tuple(answer.records),
                attempt.request_id if unresolved and attempt is not None else None,
                None if run.dispatch is None else run.dispatch.request_id,
                answer.disposition,
            )
        )

    def _pending(self, run_id: RunId) -> deque[Observed]:
        known = self.runs.get(run_id)
        return known.pending if known is not None else self._early.setdefault(run_id, deque())

    # what became durable

    def committed(self, unit: Unit, last_position: int) -> None:
        """A unit is durable; nobody has been told."""
        position = last_position - len(unit.writes)
        changes: list[Change] = []
        for write in unit.writes:
            position += 1
            if isinstance(write, RunWrite):
                changes.append(self._run_committed(write, position))
            elif isinstance(write, OperatorWrite):
                assert changes, "invariant 21: an operator's answer is kept apart from what it did"
        self.kinship.committed(unit, changes)

    def rolled_back(self, unit: Unit) -> None:
        """A unit is lost."""
        for write in unit.writes:
            if isinstance(write, RunWrite) and not write.new_run:
                self._pending(write.run_id).popleft()

    def server_died(self) -> None:
        """Whatever was decided and is not durable never was."""
        for audit in self.runs.values():
            audit.pending.clear()
        self._early.clear()

    def _run_committed(self, write: RunWrite, position: int) -> Change:
        records = folding.decode_records(write.records)
        row = HistoryRow(position, write.at_ms, write.records)
        audit = self.runs.get(write.run_id)
        seen: Observed | None = None
        if audit is None:
            first = records[0]
            assert isinstance(first, RunCreated), f"invariant 26: a history begins with {first}"
            assert [type(record) for record in records] == [RunCreated, DiscoveryQueued], "invariant 28: a run is created without its work"
            audit = self.runs[write.run_id] = RunAudit(first, write.at_ms)
            audit.pending = self._early.pop(write.run_id, deque())
        else:
            assert audit.pending, f"invariant 20: a write of {write.run_id} that nobody decided: {records}"
            seen = audit.pending.popleft()
            assert folding.encode_records(seen.records) == write.records, f"another write than was decided: {records}"
        self.transitions += 1
        self._check_ownership(audit, records, write.run_id)
        folding.evolve(audit.shadow, records, write.at_ms, position)
        audit.watch.commit(row, records)
        if seen is not None:
            self._note(audit, seen, position, write.at_ms)
        self.waits.committed(audit.shadow, records, position)
        self._check_rows(audit, write)
        self.check(audit)
        return Change(audit.shadow, records, None if seen is None else seen.decision, write.at_ms)

    def _check_ownership(self, audit: RunAudit, records: list[Record], run_id: RunId) -> None:
        for record in records:
            match record:
                case StepDeclared():
                    owner = (run_id, record.declaration.step_id, "forward")
                    assert self._operations.setdefault(record.operation_id, owner) == owner, f"invariant 5: {record.operation_id} is shared"
                case AttemptRequeued():
                    request = audit.shadow.attempts[record.attempt_id].request_id
                    assert request is not None
                    for told in self.requeued:
                        told(audit, request)
                case _:
                    pass
            queued = getattr(record, "operation_id", None)
            phase = getattr(record, "phase", None)
            if queued is not None and phase is not None:
                owner = (run_id, StepId(getattr(record, "step_id", "")), phase)
                assert self._operations.setdefault(queued, owner) == owner, f"invariant 5: {queued} is shared"
            attempt_id = getattr(record, "attempt_id", None)
            if attempt_id is not None:
                assert self._attempts.setdefault(attempt_id, run_id) == run_id, f"invariant 27: {attempt_id} belongs to two runs"
            request_id = getattr(record, "request_id", None)
            if request_id is not None:
                assert self._requests.setdefault(request_id, run_id) == run_id, f"invariant 27: {request_id} belongs to two runs"

    def _note(self, audit: RunAudit, seen: Observed, position: int, at_ms: int) -> None:
        watch, command = audit.watch, seen.command
        watch.decided[position] = seen.decision
        match command:
            case EventMatched():
                watch.matched[position] = Matched(position, command.accepted_at_ms, command.accepted_position, command.registered_position)
            case AnswerAttempt():
                generation = command.outcome.attempt_generation
                if isinstance(command.outcome, RejectedBeforeStart):
                    watch.proofs.add(command.request_id)
                watch.submitted.append(
                    Submitted(
                        command.request_id, generation, command.answer_digest, seen.disposition or "", seen.records, seen.open_request
                    )
                )
            case AnswerDiscovery():
                watch.responded.append(Responded(command.request_id, counted=True, open_request=seen.open_pass))
                blocked = isinstance(command.outcome, DefinitionBlocked) and command.outcome.reason == "duplicate_step_id"
                if blocked and seen.disposition == "accepted":
                    watch.duplicates.add(position)
            case ResolveAttempt():
                watch.resolved.add(command.attempt_id)
            case NeverBegan():
                watch.proofs.add(command.request_id)
            case _:
                pass
        self._note_records(audit, seen, at_ms)

    def _note_records(self, audit: RunAudit, seen: Observed, at_ms: int) -> None:
        failed: AttemptSettled | None = None
        for record in seen.records:
            if isinstance(record, AttemptQueued) and failed is not None:
                _check_backoff(audit.shadow, failed, record, at_ms)
            if isinstance(record, AttemptSettled):
                failed = record if record.state == "failed" else None
                for told in self.settled:
                    told(audit, record, at_ms)

    def _check_rows(self, audit: RunAudit, write: RunWrite) -> None:
        shadow = audit.shadow
        if write.run is not None:
            audit.row = write.run
        assert audit.row == run_row(shadow), "invariant 26: the stored row is not what the history gives"
        for row in write.attempts:
            assert row == attempt_row(shadow, shadow.attempts[row.attempt_id]), (
                "invariant 26: an attempt's row is not what the history gives"
            )

    # what left the server

    def sent(self, run_id: RunId, request_id: RequestId, attempt_id: AttemptId | None) -> None:
        """An invocation left the server."""
        audit = self.runs.get(run_id)
        if audit is None:
            assert attempt_id is None, f"invariant 7: {attempt_id} left before its run was durable"
            return
        audit.is_sound = False
        audit.watch.started.append(Started(request_id, attempt_id, audit.shadow.position))
        if attempt_id is not None:
            assert audit.shadow.requests.get(request_id) == attempt_id, (
                f"invariant 7: {attempt_id} left before its authorization was durable"
            )

    def acknowledged(self, request_id: RequestId, disposition: str) -> None:
        """A disposition left the server: is what it says durable?"""
        run_id = self._requests.get(request_id)
        if disposition not in {"accepted", "replayed", "stale"}:
            return
        assert run_id is not None, f"an answer under {request_id} was {disposition} before its authorization was durable"
        run = self.runs[run_id].shadow
        attempt = run.attempts[run.requests[request_id]]
        if disposition == "stale":
            assert any(request == request_id for request, _ in run.stale_answers), f"{request_id} is stale, and nothing was kept of it"
            return
        settled = attempt.settled_at_ms is not None and attempt.request_id == request_id
        rejected = any(request == request_id for request, _ in run.rejections)
        assert settled or rejected, f"{request_id} was acknowledged as {disposition} before it was durable"

    # the invariants

    def check(self, audit: RunAudit, *, fully: bool = False) -> None:
        """After a transition."""
        audit.unchecked += 1
        audit.is_sound = False
        fully = fully or self._thorough or audit.unchecked >= CHECK_HISTORY_EVERY or audit.shadow.status == "ended"
        if fully:
            audit.unchecked = 0
            invariants.check_all(audit.watch)
            audit.is_sound = True
            return
        for invariant in AT_EVERY_TRANSITION:
            try:
                invariant(audit.watch)
            except AssertionError as broken:
                raise AssertionError(f"{invariant.__name__}: {broken}") from broken

    def check_all(self) -> None:
        """At a restart, and at the end. A run of which nothing new is known has been checked."""
        for audit in self.runs.values():
            if not audit.is_sound:
                self.check(audit, fully=True)
        self.kinship.check()
        self.waits.check()

    def results(self, run_id: RunId) -> dict[StepId, Any]:
        """What the history says each step and each undo came to."""
        found: dict[StepId, Any] = {}
        for _, record in self.runs[run_id].watch.of(StepCompleted):
            found[record.step_id] = record
        return found

    def undone(self, run_id: RunId) -> list[TargetSettled]:
        """The settled targets, in order."""
        return [record for _, record in self.runs[run_id].watch.of(TargetSettled)]


def _check_backoff(run: Run, failed: AttemptSettled, queued: AttemptQueued, at_ms: int) -> None:
    """A retry waits as its recorded policy says."""
    before = run.attempts[failed.attempt_id]
    if (before.step_id, before.phase) != (queued.step_id, queued.phase):
        return
    declaration = run.steps[queued.step_id].declaration
    assert isinstance(declaration, RunDeclaration)
    policy = declaration.retry if queued.phase == "forward" else (declaration.compensation or DEFAULT_COMPENSATION).retry
    operation = run.steps[queued.step_id] if queued.phase == "forward" else run.unwind[run.unwind_index]
    wait_ms = min(policy.initial_ms * policy.multiplier ** (operation.failures - 1), policy.maximum_ms)
    spread_ms = wait_ms * policy.jitter + 1
    waits_ms = queued.due_at_ms - at_ms
    assert wait_ms - spread_ms <= waits_ms <= wait_ms + spread_ms, f"invariant 23: {queued.attempt_id} waits {waits_ms} ms, not {wait_ms}"


_LATE = LoseContact | LoseDiscovery | NeverBegan | TimerDue | EventMatched | WaitTimedOut | ChildEnded | ParentStopped
"""Commands that may come to nothing because something else was first."""


def state_of(run: Run) -> str:
    """Where a run stands: its status, and the pass or attempt it waits for."""
    if run.discovery_pass is not None:
        return f"{run.status}, pass {'out' if run.dispatch is not None else 'queued'}"
    step = run.pending_step()
    if step is not None and step.kind != "run":
        return f"{run.status}, {step.kind}"
    attempt = run.current_attempt()
    return run.status if attempt is None else f"{run.status}, {attempt.state}"


def word_of(command: Command, answer: Decision | Refusal) -> str:
    """A command with what it brought; an answer that no longer counted is `late`, whatever it said."""
    name = type(command).__name__
    if isinstance(command, ResolveAttempt):
        refused = isinstance(answer, Refusal) and answer.code == "stale"
        return f"{name}({'refused' if refused else type(command.resolution).__name__})"
    if isinstance(command, _LATE) and isinstance(answer, Decision):
        return name if answer.records or answer.notes else f"{name}(late)"
    outcome = getattr(command, "outcome", None)
    if outcome is None or isinstance(answer, Refusal):
        return name
    counted = answer.disposition == "accepted" if isinstance(command, AnswerAttempt) else bool(answer.records or answer.notes)
    return f"{name}({outcome.__struct_config__.tag if counted else 'late'})"
