"""The six panes behind the keys 1 to 6: what each lists, and how it looks while it has nothing, or nothing new, to list.

Loading, empty, failed, stale and without a server are five different sights, so that nobody takes one for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import msgspec
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from ryusen_tui import tables
from ryusen_tui.board import Topic
from ryusen_tui.filtering import NotAFilter, run_filter
from ryusen_tui.head import failure_lines
from ryusen_tui.spans import Glyphs, Line, Span, foreign, own
from ryusen_tui.story import server_lines
from ryusen_tui.tables import Column, Row
from ryusen_tui.widgets import Bar, Prose, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from ryusen_protocol.api import FunctionDocument
    from ryusen_tui.app import Dashboard
    from ryusen_tui.feed import Feed

PaneName = Literal["runs", "unknown", "events", "workers", "functions", "server"]
PANES: Final[tuple[PaneName, ...]] = ("runs", "unknown", "events", "workers", "functions", "server")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One list: which snapshot it shows, how, and what it says when there is nothing.

    `moved_ms` is the instant from which a row tells an age; with the document it is all that a row is made of.
    """

    title: str
    topic: Topic
    columns: tuple[Column, ...]
    row: Callable[[Any, Glyphs, int], Row]
    moved_ms: Callable[[Any], int | None]
    empty: tuple[str, ...]


def _function_row(function: FunctionDocument, glyphs: Glyphs, now_ms: int) -> Row:
    del now_ms
    return tables.function_row(function, glyphs)


SPECS: Final[dict[str, Spec]] = {
    "runs": Spec(
        title="Runs",
        topic="runs",
        columns=tables.RUNS,
        row=lambda one, glyphs, now_ms: tables.run_row(one, glyphs, now_ms=now_ms),
        moved_ms=lambda one: one.created_at_ms,
        empty=("No run yet.", "s sends an event; a function that it triggers makes a run."),
    ),
    "unknown": Spec(
        title="Unknown",
        topic="unknown",
        columns=tables.UNKNOWN,
        row=lambda one, glyphs, now_ms: tables.unknown_row(one, glyphs, now_ms=now_ms),
        moved_ms=lambda one: one.unknown_at_ms,
        empty=("Nothing is Unknown.", "An effect whose outcome nobody can establish would wait for you here."),
    ),
    "events": Spec(
        title="Events",
        topic="events",
        columns=tables.EVENTS,
        row=lambda one, glyphs, now_ms: tables.event_row(one, glyphs, now_ms=now_ms),
        moved_ms=lambda one: one.received_at_ms,
        empty=("No event yet.", "s sends one."),
    ),
    "workers": Spec(
        title="Workers",
        topic="workers",
        columns=tables.WORKERS,
        row=lambda one, glyphs, now_ms: tables.worker_row(one, glyphs, now_ms=now_ms),
        moved_ms=lambda one: one.last_contact_at_ms,
        empty=("No worker has connected.", "ryusen worker app.py starts one; runs wait until then."),
    ),
    "functions": Spec(
        title="Functions",
        topic="functions",
        columns=tables.FUNCTIONS,
        row=_function_row,
        moved_ms=lambda one: None,  # noqa: ARG005 - a function has no age
        empty=("No application is published.", "A worker publishes its functions when it starts."),
    ),
}


class Pane(Vertical):
    """What all panes have: a title line, and a filter that opens in its place."""

    DEFAULT_CSS = """
    Pane { height: 1fr; }
    Pane > Input { height: 1; border: none; padding: 0 1; display: none; background: $background; }
    Pane > Input:focus { border: none; }
    Pane.filtering > Input { display: block; }
    """

    class Filtered(Message):
        """The filter was kept or cleared."""

    def __init__(self, name: PaneName, dashboard: Dashboard) -> None:
        super().__init__(id=name)
        self.place: PaneName = name
        self._dashboard = dashboard
        self.filter = ""
        self._wrong = ""

    @property
    def feed(self) -> Feed:
        """Where what is shown comes from."""
        return self._dashboard.feed

    def open_filter(self) -> None:
        """Let the person type."""
        self.add_class("filtering")
        entry = self.query_one(Input)
        entry.value = self.filter
        entry.focus()

    def close_filter(self, *, keep: bool) -> None:
        """Enter keeps what was typed, Esc clears it."""
        self.remove_class("filtering")
        self._apply(self.query_one(Input).value if keep else "")
        self.focus_content()

    @property
    def is_filtering(self) -> bool:
        """Whether the filter is being typed."""
        return self.has_class("filtering")

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows the typing."""
        event.stop()
        if self.is_filtering:
            self._apply(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Kept."""
        event.stop()
        self.close_filter(keep=True)

    def _apply(self, text: str) -> None:
        self.filter = text.strip()
        self.show()

    def show(self) -> None:
        """Draw what the board has now."""
        raise NotImplementedError

    def focus_content(self) -> None:
        """Keys go to the list."""
        raise NotImplementedError

    def _tail(self) -> list[Span]:
        if self._wrong:
            return [own("   "), foreign(self._wrong, "warn")]
        return [own("   filter: ", "muted"), foreign(self.filter, "accent")] if self.filter else []


class _Made(NamedTuple):
    """A row, what it was made of, and between which instants it would be made no other way."""

    document: object
    from_ms: int
    until_ms: int
    row: Row


class ListPane(Pane):
    """A pane that is a table."""

    def __init__(self, name: PaneName, dashboard: Dashboard) -> None:
        super().__init__(name, dashboard)
        self.spec = SPECS[name]
        self._made: dict[int, _Made] = {}
        self._documents: tuple[Any, ...] | None = None
        self._listed: list[Row] = []
        self._seen = frozenset[str]()
        self._until_ms = 0
        self.table = Table(self.spec.columns, dashboard.glyphs, id=f"{name}-table")

    def compose(self) -> ComposeResult:
        """Title, filter, table."""
        yield Bar(id=f"{self.place}-title")
        yield Input(placeholder="filter", compact=True)
        yield self.table

    def focus_content(self) -> None:
        """The table."""
        self.table.focus()

    def _apply(self, text: str) -> None:
        if self.place == "runs":
            try:
                self.feed.choose(run_filter(text))
                self._wrong = ""
            except NotAFilter as error:
                self._wrong = str(error)
        super()._apply(text)

    def show(self) -> None:
        """Rows, or which of the five sights it is."""
        feed, glyphs = self.feed, self._dashboard.glyphs
        rows = self._rows()
        error = feed.errors.get(self.spec.topic)
        is_old = feed.contact in {"reconnecting", "stale"} or error is not None
        title: list[Span] = [own(f" {self.spec.title}", strong=True)]
        if rows is not None:
            kept = rows if self.place == "runs" or not self.filter else tables.holding(rows, self.filter)
            more = "+" if self.place == "runs" and feed.board.runs_more else ""
            title.append(own(f" {len(kept)}{more}"))
            self.table.put(kept, note=self._nothing(), is_old=is_old)
        else:
            self.table.put([], note=waiting_lines(self._dashboard, error))
        title += self._tail()
        if error is not None and rows is not None:
            title += [own(f"   {glyphs.glyph('✗')} ", "bad"), foreign(error, "bad")]
        elif is_old and rows is not None:
            title.append(own("   as it was before contact was lost", "warn"))
        self.query_one(f"#{self.place}-title", Bar).put(tuple(title))

    def _rows(self) -> list[Row] | None:
        """The rows. One that is as it was is not made anew before its age reads otherwise, or while nobody sees it."""
        documents = cast("tuple[Any, ...] | None", getattr(self.feed.board, self.spec.topic))
        now_ms, seen = self._dashboard.now_ms(), self.table.seen()
        if documents is None:
            return None
        if documents is self._documents and seen == self._seen and now_ms < self._until_ms:
            return self._listed
        is_same, self._documents, self._seen = documents is self._documents, documents, seen
        if is_same:
            return self._aged(now_ms)
        if self.place == "unknown":
            documents = tuple(sorted(documents, key=lambda one: (one.unknown_at_ms or 0, one.attempt_id)))
        before, self._made = self._made, {}
        for document in documents:
            known = before.get(id(document))
            self._made[id(document)] = known if known is not None and known.document is document else self._make(document, now_ms)
        return self._aged(now_ms)

    def _make(self, document: object, now_ms: int) -> _Made:
        until_ms = tables.age_until_ms(self.spec.moved_ms(document), now_ms)
        return _Made(document, now_ms, until_ms, self.spec.row(document, self._dashboard.glyphs, now_ms))

    def _aged(self, now_ms: int) -> list[Row]:
        """The rows, those that are seen as old as they are now."""
        seen = [(at, known) for at, known in self._made.items() if known.row.key in self._seen]
        for at, known in seen:
            if not known.from_ms <= now_ms < known.until_ms:
                self._made[at] = self._make(known.document, now_ms)
        self._until_ms = min((self._made[at].until_ms for at, _ in seen), default=tables.NEVER_MS)
        self._listed = [known.row for known in self._made.values()]
        return self._listed

    def _nothing(self) -> list[Line]:
        if self.filter:
            return [
                (
                    own("Nothing matches "),
                    foreign(self.filter, "accent"),
                    own("."),
                ),
                (own("Esc in the filter clears it.", "muted"),),
            ]
        first, second = (*self.spec.empty, "")[:2]
        return [(own(first),), (own(second, "muted"),)]


class ServerPane(Pane):
    """What the server is, and the log."""

    DEFAULT_CSS = """
    ServerPane > #facts { height: auto; max-height: 50%; }
    ServerPane > #log { height: 1fr; }
    """

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__("server", dashboard)
        self.is_paused = False
        self._seen = 0

    def compose(self) -> ComposeResult:
        """Facts, then the log."""
        yield Bar(id="server-title")
        yield Input(placeholder="filter the log", compact=True)
        yield Prose(id="facts")
        yield Bar(id="log-title")
        yield Prose(id="log", tail=True)

    def focus_content(self) -> None:
        """The log."""
        self.query_one("#log").focus()

    def pause(self) -> None:
        """Let the log stand still, or go on."""
        self.is_paused = not self.is_paused
        self.query_one("#log", Prose).tail = not self.is_paused
        self.show()

    def show(self) -> None:
        """What there is now."""
        dashboard = self._dashboard
        board = self.feed.board
        facts = self.query_one("#facts", Prose)
        lines = (
            server_lines(board, dashboard.link.url)
            if board.server is not None
            else waiting_lines(dashboard, self.feed.errors.get("server"))
        )
        facts.put(lines)
        facts.styles.height = min(len(lines), max(2, self.size.height // 2))
        self.query_one("#server-title", Bar).put((own(" Server", strong=True), *self._tail()))
        book = dashboard.logs
        title: list[Span] = [own(" Log", strong=True)]
        if book is None:
            title.append(own("  is where the server runs; ryusen dev --tui shows it here", "muted"))
        else:
            behind = book.count - self._seen
            title.append(own("  paused, p goes on" if self.is_paused else f"  {book.count} lines", "warn" if self.is_paused else "muted"))
            if self.is_paused and behind:
                title.append(own(f", {behind} new", "warn"))
            if not self.is_paused:
                self._seen = book.count
                self.query_one("#log", Prose).put(book.lines(self.filter))
        self.query_one("#log-title", Bar).put(tuple(title))


def waiting_lines(dashboard: Dashboard, error: str | None) -> list[Line]:
    """Why there is nothing to show yet."""
    feed, glyphs = dashboard.feed, dashboard.glyphs
    if dashboard.failure is not None:
        return failure_lines(dashboard.failure, glyphs)
    match feed.contact:
        case "starting":
            return [(own(f"{glyphs.glyph('◌')} starting server{glyphs.glyph('…')}", "accent"),)]
        case "connecting" if feed.why:
            return [
                (own(f"{glyphs.glyph('✗')} No server at ", "bad"), foreign(dashboard.link.url)),
                (foreign(feed.why, "bad"), own("; trying again", "muted")),
                (own("ryusen dev app.py starts one; --url names another.", "muted"),),
            ]
        case "refused":
            return [(own(f"{glyphs.glyph('✗')} Refused: ", "bad"), foreign(feed.why)), (own("Check --token (or RYUSEN_TOKEN).", "muted"),)]
        case "reconnecting":
            return [(own(f"{glyphs.glyph('◌')} reconnecting{glyphs.glyph('…')}  ", "warn"), foreign(feed.why, "muted"))]
        case _ if error is not None:
            return [(own(f"{glyphs.glyph('✗')} Could not be loaded: ", "bad"), foreign(error)), (own("r tries again.", "muted"),)]
        case _:
            return [(own(f"{glyphs.glyph('◌')} loading{glyphs.glyph('…')}", "accent"),)]


def pane(name: PaneName, dashboard: Dashboard) -> Pane:
    """The pane of that name."""
    return ServerPane(dashboard) if name == "server" else ListPane(name, dashboard)


def topics(name: PaneName) -> tuple[Topic, ...]:
    """What a pane needs to be current."""
    return (
        ("server", "releases", "routing")
        if name == "server"
        else cast("tuple[Topic, ...]", (name, "releases") if name == "workers" else (name,))
    )
