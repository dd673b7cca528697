"""The only wiring: puts store, engine, transports and API together as one server, and runs it.

Everything heavy is imported when a server is wanted, so that reading settings costs nothing.
"""

from __future__ import annotations

import gc
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryusen_server.bootstrap.settings import Ready, ServerSettings, StartRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_server.bootstrap.server import Server, StoreFactory
    from ryusen_server.engine.config import EngineConfig
    from ryusen_server.transports.connected.connection import ConnectedConfig

__all__ = ["Ready", "ServerSettings", "StartRefused", "build", "running_server", "serve"]


def serve(settings: ServerSettings, *, on_ready: Callable[[Ready], None] | None = None) -> int:
    """Run a server in this process until a signal ends it, and return the signal's number.

    Raises `StartRefused` with one line for people when it cannot start; nothing was changed then. A database that did not confirm a
    write ends the process at once with status 1 and one line on stderr.
    """
    gc.disable()  # what a start makes stays; once ready it is looked at no more, and collected is what comes after
    try:
        from ryusen_server.bootstrap.process import run

        return run(settings, on_ready=on_ready)
    finally:
        gc.enable()


def build(
    settings: ServerSettings,
    *,
    store_factory: StoreFactory | None = None,
    engine_config: EngineConfig | None = None,
    connected_config: ConnectedConfig | None = None,
) -> Server:
    """A server that is wired but not started. The other arguments are seams for tests."""
    from ryusen_server.bootstrap.server import Server

    return Server(settings, store_factory=store_factory, engine_config=engine_config, connected_config=connected_config)


def running_server(
    folder: Path,
    *,
    store_factory: StoreFactory | None = None,
    engine_config: EngineConfig | None = None,
    connected_config: ConnectedConfig | None = None,
    **settings: Any,
) -> AbstractAsyncContextManager[Server]:
    """A server on the running loop, on a free port, with its database in `folder`: `async with running_server(tmp_path) as server`.

    `settings` are members of `ServerSettings`.
    """
    from ryusen_server.bootstrap.server import running

    chosen: dict[str, Any] = {"db": folder / "ryusen.db", "port": 0, "drain_ms": 0, **settings}
    return running(
        build(ServerSettings(**chosen), store_factory=store_factory, engine_config=engine_config, connected_config=connected_config)
    )
