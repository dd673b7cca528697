"""What a person types behind `/` as a question to the server. Pure."""

from __future__ import annotations

import shlex
from typing import Final, get_args

from ryusen_protocol.api import Attention, Recovery, RunOutcome, RunStatus
from ryusen_tui.feed import Filter

_NAMES: Final = {"app": "application", "fn": "function"}
_CLOSED: Final[dict[str, frozenset[str]]] = {
    "status": frozenset(get_args(RunStatus)),
    "outcome": frozenset(get_args(RunOutcome)),
    "attention": frozenset(get_args(Attention)),
    "recovery": frozenset(get_args(Recovery)),
}
_OPEN: Final = frozenset(("function", "application", "event"))


class NotAFilter(ValueError):
    """The text asks for something there is not. It says what there is."""


def run_filter(text: str) -> Filter:
    """`failed`, `status:running`, `function:ship event:ev_1`, or the beginning of a run id or function. Raises `NotAFilter`."""
    found: dict[str, str] = {}
    try:
        pieces = shlex.split(text)
    except ValueError:
        pieces = text.split()
    for piece in pieces:
        name, value = _piece(piece)
        if name in found:
            raise NotAFilter(f"{name} is given twice")
        found[name] = value
    return Filter(**found)


def _piece(piece: str) -> tuple[str, str]:
    name, colon, value = piece.partition(":")
    name = _NAMES.get(name, name)
    if colon and name in _OPEN and value:
        return name, value
    if colon and name in _CLOSED:
        if value not in _CLOSED[name]:
            raise NotAFilter(f"{name} is one of {', '.join(sorted(_CLOSED[name]))}")
        return name, value
    for closed, known in _CLOSED.items():
        if piece in known:
            return closed, piece
    return "q", piece
