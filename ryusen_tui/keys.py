"""Which key does what, said once: for the footer, the help and the command palette. Pure."""

from __future__ import annotations

from typing import Final

import msgspec


class Key(msgspec.Struct, frozen=True):
    """One key of one place, and what it does."""

    key: str
    does: str


EVERYWHERE: Final = (
    Key("j k ↓ ↑", "next, previous"),
    Key("g G", "first, last"),
    Key("PgUp PgDn", "a screen up, down"),
    Key("1 … 6", "runs, Unknown, events, workers, functions, server"),
    Key("/", "filter: Enter keeps it, Esc clears it"),
    Key("u", "next Unknown"),
    Key("s", "send an event"),
    Key("y", "copy the id"),
    Key("o", "open in the browser"),
    Key("r", "reload"),
    Key("Ctrl+P", "command palette"),
    Key("D", "leave for the plain log"),
    Key("Esc", "back"),
    Key("q Ctrl+C", "quit"),
)
PLACES: Final[dict[str, tuple[Key, ...]]] = {
    "runs": (Key("Enter", "open"), Key("X", "cancel"), Key("s", "send"), Key("/", "filter"), Key("u", "next Unknown"), Key("?", "help")),
    "unknown": (Key("R", "resolve"), Key("Enter", "open its run"), Key("/", "filter"), Key("?", "help")),
    "events": (Key("Enter", "open"), Key("s", "send"), Key("/", "filter"), Key("?", "help")),
    "workers": (Key("Enter", "open"), Key("/", "filter"), Key("?", "help")),
    "functions": (Key("Enter", "open"), Key("s", "send"), Key("/", "filter"), Key("?", "help")),
    "server": (Key("p", "pause the log"), Key("D", "plain log"), Key("?", "help")),
    "run": (
        Key("Tab", "next tab"),
        Key("+ - 0", "zoom"),
        Key("z", "fold idle"),
        Key("[ ]", "other runs"),
        Key("R", "resolve"),
        Key("?", "help"),
    ),
    "event": (Key("Enter", "open the run"), Key("s", "send another"), Key("Esc", "back"), Key("?", "help")),
    "detail": (Key("s", "send"), Key("Esc", "back"), Key("?", "help")),
}
MORE: Final[dict[str, tuple[Key, ...]]] = {
    "run": (
        Key("Enter", "attempts of the step, or the run it invoked"),
        Key("h l ← →", "earlier, later"),
        Key("X", "cancel the run"),
        Key("B", "wake it, if it is blocked"),
        Key("e", "payload in $EDITOR"),
    ),
}
TITLES: Final[dict[str, str]] = {
    "runs": "Runs",
    "unknown": "Unknown",
    "events": "Events",
    "workers": "Workers",
    "functions": "Functions",
    "server": "Server",
    "run": "Run",
    "event": "Event",
    "detail": "Detail",
}
HINTS_MAX: Final = 6
"""A footer that tells more is not read."""
