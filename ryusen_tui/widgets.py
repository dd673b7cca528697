"""What is drawn: tables, text and the waterfall, line by line, from painted lines. Owns scrolling, the marked row and the mouse.

Knows no document. A table acts on the key of its marked row, so that rows which come and go never move what a key does to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from ryusen_tui.spans import Glyphs, Line, Span, cut, fitted, own, width, wrapped
from ryusen_tui.tables import Column, Row, head_line, layout, row_line
from ryusen_tui.waterfall import Axis, Lane, bar, ruler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.text import Text
    from textual import events
    from textual.app import RenderResult

    from ryusen_protocol.words import Tone

STYLES: Final[dict[Tone | None, Style]] = {
    None: Style(),
    "accent": Style(color="cyan"),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red"),
    "alert": Style(color="magenta", bold=True),
    "muted": Style(dim=True),
}
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
    """A painted line as the terminal gets it."""
    found: list[Segment] = []
    for span in line:
        style = base + STYLES[span.tone]
        if span.strong:
            style += _STRONG
        if dim:
            style += STYLES["muted"]
        if marked:
            style += _MARKED
        found.append(Segment(span.text, style))
    return found


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


class Bar(Static):
    """One line that is cut to the screen's width, never wrapped."""

    DEFAULT_CSS = "Bar { height: 1; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__("", id=id)
        self.shown: Line = ()
        self.make: Callable[[int], Line] | None = None
        """Makes the line for a width; without it `shown` is cut."""

    def put(self, line: Line) -> None:
        """Show this line."""
        if line != self.shown:
            self.shown = line
            self.refresh()

    def render(self) -> RenderResult:
        """The line."""
        line = self.make(self.size.width) if self.make is not None else self.shown
        return text([cut(line, self.size.width)])


class Table(ScrollView, can_focus=True):
    """Rows with a marked one. `Opened` tells its key."""

    BINDINGS: ClassVar = [*MOVES, Binding("enter", "open", show=False)]
    DEFAULT_CSS = "Table { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }"

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
        if rows == self.rows and tuple(note) == self._note and is_old == self.is_old:
            return
        index = self.index
        self.rows, self._note, self.is_old = rows, tuple(note), is_old
        self._at = {row.key: at for at, row in enumerate(rows)}
        if self.key not in self._at:
            self.key = rows[min(index, len(rows) - 1)].key if rows else None
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._show_marked()
        self.refresh()

    @property
    def index(self) -> int:
        """Where the marked row is now."""
        return self._at.get(self.key or "", 0)

    def mark(self, key: str) -> None:
        """Mark the row of that key, if it is there."""
        if key in self._at:
            self.key = key
            self._show_marked()
            self.refresh()

    def action_move(self, by: int) -> None:
        """Mark another row."""
        if self.rows:
            self.key = self.rows[min(max(0, self.index + by), len(self.rows) - 1)].key
            self._show_marked()
            self.refresh()

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
        base = self.rich_style
        columns = self.size.width
        if not self._widths:
            self._widths = layout(self._columns, columns)
        if y == 0:
            line: Line = head_line(self._columns, self._widths)
            return Strip(segments(fitted(line, columns), base), columns)
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
        return Strip(segments(fitted(line, columns), base, marked=marked and self.has_focus, dim=self.is_old), columns)


class Prose(ScrollView, can_focus=True):
    """Lines of text, wrapped at the screen's width: nothing is cut. `tail` keeps the end in view while it grows."""

    BINDINGS: ClassVar = list(MOVES)
    DEFAULT_CSS = "Prose { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }"

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
        return Strip(segments(fitted((own(" "), *line), self.size.width), self.rich_style), self.size.width)


class Chart(ScrollView, can_focus=True):
    """The waterfall: labels on the left and notes on the right stand still, the axis between them is scrolled and zoomed."""

    BINDINGS: ClassVar = [
        *MOVES,
        Binding("l,right", "pan(1)", show=False),
        Binding("h,left", "pan(-1)", show=False),
        Binding("enter", "open", show=False),
        Binding("plus,+,equals_sign", "zoom(1)", show=False),
        Binding("minus,-", "zoom(-1)", show=False),
        Binding("0", "zoom(0)", show=False),
        Binding("z", "fold", show=False),
    ]
    DEFAULT_CSS = "Chart { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }"
    ZOOM_MAX: ClassVar = 64

    class Opened(Message):
        """A lane was chosen."""

        def __init__(self, lane: Lane) -> None:
            super().__init__()
            self.lane = lane

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__(id=id)
        self._glyphs = glyphs
        self.lanes: list[Lane] = []
        self.key: str | None = None
        self.zoom = 1
        self.is_folded = False
        self.pan = 0
        self._make_axis: Callable[[int, bool], Axis] | None = None
        self._note: tuple[Line, ...] = ()
        self._axis: Axis | None = None

    def put(self, lanes: list[Lane], make_axis: Callable[[int, bool], Axis] | None, *, note: Sequence[Line] = ()) -> None:
        """Show these lanes; `make_axis` gives their axis for a number of columns, folded or not."""
        self.lanes, self._make_axis, self._note = lanes, make_axis, tuple(note)
        if self.key not in {lane.key for lane in lanes}:
            self.key = lanes[0].key if lanes else None
        self.virtual_size = Size(self.size.width, len(lanes) + 1)
        self._scale()

    @property
    def marked(self) -> Lane | None:
        """The lane that keys act on."""
        return next((lane for lane in self.lanes if lane.key == self.key), None)

    def _columns(self) -> tuple[int, int, int]:
        """Label, axis and note, on a screen of this width."""
        total = max(10, self.size.width - 1)
        label = min(max([8, *(width(lane.label) for lane in self.lanes)]) + 3, max(10, total // 4))
        note = 30 if total >= 100 else 22 if total >= 70 else 12
        longest = max([6, *(width(lane.note) for lane in self.lanes)]) + 1
        note = min(note if total < 100 else max(note, total // 3), longest)
        return label, max(8, total - label - note - 1), note

    def _scale(self) -> None:
        _, visible, _ = self._columns()
        self._axis = None if self._make_axis is None or not self.lanes else self._make_axis(visible * self.zoom, self.is_folded)
        self.pan = min(max(0, self.pan), visible * (self.zoom - 1))
        self.refresh()

    def on_resize(self) -> None:
        """Another width is another axis."""
        self.virtual_size = Size(self.size.width, len(self.lanes) + 1)
        self._scale()

    def action_move(self, by: int) -> None:
        """Mark another lane."""
        if self.lanes:
            keys = [lane.key for lane in self.lanes]
            index = min(max(0, (keys.index(self.key) if self.key in keys else 0) + by), len(keys) - 1)
            self.key = keys[index]
            height = max(1, self.size.height - 1)
            top = self.scroll_offset.y
            if not top <= index < top + height:
                self.scroll_to(y=index if index < top else index - height + 1, animate=False, force=True, immediate=True)
            self.refresh()

    def action_jump(self, where: str) -> None:
        """Mark the first or the last lane."""
        self.action_move(-len(self.lanes) if where == "first" else len(self.lanes))

    def action_page(self, by: int) -> None:
        """Mark a lane one screen away."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_pan(self, by: int) -> None:
        """See earlier or later."""
        _, visible, _ = self._columns()
        self.pan = min(max(0, self.pan + by * max(1, visible // 4)), visible * (self.zoom - 1))
        self.refresh()

    def action_zoom(self, by: int) -> None:
        """See a shorter stretch of time, a longer one, or all of it."""
        _, visible, _ = self._columns()
        centre = (self.pan + visible / 2) / self.zoom
        self.zoom = 1 if by == 0 else min(self.ZOOM_MAX, self.zoom * 2) if by > 0 else max(1, self.zoom // 2)
        self.pan = int(centre * self.zoom - visible / 2)
        self._scale()

    def action_fold(self) -> None:
        """Cut idle stretches short, or show them in full."""
        self.is_folded = not self.is_folded
        self._scale()

    def action_open(self) -> None:
        """Open the marked lane."""
        if self.marked is not None:
            self.post_message(self.Opened(self.marked))

    def on_click(self, event: events.Click) -> None:
        """A click marks a lane; a click on the marked one opens it."""
        index = event.y - 1 + self.scroll_offset.y
        if event.y >= 1 and 0 <= index < len(self.lanes):
            if self.lanes[index].key == self.key:
                self.action_open()
            else:
                self.key = self.lanes[index].key
                self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        total, base, unicode = self.size.width, self.rich_style, self._glyphs.unicode
        label, visible, note = self._columns()
        if self._axis is None:
            line: Line = self._note[y - 1] if 0 <= y - 1 < len(self._note) else ()
            return Strip(segments(fitted((own("  "), *line), total), base), total)
        if y == 0:
            ticks = ruler(self._axis, unicode=unicode)[self.pan : self.pan + visible]
            return Strip(segments(fitted((own(" " * label), own(ticks, "muted")), total), base), total)
        index = self.scroll_offset.y + y - 1
        if not 0 <= index < len(self.lanes):
            return Strip.blank(total, base)
        lane = self.lanes[index]
        marked = lane.key == self.key
        mark = self._glyphs.text("▸", ">") if marked else " "
        spans: list[Span] = [own(f" {mark}"), *fitted(lane.label, label - 3, unicode=unicode), own(" ")]
        spans += _slice(bar(lane, self._axis, unicode=unicode), self.pan, visible)
        spans += [own(" "), *fitted(lane.note, note, unicode=unicode)]
        return Strip(segments(fitted(spans, total), base, marked=marked and self.has_focus), total)


def _slice(spans: Sequence[Span], start: int, columns: int) -> list[Span]:
    """Some columns of a bar, whose characters have one column each."""
    found: list[Span] = []
    at = 0
    for span in spans:
        piece = span.text[max(0, start - at) : max(0, start + columns - at)]
        if piece:
            found.append(Span(piece, span.tone))
        at += len(span.text)
    return found
