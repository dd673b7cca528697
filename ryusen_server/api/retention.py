"""Removing what is old: ended runs and their events, on request. What a removal touches and what it leaves is the engine's to know."""

from __future__ import annotations

from typing import Final

from ryusen_protocol.api import PruneReceipt, PruneRequest
from ryusen_protocol.limits import KIB
from ryusen_protocol.problems import Problem
from ryusen_server.api.context import Context
from ryusen_server.api.parameters import document, workspace
from ryusen_server.api.route import Answer, Call, Route, answer

_BYTES_MAX: Final = 4 * KIB
_BOUND_MS: Final = 20_000
"""How long one request goes on; whoever asked asks again for the rest."""


async def _prune(context: Context, call: Call) -> Answer | Problem:
    asked = document(call, PruneRequest, bytes_max=_BYTES_MAX)
    work = context.engine.prune(workspace(call), older_than_ms=asked.older_than_ms, bound_ms=_BOUND_MS)
    pruned = await context.to_its_end(work)
    return answer(
        PruneReceipt(
            before_ms=pruned.before_ms,
            runs=pruned.runs,
            events=pruned.events,
            freed_bytes=pruned.freed_bytes,
            complete=pruned.complete,
        )
    )


ROUTES: Final = (
    Route(
        "POST",
        "/v1/workspaces/{workspace}/prune",
        _prune,
        "operate",
        says="Remove ended runs, and events that are left without one, that are older than a duration.",
        details="Works for at most 20 seconds; `complete` is false if there is more, and the same request goes on with it. Nothing that "
        "lives is touched. Idempotency keys, operator commands, manifests, routing generations and releases stay.",
        takes=PruneRequest,
        answers={200: PruneReceipt},
    ),
)
