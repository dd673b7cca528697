"""Which runs wait for a worker that is not there: committed state says that work is queued, the engine says who could take it."""

from __future__ import annotations

from ryusen_protocol.scope import Scope
from ryusen_server.api.context import Context
from ryusen_server.core.projection import has_queued_work
from ryusen_server.core.rows import RunRow
from ryusen_server.core.state import Run


def why_no_worker(context: Context, run: Run) -> str | None:
    """Why nobody can run what the run has queued, and what to do about it; none if somebody can, or nothing is queued."""
    if not has_queued_work(run) or context.engine.can_run(Scope(run.workspace, run.application), run.function):
        return None
    workers = [view for view in context.engine.workers(run.workspace) if view.connected and view.scope.application == run.application]
    able = [view for view in workers if run.function in view.functions]
    if not workers:
        return f"No worker of the application {run.application} is connected. Start one; the work waits for it."
    if not able:
        there = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
        return (
            f"{there} of the application {run.application} connected, but none has the function {run.function}: the code that runs now "
            "removed or renamed it. Deploy code that has it, or cancel the run."
        )
    if all(view.draining for view in able):
        return f"Every worker that has the function {run.function} is draining and takes no new work. Start another one."
    failures = [view.last_failure for view in able if view.last_failure is not None]
    told = f" Last failure: {failures[-1]}" if failures else ""
    return f"The workers that have the function {run.function} refuse its work or cannot be reached; it is offered again.{told}"


def row_lacks_worker(context: Context, row: RunRow) -> bool:
    """Whether a run in a list has queued work and no connected worker can run its function."""
    return bool(row.work_queued) and not context.engine.can_run(Scope(row.workspace, row.application), row.function)
