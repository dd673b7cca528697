"""The main screen with its six panes, and the frame that every screen has: header, footer, one line where there is no room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import work
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Static

from ryusen_protocol.client import ApiProblem, UnreadableAnswer
from ryusen_tui import keys, tables
from ryusen_tui.link import AnswerLost, NoServer
from ryusen_tui.panes import PANES, ListPane, Pane, PaneName, ServerPane, pane, topics
from ryusen_tui.spans import Line, Span, foreign, own, width
from ryusen_tui.story import event_lines
from ryusen_tui.widgets import Bar, Prose, Table

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.widget import Widget

    from ryusen_protocol.api import EventDetail
    from ryusen_protocol.ids import RunId
    from ryusen_tui.app import Dashboard
    from ryusen_tui.board import Topic

COLUMNS_MIN, ROWS_MIN = 40, 10


class Framed(Screen[Any]):
    """A screen with header and footer."""

    DEFAULT_CSS = """
    Framed { layout: vertical; background: $background; }
    Framed > ContentSwitcher { height: 1fr; }
    Framed > #tiny { display: none; height: 1fr; }
    Framed.tiny > * { display: none; }
    Framed.tiny > #tiny { display: block; }
    """
    AUTO_FOCUS: ClassVar = ""
    place: str = "detail"

    @property
    def dashboard(self) -> Dashboard:
        """The application."""
        return cast("Dashboard", self.app)  # pyright: ignore[reportUnknownMemberType]

    def body(self) -> list[Widget]:
        """What stands between header and footer."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """The frame."""
        head, foot = Bar(id="head"), Bar(id="foot")
        head.make = self.dashboard.head_line
        foot.make = self._foot
        yield Static(f"Ryusen needs {COLUMNS_MIN}x{ROWS_MIN}", id="tiny", markup=False)
        yield head
        yield from self.body()
        yield foot

    def on_resize(self) -> None:
        """Below the least size one line says so."""
        self.set_class(self.size.width < COLUMNS_MIN or self.size.height < ROWS_MIN, "tiny")

    def redraw_head(self) -> None:
        """Counts or contact are different."""
        self.query_one("#head", Bar).redraw()

    def redraw_foot(self) -> None:
        """Another place has the focus."""
        self.query_one("#foot", Bar).redraw()

    def _foot(self, columns: int) -> Line:
        return foot_line(self.place, columns)

    def told(self, changed: frozenset[Topic], touched: frozenset[RunId]) -> None:
        """The board is different."""

    def marked_id(self) -> str | None:
        """The id of what keys act on."""
        return None

    def marked_path(self) -> str:
        """Its page in the browser."""
        return "/"


def foot_line(place: str, columns: int) -> Line:
    """At most six keys, and no more than fit."""
    spans: list[Span] = [own(" ")]
    hints = list(keys.PLACES[place][: keys.HINTS_MAX])
    last = hints.pop()
    for hint in hints:
        more = [own(hint.key, "accent"), own(f" {hint.does}  ")]
        if width(tuple(spans + more)) + len(last.key) + len(last.does) + 2 > columns:
            continue
        spans += more
    return (*spans, own(last.key, "accent"), own(f" {last.does}"))


class Main(Framed):
    """Six panes; the keys 1 to 6 choose."""

    def __init__(self) -> None:
        super().__init__()
        self.place = "runs"

    def body(self) -> list[Widget]:
        """One pane at a time is seen."""
        return [ContentSwitcher(*(pane(name, self.dashboard) for name in PANES), initial="runs")]

    def on_mount(self) -> None:
        """Runs first."""
        self.choose("runs")

    @property
    def current(self) -> Pane:
        """The pane that is seen."""
        return self.query_one(f"#{self.place}", Pane)

    def choose(self, name: PaneName) -> None:
        """See another pane."""
        if self.current.is_filtering:
            self.current.close_filter(keep=True)
        self.place = name
        self.query_one(ContentSwitcher).current = name
        self.dashboard.feed.watch(*topics(name))
        self.current.show()
        self.current.focus_content()
        self.redraw_foot()

    def told(self, changed: frozenset[Topic], touched: frozenset[RunId]) -> None:  # noqa: ARG002 - a list is drawn whole
        """Draw again what is seen."""
        if changed & {*topics(cast("PaneName", self.place)), "server"}:
            self.current.show()

    @property
    def table(self) -> Table | None:
        """The list that is seen, if it is one."""
        current = self.current
        return current.table if isinstance(current, ListPane) else None

    def marked_id(self) -> str | None:
        """The marked row's."""
        key = None if self.table is None else self.table.key
        return None if key is None else key.rpartition("\n")[2]

    def marked_path(self) -> str:
        """The page of the marked row, or of the pane."""
        marked = self.marked_id()
        match self.place:
            case "runs" if marked is not None:
                return f"/runs/{marked}"
            case "events" if marked is not None:
                return f"/events/{marked}"
            case "runs":
                return "/"
            case _:
                return f"/{self.place}"

    def pause(self) -> None:
        """The log, where there is one."""
        if isinstance(self.current, ServerPane):
            self.current.pause()


class Detail(Framed):
    """One thing, read in full."""

    def __init__(self, title: str, identity: str, lines: list[Line], path: str = "/") -> None:
        super().__init__()
        self.place = "detail"
        self._title = title
        self._identity = identity
        self._lines = lines
        self._path = path

    def body(self) -> list[Widget]:
        """Title and text."""
        return [Bar(id="title"), Prose(id="text")]

    def on_mount(self) -> None:
        """All is there."""
        self.query_one("#title", Bar).put((own(f" {self._title}", strong=True),))
        self.query_one("#text", Prose).put(self._lines)
        self.query_one("#text").focus()

    def marked_id(self) -> str | None:
        """What is read."""
        return self._identity

    def marked_path(self) -> str:
        """Where the browser has it."""
        return self._path


class EventView(Framed):
    """An event, what it matched and the runs it made."""

    DEFAULT_CSS = "EventView > #text { height: 1fr; max-height: 60%; }"

    def __init__(self, event_id: str) -> None:
        super().__init__()
        self.place = "event"
        self.event_id = event_id
        self.event: EventDetail | None = None

    def body(self) -> list[Widget]:
        """The event above, its fan-out below."""
        return [Bar(id="title"), Prose(id="text"), Bar(id="fan-out"), Table(tables.MATCHES, self.dashboard.glyphs, id="matches")]

    def on_mount(self) -> None:
        """Ask for it."""
        self.query_one("#title", Bar).put((own(" Event ", strong=True), foreign(self.event_id, "muted")))
        self.query_one("#fan-out", Bar).put((own(" Fan-out", strong=True),))
        self.query_one("#matches").focus()
        self.load()

    def told(self, changed: frozenset[Topic], touched: frozenset[RunId]) -> None:
        """Runs of it may have come."""
        is_complete = self.event is not None and all(match.run_id is not None for match in self.event.matches)
        if not is_complete and (touched or "runs" in changed):
            self.load()

    @work(exit_on_error=False, exclusive=True)
    async def load(self) -> None:
        """The event as it is now."""
        dashboard = self.dashboard
        try:
            event = await dashboard.link.ask(dashboard.api.get_event(self.event_id))
        except (NoServer, AnswerLost, ApiProblem, UnreadableAnswer) as error:
            if self.event is None:
                self.query_one("#text", Prose).put([(foreign(str(error), "bad"),), (own("r tries again.", "muted"),)])
            return
        self.event = event
        self.query_one("#text", Prose).put(event_lines(event, dashboard.glyphs))
        rows = [tables.match_row(match, dashboard.glyphs) for match in event.matches]
        self.query_one("#matches", Table).put(rows, note=[(own("No trigger matched: no run was made.", "warn"),)])

    def marked_run(self) -> str | None:
        """The run of the marked match."""
        key = self.query_one("#matches", Table).key
        if self.event is None:
            return None
        return next((match.run_id for match in self.event.matches if tables.match_key(match) == key), None)

    def marked_id(self) -> str | None:
        """The event's."""
        return self.event_id

    def marked_path(self) -> str:
        """Where the browser has it."""
        return f"/events/{self.event_id}"
