"""Lets readers wait for something to be committed: a run's end, an event's expansion."""

from __future__ import annotations

import asyncio

import msgspec

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import EventId, RunId
from ryusen_server.core.rows import RunRow

ENDED_KEPT_MAX = 4_096
ENDED_BYTES_MAX = 16_384
"""Results up to this are kept for those who wait; a larger one is read from the store."""


class EndedRun(msgspec.Struct, frozen=True):
    """What became of a run whose end is durable."""

    row: RunRow
    result: msgspec.Raw | None
    failure: ErrorRecord | None


class Waiters:
    """Futures by what they wait for. Take the future first, then read committed state, then await; `forget` it when done.

    The last runs that ended are remembered, so that whoever waited for one need not read it back.
    """

    def __init__(self) -> None:
        self._ended: dict[RunId, EndedRun] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._key_of: dict[asyncio.Future[None], str] = {}

    def run_ended(self, run_id: RunId) -> asyncio.Future[None]:
        """Done once the run's end is committed."""
        return self._take(run_id)

    def expanded(self, event_id: EventId) -> asyncio.Future[None]:
        """Done once the event's expansion is committed as complete."""
        return self._take(event_id)

    def forget(self, future: asyncio.Future[None]) -> None:
        """Give a future back, answered or not."""
        key = self._key_of.pop(future, None)
        if key is None:
            return
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[key]
        future.cancel()

    def ended(self, run_id: RunId) -> EndedRun | None:
        """The run, if its end is durable and it is among the last that ended."""
        return self._ended.get(run_id)

    def run_has_ended(self, run_id: RunId, ended: EndedRun) -> None:
        """A run's end is committed."""
        if ended.result is None or len(bytes(ended.result)) <= ENDED_BYTES_MAX:
            self._ended[run_id] = ended
            if len(self._ended) > ENDED_KEPT_MAX:
                del self._ended[next(iter(self._ended))]
        self.notify(run_id)

    def notify(self, key: str) -> None:
        """It is committed."""
        for future in self._waiting.pop(key, ()):
            self._key_of.pop(future, None)
            if not future.done():
                future.set_result(None)

    def _take(self, key: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        self._key_of[future] = key
        return future
