"""Which index a list of runs walks. The first filter that narrows the most chooses; the others are checked row by row."""

from __future__ import annotations

from ryusen_protocol.ids import RunId, Workspace
from ryusen_server.ports.store import RunFilter
from ryusen_server.store.sqlite import sql


def runs_query(workspace: Workspace, where: RunFilter, before: tuple[int, RunId] | None, limit: int) -> tuple[str, sql.Parameters]:
    """The statement and its parameters."""
    source, terms = _walk(where)
    parameters: list[str | int] = [workspace]
    equals = {
        "event_id": where.event_id,
        "shown_attention": where.attention,
        "status": where.status,
        "outcome": where.outcome,
        "recovery": where.recovery,
        "function": where.function,
        "application": where.application,
    }
    for column, value in equals.items():
        if value is not None:
            terms.append(f"{column} = ?")
            parameters.append(value)
    if where.q:
        terms.append("(run_id >= ? AND run_id < ? OR workspace = ? AND function >= ? AND function < ?)")
        parameters += (where.q, where.q + sql.LAST, workspace, where.q, where.q + sql.LAST)
    if before is not None:
        terms.append("(created_at_ms, run_id) < (?, ?)")
        parameters += before
    return sql.runs(source, terms), (*parameters, limit)


def _walk(where: RunFilter) -> tuple[str, list[str]]:
    """The source with its index, and the first terms: the workspace, and the literal that makes a partial index usable."""
    walks = (
        (where.event_id is not None, "runs_by_event", "event_id IS NOT NULL"),
        (where.attention is not None, "runs_by_attention", "shown_attention IS NOT NULL"),
        (where.status not in {None, "ended"}, "runs_by_status", "status <> 'ended'"),
        (where.outcome not in {None, "succeeded"}, "runs_by_outcome", "outcome <> 'succeeded'"),
        (where.recovery not in {None, "not_required"}, "runs_by_recovery", "recovery <> 'not_required'"),
    )
    for chosen, index, literal in walks:
        if chosen:
            return f"runs INDEXED BY {index}", ["workspace = ?", literal]
    if where.q:
        # The unary plus keeps the planner from walking every run of the workspace in order: both prefixes have an index.
        return "runs", ["+workspace = ?"]
    if where.function is not None:
        return "runs INDEXED BY runs_by_function", ["workspace = ?"]
    if where.application is not None:
        return "runs INDEXED BY runs_by_application", ["workspace = ?"]
    return "runs INDEXED BY runs_by_creation", ["workspace = ?"]
