"""A run on one time axis: steps with their attempts and waits, then what is undone. Pure: documents in, rows of characters out.

Owns the axis: where an instant stands, how far one sees, which idle stretches are folded. The characters of a bar say what went on, so that
a screen without colour tells the same.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, assert_never

import msgspec

from ryusen_protocol import words
from ryusen_protocol.durations import format_ms
from ryusen_tui.spans import Glyphs, Line, Span, foreign, own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ryusen_protocol.api import AttemptDocument, RunDetail, StepDocument, UnwindTarget
    from ryusen_protocol.words import Tone

Doing = Literal["executing", "queued", "unknown", "waiting"]

_BARS: Final[dict[Doing, tuple[str, str]]] = {"executing": ("█", "#"), "queued": ("·", "."), "unknown": ("?", "?"), "waiting": ("─", "-")}
_TONES: Final[dict[Doing, Tone]] = {"executing": "accent", "queued": "muted", "unknown": "alert", "waiting": "muted"}
_FOLDED: Final = ("┆", ":")
_IDLE_MIN_MS: Final = 500
_IDLE_SHARE: Final = 0.08
_FOLD_SHARE: Final = 0.03
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS_MS: Final = (
    *(base * 10**power for power in range(3) for base in (1, 2, 5)),
    *(base * unit for unit in (_SECOND_MS, _MINUTE_MS) for base in (1, 2, 5, 10, 20, 30)),
    *(base * _HOUR_MS for base in (1, 2, 6, 12)),
    *(base * 10**power * _DAY_MS for power in range(5) for base in (1, 2, 5)),
)
"""Ticks are where a person would put them on a clock."""


class Stretch(msgspec.Struct, frozen=True):
    """Something that went on from one instant to another, in epoch milliseconds."""

    doing: Doing
    from_ms: int
    to_ms: int
    tone: Tone


class Lane(msgspec.Struct, frozen=True):
    """One row: a step, or the undoing of one. `run_id` is the run that it invoked."""

    key: str
    label: Line
    stretches: tuple[Stretch, ...]
    note: Line
    run_id: str | None = None
    attempt_ids: tuple[str, ...] = ()


class Axis(msgspec.Struct, frozen=True):
    """Instants and where they stand, piece by piece linear. `folds` are the columns of idle stretches that are cut short."""

    instants_ms: tuple[int, ...]
    places: tuple[float, ...]
    columns: int
    folds: tuple[int, ...] = ()

    def place(self, at_ms: int) -> float:
        """The column, with its fraction."""
        index = min(max(1, bisect_right(self.instants_ms, at_ms)), len(self.instants_ms) - 1)
        from_ms, to_ms = self.instants_ms[index - 1], self.instants_ms[index]
        share = 0.0 if to_ms == from_ms else (at_ms - from_ms) / (to_ms - from_ms)
        left, right = self.places[index - 1], self.places[index]
        return min(max(0.0, left + share * (right - left)), float(self.columns))


def lanes(run: RunDetail, glyphs: Glyphs, *, now_ms: int) -> list[Lane]:
    """Steps in the order they were declared in, then what is undone in the order it is undone in."""
    end_ms = run.ended_at_ms or now_ms
    found = [_step(step, glyphs, now_ms=end_ms) for step in run.steps]
    found += [_target(target, run, glyphs, now_ms=end_ms) for target in run.unwind.targets]
    return found


def axis(run: RunDetail, rows: Sequence[Lane], columns: int, *, now_ms: int, fold: bool) -> Axis:
    """The axis from the run's creation to its end, or to now."""
    start = run.created_at_ms
    end = max([run.ended_at_ms or now_ms, start + 1, *(stretch.to_ms for row in rows for stretch in row.stretches)])
    idle = _idle(start, end, rows) if fold else []
    if not idle:
        return Axis((start, end), (0.0, float(columns)), columns)
    fold_columns = max(3.0, columns * _FOLD_SHARE)
    busy_ms = (end - start) - sum(to - at for at, to in idle)
    per_ms = max(0.0, columns - fold_columns * len(idle)) / max(1, busy_ms)
    instants, places, folds = [start], [0.0], list[int]()
    for at, to in idle:
        places.append(places[-1] + (at - instants[-1]) * per_ms)
        instants.append(at)
        folds.append(int(places[-1] + fold_columns / 2))
        places.append(places[-1] + fold_columns)
        instants.append(to)
    instants.append(end)
    places.append(float(columns))
    return Axis(tuple(instants), tuple(places), columns, tuple(folds))


def ruler(scale: Axis, *, unicode: bool) -> str:
    """Ticks with the time since the run began; nothing where idle time is folded but its mark."""
    row = [" "] * scale.columns
    start, end = scale.instants_ms[0], scale.instants_ms[-1]
    wanted = (end - start) / max(1, scale.columns / 12)
    step = next((size for size in _STEPS_MS if size >= wanted), _STEPS_MS[-1])
    free = 0
    for at in range(0, end - start + 1, step):
        text = "0" if at == 0 else format_ms(at)
        left = int(scale.place(start + at))
        if left >= free and left + len(text) <= scale.columns:
            row[left : left + len(text)] = text
            free = left + len(text) + 1
    for fold in scale.folds:
        if fold < scale.columns:
            row[fold] = _FOLDED[0 if unicode else 1]
    return "".join(row)


def bar(lane: Lane, scale: Axis, *, unicode: bool) -> list[Span]:
    """The lane's characters, one a column; the shortest thing that went on has one."""
    pick = 0 if unicode else 1
    row: list[tuple[str, Tone | None]] = [(" ", None)] * scale.columns
    for doing in ("queued", "waiting", "executing", "unknown"):
        for stretch in lane.stretches:
            if stretch.doing != doing:
                continue
            left = min(int(scale.place(stretch.from_ms)), scale.columns - 1)
            right = max(left + 1, round(scale.place(stretch.to_ms)))
            for column in range(left, min(right, scale.columns)):
                row[column] = (_BARS[stretch.doing][pick], stretch.tone)
    for fold in scale.folds:
        if fold < scale.columns and row[fold][0] != " ":
            row[fold] = (_FOLDED[pick], "muted")
    return _joined(row)


def _joined(row: Sequence[tuple[str, Tone | None]]) -> list[Span]:
    spans: list[Span] = []
    text, tone = "", None
    for character, its_tone in row:
        if its_tone != tone and text:
            spans.append(Span(text, tone))
            text = ""
        text += character
        tone = its_tone
    if text:
        spans.append(Span(text, tone))
    return spans


def _idle(start: int, end: int, rows: Sequence[Lane]) -> list[tuple[int, int]]:
    """Long stretches in which no callback ran."""
    busy = sorted((s.from_ms, s.to_ms) for row in rows for s in row.stretches if s.doing == "executing")
    edges = [(start, start), *busy, (end, end)]
    worked_ms = sum(to_ms - from_ms for from_ms, to_ms in busy)
    least = max(_IDLE_MIN_MS, int((end - start) * _IDLE_SHARE))
    found: list[tuple[int, int]] = []
    reached = start
    for (_, to_ms), (from_ms, _) in pairwise(edges):
        reached = max(reached, to_ms)
        if from_ms - reached >= least:
            margin = min((from_ms - reached) // 20, worked_ms // 8)
            found.append((reached + margin, from_ms - margin))
    return found


def _attempt_stretches(attempts: Sequence[AttemptDocument], since_ms: int, now_ms: int) -> list[Stretch]:
    found: list[Stretch] = []
    reached = since_ms
    for attempt in attempts:
        began = attempt.authorized_at_ms
        if began is None:
            ended = attempt.settled_at_ms or now_ms
            found.append(Stretch("queued", reached, max(reached, ended), _TONES["queued"]))
            reached = max(reached, ended)
            continue
        if began > reached:
            found.append(Stretch("queued", reached, began, _TONES["queued"]))
        settled = attempt.settled_at_ms or now_ms
        lost = attempt.unknown_at_ms if attempt.state == "unknown" or (attempt.unknown_at_ms or settled) < settled else None
        bar_end = settled if lost is None else min(lost, settled)
        found.append(Stretch("executing", began, max(began, bar_end), _attempt_tone(attempt)))
        if lost is not None and settled > lost:
            found.append(Stretch("unknown", lost, settled, "alert"))
        reached = max(reached, settled)
    return found


def _attempt_tone(attempt: AttemptDocument) -> Tone:
    if attempt.state in {"succeeded", "failed"}:
        return words.ATTEMPTS[attempt.state].tone
    return "accent"


def _step(step: StepDocument, glyphs: Glyphs, *, now_ms: int) -> Lane:
    if step.kind == "run" or step.attempts:
        stretches = _attempt_stretches(step.attempts, step.declared_at_ms, step.completed_at_ms or now_ms)
    else:
        stretches = [Stretch("waiting", step.declared_at_ms, step.completed_at_ms or now_ms, "muted")]
    return Lane(
        f"step\n{step.step_id}",
        (foreign(step.step_id),),
        tuple(stretches),
        _step_note(step, glyphs, now_ms),
        step.child_run_id,
        tuple(attempt.attempt_id for attempt in step.attempts),
    )


def _step_note(step: StepDocument, glyphs: Glyphs, now_ms: int) -> Line:
    last = step.attempts[-1] if step.attempts else None
    said: list[Span]
    if step.state == "pending" and last is not None:
        word = words.attempt_word(
            last.state,
            out_of_contact=last.out_of_contact,
            unknown_in_ms=None if last.unknown_at_ms is None else last.unknown_at_ms - now_ms,
            settled_by=last.settled_by,
        )
        said = [*glyphs.word(word)]
    elif step.state == "pending":
        said = [own(glyphs.glyph("●"), "accent"), own(f" {_pending(step)}")]
    else:
        word = words.STEPS[step.state]
        said = [own(glyphs.glyph(word.glyph), word.tone)]
        took = None if step.completed_at_ms is None else format_ms(max(0, step.completed_at_ms - step.declared_at_ms))
        said.append(own(f"  {took or word.text}" if step.state in {"succeeded", "failed"} else f"  {word.text}"))
    if len(step.attempts) > 1:
        said.append(own(f"  {len(step.attempts)} attempts", "muted"))
    if last is not None and last.settled_by == "operator":
        said += [own("  "), *glyphs.word(words.attempt_word(last.state, settled_by="operator"))]
    if step.failure is not None:
        said += [own("  "), foreign(step.failure.message, "bad")]
    elif step.state == "pending" and last is not None and last.error is not None:
        said += [own("  "), foreign(last.error.message, "bad")]
    return tuple(said)


def _pending(step: StepDocument) -> str:
    match step.kind:
        case "run":
            return "Pending"
        case "timer":
            return "Sleeping"
        case "event_wait":
            return "Waiting for an event"
        case "child":
            return "Waiting for its run"
        case "emission":
            return "Emitting"
        case _:
            assert_never(step.kind)


def _target(target: UnwindTarget, run: RunDetail, glyphs: Glyphs, *, now_ms: int) -> Lane:
    word = words.TARGETS[target.state]
    said: list[Span] = []
    last = target.attempts[-1] if target.attempts else None
    since = last.authorized_at_ms if last is not None and last.authorized_at_ms is not None else now_ms
    if target.state == "pending" and last is not None:
        said += glyphs.word(words.attempt_word(last.state, out_of_contact=last.out_of_contact, settled_by=last.settled_by))
    else:
        said += [own(glyphs.glyph(word.glyph), word.tone), own(f"  {word.text.lower()}")]
    if target.state == "skipped":
        said.append(own(f": {words.skip_reason(target.reason, target.hidden_by)}", "muted"))
    if len(target.attempts) > 1:
        said.append(own(f"  {len(target.attempts)} attempts", "muted"))
    if target.error is not None:
        said += [own("  "), foreign(target.error.message, "bad")]
    del run
    first = target.attempts[0].authorized_at_ms if target.attempts else None
    return Lane(
        f"undo\n{target.step_id}",
        (own(f"{glyphs.glyph('↺')} ", "accent"), foreign(target.step_id)),
        tuple(_attempt_stretches(target.attempts, first or since, now_ms)),
        tuple(said),
        None,
        tuple(attempt.attempt_id for attempt in target.attempts),
    )
