"""What server, workers and the supervisor said, for the log view: bounded, in the order it came. Knows no process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ryusen_tui.spans import Line, foreign, own

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_protocol.words import Tone

LINES_MAX: Final = 2_000
_SOURCES: Final[dict[str, Tone]] = {"ryusen": "accent", "server": "good"}


class LogBook:
    """The last lines. `heard` is called for each one, on the loop that wrote it."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self.heard: Callable[[], None] = lambda: None
        self.count = 0
        """How many lines there ever were."""

    def write(self, line: str) -> None:
        """One line, which may begin with its source and ` | `."""
        self._lines.append(line)
        self.count += 1
        self.heard()

    def lines(self, holding: str = "") -> list[Line]:
        """The lines that hold a text, painted."""
        wanted = holding.casefold()
        return [_painted(line) for line in self._lines if wanted in line.casefold()]


def _painted(line: str) -> Line:
    source, bar, said = line.partition(" | ")
    if not bar or len(source) > 60:
        return (foreign(line),)
    return (own(foreign(source).text, _SOURCES.get(source, "muted")), own(" | ", "muted"), foreign(said))
