"""The dialog that settles one Unknown attempt. What may follow on what is decided by `resolving`; this shows it and moves bytes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, ClassVar, Final

from textual import work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Static

from ryusen_protocol.client import ApiProblem, CommandRefused, UnreadableAnswer
from ryusen_tui import resolving
from ryusen_tui.dialogs import Dialog, Tick
from ryusen_tui.link import AnswerLost, NoServer
from ryusen_tui.resolving import Draft, NotYet, Resolution
from ryusen_tui.spans import Line, foreign, own
from ryusen_tui.story import allowed_lines, attempt_identity
from ryusen_tui.tables import COMMANDS
from ryusen_tui.widgets import text

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ryusen_protocol.api import AttemptDocument, OperatorCommand, RunSummary
    from ryusen_protocol.words import Tone

AGAIN_S: Final = 1.0
_ASKS: Final[dict[OperatorCommand, tuple[str, str]]] = {
    "supply_success": ("It happened. Its result, as JSON:", '{"charge": "ch_7"}'),
    "declare_failure": ("It failed, for this reason:", "carrier.refused: no carrier took the parcel"),
    "authorize_retry": ("Run it once more. The effect may then happen twice. To go on, type retry:", "retry"),
}
_TONES: Final[dict[resolving.Phase, Tone]] = {
    "choosing": "muted",
    "sending": "muted",
    "unsure": "warn",
    "refused": "bad",
    "done": "good",
    "overtaken": "warn",
}


class Resolve(Dialog):
    """R opens it, Cancel has the focus, 1, 2 and 3 choose, Enter on Apply sends. It stays until it is closed."""

    BINDINGS: ClassVar = [
        Binding("1", "choose('supply_success')", show=False),
        Binding("2", "choose('declare_failure')", show=False),
        Binding("3", "choose('authorize_retry')", show=False),
    ]

    def __init__(self, attempt: AttemptDocument, run: RunSummary | None) -> None:
        super().__init__()
        self.state = Resolution(attempt=attempt)
        self.choice: OperatorCommand | None = None
        self._run = run

    def compose(self) -> ComposeResult:
        """Identity, the three commands, what one of them needs, what came of it."""
        with Vertical(classes="dialog filled"):
            yield Static(text([(own("Resolve an Unknown attempt", strong=True),)]), markup=False)
            with VerticalScroll(id="about", can_focus=False):
                yield Static("", id="identity", markup=False)
            yield Static("", id="choices", markup=False)
            yield Static("", id="asks", markup=False)
            yield Input(id="entry", compact=True)
            yield Tick("retryable: the step's policy may run it again", id="retryable")
            yield Static("", id="said", markup=False)
            with Horizontal():
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Apply", id="apply", compact=True)

    def on_mount(self) -> None:
        """Nothing is chosen, and the harmless button has the focus."""
        self._identify()
        self.query_one("#cancel").focus()
        self._show()
        self._look()
        if self._run is None:
            self._find_run()

    def _identify(self) -> None:
        lines = attempt_identity(self.state.attempt, self._run, now_ms=self.dashboard.now_ms())
        self.query_one("#identity", Static).update(text(lines))

    @work(exit_on_error=False)
    async def _find_run(self) -> None:
        """Its function and deadline; the list of runs may be too short to have it."""
        with contextlib.suppress(NoServer, AnswerLost, UnreadableAnswer, ApiProblem):
            self._run = await self.dashboard.link.ask(self.dashboard.api.get_run(self.state.attempt.run_id))
            if self.is_attached:
                self._identify()

    # What a person does.

    def action_choose(self, command: OperatorCommand) -> None:
        """Fill in one of the commands."""
        if not self.state.is_open:
            return
        self.choice = command
        entry = self.query_one("#entry", Input)
        entry.value = ""
        entry.placeholder = _ASKS[command][1]
        self._show()
        entry.focus()

    def on_input_changed(self) -> None:
        """Checked as it is typed."""
        self._check()

    def on_tick_turned(self) -> None:
        """Another intent."""
        self._check()

    def on_input_submitted(self) -> None:
        """Enter in the entry goes to Apply; it does not apply."""
        button = self.query_one("#apply", Button)
        if not button.disabled:
            button.focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Apply, or close."""
        if event.button.id == "cancel":
            self.dismiss(self.state)
        elif self.state.is_open:
            self._apply()

    def action_leave(self) -> None:
        """Close it. What was sent goes on."""
        self.dismiss(self.state)

    # What follows.

    def changed(self) -> None:
        """The run of this attempt has moved."""
        self._look()

    def _draft(self) -> Draft:
        return Draft(choice=self.choice, text=self.query_one("#entry", Input).value, retryable=self.query_one("#retryable", Tick).value)

    def _check(self) -> None:
        if not self.state.is_open or self.choice is None:
            return
        try:
            resolving.intend(self.state, resolving.command_of(self._draft()), lambda: "-")
        except NotYet as error:
            self._say((foreign(str(error), "warn"),), can_apply=False)
        else:
            self._say((own(f"Apply will {COMMANDS[self.choice]}. Enter, then Enter on Apply.", "muted"),), can_apply=True)

    def _apply(self) -> None:
        try:
            self.state = resolving.intend(self.state, resolving.command_of(self._draft()), lambda: f"tui-{secrets.token_hex(16)}")
        except NotYet as error:
            self._say((foreign(str(error), "warn"),), can_apply=False)
            return
        self._show()
        self._send()

    @work(exit_on_error=False, group="send")
    async def _send(self) -> None:
        """Until there is an answer, always under the one key."""
        command = self.state.sent
        if command is None:
            return
        dashboard = self.dashboard
        while True:
            try:
                answer = await dashboard.link.ask(dashboard.api.resolve_attempt(command))
            except NoServer as error:
                self.state = resolving.unreached(self.state, str(error))
                self._show()
                await asyncio.sleep(AGAIN_S)
                continue
            except (AnswerLost, UnreadableAnswer) as error:
                self.state = resolving.lost(self.state, str(error))
                self._show()
                await asyncio.sleep(AGAIN_S)
                continue
            except CommandRefused as error:
                if error.code == "server":
                    self.state = resolving.lost(self.state, str(error))
                    self._show()
                    await asyncio.sleep(AGAIN_S)
                    continue
                self.state = resolving.refused(self.state, error.code, str(error))
            except ApiProblem as problem:
                self.state = resolving.refused(self.state, problem.code, problem.detail)
            else:
                self.state = resolving.done(self.state, answer)
            break
        dashboard.feed.need("unknown", "runs", "server")
        self._show()
        self._look()

    @work(exit_on_error=False, exclusive=True, group="look")
    async def _look(self) -> None:
        """What became of the attempt; what is not known keeps the dialog as it is."""
        try:
            now = await self.dashboard.link.ask(self.dashboard.api.get_attempt(self.state.attempt.attempt_id))
        except (NoServer, AnswerLost, UnreadableAnswer, ApiProblem):
            return
        before = self.state
        self.state = resolving.seen(self.state, now)
        if self.state is not before:
            self._show()

    def _show(self) -> None:
        if not self.is_attached:
            return
        state = self.state
        is_filling = state.is_open and self.choice is not None
        self.query_one("#choices", Static).update(text(allowed_lines(state.attempt)))
        self.query_one("#choices").display = state.is_open
        self.query_one("#asks", Static).update(_ASKS[self.choice][0] if self.choice is not None else "")
        self.query_one("#asks").display = is_filling
        self.query_one("#entry").display = is_filling
        self.query_one("#retryable").display = is_filling and self.choice == "declare_failure"
        if not state.is_open:
            self.query_one("#cancel", Button).label = "Close"
            self.query_one("#cancel").focus()
        head = {
            "sending": f"Sending{self.dashboard.glyphs.glyph('…')}",
            "unsure": f"Not known yet, try {state.tries}. ",
            "refused": f"Refused, {state.code}: ",
            "done": "Applied: ",
        }
        self._say(
            (own(head.get(state.phase, ""), _TONES[state.phase], strong=True), foreign(state.said, _TONES[state.phase])), can_apply=False
        )
        if state.phase == "choosing":
            self._check()
        elif state.phase == "refused":
            self.query_one("#apply", Button).disabled = False

    def _say(self, line: Line, *, can_apply: bool) -> None:
        if self.is_attached:
            self.query_one("#said", Static).update(text([line]))
            self.query_one("#apply", Button).disabled = not can_apply
