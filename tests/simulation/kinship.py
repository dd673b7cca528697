"""Holds what runs owe each other and what begins beside a run, whole transactions at a time: children, emitted events, obligations.

The invariants of one run see what its own records say; here is what the other writes of the same transaction say, and the other runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ryusen_protocol.declaration_checks import emitted_payload, timeout_of
from ryusen_protocol.declarations import ChildDeclaration, EmissionDeclaration
from ryusen_protocol.errors import SDK_CHILD_CANCELLED, SDK_CHILD_FAILED, SDK_INVALID_RESULT, SDK_TIMEOUT
from ryusen_protocol.identity import emitted_event_id
from ryusen_protocol.ids import EventId, RunId
from ryusen_protocol.scope import Scope
from ryusen_server.core.decision import Decision, SettleParent, StopChild
from ryusen_server.core.records import ChildInvoked, Record, StepCompleted, StepDeclared
from ryusen_server.core.state import Run
from ryusen_server.ports.store import DischargeWrite, EventWrite, ObligationWrite, Unit

if TYPE_CHECKING:
    from tests.simulation.auditing import RunAudit
    from tests.simulation.durable import Disk

_CATEGORIES = {"failed": SDK_CHILD_FAILED, "cancelled": SDK_CHILD_CANCELLED, "timed_out": SDK_TIMEOUT}


class Change(msgspec.Struct, frozen=True):
    """What one transaction did to one run; `decision` is none for a run that it created."""

    run: Run
    records: list[Record]
    decision: Decision | None
    at_ms: int


class Kinship:
    """All families of all workspaces."""

    def __init__(self, runs: Mapping[RunId, RunAudit]) -> None:
        self._runs = runs
        self.disk: Disk

    def committed(self, unit: Unit, changes: list[Change]) -> None:
        """A transaction is durable, and its runs are folded."""
        self._born(changes)
        self._emitted(unit, changes)
        self._owed(unit, changes)
        for change in changes:
            for record in change.records:
                if isinstance(record, StepCompleted) and change.run.steps[record.step_id].child_run_id is not None:
                    self._settled(change.run, record)
        for write in unit.writes:
            if isinstance(write, DischargeWrite):
                self._discharged(write)

    def _born(self, changes: list[Change]) -> None:
        born = {change.run.run_id: change.run for change in changes if change.decision is None and change.run.parent is not None}
        invoked = {record.child_run_id: change for change in changes for record in change.records if isinstance(record, ChildInvoked)}
        assert set(born) == set(invoked), f"invariant 28: {sorted(invoked)} are invoked, and {sorted(born)} created with that"
        for run_id, child in born.items():
            change = invoked[run_id]
            parent = change.run
            assert child.parent is not None
            declaration = parent.steps[child.parent.step_id].declaration
            assert isinstance(declaration, ChildDeclaration)
            assert child.parent.run_id == parent.run_id, f"invariant 28: {run_id} has another parent than invoked it"
            same = (child.workspace, child.application) == (parent.workspace, parent.application)
            assert same, f"invariant 27: {run_id} is in another application than its parent"
            assert child.function == declaration.function, f"{run_id} runs {child.function}, invoked was {declaration.function}"
            bounds = [] if parent.deadline is None else [parent.deadline.at_ms]
            timeout_ms = timeout_of(declaration)
            bounds += [] if timeout_ms is None else [change.at_ms + timeout_ms]
            tight = not bounds or (child.deadline is not None and child.deadline.at_ms <= min(bounds))
            assert tight, f"{run_id} may last until {child.deadline}, its parent and the invocation say {bounds}"

    def _emitted(self, unit: Unit, changes: list[Change]) -> None:
        if not changes:
            return
        accepted = {write.event.event_id: write.event for write in unit.writes if isinstance(write, EventWrite)}
        emitted: set[EventId] = set()
        for change in changes:
            for record in change.records:
                if not isinstance(record, StepDeclared) or not isinstance(record.declaration, EmissionDeclaration):
                    continue
                run, declaration = change.run, record.declaration
                event_id = emitted_event_id(Scope(run.workspace, run.application), run.run_id, declaration.step_id)
                emitted.add(event_id)
                event = accepted.get(event_id)
                assert event is not None, f"invariant 28: {declaration.step_id} of {run.run_id} emits, and nothing is accepted with that"
                told = (event.workspace, event.name, event.payload, event.metadata)
                meant = (run.workspace, declaration.event_name, emitted_payload(declaration), declaration.metadata)
                assert told == meant, f"{declaration.step_id} of {run.run_id} emits another event than it declares"
        assert set(accepted) == emitted, f"invariant 28: {sorted(accepted)} are accepted beside runs, {sorted(emitted)} are emitted"

    def _owed(self, unit: Unit, changes: list[Change]) -> None:
        if not any(isinstance(write, ObligationWrite) for write in unit.writes) and not any(
            change.decision is not None and change.decision.obligations for change in changes
        ):
            return
        written = Counter(write.obligation for write in unit.writes if isinstance(write, ObligationWrite))
        decided = Counter(owed for change in changes if change.decision is not None for owed in change.decision.obligations)
        assert written == decided, f"invariant 28: {decided} is owed, and {written} commits with it"

    def _settled(self, parent: Run, record: StepCompleted) -> None:
        child_run_id = parent.steps[record.step_id].child_run_id
        assert child_run_id is not None
        child = self._runs[child_run_id].shadow
        assert child.status == "ended", f"{record.step_id} of {parent.run_id} is complete, and its child is {child.status}"
        if record.failure is not None and record.failure.category == SDK_INVALID_RESULT:
            return
        if child.outcome == "succeeded":
            assert record.failure is None, f"{child_run_id} succeeded, its parent was told {record.failure}"
            assert isinstance(record.result, msgspec.Raw)
            assert child.result is not None
            assert bytes(record.result) == bytes(child.result), f"{parent.run_id} got another result than {child_run_id} gave"
            return
        assert record.failure is not None, f"{child_run_id} ended as {child.outcome}, its parent was told that it succeeded"
        assert record.failure.category == _CATEGORIES[child.outcome or ""], f"{child.outcome}: the parent is told {record.failure.category}"
        told = msgspec.json.decode((record.failure.details or {})["child_run_id"])
        assert told == {"type": "string", "value": child_run_id}, f"{parent.run_id} is told of {told}"

    def _discharged(self, write: DischargeWrite) -> None:
        owed = write.obligation
        child = self._runs[owed.child_run_id].shadow
        match owed:
            case SettleParent():
                parent = self._runs[owed.parent_run_id].shadow
                assert child.status == "ended", f"{child.run_id} is {child.status}, and its parent has been told of its end"
                state = parent.steps[owed.parent_step_id].state
                assert state != "pending", f"invariant 28: {parent.run_id} waits for {child.run_id}, and its end is owed no more"
            case StopChild():
                going = child.status in {"running", "definition_blocked"}
                assert not going, f"invariant 28: {child.run_id} goes on, and its stop is owed no more"

    def check(self) -> None:
        """At a restart, and at the end: what is between runs is settled, or durably owed."""
        owed = self.disk._obligations
        below: dict[RunId, RunId] = {}
        for run_id, audit in self._runs.items():
            child = audit.shadow
            if child.parent is None:
                continue
            parent = self._runs[child.parent.run_id].shadow
            waits = parent.pending == child.parent.step_id and parent.steps[child.parent.step_id].child_run_id == run_id
            if waits and child.status == "ended":
                assert (run_id, "settle_parent") in owed, f"invariant 28: {parent.run_id} is not owed the end of {run_id}"
            if waits and parent.stop is not None and child.status in {"running", "definition_blocked"}:
                assert (run_id, "stop_child") in owed, f"invariant 28: {run_id} is not owed the stop of {parent.run_id}"
            if not waits:
                assert child.status == "ended", f"{run_id} goes on, and its parent does not wait for it"
            if child.stop is not None and child.stop.by == parent.run_id:
                assert parent.stop is not None, f"{run_id} is stopped by its parent, which is not stopping"
                late = child.deadline is not None and child.stop.reason == "timed_out"
                assert child.stop.reason == parent.stop.reason or late, f"{run_id} is stopped for another reason than its parent"
            if self._is_unknown(child):
                above: RunId | None = parent.run_id
                while above is not None:
                    below[above] = run_id
                    higher = self._runs[above].shadow.parent
                    above = None if higher is None else higher.run_id
        assert self.disk._unknown_below == below, f"Unknown below: {self.disk._unknown_below} is shown, {below} is true"

    @staticmethod
    def _is_unknown(run: Run) -> bool:
        attempt = run.current_attempt()
        return attempt is not None and attempt.state == "unknown"
