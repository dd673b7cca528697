"""What one session's worker holds of runs' histories, as far as this server has sent it.

Owns which invocation may leave out what was sent before. Nothing here needs to be right: a worker that does not hold what an invocation
builds on says so before anything runs, and gets it whole.
"""

from __future__ import annotations

from ryusen_protocol.ids import RunId
from ryusen_protocol.invocation import HistoryBase

HELD_RUNS_MAX = 4_096
"""Runs remembered for one session; the ones not sent for longest are forgotten."""


class HeldHistories:
    """One session's. `is_kept` is whether its worker keeps histories at all."""

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._runs: dict[RunId, HistoryBase] = {}

    def base(self, run_id: RunId) -> HistoryBase | None:
        """What the next invocation of the run may build on."""
        return self._runs.get(run_id)

    def sent(self, run_id: RunId, held: HistoryBase) -> None:
        """An invocation of the run has left; this is what the worker holds now."""
        if not self._is_kept:
            return
        self._runs.pop(run_id, None)
        self._runs[run_id] = held
        if len(self._runs) > HELD_RUNS_MAX:
            del self._runs[next(iter(self._runs))]

    def forget(self, run_id: RunId) -> None:
        """The worker may not hold it, or nobody will ask for it again."""
        self._runs.pop(run_id, None)
