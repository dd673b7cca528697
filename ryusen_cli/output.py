"""What reaches the terminal: data on stdout, everything else on stderr, foreign text made harmless, nothing wrapped or cut.

Owns colour, glyph set and JSON. Knows no document: it prints lines, tables and JSON texts that others built.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from ryusen_protocol.words import Tone, Word, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ryusen_cli.exits import CliError

_SGR: Final[dict[Tone, str]] = {"accent": "36", "good": "32", "warn": "33", "bad": "31", "alert": "1;35", "muted": "2"}
_NOT_PLAIN_ASCII: Final = re.compile(r"[^\x20-\x7e]")
_WIDE: Final = ("W", "F")


class Painted(msgspec.Struct, frozen=True):
    """Text that was made printable already, and the tone it is painted in where the terminal has colours."""

    text: str
    tone: Tone | None = None


Cell = str | Painted
"""A `str` is foreign until printed; a `Painted` is our own."""


class Output:
    """Both streams of one command. `json` asks for documents instead of text."""

    def __init__(self, *, json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.json = json
        self._out = stdout or sys.stdout
        self._err = stderr or sys.stderr
        self.unicode = _is_utf8(self._out)
        self._colour_out = has_colour(self._out)
        self._colour_err = has_colour(self._err)

    def line(self, *cells: Cell) -> None:
        """One line of data for a person."""
        self._write(self._out, "".join(_paint(cell, colour=self._colour_out) for cell in cells))

    def lines(self, lines: Iterable[Sequence[Cell]]) -> None:
        """Several lines of data."""
        for cells in lines:
            self.line(*cells)

    def note(self, *cells: Cell) -> None:
        """One line beside the data: progress, warnings, hints."""
        self._write(self._err, "".join(_paint(cell, colour=self._colour_err) for cell in cells))

    def warn(self, message: str) -> None:
        """A warning that does not end the command."""
        self.note(Painted("warning: ", "warn"), message)

    def progress(self, message: str) -> None:
        """What takes a while, for a person who watches; neither a program nor a file is told."""
        if _is_tty(self._err) and not self.json:
            self.note(Painted("… ", "muted"), message)

    def word(self, word: Word) -> Painted:
        """A fact with its glyph, in the set this terminal can show."""
        return Painted(word.shown(unicode=self.unicode), word.tone)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Columns as wide as their content needs, whatever the terminal's width; no row is ever cut."""
        for cells in table_lines(headers, rows):
            self.line(*cells)

    def document(self, text: bytes) -> None:
        """One JSON document: indented for a person, one line for a program."""
        self._write(self._out, json_text(text, indent=2 if _is_tty(self._out) else -1))

    def record(self, text: bytes) -> None:
        """One JSON document of many, on one line."""
        self._write(self._out, json_text(text, indent=-1))

    def encoded(self, value: Any) -> None:
        """One JSON document from plain data."""
        self.document(msgspec.json.encode(value))

    def error(self, error: CliError) -> None:
        """An error as it is due: a document on stdout, or words on stderr."""
        if self.json:
            self.encoded(error.document())
            return
        self.note(Painted("error: ", "bad"), printable_block(error.message))
        if error.hint is not None:
            self.note(Painted("  try: ", "muted"), printable_block(error.hint))

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text + "\n")
            stream.flush()
        except OSError as error:
            if error.errno == errno.EIO:  # how a terminal says that nobody reads it any more
                raise BrokenPipeError(errno.EPIPE, "the terminal is gone") from error
            raise


def printable_block(text: str) -> Painted:
    """Foreign text of several lines, made printable line by line."""
    return Painted(printable(text, multiline=True))


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """Header and rows as lines of padded cells. No line ends in padding."""
    shown = [[_made_printable(cell) for cell in row] for row in rows]
    heads = [Painted(header, "muted") for header in headers]
    columns = [[heads[index], *(row[index] for row in shown)] for index in range(len(headers))]
    widths = [max(_width(cell.text) for cell in column) for column in columns]
    lines: list[list[Cell]] = []
    for row in [heads, *shown]:
        cells: list[Cell] = []
        for index, cell in enumerate(row):
            cells.append(cell)
            if any(later.text for later in row[index + 1 :]):
                cells.append(Painted(" " * (widths[index] - _width(cell.text) + 2)))
        lines.append(cells)
    return lines


def json_text(text: bytes, *, indent: int) -> str:
    """A JSON text without characters that a terminal acts on; they only occur inside strings, where an escape means the same."""
    formatted = msgspec.json.format(text, indent=indent).decode()
    return "\n".join(_NOT_PLAIN_ASCII.sub(_json_escape, line) for line in formatted.split("\n"))


def has_colour(stream: TextIO) -> bool:
    """Whether tones may be painted: a terminal that is not dumb, and nobody asked for plain text."""
    return _is_tty(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    if printable(character) == character:
        return character
    code = ord(character)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _made_printable(cell: Cell) -> Painted:
    return Painted(printable(cell)) if isinstance(cell, str) else cell


def _paint(cell: Cell, *, colour: bool) -> str:
    painted = _made_printable(cell)
    if not colour or painted.tone is None or not painted.text:
        return painted.text
    return f"\x1b[{_SGR[painted.tone]}m{painted.text}\x1b[0m"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in _WIDE else 1 for one in text)


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def _is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf8")
