"""The reducer: a snapshot and the changes behind it make what is known of a workspace now. Pure: no terminal, no socket, no clock.

A change carries what happened and no payload, so that some facts (counts of steps, what needs a person after an attempt was settled) only
a new snapshot tells; `reduce` says which snapshots those are. What a change does tell is shown at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ryusen_protocol.api import (
    AttemptDocument,
    EventSummary,
    FunctionDocument,
    ReleaseDocument,
    RoutingDocument,
    RunSummary,
    ServerInfo,
    UnwindCounts,
    WorkerDocument,
)
from ryusen_protocol.ids import Application, FunctionId, RunId
from ryusen_protocol.words import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ryusen_protocol.changes import Change, ChangeRecord

ROWS_MAX: Final = 500
"""No list on a screen is longer; filters find the rest."""

Topic = Literal["server", "runs", "unknown", "events", "workers", "functions", "releases", "routing"]
"""What there is a snapshot of."""

_NEEDS: Final = frozenset(("attempt_unknown", "attempt_settled", "run_blocked", "run_ended", "stop_requested", "attempt_requeued"))
_UNKNOWN_MOVES: Final = frozenset(("attempt_unknown", "attempt_settled", "stop_requested", "outcome_decided", "attempt_queued"))


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a workspace. Lists are in the order of the server; `None` is what was never loaded."""

    server: ServerInfo | None = None
    runs: tuple[RunSummary, ...] | None = None
    runs_more: bool = False
    runs_position: int = 0
    unknown: tuple[AttemptDocument, ...] | None = None
    events: tuple[EventSummary, ...] | None = None
    workers: tuple[WorkerDocument, ...] | None = None
    functions: tuple[FunctionDocument, ...] | None = None
    releases: tuple[ReleaseDocument, ...] | None = None
    routing: tuple[RoutingDocument, ...] | None = None


class Reduced(msgspec.Struct, frozen=True):
    """A board after some changes, the snapshots that are needed to complete it, and the runs that were touched."""

    board: Board
    needs: frozenset[Topic]
    touched: frozenset[RunId]


def reduce(board: Board, changes: Iterable[Change], *, filtered: bool = False) -> Reduced:
    """Apply changes in commit order. Under a filter no new run is shown before the server says that it belongs there."""
    runs = {} if board.runs is None else {run.run_id: run for run in board.runs}
    created: list[RunSummary] = []
    needs: set[Topic] = set()
    touched: set[RunId] = set()
    for change in changes:
        for record in change.records:
            needs |= _needs(record)
            if record.run_id is None:
                continue
            touched.add(record.run_id)
            known = runs.get(record.run_id)
            if known is not None:
                runs[record.run_id] = _moved(known, record, change.at_ms)
            elif record.kind == "run_created" and not filtered and change.position > board.runs_position:
                run = _created(record, change.at_ms)
                if run is not None:
                    created.append(run)
                    runs[run.run_id] = run
    if board.runs is None:
        return Reduced(board, frozenset(needs), frozenset(touched))
    newest = [runs[run.run_id] for run in reversed(created)]
    listed = (*newest, *(runs[run.run_id] for run in board.runs))
    kept = listed[:ROWS_MAX]
    return Reduced(
        msgspec.structs.replace(board, runs=kept, runs_more=board.runs_more or len(listed) > ROWS_MAX), frozenset(needs), frozenset(touched)
    )


def _needs(record: ChangeRecord) -> set[Topic]:
    needs: set[Topic] = set()
    if record.run_id is not None:
        needs.add("runs")
    if record.kind in _NEEDS or record.kind == "run_created":
        needs.add("server")
    if record.kind in _UNKNOWN_MOVES:
        needs.add("unknown")
    if record.event_id is not None or record.kind.startswith("event"):
        needs |= {"events", "server"}
    if record.run_id is None and (record.routing_generation is not None or record.manifest_generation is not None):
        needs |= {"functions", "routing", "releases"}
    if record.release_id is not None and record.run_id is None:
        needs.add("releases")
    if record.kind == "pruned" or record.before_ms is not None:
        needs |= {"runs", "events", "server"}
    return needs


def _created(record: ChangeRecord, at_ms: int) -> RunSummary | None:
    if record.run_id is None:
        return None
    return RunSummary(
        run_id=record.run_id,
        status="running",
        stop=None,
        outcome=None,
        recovery=None,
        recovery_reason=None,
        function=record.function or FunctionId("…"),
        application=record.application or Application("…"),
        event_id=record.event_id,
        trigger_id=record.trigger_id,
        manifest_generation=record.manifest_generation,
        routing_generation=record.routing_generation,
        parent=None,
        deadline=None,
        attention=None,
        attention_run_id=None,
        created_at_ms=at_ms,
        ended_at_ms=None,
        steps_declared=0,
        steps_completed=0,
        unwind_counts=UnwindCounts(),
    )


def _moved(run: RunSummary, record: ChangeRecord, at_ms: int) -> RunSummary:
    """What the record says of the run for certain. Saying it twice changes nothing: a snapshot may know it already."""
    if run.status == "ended":
        return run
    changed: dict[str, Any] = {}
    match record.kind:
        case "attempt_unknown":
            changed = {"attention": "unknown", "attention_run_id": run.run_id}
        case "run_blocked":
            changed = {"status": "definition_blocked", "attention": "blocked", "attention_run_id": run.run_id}
        case "stop_requested" if run.status != "compensating":
            changed = {"status": "stopping"}
        case "compensation_started":
            changed = {"status": "compensating"}
        case "outcome_decided" if record.outcome in OUTCOMES:
            changed = {"outcome": record.outcome}
        case "run_ended":
            changed = {"status": "ended", "ended_at_ms": at_ms, "attention": None, "attention_run_id": None}
            if record.recovery is not None:
                changed["recovery"] = record.recovery
        case _:
            return run
    return msgspec.structs.replace(run, **changed)
