"""Attempts: the list by state, one with the commands it allows, and the command that settles an Unknown one.

The command answers its own envelopes, refusals included, so that a client acts on their fields.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from ryusen_protocol import operator
from ryusen_protocol.api import AttemptDocument, AttemptState, Page
from ryusen_protocol.ids import AttemptId, RunId
from ryusen_protocol.problems import Problem, not_found
from ryusen_server.api.context import Context
from ryusen_server.api.cursors import after, cursor
from ryusen_server.api.parameters import CURSOR, page_limit, page_size, word, workspace
from ryusen_server.api.route import Answer, Call, Route, answer
from ryusen_server.api.run_documents import attempt_document
from ryusen_server.core.evolve import fold
from ryusen_server.core.rows import AttemptRow
from ryusen_server.core.state import Run
from ryusen_server.ports.store import StorageUnavailable

_ROOT: Final = "/v1/workspaces/{workspace}/attempts"
_BY: Final = "operator"
_HISTORIES_AT_ONCE: Final = 25
"""Each may hold megabytes; folded, a run holds no more of it than is shown."""
_READ_ASIDE_BYTES: Final = 256 * 1024
"""A larger command is read on another thread: hostile ones cost most of a second."""
_LIMIT: Final = page_limit(200)
"""Each item may need a history of its own, so a page is shorter than others."""
_STATE: Final = word("state", "Only attempts in this state.", AttemptState)


async def _list(context: Context, call: Call) -> Answer | Problem:
    last = after(call, "attempts")
    most = page_size(call, _LIMIT)
    key = None if last is None else (last[0], AttemptId(last[1]))
    at = await context.store.position()
    rows = await context.store.attempts(workspace(call), state=_STATE.read(call), after=key, limit=most + 1)
    more = len(rows) > most
    del rows[most:]
    next_cursor = cursor(call, "attempts", rows[-1].queued_at_ms, rows[-1].attempt_id) if more else None
    return answer(Page[AttemptDocument](items=await _documents(context, rows), next_cursor=next_cursor, position=at))


async def _documents(context: Context, rows: list[AttemptRow]) -> list[AttemptDocument]:
    runs: dict[RunId, Run] = {}
    ids = list(dict.fromkeys(row.run_id for row in rows))
    for begin in range(0, len(ids), _HISTORIES_AT_ONCE):
        for run_id, history in (await context.store.histories(ids[begin : begin + _HISTORIES_AT_ONCE])).items():
            run = fold(history)
            if run is not None:
                runs[run_id] = run
    return [
        attempt_document(runs[row.run_id], runs[row.run_id].attempts[row.attempt_id], context.engine.contact, context.clock.now_ms())
        for row in rows
        if row.run_id in runs
    ]


async def _get(context: Context, call: Call) -> Answer | Problem:
    attempt_id = AttemptId(call.segments["attempt_id"])
    row = await context.store.attempt(attempt_id)
    if row is None or row.workspace != workspace(call):
        return not_found("attempt", attempt_id)
    documents = await _documents(context, [row])
    return answer(documents[0]) if documents else not_found("attempt", attempt_id)


async def _resolve(context: Context, call: Call) -> Answer | Problem:
    attempt_id = call.segments["attempt_id"]
    if len(call.body) > _READ_ASIDE_BYTES:
        command = await asyncio.to_thread(operator.parse, call.body, path_attempt_id=attempt_id)
    else:
        command = operator.parse(call.body, path_attempt_id=attempt_id)
    if isinstance(command, operator.RefusalEnvelope):
        return _refused(command)
    try:
        settled = await context.to_its_end(context.engine.resolve(workspace(call), command, by=call.author(_BY)))
    except StorageUnavailable as error:
        why = f"The command was not carried out: {error.reason} Nothing was changed. Send it again under the same key."
        return _refused(operator.refuse("server", why))
    return _refused(settled) if isinstance(settled, operator.RefusalEnvelope) else Answer(operator.APPLIED_STATUS, settled)


def _refused(envelope: operator.RefusalEnvelope) -> Answer:
    return answer(envelope, operator.status_of(cast("operator.RefusalCode", envelope.refusal.code)))


ROUTES: Final = (
    Route(
        "GET",
        _ROOT,
        _list,
        "read",
        says="List attempts, oldest first.",
        query=(_STATE, CURSOR, _LIMIT),
        answers={200: Page[AttemptDocument]},
    ),
    Route(
        "GET",
        f"{_ROOT}/{{attempt_id}}",
        _get,
        "read",
        says="Read one attempt, with the commands it allows now and why it forbids others.",
        answers={200: AttemptDocument},
        refuses=("not_found",),
    ),
    Route(
        "POST",
        f"{_ROOT}/{{attempt_id}}/resolve",
        _resolve,
        "operate",
        says="Settle an attempt whose outcome is Unknown.",
        details="The body is read strictly: an unknown member, a repeated one or another variant's field refuses the command. Refusals "
        "come as envelopes of this route. The same command sent again under its key gets its first acknowledgement, marked as replayed.",
        takes=operator.ResolveCommand,
        answers={operator.APPLIED_STATUS: operator.Acknowledgement},
        refusals=dict.fromkeys(sorted({operator.status_of(code) for code in operator.REFUSAL_CODES}), operator.RefusalEnvelope),
    ),
)
