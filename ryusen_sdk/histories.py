"""What a worker process holds of its runs' histories, so that an invocation need send only what came after.

Owns the copies and how much memory they may take. A copy is a cache and never an authority: it is used only where the server names
exactly it, by count and digest, and an invocation that builds on anything else is to be answered `history_missing`. No I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from ryusen_protocol.ids import RunId
from ryusen_protocol.invocation import FullHistory, HistoryEntry, Invocation, RunInput

HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""How many bytes of frames the copies of one process may keep alive; the runs not heard of for longest give way."""


class _Held(msgspec.Struct):
    """One run's input and completed steps, as they were last sent."""

    input: RunInput | None
    digest: str
    steps: list[HistoryEntry]
    size: int


class Histories:
    """The copies of one process, over all of its connections."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._runs: OrderedDict[RunId, _Held] = OrderedDict()

    def completed(self, invocation: Invocation, size: int) -> Invocation | None:
        """The invocation with its whole history and its input, which is held from now on; none if what it builds on is not held.

        `size` is the length in bytes of the frame it came in.
        """
        history = invocation.history
        run_id = invocation.run.run_id
        if isinstance(history, FullHistory):
            self._hold(run_id, _Held(invocation.input, history.digest, history.steps, size))
            return invocation
        held = self._runs.get(run_id)
        if held is None or (len(held.steps), held.digest) != (history.base.count, history.base.digest):
            return None
        # A new list: an earlier invocation of the run may still be reading the old one.
        steps = [*held.steps, *history.steps] if history.steps else held.steps
        whole = FullHistory(history.digest, steps)
        # A frame without entries keeps nothing alive.
        self._hold(run_id, _Held(held.input, history.digest, steps, held.size + (size if history.steps else 0)))
        return msgspec.structs.replace(invocation, history=whole, input=held.input)

    def _hold(self, run_id: RunId, held: _Held) -> None:
        before = self._runs.pop(run_id, None)
        self._bytes += held.size - (0 if before is None else before.size)
        self._runs[run_id] = held
        while self._bytes > self._bytes_max and len(self._runs) > 1:
            _, oldest = self._runs.popitem(last=False)
            self._bytes -= oldest.size

    @property
    def held_bytes(self) -> int:
        """How many bytes of frames the copies keep alive."""
        return self._bytes
