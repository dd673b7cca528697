"""The words of a definition blocker: what, where, why, and the fix."""

from __future__ import annotations

from typing import assert_never

from ryusen_protocol.declarations import Location
from ryusen_protocol.ids import StepId
from ryusen_protocol.limits import REPLAY_BUDGET_BYTES_MAX
from ryusen_protocol.outcome import BlockReason


def _place(location: Location | None) -> str:
    if location is None:
        return "somewhere the worker could not name"
    called = f" ({location.name})" if location.name else ""
    return f"{location.file}:{location.line}{called}"


def blocker_message(reason: BlockReason, step_id: StepId, first: Location | None, duplicate: Location | None, detail: str = "") -> str:
    """The message of a blocker. `detail` adds what only the decision knows."""
    match reason:
        case "duplicate_step_id":
            return (
                f"The step id {step_id!r} is used twice in one pass: first at {_place(first)}, again at {_place(duplicate)}. "
                "One id names one operation for the life of a run, so the second call was not executed and nothing was undone. "
                'Give each call its own id; in a loop, build it from the item: step.run(f"charge-{item.id}", …). '
                "Save the file: the run goes on by itself."
            )
        case "declaration_conflict":
            return (
                f"The step {step_id!r} at {_place(first or duplicate)} contradicts what this run has recorded under that id. {detail} "
                "Give the new operation an id of its own. Save the file: the run goes on by itself."
            )
        case "unknown_function":
            return f"The step {step_id!r} at {_place(first or duplicate)} invokes a function that the application does not have. {detail}"
        case "replay_budget":
            return (
                f"The step {step_id!r} at {_place(first or duplicate)} cannot be declared: the run remembers almost "
                f"{REPLAY_BUDGET_BYTES_MAX:,} bytes of results, and its outcome might not fit. "
                "Return less from steps (keep large data elsewhere and return a reference), or cancel this run."
            )
        case "invalid_declaration":
            return f"The step {step_id!r} at {_place(first or duplicate)} is declared with something that cannot be: {detail}"
        case _:
            assert_never(reason)
