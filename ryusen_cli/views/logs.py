"""What a run's callbacks printed and logged, as a person reads it: by attempt, in the order in which they began to print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ryusen_cli.output import Cell, Painted, printable_block
from ryusen_protocol.plain import clock_text

if TYPE_CHECKING:
    from ryusen_protocol.api import AttemptLogDocument
    from ryusen_protocol.outcome import LogLine
    from ryusen_protocol.words import Tone

LINES_SHOWN: Final = 20
"""Of one attempt; its last ones."""
_UNSAID: Final = frozenset({"stdout", "cut"})
_TONES: Final[dict[str, Tone]] = {"warning": "warn", "error": "bad", "critical": "bad", "stderr": "warn", "cut": "muted"}


def log_lines(logs: Sequence[AttemptLogDocument]) -> list[Sequence[Cell]]:
    """Every attempt that printed something, with its last lines."""
    lines: list[Sequence[Cell]] = []
    for log in logs:
        undoing = ", undoing" if log.phase == "compensation" else ""
        lines += [[], [Painted("printed  ", "muted"), f"{log.step_id}{undoing}, attempt {log.attempt}"]]
        earlier = len(log.lines) - LINES_SHOWN
        if earlier > 0:
            lines.append([Painted(f"  … {earlier} earlier lines; --json has them all", "muted")])
        for line in log.lines[-LINES_SHOWN:]:
            lines += _one(line)
    return lines


def _one(line: LogLine) -> list[Sequence[Cell]]:
    """A line, under its time and level; those of a traceback stand below each other."""
    first, *rest = printable_block(line.text).text.split("\n")
    level = "" if line.level in _UNSAID else f"{printable_block(line.level).text}  "
    head = f"  {clock_text(line.at_ms)}  {level}"
    tone = _TONES.get(line.level)
    return [[Painted(head, "muted"), Painted(first, tone)], *([Painted(" " * len(head)), Painted(more, tone)] for more in rest)]
