"""An attempt as an operator reads it: what it was, who had it, what may be done about it and what each of that risks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from ryusen_cli.output import Cell, Output, Painted
from ryusen_cli.views.run import Lines, Typed, attempt_cell, from_now, outcome_cells
from ryusen_protocol.durations import format_ms
from ryusen_protocol.operator import AuthorizeRetry, Command, DeclareFailure, SupplySuccess
from ryusen_protocol.plain import error_lines, error_text, input_text, instant_text, value_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ryusen_protocol.api import AttemptDocument, OperatorCommand, RunDetail, WorkerDocument

FLAGS: Final[Mapping[OperatorCommand, str]] = {
    "supply_success": "--result",
    "declare_failure": "--fail",
    "authorize_retry": "--retry",
}
"""How each operator command is spelled on the command line."""

UNKNOWN_HEADERS: Final = ("ATTEMPT", "RUN", "STEP", "PHASE", "TRY", "GENERATION", "AGE", "ALLOWED")


def unknown_row(attempt: AttemptDocument, *, now_ms: int) -> list[Cell]:
    """One Unknown attempt of the list."""
    return [
        attempt.attempt_id,
        attempt.run_id,
        attempt.step_id,
        attempt.phase,
        f"{attempt.attempt}",
        f"{attempt.attempt_generation}",
        "" if attempt.unknown_at_ms is None else format_ms(max(0, now_ms - attempt.unknown_at_ms)),
        ", ".join(FLAGS[command] for command in attempt.allowed_commands) or "nothing",
    ]


def attempt_lines(attempt: AttemptDocument, output: Output, *, now_ms: int) -> Lines:
    """Everything of one attempt by itself, but for what may be done with it."""
    lines: Lines = [[attempt.attempt_id, "  ", attempt_cell(attempt, output, now_ms=now_ms)]]
    lines.append(["run        ", attempt.run_id])
    lines.append(["step       ", what_it_is(attempt)])
    lines.append(["operation  ", attempt.operation_id])
    if attempt.worker is not None:
        worker = attempt.worker
        lines.append(["worker     ", f"{worker.instance_id}, transport {worker.transport}, release {worker.release_id or 'none'}"])
    for name, at_ms in (("due", attempt.due_at_ms), ("authorized", attempt.authorized_at_ms), ("unknown", attempt.unknown_at_ms)):
        if at_ms is not None:
            why = f": {attempt.unknown_reason}" if name == "unknown" and attempt.unknown_reason is not None else ""
            lines.append([f"{name:<11}", f"{instant_text(at_ms)}{why}"])
    if attempt.settled_at_ms is not None:
        lines.append(["settled    ", f"{instant_text(attempt.settled_at_ms)} by the {attempt.settled_by}"])
    if attempt.error is not None:
        lines += [[line] for line in error_lines(attempt.error)]
    return lines


def allowance_lines(attempt: AttemptDocument) -> Lines:
    """What an operator may do with the attempt now, and why not the rest."""
    lines: Lines = []
    if attempt.allowed_commands:
        lines.append(["allowed    ", ", ".join(f"{FLAGS[command]} ({command})" for command in attempt.allowed_commands)])
    for forbidden in attempt.forbidden_commands:
        said = f"{FLAGS[forbidden.command]} ({forbidden.command}): {forbidden.reason} [{forbidden.code}]"
        lines.append([Painted("forbidden  ", "warn"), said])
    return lines


def surrounding_lines(attempt: AttemptDocument, run: RunDetail, worker: WorkerDocument | None, output: Output, *, now_ms: int) -> Lines:
    """What an operator has to know beside the attempt: the run, its input, the worker's last contact, what was tried before."""
    lines: Lines = [["function   ", f"{run.function} ({run.application})"], ["run is     ", *outcome_cells(run, output)]]
    if run.stop is not None:
        asked = "cancelled" if run.stop.reason == "cancelled" else "timed out"
        lines.append(["stop       ", f"{asked} at {instant_text(run.stop.requested_at_ms)}"])
    if run.deadline is not None:
        lines.append(["deadline   ", f"{instant_text(run.deadline.at_ms)}, {from_now(run.deadline.at_ms, now_ms=now_ms)}"])
    if worker is not None:
        standing = "connected now, without the answer" if worker.connected else "away"
        lines.append(["contact    ", f"{standing}; last at {instant_text(worker.last_contact_at_ms)}"])
    lines.append(["input      ", input_text(run.input)])
    for other in _siblings(attempt, run):
        note = "" if other.error is None else f"  {error_text(other.error)}"
        title = f"attempt {other.attempt}, generation {other.attempt_generation}  "
        lines.append(["before     ", title, attempt_cell(other, output, now_ms=now_ms), note])
    return lines


def next_lines(attempt: AttemptDocument, typed: Typed) -> Lines:
    """The exact commands that are allowed now, each with what it says."""
    if not attempt.allowed_commands:
        return []
    undo = attempt.phase == "compensation"
    said: dict[OperatorCommand, tuple[str, tuple[str, ...]]] = {
        "supply_success": ("it was undone" if undo else "it happened", ("--result", "null" if undo else "RESULT AS JSON")),
        "declare_failure": ("it failed", ("--fail", "CATEGORY:MESSAGE")),
        "authorize_retry": ("run it again", ("--retry",)),
    }
    lines: Lines = [[], ["Find out what happened: ask the outside system for the operation id above. Then type one of"]]
    for command in attempt.allowed_commands:
        title, words = said[command]
        generation = f"{attempt.attempt_generation}"
        lines.append([f"  {title:<14} ", typed("unknown", "resolve", attempt.attempt_id, "--generation", generation, *words)])
    return lines


def what_it_is(attempt: AttemptDocument) -> str:
    """Step, phase, ordinal and generation."""
    return f"{attempt.step_id} ({attempt.phase}), attempt {attempt.attempt}, generation {attempt.attempt_generation}"


def risk_lines(command: Command, *, compensation: bool) -> list[str]:
    """What the command does for good, and what is wrong if the operator is."""
    match command:
        case SupplySuccess(result):
            done = "The step counts as undone" if compensation else "The step counts as done"
            return [f"{done}, for good, with the result {value_text(result)}", "If it did not happen, nothing will make it happen."]
        case DeclareFailure(failure):
            again = "the retry policy of the step may run it again, and then THE EFFECT MAY HAPPEN TWICE"
            end = "its effect stays as it is" if compensation else "nothing undoes it, since a failed step has no part in the unwind"
            return [f"The attempt counts as failed with {error_text(failure)}", f"If it did happen: {again if failure.retryable else end}."]
        case AuthorizeRetry():
            return ["The callback runs once more.", "If it did happen already, THE EFFECT MAY HAPPEN TWICE."]
        case _:
            assert_never(command)


def _siblings(attempt: AttemptDocument, run: RunDetail) -> list[AttemptDocument]:
    every = [one for step in run.steps for one in step.attempts] + [one for target in run.unwind.targets for one in target.attempts]
    same = [one for one in every if one.operation_id == attempt.operation_id and one.phase == attempt.phase]
    return [one for one in same if (one.attempt, one.attempt_generation) < (attempt.attempt, attempt.attempt_generation)]
