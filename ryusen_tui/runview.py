"""One run: its waterfall, its attempts, its history, what went in and came out. Reads it again whenever a change names it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from textual import work
from textual.binding import Binding
from textual.widgets import ContentSwitcher, Static

from ryusen_protocol.client import ApiProblem, UnreadableAnswer
from ryusen_tui import story, waterfall
from ryusen_tui.chart import Chart
from ryusen_tui.link import AnswerLost, NoServer
from ryusen_tui.screens import Framed
from ryusen_tui.spans import Glyphs, Line, Span, foreign, own, plain
from ryusen_tui.widgets import Bar, Prose, text

if TYPE_CHECKING:
    from textual import events
    from textual.widget import Widget

    from ryusen_protocol.api import AttemptDocument, AttemptLogDocument, HistoryEntryDocument, RunDetail
    from ryusen_protocol.ids import RunId
    from ryusen_tui.board import Topic

Tab = Literal["timeline", "attempts", "history", "payload"]
TABS: Final[dict[Tab, str]] = {"timeline": "Timeline", "attempts": "Attempts", "history": "History", "payload": "Input/Output"}
_AGAIN_S: Final = 0.25
_HISTORY_PAGE: Final = 200
_HISTORY_MAX: Final = 2_000
_LOGS_MAX: Final = 500
"""Attempts of which lines are shown."""


class Tabs(Bar):
    """Which of the four is seen; a click chooses."""

    def on_click(self, event: events.Click) -> None:
        """The title under the mouse."""
        at = 1
        for name, title in TABS.items():
            if at <= event.x < at + len(title) + 2:
                view = self.screen
                if isinstance(view, RunView):
                    view.choose(name)
                return
            at += len(title) + 3


class RunView(Framed):
    """One run in full."""

    BINDINGS: ClassVar = [
        Binding("tab", "turn(1)", show=False, priority=True),
        Binding("shift+tab", "turn(-1)", show=False, priority=True),
        Binding("left_square_bracket", "other(-1)", show=False),
        Binding("right_square_bracket", "other(1)", show=False),
        Binding("e", "edit", show=False),
        Binding("B", "rediscover", show=False),
    ]
    DEFAULT_CSS = """
    RunView > #run-head, RunView > #blocker { height: auto; padding: 0 1; max-height: 30%; }
    """

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.place = "run"
        self.run_id = run_id
        self.run: RunDetail | None = None
        self.tab: Tab = "timeline"
        self._history: list[Line] = []
        self._teller = story.Teller(Glyphs())
        self._history_after: int | None = None
        self._logs: dict[str, AttemptLogDocument] = {}
        self._loaded_at = 0.0
        self._again = False

    def body(self) -> list[Widget]:
        """Head, blocker, tabs."""
        glyphs = self.dashboard.glyphs
        return [
            Static("", id="run-head", markup=False),
            Static("", id="blocker", markup=False),
            Tabs(id="tabs"),
            ContentSwitcher(
                Chart(glyphs, id="timeline"), Prose(id="attempts"), Prose(id="history"), Prose(id="payload"), initial="timeline"
            ),
        ]

    def on_mount(self) -> None:
        """Ask for it."""
        self._teller = story.Teller(self.dashboard.glyphs)
        self.query_one("#blocker").display = False
        self.query_one("#timeline", Chart).put([], None, note=[self._loading()])
        self.choose("timeline")
        self.set_interval(1.0, self._pass_time)
        self.load()

    def _loading(self) -> Line:
        return (own(f"loading{self.dashboard.glyphs.glyph('…')}", "accent"),)

    def _pass_time(self) -> None:
        """Bars of what still runs grow, and callbacks print."""
        if self.run is None or self.run.status == "ended":
            return
        if self.tab == "timeline":
            self._draw_chart(self.run)
        elif self.tab == "attempts":
            self.load_logs()

    # Which run, which tab.

    def choose(self, tab: Tab) -> None:
        """See another tab."""
        self.tab = tab
        self.query_one(ContentSwitcher).current = tab
        self.query_one(f"#{tab}").focus()
        spans: list[Span] = [own(" ")]
        for name, title in TABS.items():
            spans += [
                own(f"[{title}]" if name == tab else f" {title} ", "accent" if name == tab else "muted", strong=name == tab),
                own(" "),
            ]
        self.query_one("#tabs", Tabs).put(tuple(spans))
        if tab == "history":
            self.load_history()
            return
        if tab == "attempts":
            self.load_logs()
        if self.run is not None:
            self._draw(self.run)

    def action_turn(self, by: int) -> None:
        """The next tab."""
        names = list(TABS)
        self.choose(names[(names.index(self.tab) + by) % len(names)])

    def action_other(self, by: int) -> None:
        """The previous or next run of the list."""
        listed: list[str] = [run.run_id for run in self.dashboard.feed.board.runs or ()]
        if self.run_id in listed:
            index = listed.index(self.run_id) + by
            if 0 <= index < len(listed):
                self.show_run(listed[index])

    def show_run(self, run_id: str) -> None:
        """Another run in the same place."""
        self.run_id, self.run = run_id, None
        self._history, self._history_after, self._teller = [], None, story.Teller(self.dashboard.glyphs)
        self.query_one("#run-head", Static).update(text([(foreign(run_id, "muted"),), self._loading()]))
        self.load()
        if self.tab == "history":
            self.load_history()

    def told(self, changed: frozenset[Topic], touched: frozenset[RunId]) -> None:
        """Read it again if it moved, or if who works on it may be away now, which is no change of a run."""
        is_live = self.run is not None and self.run.status != "ended"
        if self.run_id in touched or (self.run is None and "server" in changed) or (is_live and "workers" in changed):
            self._soon()

    def _soon(self) -> None:
        if self._again:
            return
        wait_s = self._loaded_at + _AGAIN_S - time.monotonic()
        if wait_s > 0:
            self._again = True
            self.set_timer(wait_s, self._reload)
        else:
            self._reload()

    def _reload(self) -> None:
        self._again = False
        self.load()
        if self.tab == "history":
            self.load_history()
        elif self.tab == "attempts":
            self.load_logs()

    @work(exit_on_error=False, exclusive=True, group="logs")
    async def load_logs(self) -> None:
        """What the callbacks printed; a server that keeps none, or is away, changes nothing here."""
        dashboard, wanted = self.dashboard, self.run_id
        found: dict[str, AttemptLogDocument] = {}
        cursor: str | None = None
        try:
            while len(found) < _LOGS_MAX:
                page = await dashboard.link.ask(dashboard.api.logs(wanted, cursor=cursor))
                found |= {log.attempt_id: log for log in page.items}
                cursor = page.next_cursor
                if cursor is None:
                    break
        except (NoServer, AnswerLost, ApiProblem, UnreadableAnswer):
            return
        if wanted == self.run_id and found != self._logs:
            self._logs = found
            if self.run is not None and self.tab == "attempts":
                self._draw(self.run)

    @work(exit_on_error=False, exclusive=True, group="run")
    async def load(self) -> None:
        """The run as it is now."""
        dashboard, wanted = self.dashboard, self.run_id
        self._loaded_at = time.monotonic()
        try:
            run = await dashboard.link.ask(dashboard.api.get_run(wanted))
        except (NoServer, AnswerLost, ApiProblem, UnreadableAnswer) as error:
            if self.run is None and self.is_mounted:
                self.query_one("#run-head", Static).update(
                    text([(foreign(wanted, "muted"),), (foreign(str(error), "bad"), own("; r tries again"))])
                )
                self.query_one("#timeline", Chart).put([], None)
            return
        if self.is_mounted and wanted == self.run_id:
            self.run = run
            self._draw(run)

    @work(exit_on_error=False, exclusive=True, group="history")
    async def load_history(self) -> None:
        """What was committed since it was read last."""
        dashboard, wanted = self.dashboard, self.run_id
        prose = self.query_one("#history", Prose)
        try:
            while len(self._history) < _HISTORY_MAX:
                page = await dashboard.link.ask(dashboard.api.history(wanted, after=self._history_after, limit=_HISTORY_PAGE))
                if wanted != self.run_id:
                    return
                self._take(page.items)
                if page.next_cursor is None:
                    break
        except (NoServer, AnswerLost, ApiProblem, UnreadableAnswer) as error:
            prose.put([*self._history, (foreign(str(error), "bad"),)])
            return
        more: list[Line] = (
            []
            if len(self._history) < _HISTORY_MAX
            else [(own(f"{dashboard.glyphs.glyph('…')} more: ", "muted"), own(f"ryusen runs history {wanted}"))]
        )
        prose.put([*self._history, *more] or [(own("no history yet", "muted"),)])

    def _take(self, entries: list[HistoryEntryDocument]) -> None:
        for entry in entries:
            self._history += self._teller.lines(entry)
            self._history_after = entry.position

    # Drawing.

    def _draw(self, run: RunDetail) -> None:
        glyphs, now_ms = self.dashboard.glyphs, self.dashboard.now_ms()
        head = story.run_head(run, glyphs)
        failure = story.run_failure(run)
        self.query_one("#run-head", Static).update(text([*head, failure] if failure and self.size.height > 20 else head))
        blocker = self.query_one("#blocker", Static)
        blocker.display = run.blocker is not None
        if run.blocker is not None:
            blocker.update(text(story.blocker_lines(run.blocker, glyphs, now_ms=now_ms)))
        match self.tab:
            case "timeline":
                self._draw_chart(run)
            case "attempts":
                self.query_one("#attempts", Prose).put(
                    story.attempts_lines(run, self._logs, glyphs, now_ms=now_ms) or [(own("no step yet", "muted"),)]
                )
            case "payload":
                self.query_one("#payload", Prose).put(story.payload_lines(run))
            case "history":
                pass

    def _draw_chart(self, run: RunDetail) -> None:
        glyphs, now_ms = self.dashboard.glyphs, self.dashboard.now_ms()
        lanes = waterfall.lanes(run, glyphs, now_ms=now_ms)

        def make_axis(columns: int, folded: bool) -> waterfall.Axis:  # noqa: FBT001 - two plain values of a callback
            return waterfall.axis(run, lanes, columns, now_ms=now_ms, fold=folded)

        note: list[Line] = [(own("No step yet: the function has not reached its first one.", "muted"),)]
        self.query_one("#timeline", Chart).put(lanes, make_axis, note=note)

    # What keys act on.

    def on_chart_opened(self, message: Chart.Opened) -> None:
        """The run that a step invoked, or the attempts of a step."""
        if message.lane.run_id is not None:
            self.dashboard.open_run(message.lane.run_id)
            return
        self.choose("attempts")
        prose = self.query_one("#attempts", Prose)
        wanted = plain(message.lane.label)
        for index, line in enumerate(prose.lines):
            if plain(line).startswith(wanted):
                prose.scroll_to(y=index, animate=False, force=True)
                return

    def unknown_attempt(self) -> AttemptDocument | None:
        """The Unknown attempt to settle: the marked lane's, or else the first."""
        run = self.run
        if run is None:
            return None
        attempts = [one for step in run.steps for one in step.attempts] + [one for target in run.unwind.targets for one in target.attempts]
        unknown = [one for one in attempts if one.state == "unknown"]
        lane = self.query_one("#timeline", Chart).marked
        marked = set(lane.attempt_ids) if lane is not None else set[str]()
        return next((one for one in unknown if one.attempt_id in marked), unknown[0] if unknown else None)

    def action_edit(self) -> None:
        """The payload in the person's editor."""
        if self.run is not None:
            self.dashboard.edit(story.payload_document(self.run))

    def action_rediscover(self) -> None:
        """Ask a blocked run to look at its code again."""
        if self.run is not None and self.run.status == "definition_blocked":
            self.dashboard.change(self.dashboard.api.rediscover(self.run_id), "asked to look at its code again")

    def marked_id(self) -> str | None:
        """The run's."""
        return self.run_id

    def marked_path(self) -> str:
        """Where the browser has it."""
        return f"/runs/{self.run_id}"
