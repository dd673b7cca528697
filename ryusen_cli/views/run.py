"""A run as a person reads it: how it stands, what it waits for, what each step did, what was undone in which order, and why.

Commands to type next are built by `Typed`, which is given: only the command that prints knows which server it talks to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ryusen_cli.output import Cell, Output, Painted, table_lines
from ryusen_protocol import words
from ryusen_protocol.durations import format_ms
from ryusen_protocol.plain import error_lines, error_place, error_text, input_text, instant_text, is_value, value_text

if TYPE_CHECKING:
    from ryusen_protocol.api import AttemptDocument, Blocker, EventRun, RunDetail, RunSummary, StepDocument, UnwindTarget
    from ryusen_protocol.declarations import Location

Lines = list[Sequence[Cell]]
Typed = Callable[..., str]
"""The words of a command line after `ryusen`, to the line as it is typed."""

RUN_HEADERS = ("RUN", "STATUS", "RECOVERY", "FUNCTION", "STEPS", "AGE", "TOOK", "ATTENTION")


def run_row(run: RunSummary, output: Output, *, now_ms: int) -> list[Cell]:
    """One run of a list."""
    return [
        run.run_id,
        status_cell(run, output),
        output.word(words.recovery_word(run.recovery, run.recovery_reason, run.unwind_counts)),
        run.function if run.application == "default" else f"{run.application}/{run.function}",
        f"{run.steps_completed}/{run.steps_declared}",
        format_ms(max(0, now_ms - run.created_at_ms)),
        "" if run.ended_at_ms is None else format_ms(run.ended_at_ms - run.created_at_ms),
        Painted("") if run.attention is None else output.word(words.ATTENTION[run.attention]),
    ]


def status_cell(run: RunSummary, output: Output) -> Painted:
    """Status, or outcome once the run has ended or its outcome is decided."""
    return output.word(words.run_word(run.status, None if run.stop is None else run.stop.reason, run.outcome))


def outcome_cells(run: RunSummary, output: Output) -> list[Cell]:
    """Status or outcome, and recovery beside it once there is one."""
    cells: list[Cell] = [status_cell(run, output)]
    return cells if run.recovery is None else [*cells, "  ", output.word(words.recovery_word(run.recovery, None, run.unwind_counts))]


def ended_run_line(run: EventRun, output: Output) -> list[Cell]:
    """One run of an event somebody waited for."""
    cells: list[Cell] = [run.run_id, "  ", output.word(words.run_word(run.status, None, run.outcome))]
    if run.recovery is not None and run.outcome != "succeeded":
        cells += ["  ", output.word(words.recovery_word(run.recovery, None))]
    if run.failure is not None:
        cells += ["  ", error_text(run.failure)]
    elif is_value(run.result):
        cells += ["  ", value_text(run.result)]
    return cells


def run_lines(run: RunDetail, output: Output, typed: Typed, *, now_ms: int) -> Lines:
    """Everything of a run, from the summary to the last attempt."""
    lines: Lines = [[run.run_id, "  ", f"{run.function} ({run.application})"]]
    lines += _facts(run, output, now_ms=now_ms)
    lines += waiting_lines(run, output, typed, now_ms=now_ms)
    if run.blocker is not None:
        lines += _blocker(run.run_id, run.blocker, typed)
    if run.steps:
        lines.append([])
        lines += _steps(run.steps, output, now_ms=now_ms)
    if run.unwind.targets:
        lines.append([])
        lines.append([Painted("undone, in this order", "muted")])
        lines += _unwind(run.unwind.targets, output, now_ms=now_ms)
    for child in run.children:
        lines.append([f"child  {child.run_id}  {child.function}  ", output.word(words.run_word(child.status, None, child.outcome))])
    if run.failure is not None:
        lines.append([])
        lines += [[line] for line in error_lines(run.failure)]
    elif is_value(run.result):
        lines += [[], ["result   ", value_text(run.result)]]
    return lines


def waiting_lines(run: RunDetail, output: Output, typed: Typed, *, now_ms: int) -> Lines:
    """What the run waits for that a person can do something about or wonders about: a callback that a stop leaves alone, an Unknown
    attempt with the next command to type, a run it invoked."""
    lines: Lines = []
    attempts = [attempt for step in run.steps for attempt in step.attempts]
    undoing = [attempt for target in run.unwind.targets for attempt in target.attempts]
    for attempt in attempts if run.status == "stopping" else []:
        if attempt.state == "authorized":
            lines.append(
                ["waits    ", f"for step {attempt.step_id}, attempt {attempt.attempt}: ", attempt_cell(attempt, output, now_ms=now_ms)]
            )
            lines.append([f"         at {_instance(attempt)}. A stop does not interrupt a callback; what it answers still counts."])
    for attempt in attempts + undoing:
        if attempt.state == "unknown":
            what = "undoing step" if attempt.phase == "compensation" else "step"
            since = "" if attempt.unknown_at_ms is None else f" for {format_ms(max(0, now_ms - attempt.unknown_at_ms))}"
            lines.append([attempt_cell(attempt, output, now_ms=now_ms), f"{since}: {what} {attempt.step_id}, attempt {attempt.attempt}"])
            lines.append(["  next   ", typed("unknown", "show", attempt.attempt_id)])
    if run.attention is not None and run.attention_run_id not in {None, run.run_id}:
        lines.append(["  next   ", typed("runs", "show", str(run.attention_run_id))])
    return lines


def from_now(at_ms: int, *, now_ms: int) -> str:
    """How far away an instant is."""
    return f"in {format_ms(at_ms - now_ms)}" if at_ms > now_ms else f"{format_ms(now_ms - at_ms)} ago"


def _instance(attempt: AttemptDocument) -> str:
    return "its worker" if attempt.worker is None else attempt.worker.instance_id


def _facts(run: RunDetail, output: Output, *, now_ms: int) -> Lines:
    lines: Lines = [["status   ", status_cell(run, output)]]
    if run.outcome is not None and run.status != "ended":
        lines.append(["outcome  ", output.word(words.OUTCOMES[run.outcome])])
    if run.recovery is not None:
        lines.append(["recovery ", output.word(words.recovery_word(run.recovery, run.recovery_reason, run.unwind_counts))])
    if run.stop is not None:
        asked = "cancel asked for" if run.stop.reason == "cancelled" else "deadline recorded as reached"
        lines.append(["stop     ", f"{asked} at {instant_text(run.stop.requested_at_ms)}"])
    if run.attention is not None:
        where = f" (run {run.attention_run_id})" if run.attention_run_id not in {None, run.run_id} else ""
        lines.append(["needs    ", output.word(words.ATTENTION[run.attention]), where])
    if run.no_worker_reason is not None:
        lines.append(["         ", run.no_worker_reason])
    if run.event_id is not None:
        lines.append(["event    ", f"{run.event_id} (trigger {run.trigger_id})"])
    if run.parent is not None:
        lines.append(["parent   ", f"{run.parent.run_id} step {run.parent.step_id}"])
    took = f"took {format_ms(run.ended_at_ms - run.created_at_ms)}" if run.ended_at_ms is not None else "not ended"
    lines.append(["created  ", f"{instant_text(run.created_at_ms)}, {took}"])
    if run.deadline is not None:
        left = "" if run.ended_at_ms is not None else f", {from_now(run.deadline.at_ms, now_ms=now_ms)}"
        lines.append(["deadline ", f"{instant_text(run.deadline.at_ms)} from the {run.deadline.source}{left}"])
    lines.append(["input    ", input_text(run.input)])
    return lines


def _blocker(run_id: str, blocker: Blocker, typed: Typed) -> Lines:
    lines: Lines = [[], [Painted("blocked  ", "warn"), f"step {blocker.step_id} ({blocker.reason})"], ["  why    ", blocker.message]]
    for name, place in (("first", blocker.first), ("again", blocker.duplicate)):
        if place is not None:
            lines.append([f"  {name}  ", _place(place)])
    times = "once" if blocker.count == 1 else f"{blocker.count} times, last at {instant_text(blocker.last_seen_at_ms)}"
    release = "" if blocker.release_id is None else f", by release {blocker.release_id}"
    lines.append(["  seen   ", f"first at {instant_text(blocker.first_seen_at_ms)}, {times}{release}"])
    lines.append(["  fix    Change the code and save it, or start a worker with the changed code; the run then goes on by itself."])
    lines.append(["  next   to have the code asked again at once: ", typed("runs", "rediscover", run_id)])
    return lines


def _steps(steps: Sequence[StepDocument], output: Output, *, now_ms: int) -> Lines:
    rows: list[list[Cell]] = []
    for step in steps:
        shown: list[Cell] = [step.step_id, output.word(words.STEPS[step.state]), _took(step.declared_at_ms, step.completed_at_ms)]
        rows.append([*shown, _step_note(step, now_ms=now_ms)])
        if _tells_more(step.attempts):
            rows += [[f"  attempt {attempt.attempt}", *_attempt_cells(attempt, output, now_ms=now_ms)] for attempt in step.attempts]
    return list(table_lines(("STEP", "STATE", "TOOK", ""), rows))


def _step_note(step: StepDocument, *, now_ms: int) -> Cell:
    if step.failure is not None:
        place = error_place(step.failure)
        return error_text(step.failure) + ("" if place is None else f"  at {place}")
    if step.state == "pending":
        return _waits_for(step, now_ms=now_ms)
    return value_text(step.result) if is_value(step.result) else ""


def _waits_for(step: StepDocument, *, now_ms: int) -> Cell:
    if step.child_run_id is not None:
        return f"until {step.child_run_id} has ended"
    if step.due_at_ms is None:
        return ""
    until = f"until {instant_text(step.due_at_ms)}, {from_now(step.due_at_ms, now_ms=now_ms)}"
    return until if step.event_name is None else f"for an event {step.event_name}, {until}"


def _unwind(targets: Sequence[UnwindTarget], output: Output, *, now_ms: int) -> Lines:
    rows: list[list[Cell]] = []
    for place, target in enumerate(targets, 1):
        why: Cell = "" if target.error is None else error_text(target.error)
        if target.state == "skipped":
            why = words.skip_reason(target.reason, target.hidden_by)
        last = target.attempts[-1] if target.attempts else None
        took = "" if last is None else _took(last.authorized_at_ms, last.settled_at_ms)
        rows.append([f"{place}", target.step_id, output.word(words.TARGETS[target.state]), took, why])
        if _tells_more(target.attempts):
            rows += [["", f"  attempt {one.attempt}", *_attempt_cells(one, output, now_ms=now_ms)] for one in target.attempts]
    return list(table_lines(("", "STEP", "STATE", "TOOK", ""), rows))


def _tells_more(attempts: Sequence[AttemptDocument]) -> bool:
    """One attempt that went as its step did needs no line of its own."""
    as_its_step = {"succeeded", "failed", "skipped", "fenced"}
    return len(attempts) > 1 or any(one.state not in as_its_step or one.settled_by == "operator" for one in attempts)


def _attempt_cells(attempt: AttemptDocument, output: Output, *, now_ms: int) -> list[Cell]:
    note = "" if attempt.error is None else error_text(attempt.error)
    if attempt.state == "unknown":
        note = f"{attempt.attempt_id}, generation {attempt.attempt_generation}"
    elif not note and attempt.worker is not None and attempt.settled_at_ms is None:
        note = f"at {attempt.worker.instance_id}"
    elif attempt.state == "queued" and attempt.due_at_ms is not None and attempt.due_at_ms > now_ms:
        note = f"goes {from_now(attempt.due_at_ms, now_ms=now_ms)}"
    return [attempt_cell(attempt, output, now_ms=now_ms), _took(attempt.authorized_at_ms, attempt.settled_at_ms), note]


def attempt_cell(attempt: AttemptDocument, output: Output, *, now_ms: int) -> Painted:
    """The state of an attempt in words."""
    left_ms = None if attempt.unknown_at_ms is None else attempt.unknown_at_ms - now_ms
    word = words.attempt_word(attempt.state, out_of_contact=attempt.out_of_contact, unknown_in_ms=left_ms, settled_by=attempt.settled_by)
    return output.word(word)


def _took(began_ms: int | None, ended_ms: int | None) -> str:
    return "" if began_ms is None or ended_ms is None else format_ms(max(0, ended_ms - began_ms))


def _place(location: Location) -> str:
    return f"{location.file}:{location.line}" + (f" ({location.name})" if location.name else "")
