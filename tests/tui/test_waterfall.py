"""The waterfall: where things stand on the axis, what a bar says without colour, and what folding leaves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ryusen_protocol.api import RunDetail
from ryusen_tui import waterfall
from ryusen_tui.spans import Glyphs, plain

BASE: dict[str, Any] = {
    "run_id": "rn_1", "status": "ended", "stop": None, "outcome": "failed", "recovery": "fully_compensated", "recovery_reason": None,
    "function": "f", "application": "a", "event_id": None, "trigger_id": None, "manifest_generation": None, "routing_generation": None,
    "parent": None, "deadline": None, "attention": None, "attention_run_id": None, "created_at_ms": 0, "ended_at_ms": 1_000,
    "steps_declared": 2, "steps_completed": 2, "unwind_counts": {}, "input": {}, "steps": [], "unwind": {"targets": []}, "blocker": None,
    "children": [], "position": 1,
}  # fmt: skip


def attempt(step: str, began: int | None, settled: int | None, state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {
        "attempt_id": f"at_{step}_{more.get('attempt', 1)}", "run_id": "rn_1", "step_id": step,
        "phase": "forward", "attempt": 1, "attempt_generation": 1,
        "operation_id": "op", "request_id": None, "state": state, "worker": None, "out_of_contact": False, "due_at_ms": None,
        "authorized_at_ms": began, "unknown_at_ms": None, "settled_at_ms": settled, "settled_by": None, "error": None,
        "allowed_commands": [], "forbidden_commands": [], **more,
    }  # fmt: skip


def step(name: str, declared: int, completed: int | None, *attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "step_id": name, "kind": "run", "name": None, "location": None, "state": "succeeded", "has_compensation": True,
        "declared_at_ms": declared, "completed_at_ms": completed, "attempts": list(attempts), **more,
    }  # fmt: skip


def run(*steps: dict[str, Any], **more: Any) -> RunDetail:
    return msgspec.json.decode(msgspec.json.encode({**BASE, "steps": list(steps), **more}), type=RunDetail)


def drawn(detail: RunDetail, columns: int = 20, *, fold: bool = False, now_ms: int = 1_000, unicode: bool = False) -> list[str]:
    lanes = waterfall.lanes(detail, Glyphs(unicode), now_ms=now_ms)
    scale = waterfall.axis(detail, lanes, columns, now_ms=now_ms, fold=fold)
    return ["".join(span.text for span in waterfall.bar(lane, scale, unicode=unicode)) for lane in lanes]


def test_steps_attempts_and_waits_stand_on_one_axis() -> None:
    charge = step("charge", 0, 250, attempt("charge", 0, 250))
    ship = step("ship", 250, 1_000, attempt("ship", 300, 400, "failed"), attempt("ship", 800, 1_000, attempt=2))
    assert drawn(run(charge, ship)) == ["#####               ", "     .##........####"]


def test_the_shortest_thing_is_seen_and_nothing_leaves_the_axis() -> None:
    (bar,) = drawn(run(step("blink", 1_000, 1_000, attempt("blink", 1_000, 1_000))))
    assert bar == " " * 19 + "#"
    assert drawn(run(step("blink", 0, 1, attempt("blink", 0, 1))), columns=3) == ["#  "]


def test_unknown_time_is_told_apart_without_colour() -> None:
    held = step("held", 0, None, attempt("held", 0, None, "unknown", unknown_at_ms=500), state="pending")
    assert drawn(run(held, status="running", outcome=None, recovery=None, ended_at_ms=None)) == ["##########??????????"]


def test_a_wait_is_no_execution() -> None:
    assert drawn(run(step("nap", 0, 1_000, kind="timer"))) == ["-" * 20]


def test_the_unwind_follows_in_its_order() -> None:
    undo = {"step_id": "charge", "state": "succeeded", "reason": None, "hidden_by": None, "error": None}
    detail = run(
        step("charge", 0, 100, attempt("charge", 0, 100)),
        unwind={"targets": [{**undo, "attempts": [attempt("charge", 500, 1_000, phase="compensation")]}]},
    )
    assert drawn(detail) == ["##                  ", "          ##########"]
    lanes = waterfall.lanes(detail, Glyphs(), now_ms=1_000)
    assert [plain(lane.label) for lane in lanes] == ["charge", "↺ charge"]
    assert "undone" in plain(lanes[1].note)


def test_folding_cuts_idle_time_short_and_marks_it() -> None:
    far = run(step("a", 0, 100, attempt("a", 0, 100)), step("b", 100, 60_000, attempt("b", 59_900, 60_000)), ended_at_ms=60_000)
    assert drawn(far)[0].count("#") == 1
    folded = drawn(far, fold=True)
    assert folded[0].count("#") >= 2
    assert ":" in folded[1]


@pytest.mark.parametrize("columns", [8, 20, 100, 640])
@pytest.mark.parametrize("fold", [False, True])
def test_places_never_go_back(columns: int, fold: bool) -> None:
    far = run(step("a", 0, 100, attempt("a", 0, 100)), step("b", 100, 60_000, attempt("b", 59_900, 60_000)), ended_at_ms=60_000)
    scale = waterfall.axis(far, waterfall.lanes(far, Glyphs(), now_ms=60_000), columns, now_ms=60_000, fold=fold)
    places = [scale.place(at) for at in range(0, 60_001, 50)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= columns
    assert len(waterfall.ruler(scale, unicode=True)) == columns
