"""How many of a callback's lines are kept: the first and the last of them, each cut where it is too long, and every cut marked.

Owns the bounds and how lines that were told twice are told apart. Pure: where lines come from and where they go is others'.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import msgspec

from ryusen_protocol.limits import KIB, LOG_BYTES_MAX
from ryusen_protocol.outcome import LogLine

LINE_BYTES_MAX: Final = 8 * KIB
"""One line as JSON, its mark included."""
CUT_LEVEL: Final = "cut"
"""The level of the line that stands where lines are missing."""
_HEAD_BYTES: Final = LOG_BYTES_MAX // 4
_SPARE_BYTES: Final = KIB // 2
"""For the mark and the brackets around all lines."""
_TAIL_BYTES: Final = LOG_BYTES_MAX - _HEAD_BYTES - _SPARE_BYTES
_MARK_BYTES: Final = 64
_LEVEL_CHARACTERS_MAX: Final = 32

_encode = msgspec.json.Encoder().encode


class BoundedLines:
    """Takes any number of lines and keeps the first 16 KiB and the last 47 KiB of them. Not for several threads at once."""

    def __init__(self, lines: Iterable[LogLine] = ()) -> None:
        self._head: list[LogLine] = []
        self._head_bytes = 0
        self._tail: deque[tuple[LogLine, int]] = deque()
        self._tail_bytes = 0
        self._cut_at_ms: int | None = None
        for line in lines:
            self.add(line)

    def add(self, line: LogLine) -> None:
        """Keep a line, and let older ones of the middle go where there is no room."""
        line = fitted(line)
        size = _size(line)
        if not self._tail and self._head_bytes + size <= _HEAD_BYTES:
            self._head.append(line)
            self._head_bytes += size
            return
        self._tail.append((line, size))
        self._tail_bytes += size
        while self._tail_bytes > _TAIL_BYTES:
            gone, size = self._tail.popleft()
            self._tail_bytes -= size
            self._cut_at_ms = gone.at_ms

    def lines(self) -> list[LogLine]:
        """What is kept, at most 64 KiB as JSON, with a line of the level `cut` where some are missing."""
        mark = [] if self._cut_at_ms is None else [cut_mark(self._cut_at_ms)]
        return [*self._head, *mark, *(line for line, _ in self._tail)]


def cut_mark(at_ms: int) -> LogLine:
    """What stands in the place of lines that are not kept."""
    return LogLine(at_ms, CUT_LEVEL, f"… lines are missing here: more than {LOG_BYTES_MAX // KIB} KiB were printed …")


def fitted(line: LogLine) -> LogLine:
    """The line, its text cut to the bound if it is over it."""
    if len(line.text) * 6 <= LINE_BYTES_MAX - KIB and len(line.level) <= _LEVEL_CHARACTERS_MAX:
        return line  # as JSON no character takes more than six bytes
    level = line.level[:_LEVEL_CHARACTERS_MAX]
    text = line.text
    room = LINE_BYTES_MAX - _size(LogLine(line.at_ms, level, "")) - _MARK_BYTES
    size = len(_encode(text))
    if size <= room + _MARK_BYTES:
        return line if level == line.level else LogLine(line.at_ms, level, text)
    kept = text[:room]
    while (size := len(_encode(kept))) > room:
        kept = kept[: len(kept) * room // size - 1]
    return LogLine(line.at_ms, level, f"{kept}… [{len(text) - len(kept)} characters cut]")


def merged(held: list[LogLine], told: list[LogLine]) -> list[LogLine]:
    """Both, each line once, in the order of their times.

    An outcome tells what the callback printed; some of it may have come before in `log` frames, and some of those may be lost.
    """
    if not held:
        return BoundedLines(told).lines()
    if told:
        held = [line for line in held if line.level != CUT_LEVEL]  # what is missing now is marked again
    known = Counter(held)
    news: list[LogLine] = []
    for line in map(fitted, told):
        if known[line]:
            known[line] -= 1
        else:
            news.append(line)
    if not news:
        return held
    return BoundedLines(sorted([*held, *news], key=lambda line: line.at_ms)).lines()


def _size(line: LogLine) -> int:
    return len(_encode(line)) + 1
