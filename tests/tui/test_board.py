"""The reducer: what a change says for certain is shown at once, and what it cannot say is asked for."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.api import RunSummary
from ryusen_protocol.changes import Change, ChangeRecord
from ryusen_protocol.ids import RunId
from ryusen_tui.board import ROWS_MAX, Board, reduce


def run(run_id: str, **more: object) -> RunSummary:
    base = reduce(Board(runs=()), [change(1, "run_created", run_id=run_id)]).board.runs
    assert base
    return msgspec.structs.replace(base[0], **more)


def change(position: int, kind: str, **members: object) -> Change:
    return Change(position=position, at_ms=1_000 + position, records=[ChangeRecord(kind=kind, **members)])  # type: ignore[arg-type]


def only(board: Board) -> RunSummary:
    assert board.runs is not None
    (found,) = board.runs
    return found


@pytest.mark.parametrize(
    ("kind", "members", "shown"),
    [
        ("attempt_unknown", {}, {"attention": "unknown", "attention_run_id": "rn_1"}),
        ("run_blocked", {}, {"status": "definition_blocked", "attention": "blocked"}),
        ("stop_requested", {"reason": "cancelled"}, {"status": "stopping"}),
        ("compensation_started", {}, {"status": "compensating"}),
        ("outcome_decided", {"outcome": "failed"}, {"outcome": "failed", "status": "running"}),
        ("run_ended", {"recovery": "fully_compensated"}, {"status": "ended", "recovery": "fully_compensated", "ended_at_ms": 1_007}),
        ("something_of_a_newer_server", {}, {"status": "running"}),
    ],
)
def test_a_change_is_shown_at_once_and_saying_it_twice_changes_nothing(
    kind: str, members: dict[str, object], shown: dict[str, object]
) -> None:
    told = change(7, kind, run_id="rn_1", **members)
    once = reduce(Board(runs=(run("rn_1"),)), [told])
    assert {name: getattr(only(once.board), name) for name in shown} == shown
    assert reduce(once.board, [told]).board == once.board
    assert once.touched == {RunId("rn_1")}
    assert "runs" in once.needs


def test_a_run_that_has_ended_is_moved_by_nothing_that_came_before() -> None:
    ended = run("rn_1", status="ended", outcome="succeeded", recovery="not_required")
    assert only(reduce(Board(runs=(ended,)), [change(3, "attempt_unknown", run_id="rn_1")]).board) == ended


def test_new_runs_come_first_and_the_list_stays_bounded() -> None:
    old = tuple(run(f"rn_{number}") for number in range(ROWS_MAX))
    board = reduce(Board(runs=old), [change(1, "run_created", run_id="rn_a"), change(2, "run_created", run_id="rn_b")]).board
    assert board.runs is not None
    assert [one.run_id for one in board.runs[:3]] == ["rn_b", "rn_a", "rn_0"]
    assert len(board.runs) == ROWS_MAX
    assert board.runs_more


def test_a_run_of_the_snapshot_is_not_created_again() -> None:
    assert only(reduce(Board(runs=(run("rn_1"),)), [change(5, "run_created", run_id="rn_1")]).board).run_id == "rn_1"
    held = Board(runs=(), runs_position=9)
    assert reduce(held, [change(9, "run_created", run_id="rn_removed")]).board.runs == ()


def test_under_a_filter_no_run_appears_before_the_server_says_so() -> None:
    reduced = reduce(Board(runs=()), [change(1, "run_created", run_id="rn_1")], filtered=True)
    assert reduced.board.runs == ()
    assert "runs" in reduced.needs


@pytest.mark.parametrize(
    ("kind", "members", "needs"),
    [
        ("event_accepted", {"event_id": "ev_1"}, {"events"}),
        ("attempt_settled", {"run_id": "rn_1"}, {"unknown", "server"}),
        ("manifest_activated", {"manifest_generation": "mg_1"}, {"functions", "routing"}),
        ("release_registered", {"release_id": "r1"}, {"releases"}),
        ("pruned", {"before_ms": 5}, {"runs", "events"}),
    ],
)
def test_what_a_change_cannot_tell_is_asked_for(kind: str, members: dict[str, object], needs: set[str]) -> None:
    assert needs <= reduce(Board(), [change(1, kind, **members)]).needs
