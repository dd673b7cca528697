"""Runs: the list with its filters, one run in full, its history, and the requests to stop or to wake it."""

from __future__ import annotations

import asyncio
import base64
from typing import Final

import msgspec

from ryusen_protocol.api import (
    JSON_NULL,
    AttemptLogDocument,
    Attention,
    CancelReceipt,
    CommandStatus,
    HistoryEntryDocument,
    Page,
    Recovery,
    RediscoverReceipt,
    RunDetail,
    RunOutcome,
    RunStatus,
    RunSummary,
)
from ryusen_protocol.ids import Application, AttemptId, EventId, FunctionId, RunId, Workspace
from ryusen_protocol.invocation import EventInput
from ryusen_protocol.limits import KIB
from ryusen_protocol.outcome import LogLine
from ryusen_protocol.problems import Problem, not_found
from ryusen_server.api.attention import row_lacks_worker, why_no_worker
from ryusen_server.api.context import Context
from ryusen_server.api.cursors import after, cursor
from ryusen_server.api.parameters import (
    CURSOR,
    LIMIT,
    WAIT_MS,
    Identifier,
    document,
    page_limit,
    page_size,
    position,
    wait_ms,
    word,
    workspace,
)
from ryusen_server.api.route import Answer, Call, Route, answer
from ryusen_server.api.run_documents import run_detail, run_summary
from ryusen_server.api.waiting import Patience
from ryusen_server.core.evolve import fold
from ryusen_server.core.invocation import child_input
from ryusen_server.core.rows import RunRow
from ryusen_server.core.state import Run
from ryusen_server.engine.views import StoppedRun
from ryusen_server.ports.store import RunFilter

_ROOT: Final = "/v1/workspaces/{workspace}/runs"
_COMMAND_BYTES_MAX: Final = 64 * KIB
_SCANNED_ROWS_MAX: Final = 5_000
_BY: Final = "api"
_STATUS: Final = word("status", "Only runs with this status.", RunStatus)
_OUTCOME: Final = word("outcome", "Only runs with this outcome.", RunOutcome)
_RECOVERY: Final = word("recovery", "Only runs with this recovery.", Recovery)
_ATTENTION: Final = word("attention", "Only runs that wait for somebody, for this reason.", Attention)
_FUNCTION: Final = Identifier("function", "Only runs of this function.")
_APPLICATION: Final = Identifier("application", "Only runs of this application.")
_EVENT: Final = Identifier("event", "Only runs that this event started.")
_Q: Final = Identifier("q", "Only runs whose id, or whose function, begins so.", or_empty=True)
_AFTER: Final = position("after", "Only transactions behind this position.")
_HISTORY_CURSOR: Final = position("cursor", "`next_cursor` of the page before; it counts in place of `after`.")
_LOGS_ATTEMPT: Final = Identifier("attempt", "Only the lines of this attempt id.")
_LOGS_CURSOR: Final = position("cursor", "`next_cursor` of the page before.")
_LOGS_LIMIT: Final = page_limit(100)

_encode = msgspec.json.Encoder().encode


class NoContent(msgspec.Struct, frozen=True):
    """The body of a command that needs no more words than its path."""


async def _list(context: Context, call: Call) -> Answer | Problem:
    attention = _ATTENTION.read(call)
    function, application, event = (parameter.read(call) for parameter in (_FUNCTION, _APPLICATION, _EVENT))
    where = RunFilter(
        status=_STATUS.read(call),
        outcome=_OUTCOME.read(call),
        recovery=_RECOVERY.read(call),
        function=None if function is None else FunctionId(function),
        application=None if application is None else Application(application),
        event_id=None if event is None else EventId(event),
        attention=None if attention == "no_worker" else attention,
        q=_Q.read(call),
    )
    last = after(call, "runs")
    before = None if last is None else (last[0], RunId(last[1]))
    most = page_size(call)
    at = await context.store.position()
    if attention == "no_worker":
        shown, more = await _without_worker(context, workspace(call), where, before, most)
    else:
        shown, more = await _page(context, workspace(call), where, before, most)
    return answer(Page[RunSummary](items=[summary for _, summary in shown], next_cursor=_cursor(call, more), position=at))


def _cursor(call: Call, more: RunRow | None) -> str | None:
    return None if more is None else cursor(call, "runs", more.created_at_ms, more.run_id)


_Shown = list[tuple[RunRow, RunSummary]]


async def _page(
    context: Context, where_in: Workspace, where: RunFilter, before: tuple[int, RunId] | None, most: int
) -> tuple[_Shown, RunRow | None]:
    """One page and the row it ended at, if there are more behind it."""
    rows = await context.store.runs(where_in, where, before=before, limit=most + 1)
    more = len(rows) > most
    del rows[most:]
    shown = [(row, run_summary(row, no_worker=row_lacks_worker(context, row))) for row in rows]
    return shown, rows[-1] if more else None


async def _without_worker(
    context: Context, where_in: Workspace, where: RunFilter, before: tuple[int, RunId] | None, most: int
) -> tuple[_Shown, RunRow | None]:
    """Who could run what is known in memory alone, so rows are looked through in pages, each answer a bounded number of them."""
    found: _Shown = []
    scanned = 0
    while True:
        shown, more = await _page(context, where_in, where, before, most)
        for row, summary in shown:
            scanned += 1
            if summary.attention != "no_worker":
                continue
            found.append((row, summary))
            if len(found) == most:
                last = row.run_id == shown[-1][0].run_id
                return found, more if last else row
        if more is None or scanned >= _SCANNED_ROWS_MAX:
            return found, more
        before = (more.created_at_ms, more.run_id)


async def _get(context: Context, call: Call) -> Answer | Problem:
    run_id = RunId(call.segments["run_id"])
    patience_ms = wait_ms(call)
    ended = context.engine.waiters.run_ended(run_id) if patience_ms else None
    try:
        run = await _load(context, workspace(call), run_id)
        if run is None:
            return not_found("run", run_id)
        if ended is not None and run.status != "ended":
            await Patience(context, patience_ms).all_done((ended,))
            run = await _load(context, workspace(call), run_id) or run
    finally:
        if ended is not None:
            context.engine.waiters.forget(ended)
    return answer(await _detail(context, run))


async def _load(context: Context, where_in: Workspace, run_id: RunId) -> Run | None:
    """The run as its committed history gives it; none if it is of another workspace."""
    run = fold(await context.store.history(run_id))
    return None if run is None or run.workspace != where_in else run


async def _detail(context: Context, run: Run) -> RunDetail:
    row = await context.store.run(run.run_id)
    invoked = [step.child_run_id for step in run.steps.values() if step.child_run_id is not None]
    children = await asyncio.gather(*[context.store.run(run_id) for run_id in invoked])
    return run_detail(
        run,
        await _input(context, run),
        context.engine.contact,
        context.clock.now_ms(),
        no_worker_reason=why_no_worker(context, run),
        unknown_below_run_id=None if row is None else row.unknown_below_run_id,
        children=[child for child in children if child is not None],
    )


async def _input(context: Context, run: Run) -> msgspec.Raw:
    if run.parent is not None:
        return msgspec.Raw(child_input(run))
    event = None if run.event_id is None else await context.store.event(run.event_id)
    if event is None:
        return JSON_NULL
    payload = _encode({"type": "bytes", "value": base64.b64encode(event.payload).decode()})
    return msgspec.Raw(_encode(EventInput(event.event_id, event.name, msgspec.Raw(payload), event.metadata, event.received_at_ms)))


async def _history(context: Context, call: Call) -> Answer | Problem:
    run_id = RunId(call.segments["run_id"])
    row = await context.store.run(run_id)
    if row is None or row.workspace != workspace(call):
        return not_found("run", run_id)
    start = _HISTORY_CURSOR.read(call) or _AFTER.read(call) or 0
    most = page_size(call)
    entries = await context.store.history(run_id, after=start, limit=most + 1)
    more = len(entries) > most
    del entries[most:]
    items = [
        HistoryEntryDocument(position=entry.position, at_ms=entry.at_ms, records=msgspec.json.decode(entry.records, type=list[msgspec.Raw]))
        for entry in entries
    ]
    return answer(Page[HistoryEntryDocument](items=items, next_cursor=str(items[-1].position) if more else None))


async def _logs(context: Context, call: Call) -> Answer | Problem:
    run_id = RunId(call.segments["run_id"])
    row = await context.store.run(run_id)
    if row is None or row.workspace != workspace(call):
        return not_found("run", run_id)
    await context.engine.settle_logs(run_id)
    attempt = _LOGS_ATTEMPT.read(call)
    most = page_size(call, _LOGS_LIMIT)
    if attempt is None:
        rows = await context.store.run_logs(run_id, after=_LOGS_CURSOR.read(call) or 0, limit=most + 1)
    else:
        found = await context.store.attempt_log(AttemptId(attempt))
        rows = [] if found is None or found.run_id != run_id else [found]
    more = len(rows) > most
    del rows[most:]
    items = [
        AttemptLogDocument(
            attempt_id=log.attempt_id,
            run_id=log.run_id,
            step_id=log.step_id,
            phase="forward" if log.phase == "forward" else "compensation",
            attempt=log.attempt,
            attempt_generation=log.attempt_generation,
            lines=msgspec.json.decode(log.lines, type=list[LogLine]),
        )
        for log in rows
    ]
    return answer(Page[AttemptLogDocument](items=items, next_cursor=str(rows[-1].number) if more else None))


async def _cancel(context: Context, call: Call) -> Answer | Problem:
    document(call, NoContent, bytes_max=_COMMAND_BYTES_MAX)
    stopped = await context.to_its_end(context.engine.cancel(workspace(call), RunId(call.segments["run_id"]), by=call.author(_BY)))
    return await _receipt(context, stopped)


async def _rediscover(context: Context, call: Call) -> Answer | Problem:
    document(call, NoContent, bytes_max=_COMMAND_BYTES_MAX)
    woken = await context.to_its_end(context.engine.rediscover(workspace(call), RunId(call.segments["run_id"]), by=call.author(_BY)))
    return await _receipt(context, woken)


async def _receipt(context: Context, done: StoppedRun | Problem) -> Answer | Problem:
    if isinstance(done, Problem):
        return done
    status: CommandStatus = "replayed" if done.replayed else "applied"
    return answer(CancelReceipt(status=status, run=run_summary(done.run, no_worker=row_lacks_worker(context, done.run))), 202)


_FILTERS: Final = (_STATUS, _OUTCOME, _RECOVERY, _FUNCTION, _APPLICATION, _EVENT, _ATTENTION, _Q, CURSOR, LIMIT)

ROUTES: Final = (
    Route(
        "GET",
        _ROOT,
        _list,
        "read",
        says="List runs, newest first, without payloads. Filters are joined by *and*.",
        query=_FILTERS,
        answers={200: Page[RunSummary]},
    ),
    Route(
        "GET",
        f"{_ROOT}/{{run_id}}",
        _get,
        "read",
        says="Read one run: input, steps, attempts, unwind, blocker, deadline, and the position it is told at.",
        query=(WAIT_MS,),
        answers={200: RunDetail},
        refuses=("not_found",),
    ),
    Route(
        "GET",
        f"{_ROOT}/{{run_id}}/history",
        _history,
        "read",
        says="List the committed transactions of a run, in commit order.",
        query=(_AFTER, _HISTORY_CURSOR, LIMIT),
        answers={200: Page[HistoryEntryDocument]},
        refuses=("not_found",),
    ),
    Route(
        "GET",
        f"{_ROOT}/{{run_id}}/logs",
        _logs,
        "read",
        says="List what a run's callbacks printed and logged, by attempt.",
        details="One item for each attempt whose callback or compensator printed something, in the order in which they began to. Lines are "
        "kept at most 64 KiB an attempt, the first and the last of them; a line of the level `cut` stands where some are missing. They are "
        "kept best effort beside the history, and are removed with the run.",
        query=(_LOGS_ATTEMPT, _LOGS_CURSOR, _LOGS_LIMIT),
        answers={200: Page[AttemptLogDocument]},
        refuses=("not_found",),
    ),
    Route(
        "POST",
        f"{_ROOT}/{{run_id}}/cancel",
        _cancel,
        "operate",
        says="Ask a run to stop; the answer means that the intent is durable, not that running code has stopped.",
        takes=NoContent,
        answers={202: CancelReceipt},
        refuses=("not_found", "not_cancellable"),
    ),
    Route(
        "POST",
        f"{_ROOT}/{{run_id}}/rediscover",
        _rediscover,
        "operate",
        says="Ask a blocked run to meet its current code again.",
        takes=NoContent,
        answers={202: RediscoverReceipt},
        refuses=("not_found", "not_blocked"),
    ),
)
