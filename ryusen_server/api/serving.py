"""Serves the application on sockets that are open already, and takes it off them again. Knows Sanic's server; decides nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any, cast

from sanic.server import AsyncioServer

from ryusen_server.api.app import App, attach, retire_app
from ryusen_server.api.context import Context
from ryusen_server.transports.connected.gateway import Gateway
from ryusen_server.transports.connected.upgrade import ServerConnection

_LOOK_AGAIN_S = 0.01


class Serving:
    """An application on its sockets. Use `prepare_app`."""

    def __init__(self, app: App, listeners: list[AsyncioServer]) -> None:
        self._app = app
        self._listeners = listeners

    async def begin(self, context: Context, gateway: Gateway) -> None:
        """Answer from now on."""
        attach(self._app, context=context, gateway=gateway)
        for listener in self._listeners:
            await cast("Any", listener).start_serving()

    def discard(self) -> None:
        """Instead of `begin`, or after one that did not come about: it is not going to answer."""
        self.stop_listening()
        self._leave()

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
            self._leave()

    def _leave(self) -> None:
        for connection in self._connections():
            connection.abort()
        retire_app(self._app)

    def _connections(self) -> list[ServerConnection]:
        return [connection for listener in self._listeners for connection in cast("Any", listener).connections]


async def prepare_app(app: App, sockets: Sequence[socket.socket], *, backlog: int) -> Serving:
    """Everything that can be done before the first request may be answered; nothing is accepted before `begin`.

    If that fails, or is given up, the application is gone; the sockets are the caller's to close in any case.
    """
    preparing = asyncio.ensure_future(_prepare(app, sockets, backlog))
    try:
        return await asyncio.shield(preparing)
    except asyncio.CancelledError:
        (await preparing).discard()  # Sanic opens on tasks of its own, which would not end with this one
        raise


async def _prepare(app: App, sockets: Sequence[socket.socket], backlog: int) -> Serving:
    os.environ.setdefault("SANIC_IGNORE_PRODUCTION_WARNING", "1")  # it would praise debug mode on every terminal
    create = cast("Any", app).create_server  # Sanic types it in part
    listeners: list[AsyncioServer] = []
    serving = Serving(app, listeners)
    try:
        for bound in sockets:
            listener = await create(
                sock=bound, protocol=ServerConnection, backlog=backlog, access_log=False, asyncio_server_kwargs={"start_serving": False}
            )
            listeners.append(listener)
        await listeners[0].startup()  # compiles the routes
    except BaseException:
        serving.discard()
        raise
    return serving
