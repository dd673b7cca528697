"""Lists as rows of cells, and how wide each column is on a screen of some width. Pure.

Owns which facts a list shows and which it leaves out where there is no room. A row is known by its key, never by its place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from ryusen_protocol import words
from ryusen_protocol.durations import format_ms
from ryusen_protocol.plain import clock_text
from ryusen_tui.spans import Glyphs, Line, Span, fitted, foreign, own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ryusen_protocol.api import (
        AttemptDocument,
        EventMatch,
        EventSummary,
        FunctionDocument,
        OperatorCommand,
        RunSummary,
        WorkerDocument,
    )

NEVER_MS: Final = 2**63
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))
GAP: Final = 2
MARKER: Final = 2
"""Columns before the first one, where the row that is acted on is marked."""

COMMANDS: Final[Mapping[OperatorCommand, str]] = {
    "supply_success": "supply result",
    "declare_failure": "declare failure",
    "authorize_retry": "authorize retry",
}


class Column(msgspec.Struct, frozen=True):
    """One column. `grow` ones share what is left; the one with the highest `drop` goes first where there is no room, 0 never."""

    title: str
    columns: int
    grow: bool = False
    drop: int = 0


class Row(msgspec.Struct, frozen=True):
    """One row: what it is, by its id, and a cell for each column."""

    key: str
    cells: tuple[Line, ...]


RUNS: Final = (
    Column("STATUS", 14),
    Column("RECOVERY", 23, drop=2),
    Column("FUNCTION", 16, grow=True),
    Column("RUN", 12, grow=True, drop=5),
    Column("AGE", 7),
    Column("TOOK", 7, drop=4),
    Column("STEPS", 6, drop=3),
)
UNKNOWN: Final = (
    Column("AGE", 7),
    Column("STEP", 16, grow=True),
    Column("PHASE", 12, drop=2),
    Column("TRY", 4),
    Column("GEN", 4, drop=4),
    Column("RUN", 12, drop=3),
    Column("ALLOWED", 30, drop=1),
)
EVENTS: Final = (
    Column("EVENT", 18, grow=True),
    Column("AGE", 7),
    Column("RUNS", 5),
    Column("FAN-OUT", 11),
    Column("ROUTING", 12, drop=2),
    Column("ID", 12, drop=1),
)
WORKERS: Final = (
    Column("WORKER", 18, grow=True),
    Column("APPLICATION", 14, drop=3),
    Column("RELEASE", 18, drop=1),
    Column("TRANSPORT", 10, drop=4),
    Column("STATE", 13),
    Column("BUSY", 8),
    Column("CONTACT", 8, drop=2),
)
FUNCTIONS: Final = (
    Column("FUNCTION", 18, grow=True),
    Column("APPLICATION", 14, drop=2),
    Column("STARTS ON", 20, drop=1),
    Column("TIMEOUT", 8, drop=4),
    Column("MANIFEST", 14, drop=3),
    Column("RUN BY", 13),
)
MATCHES: Final = (
    Column("TRIGGER", 18, grow=True),
    Column("FUNCTION", 18),
    Column("APPLICATION", 14, drop=3),
    Column("MANIFEST", 14, drop=4),
    Column("RUN", 14, grow=True, drop=1),
)


def layout(columns: Sequence[Column], width: int) -> list[int]:
    """How wide each column is on a screen of that width; 0: it is left out."""
    shown = set(range(len(columns)))

    def needed() -> int:
        return MARKER + sum(columns[index].columns for index in shown) + GAP * max(0, len(shown) - 1)

    for index in sorted(shown, key=lambda at: columns[at].drop, reverse=True):
        if needed() <= width or not columns[index].drop:
            break
        shown.discard(index)
    widths = [column.columns if index in shown else 0 for index, column in enumerate(columns)]
    growing = [index for index in sorted(shown) if columns[index].grow] or sorted(shown)[:1]
    spare = width - needed()
    for index in growing:
        widths[index] = max(4, widths[index] + spare // len(growing))
    return widths


def head_line(columns: Sequence[Column], widths: Sequence[int]) -> Line:
    """The titles."""
    return _joined([(own(column.title, "muted"),) for column in columns], widths, unicode=True, marker="")


def row_line(row: Row, widths: Sequence[int], *, glyphs: Glyphs, selected: bool) -> Line:
    """One row, each cell cut and padded to its column."""
    return _joined(row.cells, widths, unicode=glyphs.unicode, marker=glyphs.text("▸", ">") if selected else "")


def changed_places(before: Row, after: Row, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Where a row that stays in its place is drawn otherwise: the first column of each such cell, and how many it has."""
    places: list[tuple[int, int]] = []
    at = MARKER
    for was, now, columns in zip(before.cells, after.cells, widths, strict=True):
        if columns and was != now:
            places.append((at, columns))
        at += columns + GAP if columns else 0
    return places


def _joined(cells: Sequence[Line], widths: Sequence[int], *, unicode: bool, marker: str) -> Line:
    spans: list[Span] = [Span(f" {marker:<{MARKER - 1}}")]
    shown = [index for index, columns in enumerate(widths) if columns]
    for index in shown:
        spans += _cell(cells[index], widths[index], unicode=unicode)
        if index != shown[-1]:
            spans.append(Span(" " * GAP))
    return tuple(spans)


@lru_cache(maxsize=4096)
def _cell(cell: Line, columns: int, *, unicode: bool) -> Line:
    """A cell in its column. Of a row that is drawn again, most cells are as they were."""
    return fitted(cell, columns, unicode=unicode)


def age(at_ms: int | None, now_ms: int) -> str:
    """How long ago, in the largest unit alone, so that a list does not flicker."""
    if at_ms is None:
        return ""
    size, unit = _unit(max(0, now_ms - at_ms))
    return f"{max(0, now_ms - at_ms) // size}{unit}"


def age_until_ms(at_ms: int | None, now_ms: int) -> int:
    """The instant from which that age reads otherwise; clocks of two machines may be apart."""
    if at_ms is None:
        return NEVER_MS
    old_ms = max(0, now_ms - at_ms)
    size, _ = _unit(old_ms)
    return at_ms + (old_ms // size + 1) * size


def _unit(old_ms: int) -> tuple[int, str]:
    return next(((size, unit) for size, unit in _UNITS if old_ms >= size), _UNITS[-1])


def run_row(run: RunSummary, glyphs: Glyphs, *, now_ms: int) -> Row:
    """A run of the list. What needs a person stands where recovery will."""
    status = words.run_word(run.status, None if run.stop is None else run.stop.reason, run.outcome)
    if run.attention is not None:
        recovery = words.ATTENTION[run.attention]
    elif run.recovery is not None:
        recovery = words.recovery_word(run.recovery, run.recovery_reason, None)
    else:
        recovery = words.NONE_YET
    took = glyphs.glyph("…") if run.ended_at_ms is None else format_ms(max(0, run.ended_at_ms - run.created_at_ms))
    return Row(
        run.run_id,
        (
            (*glyphs.word(status), *_mark(run, glyphs)),
            glyphs.word(recovery),
            (foreign(run.function),),
            (foreign(run.run_id, "muted"),),
            (own(age(run.created_at_ms, now_ms)),),
            (own(took),),
            (own(f"{run.steps_completed}/{run.steps_declared}"),),
        ),
    )


def _mark(run: RunSummary, glyphs: Glyphs) -> Line:
    """What needs a person, once more as a glyph: the column that says it has no room on a small screen."""
    if run.attention is None or run.status == "definition_blocked":
        return ()
    word = words.ATTENTION[run.attention]
    return (own(f" {glyphs.glyph(word.glyph)}", word.tone),)


def unknown_row(attempt: AttemptDocument, glyphs: Glyphs, *, now_ms: int) -> Row:
    """An Unknown attempt of the list."""
    del glyphs
    allowed = ", ".join(COMMANDS[command].rpartition(" ")[2] for command in attempt.allowed_commands) or "nothing now"
    return Row(
        attempt.attempt_id,
        (
            (own(age(attempt.unknown_at_ms, now_ms), "alert"),),
            (foreign(attempt.step_id),),
            (own(attempt.phase),),
            (own(f"{attempt.attempt}"),),
            (own(f"{attempt.attempt_generation}"),),
            (foreign(attempt.run_id, "muted"),),
            (own(allowed),),
        ),
    )


def event_row(event: EventSummary, glyphs: Glyphs, *, now_ms: int) -> Row:
    """An event of the list."""
    return Row(
        event.event_id,
        (
            (foreign(event.name),),
            (own(age(event.received_at_ms, now_ms)),),
            (own(f"{event.matched}", None if event.matched else "warn"),),
            glyphs.word(words.EXPANSIONS[event.expansion]),
            (foreign(event.routing_generation, "muted"),),
            (foreign(event.event_id, "muted"),),
        ),
    )


def worker_state(worker: WorkerDocument, glyphs: Glyphs) -> Line:
    """Whether a worker takes work."""
    if worker.draining and not worker.connected:
        return (own(f"{glyphs.glyph('○')} Drained", "muted"),)
    if not worker.connected:
        return (own(f"{glyphs.glyph('…')} Away", "warn"),)
    if worker.draining:
        return (own(f"{glyphs.glyph('◌')} Draining", "warn"),)
    return (own(f"{glyphs.glyph('●')} Connected", "good"),)


def worker_row(worker: WorkerDocument, glyphs: Glyphs, *, now_ms: int) -> Row:
    """A worker of the list."""
    return Row(
        worker.instance_id,
        (
            (foreign(worker.instance_id),),
            (foreign(worker.application),),
            (foreign(worker.release_id or glyphs.glyph("–")),),  # noqa: RUF001 - the dash is the glyph
            (own(worker.transport),),
            worker_state(worker, glyphs),
            (own(f"{worker.in_flight}/{worker.capacity}"),),
            (own(age(worker.last_contact_at_ms, now_ms)),),
        ),
    )


def function_key(function: FunctionDocument) -> str:
    """Functions of two applications may have one id."""
    return f"{function.application}\n{function.function}"


def function_row(function: FunctionDocument, glyphs: Glyphs) -> Row:
    """A function of the list."""
    able = len(function.workers)
    runners = (own(f"{able} worker{'s' if able != 1 else ''}", "good"),) if able else glyphs.word(words.Word("○", "nobody", "warn"))
    return Row(
        function_key(function),
        (
            (foreign(function.function),),
            (foreign(function.application),),
            (foreign(", ".join(trigger.event_name for trigger in function.triggers) or glyphs.glyph("–")),),  # noqa: RUF001 - the glyph
            (own(glyphs.glyph("–") if function.timeout_ms is None else format_ms(function.timeout_ms)),),  # noqa: RUF001 - the glyph
            (foreign(function.manifest_generation, "muted"),),
            runners,
        ),
    )


def match_key(match: EventMatch) -> str:
    """What a binding is known by."""
    return f"{match.application}\n{match.trigger_id}\n{match.function}"


def match_row(match: EventMatch, glyphs: Glyphs) -> Row:
    """One trigger binding that an event matched."""
    run = (foreign(match.run_id),) if match.run_id is not None else (own(f"{glyphs.glyph('…')} coming", "muted"),)
    return Row(
        match_key(match),
        (
            (foreign(match.trigger_id),),
            (foreign(match.function),),
            (foreign(match.application),),
            (foreign(match.manifest_generation, "muted"),),
            run,
        ),
    )


def holding(rows: Iterable[Row], text: str) -> list[Row]:
    """The rows in which the text stands, whatever its case."""
    wanted = text.casefold()
    return [row for row in rows if wanted in row.key.casefold() or any(wanted in "".join(s.text for s in c).casefold() for c in row.cells)]


def clock(at_ms: int) -> str:
    """The time of day."""
    return clock_text(at_ms)
