"""Lines of painted text, before any terminal: foreign text made harmless, cut and padded by the columns it takes.

Owns the one door that data passes on its way to a screen: `foreign`. Nothing here or later reads markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from rich.cells import cell_len, set_cell_size

from ryusen_protocol.words import ASCII_GLYPHS, Tone, Word, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

ELLIPSIS: Final = "…"


class Span(msgspec.Struct, frozen=True):
    """Some text and the tone it is painted in. The text is printable already."""

    text: str
    tone: Tone | None = None
    strong: bool = False


Line = tuple[Span, ...]
"""What stands on one row of a screen."""


class Glyphs(msgspec.Struct, frozen=True):
    """Which characters the terminal shows."""

    unicode: bool = True

    def word(self, word: Word) -> Line:
        """A fact: glyph and words."""
        return (Span(word.shown(unicode=self.unicode), word.tone),) if word.text else ()

    def glyph(self, glyph: str) -> str:
        """One glyph of the table."""
        return glyph if self.unicode else ASCII_GLYPHS[glyph]

    def text(self, unicode_text: str, ascii_text: str) -> str:
        """Whichever the terminal can show."""
        return unicode_text if self.unicode else ascii_text


def foreign(text: str, tone: Tone | None = None) -> Span:
    """Text that a user, a worker or the network brought in."""
    return Span(printable(text), tone)


def own(text: str, tone: Tone | None = None, *, strong: bool = False) -> Span:
    """Text of our own."""
    return Span(text, tone, strong)


def plain(line: Line) -> str:
    """The text alone."""
    return "".join(span.text for span in line)


def width(line: Line) -> int:
    """Terminal columns."""
    return sum(len(span.text) if span.text.isascii() else cell_len(span.text) for span in line)


def cut(line: Iterable[Span], columns: int, *, unicode: bool = True) -> Line:
    """At most that many columns; what is cut off is told by an ellipsis."""
    spans = tuple(line)
    if columns <= 0:
        return ()
    if width(spans) <= columns:
        return spans
    mark = ELLIPSIS if unicode else ASCII_GLYPHS[ELLIPSIS]
    left = columns - 1
    kept: list[Span] = []
    for span in spans:
        taken = cell_len(span.text)
        if taken > left:
            kept.append(Span(set_cell_size(span.text, left).rstrip(" ") + mark, span.tone, span.strong))
            break
        kept.append(span)
        left -= taken
    return tuple(kept)


def fitted(line: Iterable[Span], columns: int, *, unicode: bool = True) -> Line:
    """Exactly that many columns."""
    spans = tuple(line)
    missing = columns - width(spans)
    if missing < 0:
        spans = cut(spans, columns, unicode=unicode)
        missing = columns - width(spans)
    return (*spans, Span(" " * missing)) if missing > 0 else spans


def wrapped(line: Line, columns: int) -> list[Line]:
    """The whole line over as many rows as it needs, broken at any character: nothing is lost."""
    if columns <= 0:
        return [line]
    rows: list[Line] = []
    row: list[Span] = []
    left = columns
    for span in line:
        text = span.text
        while cell_len(text) > left:
            head = _at_a_blank(_head(text, left))
            if not head and left == columns:
                head = text[0]
            if head:
                row.append(Span(head, span.tone, span.strong))
            rows.append(tuple(row))
            row, left, text = [], columns, text[len(head) :]
        if text:
            row.append(Span(text, span.tone, span.strong))
            left -= cell_len(text)
    if row or not rows:
        rows.append(tuple(row))
    return rows


def _at_a_blank(head: str) -> str:
    """Up to its last blank, unless that would leave half of the row empty."""
    cut_at = head.rfind(" ") + 1
    return head[:cut_at] if cut_at * 2 > len(head) else head


def _head(text: str, columns: int) -> str:
    """The longest beginning that fits. A bisection, because lines may have a megabyte."""
    low, high = 0, min(len(text), columns * 2 + 2)
    while low < high:
        middle = (low + high + 1) // 2
        if cell_len(text[:middle]) <= columns:
            low = middle
        else:
            high = middle - 1
    return text[:low]
