"""The server itself: whether it takes work, what it is, how it is set up, and how much it holds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.api import Health, ServerCounts, ServerInfo
from ryusen_protocol.ids import Workspace
from ryusen_protocol.limits import Limits
from ryusen_protocol.problems import Problem
from ryusen_server.api.context import Context
from ryusen_server.api.route import Answer, Call, Route, answer


async def _health(context: Context, call: Call) -> Answer | Problem:
    del call
    product_version = context.facts.product_version
    return answer(Health(status=context.health(), protocol_version=PROTOCOL_VERSION, product_version=product_version))


async def _server(context: Context, call: Call) -> Answer | Problem:
    facts, config = context.facts, context.config
    seen = None if context.access.reads_everything(call.principal) or call.principal is None else sorted(call.principal.readable)
    held = await context.store.counts(seen)
    return answer(
        ServerInfo(
            product_version=facts.product_version,
            protocol_version=PROTOCOL_VERSION,
            addresses=list(facts.addresses),
            database=facts.database,
            limits=Limits(),
            heartbeat_ms=config.heartbeat_ms,
            lease_ms=config.lease_ms,
            reconnect_grace_ms=config.reconnect_grace_ms,
            default_run_timeout_ms=config.default_run_timeout_ms,
            max_run_timeout_ms=config.max_run_timeout_ms,
            started_at_ms=facts.started_at_ms,
            counts=ServerCounts(
                events=held.events,
                runs=held.runs,
                moving=held.runs_live,
                unknown=held.attempts_unknown,
                blocked=held.runs_blocked,
                workers=context.workers_connected() if seen is None else _connected(context, seen),
            ),
        )
    )


async def _openapi(context: Context, call: Call) -> Answer | Problem:
    del call
    return Answer(200, _described(context.facts.product_version))


@functools.cache
def _described(product_version: str) -> bytes:
    """Made when somebody asks for it first: a server that starts has no need of it."""
    from ryusen_server.api.openapi import openapi_document
    from ryusen_server.api.table import ROUTES as ALL_ROUTES

    return msgspec.json.encode(openapi_document(ALL_ROUTES, product_version))


def _connected(context: Context, workspaces: Sequence[Workspace]) -> int:
    return sum(view.connected for workspace in workspaces for view in context.engine.workers(workspace))


ROUTES: Final = (
    Route("GET", "/v1/openapi.json", _openapi, None, says="Describe every route: this document.", answers={200: dict}),
    Route("GET", "/v1/health", _health, None, says="Tell whether the server takes new work.", answers={200: Health}),
    Route(
        "GET",
        "/v1/server",
        _server,
        "read",
        says="Tell what the server is, where it listens, how it is set up, and how much it holds.",
        answers={200: ServerInfo},
    ),
)
