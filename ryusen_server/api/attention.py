"""Which runs wait for a worker that is not there: committed state says that work is queued, the engine says who could take it."""

from __future__ import annotations

from ryusen_protocol.scope import Scope
from ryusen_server.api.context import Context
from ryusen_server.core.projection import has_queued_work
from ryusen_server.core.rows import RunRow
from ryusen_server.core.state import Run


def lacks_worker(context: Context, run: Run) -> bool:
    """Whether the run has queued work and no connected worker can run its function."""
    return has_queued_work(run) and not context.engine.can_run(Scope(run.workspace, run.application), run.function)


def row_lacks_worker(context: Context, row: RunRow) -> bool:
    """The same, of a run in a list."""
    return bool(row.work_queued) and not context.engine.can_run(Scope(row.workspace, row.application), row.function)
