"""Follows the change stream over however many connections it takes: goes on behind the last position after the server was away.

Owns patience: how a lost connection is told, and how long to wait before the next try. Knows no kind of change.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ryusen_cli.connection import AnswerLost, NeverLeft
from ryusen_cli.exits import CliError, Exit
from ryusen_protocol.changes import CHANGE, HEARTBEAT, RESYNC, Change, Heartbeat, Resync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ryusen_cli.connection import Reply
    from ryusen_cli.options import Client
    from ryusen_protocol.client import Request

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
_COMES_BACK: Final = frozenset(("busy", "unavailable", "storage_unavailable"))
"""Refusals that are over when the server is well again."""
_DOCUMENTS: Final[dict[str, Any]] = {CHANGE: Change, RESYNC: Resync, HEARTBEAT: Heartbeat}

Followed = Change | Resync | Heartbeat


class Patience:
    """What a command does while its server is away: say so once, and try again, ever more seldom, until it is back or time is over."""

    def __init__(self, client: Client, deadline: float | None = None) -> None:
        self._client = client
        self._deadline = deadline
        self._pause_s = FIRST_PAUSE_S
        self._told = False

    def back(self) -> None:
        """The server answers."""
        self._pause_s = FIRST_PAUSE_S
        self._told = False

    def wait(self, why: str) -> bool:
        """Wait before the next try; false when time is over."""
        if not self._told:
            self._told = True
            self._client.output.note(f"the server is away ({why}); trying again until it is back")
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        if self._deadline is not None:
            pause_s = min(pause_s, self._deadline - time.monotonic())
        if pause_s > 0:
            time.sleep(pause_s)
        return self._deadline is None or time.monotonic() < self._deadline


def comes_back(error: CliError) -> bool:
    """Whether the server may answer the same question later."""
    return error.exit_code is Exit.UNREACHABLE or error.code in _COMES_BACK


def ask_until(client: Client, request: Request[T], *, wait_ms: int, patience: Patience) -> Reply[T]:
    """The answer to a reading request, however often the server goes away meanwhile. Raises the last error when time is over."""
    while True:
        try:
            reply = client.ask(request, wait_ms=wait_ms)
        except CliError as error:
            if not comes_back(error) or not patience.wait(error.code or "unreachable"):
                raise
        else:
            patience.back()
            return reply


def follow(client: Client, after: int | None = None, *, begun: bool = False) -> Iterator[Followed]:
    """Changes as they come, heartbeats, and resyncs. Ends by an error alone.

    No server at the very beginning is one, unless it is known to be there: `begun`.
    """
    position = after
    patience = Patience(client)
    while True:
        why = "it closed the stream"
        try:
            for event in client.connection.stream(client.api.stream(after=position)):
                begun = True
                patience.back()
                shape = _DOCUMENTS.get(event.name)
                if shape is None:
                    continue
                document: Followed = msgspec.json.decode(event.data, type=shape)
                position = document.position
                yield document
        except (NeverLeft, AnswerLost) as error:
            if not begun:
                raise client.connection.unreachable(str(error)) from error
            why = str(error)
        except CliError as error:
            if not begun or not comes_back(error):
                raise
            why = error.code or error.message
        patience.wait(why)
