"""Which runs wait for a worker that is not there: committed state says that work is queued, the engine says who could take it."""

from __future__ import annotations

from collections.abc import Sequence

from ryusen_protocol.ids import RunId, Workspace
from ryusen_protocol.scope import Scope
from ryusen_server.api.context import Context
from ryusen_server.api.run_documents import has_queued_work
from ryusen_server.core.rows import RunRow
from ryusen_server.core.state import Run

_AUTHORIZED_MAX = 10_000


def lacks_worker(context: Context, run: Run) -> bool:
    """Whether the run has queued work and no connected worker can run its function."""
    return has_queued_work(run) and not context.engine.can_run(Scope(run.workspace, run.application), run.function)


async def lacking_workers(context: Context, workspace: Workspace, rows: Sequence[RunRow]) -> frozenset[RunId]:
    """Those of the rows whose run has queued work that no connected worker can run."""
    waiting = [row for row in rows if _may_wait(row) and not context.engine.can_run(Scope(workspace, row.application), row.function)]
    if not waiting:
        return frozenset()
    # A row does not tell queued work from work that is out; the attempts that are out are few.
    out = await context.store.attempts(workspace, state="authorized", after=None, limit=_AUTHORIZED_MAX)
    busy = {attempt.run_id for attempt in out}
    return frozenset(row.run_id for row in waiting if row.run_id not in busy)


def _may_wait(row: RunRow) -> bool:
    return row.status != "ended" and row.attention is None and row.wake_at_ms is not None
