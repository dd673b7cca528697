"""Serves the application on sockets that are open already, and takes it off them again. Knows Sanic's server; decides nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any, cast

from sanic.server import AsyncioServer

from ryusen_server.api.app import App, retire_app
from ryusen_server.transports.connected.upgrade import ServerConnection

_LOOK_AGAIN_S = 0.01


class Serving:
    """An application on its sockets. Use `prepare_app`."""

    def __init__(self, app: App, listeners: list[AsyncioServer]) -> None:
        self._app = app
        self._listeners = listeners

    async def begin(self) -> None:
        """Answer from now on."""
        for listener in self._listeners:
            await cast("Any", listener).start_serving()

    def discard(self) -> None:
        """Instead of `begin`: it is not going to answer."""
        self.stop_listening()
        retire_app(self._app)

    def stop_listening(self) -> None:
        """Take no new connection; those there are go on."""
        for listener in self._listeners:
            cast("Any", listener).server.close()

    async def finish(self, bound_ms: int) -> None:
        """Close idle connections, give answers under way until the bound, then cut what is left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + bound_ms / 1000
        try:
            while (still_open := self._connections()) and loop.time() < until:
                for connection in still_open:
                    connection.close_if_idle()
                await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            for connection in self._connections():
                connection.abort()
            retire_app(self._app)

    def _connections(self) -> list[ServerConnection]:
        return [connection for listener in self._listeners for connection in cast("Any", listener).connections]


async def prepare_app(app: App, sockets: Sequence[socket.socket], *, backlog: int) -> Serving:
    """Everything that can be done before the first request may be answered; nothing is accepted before `begin`."""
    os.environ.setdefault("SANIC_IGNORE_PRODUCTION_WARNING", "1")  # it would praise debug mode on every terminal
    create = cast("Any", app).create_server  # Sanic types it in part
    listeners: list[AsyncioServer] = [
        await create(
            sock=bound, protocol=ServerConnection, backlog=backlog, access_log=False, asyncio_server_kwargs={"start_serving": False}
        )
        for bound in sockets
    ]
    await listeners[0].startup()  # compiles the routes
    return Serving(app, listeners)
