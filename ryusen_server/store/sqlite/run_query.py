"""Which index a list of runs walks. The first filter that narrows the most chooses; the others are checked row by row.

A search by prefix has two walks of its own: where many ids begin so, some do in every stretch of the newest runs, which are walked in
order; else the few ids are taken together with the newest runs of each function that begins so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ryusen_protocol.ids import FunctionId, RunId, Workspace
from ryusen_server.ports.store import RunFilter
from ryusen_server.store.sqlite import sql

COMMON: Final = 1_000
"""So many ids with a prefix are many: ids are random, so that they are spread evenly over time."""
FUNCTIONS_MAX: Final = 32
"""So many functions with a prefix are walked one by one; more are found by walking all runs."""
IDS_WITH_PREFIX: Final = "SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY runs_by_id WHERE run_id >= ? AND run_id < ? LIMIT ?)"
FUNCTIONS_WITH_PREFIX: Final = """
WITH RECURSIVE named (function) AS (
  SELECT min(function) FROM runs INDEXED BY runs_by_function WHERE workspace = ?1 AND function >= ?2 AND function < ?3
  UNION ALL
  SELECT (SELECT min(function) FROM runs INDEXED BY runs_by_function
    WHERE workspace = ?1 AND function > named.function AND function < ?3)
  FROM named WHERE named.function IS NOT NULL
)
SELECT function FROM named WHERE function IS NOT NULL LIMIT ?4
"""


def searches(where: RunFilter) -> bool:
    """Whether the prefix is what narrows the list the most."""
    return bool(where.q) and _walk(where)[0] == "runs"


def prefix_bounds(prefix: str) -> tuple[str, str]:
    """What sorts first and what sorts behind all texts with the prefix."""
    return prefix, prefix + sql.LAST


def search_query(
    workspace: Workspace, where: RunFilter, before: tuple[int, RunId] | None, limit: int, functions: Sequence[FunctionId] | None
) -> tuple[str, sql.Parameters]:
    """The statement and its parameters. `functions` are those that begin so; none for a prefix that many ids or many functions have."""
    prefix = where.q or ""
    rest = msgspec.structs.replace(where, q=None, function=None)
    _, terms, parameters = _terms(workspace, rest, before)
    equal = [] if where.function is None else ["function = ?"]
    function = () if where.function is None else (where.function,)
    bounds = prefix_bounds(prefix)
    if functions is None:
        matching = "(run_id >= ? AND run_id < ? OR function >= ? AND function < ?)"
        terms = ["workspace = ?", *terms, *equal, matching]
        return sql.runs("runs INDEXED BY runs_by_creation", terms), (workspace, *parameters, *function, *bounds, *bounds, limit)
    by_id = sql.runs("runs INDEXED BY runs_by_id", ["+workspace = ?", *terms, *equal, "run_id >= ? AND run_id < ?"])
    parts = [f"SELECT * FROM ({by_id})"]  # noqa: S608 — text of ours
    given: list[str | int] = [workspace, *parameters, *function, *bounds, limit]
    for name in functions:
        if where.function in {None, name}:
            by_function = sql.runs("runs INDEXED BY runs_by_function", ["workspace = ?", *terms, "function = ?"])
            parts.append(f"SELECT * FROM ({by_function})")  # noqa: S608 — text of ours
            given += [workspace, *parameters, name, limit]
    return f"{' UNION '.join(parts)} ORDER BY created_at_ms DESC, run_id DESC LIMIT ?", (*given, limit)


def runs_query(workspace: Workspace, where: RunFilter, before: tuple[int, RunId] | None, limit: int) -> tuple[str, sql.Parameters]:
    """The statement and its parameters, for a list that `searches` is not true of."""
    source, terms, parameters = _terms(workspace, where, before)
    return sql.runs(source, [*_walk(where)[1], *terms]), (workspace, *parameters, limit)


def _terms(workspace: Workspace, where: RunFilter, before: tuple[int, RunId] | None) -> tuple[str, list[str], list[str | int]]:
    """The source, and what is checked of each row behind the first terms of its walk."""
    source, _ = _walk(where)
    terms: list[str] = []
    parameters: list[str | int] = []
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
    return source, terms, parameters


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
        return "runs", ["workspace = ?"]
    if where.function is not None:
        return "runs INDEXED BY runs_by_function", ["workspace = ?"]
    if where.application is not None:
        return "runs INDEXED BY runs_by_application", ["workspace = ?"]
    return "runs INDEXED BY runs_by_creation", ["workspace = ?"]
