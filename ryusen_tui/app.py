"""The application: one feed, a stack of screens, and the keys that work everywhere.

Owns how it begins and ends: it paints before there is a server, restores the terminal whatever ends it, and a
defect of its own shows where it happened, never the data it happened with.
"""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, cast
from urllib.parse import quote

from rich.text import Text
from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.worker import Worker, WorkerCancelled, WorkerFailed, WorkerState

from ryusen_protocol.client import Api, ApiProblem, UnreadableAnswer
from ryusen_protocol.words import printable
from ryusen_tui import outside
from ryusen_tui.board import Topic
from ryusen_tui.dialogs import DIALOG_CSS, Help, Question, Send
from ryusen_tui.feed import Feed
from ryusen_tui.head import Failure, contact_line, head_line
from ryusen_tui.link import AnswerLost, Link, NoServer
from ryusen_tui.panes import PANES, PaneName
from ryusen_tui.resolve import Resolve
from ryusen_tui.runview import RunView
from ryusen_tui.screens import Detail, EventView, Framed, Main
from ryusen_tui.spans import Glyphs, Line, foreign, own
from ryusen_tui.story import function_lines, worker_lines
from ryusen_tui.tables import function_key
from ryusen_tui.widgets import ASCII

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.screen import Screen

    from ryusen_protocol.api import AttemptDocument, RunSummary
    from ryusen_protocol.client import Request
    from ryusen_protocol.ids import RunId
    from ryusen_tui.logs import LogBook
    from ryusen_tui.widgets import Table

T = TypeVar("T")

End = Literal["quit", "plain"]
"""How a person left: for good, or for the plain log."""

FAILED: Final = 1
AGES_S: Final = 2.0
"""How often lists are drawn for their ages alone, which is most of what idling costs; nobody takes an age for a stopwatch."""


def wall_ms() -> int:
    """Now, by the clock of this machine."""
    return time.time_ns() // 1_000_000


class Dashboard(App[End]):
    """The dashboard of one server. `owns_server`: leaving it ends the server, so it asks first."""

    TITLE = "ryusen"
    ENABLE_COMMAND_PALETTE = True
    CSS = (
        DIALOG_CSS
        + """
Toast { width: auto; max-width: 90%; }
App.-ascii Toast { border: none; }
"""
    )
    BINDINGS: ClassVar = [
        *(Binding(f"{number}", f"pane('{name}')", show=False) for number, name in enumerate(PANES, 1)),
        Binding("slash", "filter", show=False),
        Binding("escape", "back", show=False),
        Binding("question_mark", "keys", show=False),
        Binding("u", "next_unknown", show=False),
        Binding("y", "copy", show=False),
        Binding("o", "browse", show=False),
        Binding("r", "reload", show=False),
        Binding("s", "send", show=False),
        Binding("X", "cancel", show=False),
        Binding("R", "resolve", show=False),
        Binding("p", "pause", show=False),
        Binding("D", "plain", show=False),
        Binding("q", "leave", show=False),
        Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True),
    ]

    def __init__(
        self,
        url: str,
        *,
        workspace: str = "default",
        token: str | None = None,
        logs: LogBook | None = None,
        owns_server: bool = False,
        unicode: bool = True,
        now_ms: Callable[[], int] = wall_ms,
        started: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.set_class(not unicode, ASCII)
        self.link = Link(url)
        self.api = Api(workspace, token)
        self._workspace = workspace
        self.glyphs = Glyphs(unicode)
        self.logs = logs
        self.owns_server = owns_server
        self.failure: Failure | None = None
        self.now_ms = now_ms
        self.feed = Feed(self.link, self.api, tell=self._told)
        self._started = started
        self._log_drawn = False
        self._is_waiting = owns_server
        if owns_server:
            self.feed.contact = "starting"

    # How it begins and ends.

    def get_default_screen(self) -> Screen[Any]:
        """The six panes."""
        return Main()

    def on_mount(self) -> None:
        """Everything else after the first paint."""
        self.set_interval(AGES_S, self._pass_time)
        if self.logs is not None:
            self.logs.heard = self._log_heard
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        if self._started is not None:
            self._started()
        if not self._is_waiting:
            self._read()

    def server_is_at(self, url: str) -> None:
        """The server that was awaited answers there."""
        self.link.url = url.rstrip("/")
        self.failure = None
        if self._is_waiting:
            self._is_waiting = False
            self.feed.contact = "connecting"
            self._read()
        self._told(frozenset(("server",)), frozenset())

    def failed(self, failure: Failure) -> None:
        """The server is not there and will not come."""
        self.failure = failure
        self._told(frozenset(("server", "runs")), frozenset())

    @work(exit_on_error=False, exclusive=True, group="feed", name="feed")
    async def _read(self) -> None:
        await self.feed.run()

    def exit(self, result: End | None = None, return_code: int = 0, message: Any = None) -> None:
        """Leave. An editor that has the terminal gives it back first."""
        editors = [worker for worker in self.workers if worker.group == "editor" and worker.is_running]
        if not editors:
            super().exit(result, return_code, message)
            return
        for worker in editors:
            worker.cancel()
        self._exit_after(editors, partial(super().exit, result, return_code, message))

    @work(exit_on_error=False)
    async def _exit_after(self, workers: list[Worker[Any]], leave: Callable[[], None]) -> None:
        for worker in workers:
            with suppress(WorkerCancelled, WorkerFailed):
                await worker.wait()
        leave()

    async def on_unmount(self) -> None:
        """Nothing is asked any more, and no connection stays open."""
        self.workers.cancel_all()
        for worker in list(self.workers):
            with suppress(WorkerCancelled, WorkerFailed):
                await worker.wait()
        await self.link.close()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A defect of ours is said and does not end the dashboard; reading begins anew."""
        worker = cast("Worker[Any]", event.worker)  # pyright: ignore[reportUnknownMemberType]
        if event.state is WorkerState.ERROR:
            error = worker.error
            self.say(f"a defect of the dashboard: {type(error).__name__}: {error}", severity="error")
            if worker.name == "feed":
                self.set_timer(1.0, self._read)

    def _fatal_error(self) -> None:
        """What is printed after the terminal is restored: where it happened, without the values of that moment."""
        self._exit_renderables.append(Text(printable(traceback.format_exc(), multiline=True)))
        self._close_messages_no_wait()

    # What is new.

    def _told(self, changed: frozenset[Topic], touched: frozenset[RunId]) -> None:
        if not self.is_running:
            return
        for screen in self.screen_stack:
            if isinstance(screen, Framed) and screen.is_mounted:
                if "server" in changed or "workers" in changed:
                    screen.redraw_head()
                if screen is self.screen or not (isinstance(screen, Main) and isinstance(self.screen, Framed)):
                    screen.told(changed, touched)
            elif isinstance(screen, Resolve) and screen.state.attempt.run_id in touched:
                screen.changed()

    def _pass_time(self) -> None:
        # The last tick may come when there is nothing left to draw on.
        if self.is_running and isinstance(self.screen, Main):
            self.screen.current.show()

    def _log_heard(self) -> None:
        if not self._log_drawn and self.is_running:
            self._log_drawn = True
            self.set_timer(0.1, self._draw_log)

    def _draw_log(self) -> None:
        self._log_drawn = False
        if self.is_running and isinstance(self.screen, Main) and self.screen.place == "server":
            self.screen.current.show()

    def head_line(self, columns: int) -> Line:
        """Which server, whether it is heard, and what needs somebody."""
        said = contact_line(self.feed.contact, self.failure, self.glyphs)
        return head_line(self.feed.board, said, self.link.url, self.glyphs, columns)

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the screens do nothing behind a dialog."""
        del parameters
        if action in {"leave", "command_palette"} or isinstance(self.screen, Framed):
            return True
        return f"action_{action}" not in vars(Dashboard)

    @property
    def _main(self) -> Main:
        found = self.screen_stack[0]
        if not isinstance(found, Main):
            raise AssertionError("the first screen is the main one")
        return found

    def action_pane(self, name: PaneName) -> None:
        """One of the six."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self._main.choose(name)

    def action_filter(self) -> None:
        """Narrow the list that is seen."""
        if isinstance(self.screen, Main):
            self.screen.current.open_filter()

    async def action_back(self) -> None:
        """Out of what was opened last; never out of the program."""
        screen = self.screen
        if isinstance(screen, Main):
            if screen.current.is_filtering or screen.current.filter:
                screen.current.close_filter(keep=False)
        elif len(self.screen_stack) > 1:
            self.pop_screen()
            if isinstance(self.screen, Main):
                self.screen.current.show()

    def action_keys(self) -> None:
        """Help for what has the focus."""
        if isinstance(self.screen, Framed):
            self.push_screen(Help(self.screen.place))

    def action_next_unknown(self) -> None:
        """The next attempt that waits for somebody."""
        if isinstance(self.screen, Main) and self.screen.place == "unknown" and self.screen.table is not None:
            table = self.screen.table
            table.action_jump("first") if table.index == len(table.rows) - 1 else table.action_move(1)
            return
        self.action_pane("unknown")

    def action_copy(self) -> None:
        """The id, into the clipboard."""
        marked = self.screen.marked_id() if isinstance(self.screen, Framed) else None
        if marked is not None:
            self.copy_to_clipboard(marked)
            self.say(f"copied {marked}")

    def action_browse(self) -> None:
        """The same thing in the browser."""
        if isinstance(self.screen, Framed):
            named = "" if self._workspace == "default" else f"?workspace={quote(self._workspace, safe='')}"
            self._browse(self.link.url + self.screen.marked_path() + named)

    @work(exit_on_error=False)
    async def _browse(self, url: str) -> None:
        try:
            await outside.browse(url)
        except outside.NotThere as error:
            self.say(str(error), severity="warning")
        else:
            self.say(f"opened {url}")

    def action_reload(self) -> None:
        """Ask for everything anew."""
        self.feed.reload()
        screen = self.screen
        if isinstance(screen, RunView | EventView):
            screen.load()

    def action_send(self) -> None:
        """Send an event; the one that is looked at is the example."""
        name, data = "", "{}"
        screen = self.screen
        if isinstance(screen, EventView) and screen.event is not None:
            import base64

            name = screen.event.name
            data = base64.b64decode(screen.event.payload_base64).decode("utf-8", "replace")
        elif isinstance(screen, Main):
            name = self._example(screen)
        self.push_screen(Send(name, data))

    def _example(self, screen: Main) -> str:
        board, key = self.feed.board, screen.table.key if screen.table is not None else None
        if screen.place == "events":
            return next((event.name for event in board.events or () if event.event_id == key), "")
        functions = board.functions or ()
        triggers = [t.event_name for f in functions if screen.place != "functions" or function_key(f) == key for t in f.triggers]
        return triggers[0] if triggers else ""

    def action_cancel(self) -> None:
        """Stop the marked run, once the person says so."""
        screen = self.screen
        run_id = (
            screen.run_id
            if isinstance(screen, RunView)
            else screen.marked_id()
            if isinstance(screen, Main) and screen.place == "runs"
            else None
        )
        if run_id is None:
            return
        wanted = run_id

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - what a dialog is answered with
            if yes:
                self.change(self.api.cancel(wanted), "asked to stop")

        lines: list[Line] = [
            (own("run "), foreign(wanted)),
            (own("What runs finishes and counts; then the completed steps are undone, newest first."),),
        ]
        self.push_screen(Question("Cancel this run?", lines, yes=("y",), says="y cancels it   Esc leaves it running"), answered)

    def action_resolve(self) -> None:
        """Settle the Unknown attempt that is marked."""
        screen = self.screen
        attempt: AttemptDocument | None = None
        run: RunSummary | None = None
        if isinstance(screen, RunView):
            attempt, run = screen.unknown_attempt(), screen.run
        elif isinstance(screen, Main) and screen.place == "unknown" and screen.table is not None:
            attempt = next((one for one in self.feed.board.unknown or () if one.attempt_id == screen.table.key), None)
            run = None if attempt is None else next((one for one in self.feed.board.runs or () if one.run_id == attempt.run_id), None)
        if attempt is None:
            if isinstance(screen, RunView | Main):
                self.say("nothing Unknown is marked here; u finds the next one")
            return
        self.push_screen(Resolve(attempt, run))

    def action_pause(self) -> None:
        """The log stands still."""
        if isinstance(self.screen, Main):
            self.screen.pause()

    def action_plain(self) -> None:
        """Leave for the plain log; what runs goes on."""
        self.exit("plain")

    def action_leave(self) -> None:
        """Leave; ask first when the server would end with it."""
        if isinstance(self.screen, Question):
            self.screen.dismiss(result=True)
        elif self.owns_server and self.failure is None:
            lines: list[Line] = [(own("The server and its workers end with the dashboard. Runs go on when they are started again."),)]
            says = "y or q leaves   Esc stays   (D leaves the server running)"
            self.push_screen(Question("Leave?", lines, yes=("y", "q"), says=says), self._leave)
        else:
            self._leave(yes=True)

    def _leave(self, yes: bool | None) -> None:  # noqa: FBT001 - what a dialog is answered with
        if yes:
            self.exit("quit", return_code=FAILED if self.failure is not None else 0)

    # What is opened.

    def on_table_opened(self, message: Table.Opened) -> None:
        """Enter on a row, or a click on the marked one."""
        screen, key = self.screen, message.key
        if isinstance(screen, EventView):
            run_id = screen.marked_run()
            if run_id is not None:
                self.open_run(run_id)
            return
        if isinstance(screen, Main):
            self._open(screen.place, key)

    def _open(self, place: str, key: str) -> None:
        board = self.feed.board
        match place:
            case "runs":
                self.open_run(key)
            case "unknown":
                for attempt in _one(board.unknown, lambda one: one.attempt_id == key):
                    self.open_run(attempt.run_id)
            case "events":
                self.push_screen(EventView(key))
            case "workers":
                for worker in _one(board.workers, lambda one: one.instance_id == key):
                    self.push_screen(Detail("Worker", key, worker_lines(worker, self.glyphs), "/workers"))
            case "functions":
                for function in _one(board.functions, lambda one: function_key(one) == key):
                    self.push_screen(Detail("Function", function.function, function_lines(function), "/functions"))
            case _:
                pass

    def open_run(self, run_id: str) -> None:
        """A run on a screen of its own."""
        self.push_screen(RunView(run_id))

    @work(exit_on_error=False)
    async def change(self, request: Request[Any], done: str) -> None:
        """Ask for a change that is safe to ask for again, and say what came of it."""
        try:
            answer = await self.link.ask(request)
        except NoServer as error:
            self.say(f"nothing was asked: {error}", severity="error")
        except (AnswerLost, UnreadableAnswer) as error:
            self.say(f"the answer was lost ({error}); the same key asks again, which is safe", severity="warning")
        except ApiProblem as problem:
            self.say(f"{problem.code}: {problem.detail}", severity="error")
        else:
            again = " already" if getattr(answer, "status", "") == "replayed" else ""
            self.say(f"{done}{again}")
            self.feed.need("runs", "server")

    @work(exit_on_error=False, exclusive=True, group="editor")
    async def edit(self, document: str) -> None:
        """A text in the person's editor; what is changed there is not kept."""
        try:
            await outside.edit(self, document)
        except outside.NotThere as error:
            self.say(str(error), severity="warning")

    def say(self, message: str, *, severity: Literal["information", "warning", "error"] = "information") -> None:
        """A line that goes away by itself."""
        self.notify(printable(message), severity=severity, markup=False, timeout=4)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the command palette offers."""
        del screen
        for name in PANES:
            yield SystemCommand(f"Show {name}", "one of the six panes", partial(self.action_pane, name))
        for title, says, action in (
            ("Send an event", "s", self.action_send),
            ("Next Unknown", "u", self.action_next_unknown),
            ("Resolve the marked Unknown attempt", "R", self.action_resolve),
            ("Cancel the marked run", "X", self.action_cancel),
            ("Filter the list", "/", self.action_filter),
            ("Copy the id", "y", self.action_copy),
            ("Open in the browser", "o", self.action_browse),
            ("Reload", "r", self.action_reload),
            ("Keys", "?", self.action_keys),
            ("Change the theme", "colours; ansi ones are the terminal's own", self.action_change_theme),
            ("Leave for the plain log", "D", self.action_plain),
            ("Quit", "q", self.action_leave),
        ):
            yield SystemCommand(title, says, action)


def _one(listed: tuple[T, ...] | None, is_wanted: Callable[[T], bool]) -> list[T]:
    """The one that is wanted, if it is still there."""
    return [one for one in listed or () if is_wanted(one)][:1]
