"""Runs the server in this process, and says where it listens or why it cannot.

Owns the step from settings to the server's own bootstrap, and nothing of what a server does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ryusen_cli.dev import messages
from ryusen_cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable


def run_server(order: messages.RunServer, tell: Callable[[messages.Fact], None]) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    from ryusen_server.bootstrap import Ready, ServerSettings, StartRefused, serve
    from ryusen_server.bootstrap.settings import http_endpoint

    settings = ServerSettings(
        db=None if order.ephemeral else Path(order.db),
        host=order.host,
        port=order.port,
        allow_hosts=tuple(order.allow_hosts),
        credentials=None if order.credentials is None else Path(order.credentials),
        lease_ms=order.lease_ms,
        reconnect_grace_ms=order.reconnect_grace_ms,
        default_run_timeout_ms=order.default_run_timeout_ms,
        max_run_timeout_ms=order.max_run_timeout_ms,
        http_endpoints=tuple(http_endpoint(text) for text in order.http_endpoints),
        http_capacity=order.http_capacity,
        http_secret=order.http_secret,
        log_level=order.log_level,
        log_format=order.log_format,
    )

    def ready(now: Ready) -> None:
        database = now.database if now.ephemeral else str(Path(order.db).absolute())
        tell(messages.Listening(list(now.addresses), database))

    try:
        number = serve(settings, on_ready=ready)
    except StartRefused as refused:
        tell(messages.Failed(str(refused)))
        return int(Exit.ERROR)
    return 128 + number
