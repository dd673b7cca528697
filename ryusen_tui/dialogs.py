"""Dialogs over a screen: a question, help, sending an event. Settling an Unknown attempt has a module of its own."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from ryusen_protocol.client import ApiProblem, UnreadableAnswer
from ryusen_tui import keys
from ryusen_tui.link import AnswerLost, NoServer
from ryusen_tui.spans import Line, foreign, own
from ryusen_tui.widgets import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from ryusen_protocol.api import EventReceipt
    from ryusen_protocol.client import Request
    from ryusen_tui.app import Dashboard

DIALOG_CSS = """
.dialog { width: 90%; max-width: 96; height: auto; max-height: 100%; border: round $accent; padding: 0 1; background: $background; }
.dialog Static { height: auto; }
.dialog Horizontal { height: auto; }
.dialog Input { height: 1; border: none; padding: 0 1; background: $background; text-style: underline; }
.dialog Input:focus { border: none; text-style: underline bold; }
.dialog Button { height: 1; min-width: 10; border: none !important; margin-right: 2; }
.dialog Button:focus { text-style: reverse bold; }
.dialog Button:disabled { text-style: dim; border: none !important; height: 1; }
.dialog #about { height: auto; max-height: 12; }
App.-ascii .dialog { border: ascii $accent; }
Dialog.short .dialog, App.-ascii Dialog.short .dialog { border: none; width: 100%; }
Dialog.short .filled { height: 100%; }
Dialog.short #about { height: 1fr; }
"""


class Dialog(ModalScreen[Any]):
    """Over everything else, in the middle."""

    DEFAULT_CSS = "Dialog { align: center middle; }"
    BINDINGS: ClassVar = [Binding("escape", "leave", show=False)]

    @property
    def dashboard(self) -> Dashboard:
        """The application."""
        return cast("Dashboard", self.app)  # pyright: ignore[reportUnknownMemberType]

    def on_resize(self) -> None:
        """No room for borders is left on a small screen."""
        self.set_class(self.size.height < 20 or self.size.width < 60, "short")

    def action_leave(self) -> None:
        """Close it; nothing is done."""
        self.dismiss(None)


class Tick(Static, can_focus=True):
    """Yes or no, as `[x]` or `[ ]`: told apart without colour."""

    BINDINGS: ClassVar = [Binding("enter,space", "turn", show=False)]

    class Turned(Message):
        """It is the other way round now."""

    def __init__(self, label: str, *, id: str | None = None) -> None:  # noqa: A002 - the framework's own word
        super().__init__("", id=id, markup=False)
        self._label = label
        self.value = False

    def on_mount(self) -> None:
        """Not ticked."""
        self._show()

    def on_focus(self) -> None:
        """Keys go here."""
        self._show()

    def on_blur(self) -> None:
        """Keys go elsewhere."""
        self._show()

    def on_click(self) -> None:
        """The mouse does the same."""
        self.action_turn()

    def action_turn(self) -> None:
        """The other way round."""
        self.value = not self.value
        self._show()
        self.post_message(self.Turned())

    def _show(self) -> None:
        self.update(text([(own(f"[{'x' if self.value else ' '}] {self._label}", "accent" if self.has_focus else None),)]))


class Question(Dialog):
    """A question that some keys answer with yes. Its other answer is Esc; no Enter of an earlier moment answers it."""

    def __init__(self, title: str, lines: Sequence[Line], *, yes: Sequence[str], says: str) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._yes = tuple(yes)
        self._says = says

    def compose(self) -> ComposeResult:
        """Title, text, and the keys."""
        with Vertical(classes="dialog"):
            yield Static(text([(own(self._title, strong=True),), *self._lines, (), (own(self._says, "muted"),)]), markup=False)

    def on_key(self, event: Any) -> None:
        """Yes, or nothing."""
        if event.key in self._yes or event.character in self._yes:
            event.stop()
            self.dismiss(result=True)


class Help(Dialog):
    """The keys of the place that has the focus, then those of every place."""

    BINDINGS: ClassVar = [
        Binding("escape,q,question_mark", "leave", show=False),
        Binding("j,down", "down", show=False),
        Binding("k,up", "up", show=False),
    ]

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    def compose(self) -> ComposeResult:
        """Two lists."""
        own_keys = (*keys.PLACES[self._place], *keys.MORE.get(self._place, ()))
        lines: list[Line] = [(own(keys.TITLES[self._place], strong=True),), *(_key_line(one) for one in own_keys), ()]
        lines += [(own("Everywhere", strong=True),), *(_key_line(one) for one in keys.EVERYWHERE)]
        with VerticalScroll(classes="dialog"):
            yield Static(text(lines), markup=False)

    def action_down(self) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_down(animate=False)

    def action_up(self) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_up(animate=False)


def _key_line(key: keys.Key) -> Line:
    return (own(f"  {key.key:<12}", "accent"), own(key.does))


class Send(Dialog):
    """Send an event. One filling-in has one key: sent again after a lost answer it is still one event."""

    def __init__(self, name: str = "", data: str = "{}") -> None:
        super().__init__()
        self._name = name
        self._data = data
        self._key = ""
        self._sent: tuple[str, str] | None = None
        self._busy = False

    def compose(self) -> ComposeResult:
        """Name, data, and what came of it."""
        with Vertical(classes="dialog"):
            yield Static("Send an event", markup=False)
            yield Static("name", markup=False)
            yield Input(self._name, placeholder="order/placed", id="name", compact=True, select_on_focus=False)
            yield Static("data, JSON", markup=False)
            yield Input(self._data, id="data", compact=True, select_on_focus=False)
            yield Static("", id="said", markup=False)
            with Horizontal():
                yield Button("Send", id="send", compact=True)
                yield Button("Cancel", id="cancel", compact=True)

    def on_mount(self) -> None:
        """What is missing first."""
        self.query_one("#data" if self._name else "#name", Input).focus()
        self._check()

    def on_input_changed(self) -> None:
        """Checked as it is typed."""
        self._check()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the next thing."""
        if event.input.id == "name":
            self.query_one("#data").focus()
        elif not self.query_one("#send", Button).disabled:
            self._post()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Send, or leave."""
        if event.button.id == "send":
            self._post()
        else:
            self.dismiss(None)

    def _fields(self) -> tuple[str, str]:
        return self.query_one("#name", Input).value.strip(), self.query_one("#data", Input).value

    def _request(self, key: str) -> Request[EventReceipt]:
        name, data = self._fields()
        if not name:
            raise ValueError("an event has a name")
        return self.dashboard.api.send_event(name, data=data.encode("utf-8", "surrogatepass"), key=key)

    def _check(self) -> None:
        if self._busy:
            return
        try:
            self._request("-")
        except ValueError as error:
            self._say((foreign(str(error), "warn"),), can_send=False)
        else:
            self._say((own("Enter sends", "muted"),), can_send=True)

    def _say(self, line: Line, *, can_send: bool) -> None:
        self.query_one("#said", Static).update(text([line]))
        self.query_one("#send", Button).disabled = not can_send

    def _post(self) -> None:
        fields = self._fields()
        if self._busy:
            return
        if fields != self._sent:
            self._sent, self._key = fields, f"tui-{secrets.token_hex(16)}"
        self._busy = True
        self._say((own(f"sending{self.dashboard.glyphs.glyph('…')}", "muted"),), can_send=False)
        self._go()

    @work(exit_on_error=False)
    async def _go(self) -> None:
        try:
            receipt = await self.dashboard.link.ask(self._request(self._key))
        except NoServer as error:
            self._over((foreign(f"nothing was sent: {error}; Enter tries again", "bad"),))
        except (AnswerLost, UnreadableAnswer) as error:
            self._over((foreign(f"the answer was lost: {error}. Enter sends it again under the same key; it stays one event", "warn"),))
        except ApiProblem as problem:
            self._over((foreign(f"{problem.code}: {problem.detail}", "bad"),))
        else:
            again = " (it was there already)" if receipt.status == "replayed" else ""
            said: list[Any] = [own("accepted ", "good"), foreign(receipt.event_id), own(f"{again}: {receipt.matched} matched")]
            if not receipt.matched:
                said.append(own("; no trigger matches this name", "warn"))
            self._sent = None
            self._over(tuple(said))
            self.dashboard.feed.need("runs", "events", "server")

    def _over(self, line: Line) -> None:
        self._busy = False
        if self.is_attached:
            self._say(line, can_send=True)
