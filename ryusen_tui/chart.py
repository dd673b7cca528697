"""The waterfall as it is drawn: labels and notes that stand still, and between them an axis that is scrolled, zoomed and folded.

Owns which lane is marked and which stretch of time is seen. What lanes there are and how long they took is told to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from ryusen_tui.spans import Glyphs, Line, Span, fitted, own, width
from ryusen_tui.waterfall import Axis, Lane, bar, ruler
from ryusen_tui.widgets import MOVES, Lines, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events


class Chart(Lines):
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
        total, base, unicode = self.size.width, self.base, self._glyphs.unicode
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
