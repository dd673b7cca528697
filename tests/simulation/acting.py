"""What every kind of act on a simulated world shares: its chances, what it has begun, and what it may act on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from ryusen_protocol.ids import RunId
from ryusen_server.core.state import Run
from tests.simulation.endpoints import HttpWorker
from tests.simulation.workers import Worker
from tests.simulation.world import World


class Acting:
    """Acts on a world. Each act begins something and returns; what takes time goes on beside the next acts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"acts/{world.seed}")
        self._errands: list[asyncio.Task[None]] = []

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        self._errands.append(self.world.loop.spawn(None, work))

    async def finish_errands(self) -> None:
        """Wait until every client has its answer or has given up."""
        for errand in self._errands:
            await errand
        self._errands.clear()

    def _any_worker(self, *, up: bool = True) -> Worker | None:
        found = [worker for worker in self.world.connected() if worker.is_up or not up]
        return self.chance.choice(found) if found else None

    def _any_process(self, *, up: bool = True) -> Worker | HttpWorker | None:
        found = [worker for worker in self.world.workers() if worker.is_up or not up]
        return self.chance.choice(found) if found else None

    def _shadows(self) -> list[Run]:
        return [audit.shadow for audit in self.world.auditor.runs.values()]

    def _any_run(self) -> RunId | None:
        runs = list(self.world.auditor.runs)
        if not runs:
            return None
        shadows = {run_id: self.world.auditor.runs[run_id].shadow for run_id in runs}
        blocked = [run_id for run_id in runs if shadows[run_id].status == "definition_blocked"]
        if blocked and self.chance.random() < 0.3:
            return self.chance.choice(blocked)
        live = [run_id for run_id in runs if shadows[run_id].status != "ended"]
        return self.chance.choice(live if live and self.chance.random() < 0.8 else runs)


def scope_of(of: Any) -> tuple[str, str]:
    return of.workspace, of.application
