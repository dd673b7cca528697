"""What is drawn: bars, tables and text, line by line, from painted lines. Owns scrolling, the marked row and the mouse.

Knows no document. A table acts on the key of its marked row, so that rows which come and go never move what a key does to another. Only
lines that are different are drawn again: a list is looked at for hours.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBarRender
from textual.strip import Strip
from textual.widgets import Static

from ryusen_tui.spans import Glyphs, Line, cut, fitted, own, wrapped
from ryusen_tui.tables import Column, Row, changed_places, head_line, layout, row_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.text import Text
    from textual import events
    from textual.app import App, RenderResult
    from textual.widget import Widget

    from ryusen_protocol.words import Tone
    from ryusen_tui.spans import Span

STYLES: Final[dict[Tone | None, Style]] = {
    None: Style(),
    "accent": Style(color="cyan"),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red"),
    "alert": Style(color="magenta", bold=True),
    "muted": Style(dim=True),
}
ASCII: Final = "-ascii"
"""The class of an application whose terminal shows nothing else."""
_STRONG: Final = Style(bold=True)
_MARKED: Final = Style(reverse=True)

MOVES: Final[tuple[Binding, ...]] = (
    Binding("j,down", "move(1)", show=False),
    Binding("k,up", "move(-1)", show=False),
    Binding("g,home", "jump('first')", show=False),
    Binding("G,end", "jump('last')", show=False),
    Binding("pagedown,ctrl+f", "page(1)", show=False),
    Binding("pageup,ctrl+b", "page(-1)", show=False),
)


def segments(line: Line, base: Style, *, marked: bool = False, dim: bool = False) -> list[Segment]:
    """A painted line as the terminal gets it. What is painted alike is one piece: pieces are what drawing takes its time for."""
    return [
        Segment("".join(span.text for span in alike), _style(base, tone, strong=strong, marked=marked, dim=dim))
        for (tone, strong), alike in groupby(line, _paint)
    ]


def _paint(span: Span) -> tuple[Tone | None, bool]:
    return span.tone, span.strong


@lru_cache(maxsize=256)
def _style(base: Style, tone: Tone | None, *, strong: bool, marked: bool, dim: bool) -> Style:
    # The marked row is reversed; tones in it would be patches of background.
    style = base if marked else base + STYLES[tone]
    if strong:
        style += _STRONG
    if dim:
        style += STYLES["muted"]
    if marked:
        style += _MARKED
    return style


def text(lines: Sequence[Line]) -> Text:
    """Painted lines as rich text, for widgets that wrap by themselves."""
    from rich.text import Text

    made = Text(no_wrap=False, end="")
    for index, line in enumerate(lines):
        if index:
            made.append("\n")
        for span in line:
            style = STYLES[span.tone]
            made.append(span.text, style + _STRONG if span.strong else style)
    return made


def _is_unicode(widget: Widget) -> bool:
    return not cast("App[Any]", widget.app).has_class(ASCII)  # pyright: ignore[reportUnknownMemberType]


class Bar(Static):
    """One line that is cut to the screen's width, never wrapped."""

    DEFAULT_CSS = "Bar { height: 1; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__("", id=id)
        self.shown: Line = ()
        self.unicode = True
        self.make: Callable[[int], Line] | None = None
        """Makes the line for a width; without it `shown` is cut."""
        self._drawn: Line | None = None

    def on_mount(self) -> None:
        """What is cut off is told in what the terminal can show."""
        self.unicode = _is_unicode(self)

    def put(self, line: Line) -> None:
        """Show this line."""
        if line != self.shown:
            self.shown = line
            self.refresh()

    def redraw(self) -> None:
        """What it is made of may be different."""
        if self._line() != self._drawn:
            self.refresh()

    def render(self) -> RenderResult:
        """The line."""
        self._drawn = self._line()
        return text([self._drawn])

    def _line(self) -> Line:
        return cut(self.make(self.size.width) if self.make is not None else self.shown, self.size.width, unicode=self.unicode)


class _WholeBars(ScrollBarRender):
    """A scrollbar of whole characters."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * len(ScrollBarRender.VERTICAL_BARS)


class Lines(ScrollView, can_focus=True):
    """Something that is drawn line by line."""

    DEFAULT_CSS = "Lines { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__(id=id)
        self.base = Style()
        """What its lines are painted on."""
        self.unicode = True

    def on_mount(self) -> None:
        """Where the terminal cannot show parts of a character, the scrollbar has none."""
        self.unicode = _is_unicode(self)
        if not self.unicode:
            cast("Any", self.vertical_scrollbar).renderer = _WholeBars

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region; what they are painted on is found out once for all of them."""
        self.base = self.rich_style
        return super().render_lines(crop)


class Table(Lines):
    """Rows with a marked one. `Opened` tells its key."""

    BINDINGS: ClassVar = [*MOVES, Binding("enter", "open", show=False)]

    class Opened(Message):
        """A row was chosen with Enter or a click on the marked one."""

        def __init__(self, table: Table, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

    def __init__(self, columns: Sequence[Column], glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._glyphs = glyphs
        self._widths: list[int] = []
        self._at: dict[str, int] = {}
        self._note: tuple[Line, ...] = ()
        self.rows: list[Row] = []
        self.key: str | None = None
        self.is_old = False
        """Whether what is shown is known to be from before."""

    def put(self, rows: list[Row], *, note: Sequence[Line] = (), is_old: bool = False) -> None:
        """Show these rows; `note` stands in place of rows when there are none."""
        said = tuple(note)
        if rows == self.rows and said == self._note and is_old == self.is_old:
            return
        before, key, top, index = self.rows, self.key, self.scroll_offset.y, self.index
        is_another = said != self._note or is_old != self.is_old or not (before and rows)
        self.rows, self._note, self.is_old = rows, said, is_old
        if not (len(before) == len(rows) and all(map(_is_one_thing, before, rows))):
            self._at = {row.key: at for at, row in enumerate(rows)}
        if self.key not in self._at:
            self.key = rows[min(index, len(rows) - 1)].key if rows else None
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._show_marked()
        if is_another or key != self.key or top != self.scroll_offset.y:
            self.refresh()
            return
        seen = range(top, top + max(0, self.size.height - 1))
        regions = [region for at in seen for region in self._changed(before[at : at + 1], rows[at : at + 1], 1 + at - top)]
        if regions:
            self.refresh(*regions)

    def _changed(self, before: list[Row], after: list[Row], y: int) -> list[Region]:
        """What is to be drawn anew on that line of the screen: of a row that stayed, only the cells that are different."""
        if before == after:
            return []
        if not before or not after or before[0].key != after[0].key or not self._widths:
            return [Region(0, y, self.size.width, 1)]
        return [Region(x, y, columns, 1) for x, columns in changed_places(before[0], after[0], self._widths)]

    def _refresh_rows(self, indices: Iterable[int]) -> None:
        """Draw the rows at these places anew, and nothing else."""
        top = self.scroll_offset.y
        regions = [Region(0, 1 + at - top, self.size.width, 1) for at in indices]
        if regions:
            self.refresh(*regions)

    @property
    def index(self) -> int:
        """Where the marked row is now."""
        return self._at.get(self.key or "", 0)

    def seen(self) -> frozenset[str]:
        """The keys of the rows that are on the screen."""
        top = self.scroll_offset.y
        return frozenset(row.key for row in self.rows[top : top + self.size.height])

    def mark(self, key: str) -> None:
        """Mark the row of that key, if it is there."""
        if key in self._at:
            before, top, self.key = self.index, self.scroll_offset.y, key
            self._show_marked()
            if top == self.scroll_offset.y:
                self._refresh_rows({before, self.index})
            else:
                self.refresh()

    def action_move(self, by: int) -> None:
        """Mark another row."""
        if self.rows:
            self.mark(self.rows[min(max(0, self.index + by), len(self.rows) - 1)].key)

    def action_jump(self, where: str) -> None:
        """Mark the first or the last row."""
        self.action_move(-len(self.rows) if where == "first" else len(self.rows))

    def action_page(self, by: int) -> None:
        """Mark a row one screen away."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_open(self) -> None:
        """Open the marked row."""
        if self.key is not None:
            self.post_message(self.Opened(self, self.key))

    def on_resize(self) -> None:
        """Columns come and go with the width."""
        self._widths = layout(self._columns, self.size.width)
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)
        self._show_marked()

    def on_click(self, event: events.Click) -> None:
        """A click marks; a click on what is marked opens."""
        index = event.y - 1 + self.scroll_offset.y
        if event.y >= 1 and 0 <= index < len(self.rows):
            if self.rows[index].key == self.key:
                self.action_open()
            else:
                self.action_move(index - self.index)

    def _show_marked(self) -> None:
        height = max(1, self.size.height - 1)
        top, index = self.scroll_offset.y, self.index
        if not top <= index < top + height:
            self.scroll_to(y=index if index < top else index - height + 1, animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        base, columns = self.base, self.size.width
        if not self._widths:
            self._widths = layout(self._columns, columns)
        if y == 0:
            line: Line = head_line(self._columns, self._widths)
            return Strip(segments(fitted(line, columns, unicode=self.unicode), base), columns)
        index = self.scroll_offset.y + y - 1
        if not self.rows and self._note:
            said = [row for line in self._note for row in wrapped(line, columns - 4)]
            line = said[y - 2] if 0 <= y - 2 < len(said) else ()
            return Strip(segments(fitted((own("  "), *line), columns), base), columns)
        if not 0 <= index < len(self.rows):
            return Strip.blank(columns, base)
        row = self.rows[index]
        marked = row.key == self.key
        line = row_line(row, self._widths, glyphs=self._glyphs, selected=marked)
        return Strip(
            segments(fitted(line, columns, unicode=self.unicode), base, marked=marked and self.has_focus, dim=self.is_old), columns
        )


def _is_one_thing(one: Row, other: Row) -> bool:
    return one is other or one.key == other.key


class Prose(Lines):
    """Lines of text, wrapped at the screen's width: nothing is cut. `tail` keeps the end in view while it grows."""

    BINDINGS: ClassVar = list(MOVES)

    def __init__(self, *, tail: bool = False, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._rows: list[Line] = []
        self._wrapped_at = 0
        self.tail = tail

    @property
    def lines(self) -> list[Line]:
        """What is shown, unwrapped."""
        return self._lines

    def put(self, lines: list[Line]) -> None:
        """Show these lines."""
        if lines != self._lines:
            self._lines = lines
            self._wrap()

    def on_resize(self) -> None:
        """Text is wrapped anew."""
        if self.size.width != self._wrapped_at:
            self._wrap()

    def _wrap(self) -> None:
        columns = max(1, self.size.width - 2)
        self._wrapped_at = self.size.width
        self._rows = [row for line in self._lines for row in wrapped(line, columns)]
        self.virtual_size = Size(self.size.width, len(self._rows))
        if self.tail:
            self.scroll_to(y=max(0, len(self._rows) - self.size.height), animate=False, force=True, immediate=True)
        self.refresh()

    def action_move(self, by: int) -> None:
        """Scroll."""
        self.scroll_to(y=self.scroll_offset.y + by, animate=False, force=True, immediate=True)

    def action_jump(self, where: str) -> None:
        """To the beginning or the end."""
        self.scroll_to(y=0 if where == "first" else len(self._rows), animate=False, force=True, immediate=True)

    def action_page(self, by: int) -> None:
        """Scroll by a screen."""
        self.action_move(by * max(1, self.size.height - 1))

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        index = self.scroll_offset.y + y
        line: Line = self._rows[index] if 0 <= index < len(self._rows) else ()
        return Strip(segments(fitted((own(" "), *line), self.size.width), self.base), self.size.width)
