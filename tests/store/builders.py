"""Rows and units for tests of the store, with everything that does not matter filled in."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from ryusen_protocol.ids import (
    Application,
    AttemptId,
    EventId,
    FunctionId,
    ManifestGeneration,
    OperationId,
    ReleaseId,
    RoutingGeneration,
    RunId,
    StepId,
    TriggerId,
    Workspace,
)
from ryusen_server.core.rows import AttemptRow, EventKeyRow, EventRow, LogRow, ManifestRow, ReleaseRow, RoutingRow, RunRow
from ryusen_server.ports.logs import LogWrite
from ryusen_server.ports.store import EventWrite, ManifestWrite, ReleaseWrite, RunWrite, StorageUnavailable, Store, Unit, Write

WORKSPACE = Workspace("default")
APPLICATION = Application("orders")


def run_row(run_id: str, **changes: Any) -> RunRow:
    row = RunRow(
        run_id=RunId(run_id),
        workspace=WORKSPACE,
        application=APPLICATION,
        function=FunctionId("fulfil"),
        event_id=EventId("evt_1"),
        trigger_id=TriggerId("placed"),
        parent_run_id=None,
        parent_step_id=None,
        manifest_generation=ManifestGeneration("man_1"),
        routing_generation=RoutingGeneration("rtg_1"),
        status="running",
        outcome=None,
        recovery=None,
        recovery_reason=None,
        stop_reason=None,
        stop_requested_at_ms=None,
        deadline_at_ms=None,
        deadline_source=None,
        attention=None,
        created_at_ms=1_000,
        ended_at_ms=None,
        wake_at_ms=0,
        steps_declared=0,
        steps_completed=0,
        unwind_pending=0,
        unwind_succeeded=0,
        unwind_failed=0,
        unwind_skipped=0,
    )
    return msgspec.structs.replace(row, **changes)


def ended(run: RunRow, **changes: Any) -> RunRow:
    end = {"status": "ended", "outcome": "succeeded", "recovery": "not_required", "ended_at_ms": 9_000, "wake_at_ms": None}
    return msgspec.structs.replace(run, **(end | changes))


def attempt_row(attempt_id: str, run_id: str, **changes: Any) -> AttemptRow:
    row = AttemptRow(
        attempt_id=AttemptId(attempt_id),
        workspace=WORKSPACE,
        application=APPLICATION,
        function=FunctionId("fulfil"),
        run_id=RunId(run_id),
        step_id=StepId("charge"),
        phase="forward",
        attempt=1,
        attempt_generation=1,
        operation_id=OperationId(f"op_{attempt_id}"),
        state="queued",
        request_id=None,
        instance_id=None,
        session_id=None,
        release_id=None,
        transport=None,
        queued_at_ms=1_000,
        due_at_ms=1_000,
        authorized_at_ms=None,
        lease_until_ms=None,
        unknown_at_ms=None,
        settled_at_ms=None,
    )
    return msgspec.structs.replace(row, **changes)


def prints(attempt_id: str, run_id: str, lines: bytes = b"[]") -> LogWrite:
    return LogWrite(LogRow(AttemptId(attempt_id), WORKSPACE, APPLICATION, RunId(run_id), StepId("charge"), "forward", 1, 1, lines))


def begins(run: RunRow, *attempts: AttemptRow, records: bytes = b'[{"kind":"run_created"}]') -> RunWrite:
    return RunWrite(run.run_id, run.workspace, None, run.created_at_ms, records, new_run=True, run=run, attempts=attempts)


def moves(run_id: str, base: int, *attempts: AttemptRow, run: RunRow | None = None, records: bytes = b'[{"kind":"moved"}]') -> RunWrite:
    return RunWrite(RunId(run_id), WORKSPACE, base, 2_000, records, new_run=False, run=run, attempts=attempts)


def event_row(event_id: str, **changes: Any) -> EventRow:
    row = EventRow(
        event_id=EventId(event_id),
        workspace=WORKSPACE,
        name="order.placed",
        payload=b'{"total": 12}',
        metadata={"source": "web", "a": "\u00e9"},
        received_at_ms=1_000,
        routing_generation=RoutingGeneration("rtg_1"),
        matched=1,
        fan_out_next=0,
    )
    return msgspec.structs.replace(row, **changes)


def accepts(event: EventRow, key: str | None = None) -> EventWrite:
    row = None if key is None else EventKeyRow(event.workspace, key, f"print of {key}", event.event_id)
    return EventWrite(event, row, b'[{"kind":"event_accepted"}]')


def activates(
    number: int, *, application: str = "orders", parent: int | None = None, others: dict[str, str] | None = None
) -> ManifestWrite:
    generation, routing = ManifestGeneration(f"man_{application}_{number}"), RoutingGeneration(f"rtg_{application}_{number}")
    manifest = ManifestRow(
        manifest_generation=generation,
        workspace=WORKSPACE,
        application=Application(application),
        expected_parent=None if parent is None else ManifestGeneration(f"man_{application}_{parent}"),
        digest=f"digest {number}",
        document=b'{"functions":[]}',
        routing_generation=routing,
        activated_at_ms=number,
    )
    applications = cast("dict[Application, ManifestGeneration]", (others or {}) | {application: generation})
    return ManifestWrite(manifest, RoutingRow(routing, WORKSPACE, None, "hash", applications, number), b'[{"kind":"manifest_activated"}]')


def registers(release_id: str) -> ReleaseWrite:
    return ReleaseWrite(ReleaseRow(WORKSPACE, APPLICATION, ReleaseId(release_id), '{"functions":[]}', 1_000), b'[{"kind":"release_seen"}]')


def submit(store: Store, *writes: Write, rides: bool = False) -> tuple[int, asyncio.Future[StorageUnavailable | None]]:
    """Queue one unit; its position, and what `done` will say."""
    told: asyncio.Future[StorageUnavailable | None] = asyncio.get_running_loop().create_future()
    return store.submit(Unit(writes, rides=rides), told.set_result), told


async def commit(store: Store, *writes: Write) -> int:
    """Commit one unit; its position. Raises what `done` said."""
    position, told = submit(store, *writes)
    failure = await told
    if failure is not None:
        raise failure
    return position
