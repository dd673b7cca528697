"""Holds every event wait against all events that were accepted: the earliest that matches wins, and none that came in time is passed over.

Works out by a walk over everything what the product finds by look-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.errors import SDK_TIMEOUT
from ryusen_protocol.ids import RunId, StepId
from ryusen_protocol.values import encode
from ryusen_server.core.records import Record, StepCompleted, StepStopped, WaitRegistered
from ryusen_server.core.rows import EventRow
from ryusen_server.core.state import Run

if TYPE_CHECKING:
    from tests.simulation.durable import Disk


class Registered(msgspec.Struct, frozen=True):
    """A wait as its registration committed."""

    step_id: StepId
    position: int
    timeout_at_ms: int


class Waits:
    """Every wait that has not settled."""

    def __init__(self) -> None:
        self.open: dict[RunId, Registered] = {}
        self.disk: Disk

    def committed(self, run: Run, records: list[Record], position: int) -> None:
        """A transaction of a run is durable, and folded."""
        for record in records:
            match record:
                case WaitRegistered():
                    self.open[run.run_id] = Registered(record.step_id, position, record.timeout_at_ms)
                case StepCompleted():
                    wait = self.open.get(run.run_id)
                    if wait is not None and wait.step_id == record.step_id:
                        del self.open[run.run_id]
                        self._settled(run, wait, record, position)
                case StepStopped():
                    self.open.pop(run.run_id, None)
                case _:
                    pass

    def _settled(self, run: Run, wait: Registered, record: StepCompleted, position: int) -> None:
        declaration = run.steps[wait.step_id].declaration
        assert isinstance(declaration, EventWaitDeclaration)
        events = [event for event in self.disk._events.values() if self._fits(run, declaration, wait, event) and event.position < position]
        where = f"{wait.step_id} of {run.run_id}"
        if record.failure is not None:
            assert record.failure.category == SDK_TIMEOUT, f"invariant 24: {where} failed with {record.failure.category}"
            assert not events, f"invariant 24: {where} timed out over {[event.event_id for event in events]}"
            return
        assert events, f"invariant 24: {where} took an event that it could not match"
        earliest = min(events, key=lambda event: event.position)
        assert isinstance(record.result, msgspec.Raw)
        assert bytes(record.result) == encode(earliest.payload), f"invariant 24: {where} did not take the earliest, {earliest.event_id}"

    def _fits(self, run: Run, declaration: EventWaitDeclaration, wait: Registered, event: EventRow) -> bool:
        return (
            (event.workspace, event.name) == (run.workspace, declaration.event_name)
            and event.position > wait.position
            and event.received_at_ms < wait.timeout_at_ms
            and all(event.metadata.get(key) == value for key, value in declaration.correlation.items())
        )

    def check(self) -> None:
        """At a restart, and at the end: the store holds exactly these."""
        stored = {run_id: Registered(row.step_id, row.position, row.timeout_at_ms) for run_id, row in self.disk._waits.items()}
        assert stored == self.open, f"invariant 26: the stored waits are {stored}, the registered ones {self.open}"
