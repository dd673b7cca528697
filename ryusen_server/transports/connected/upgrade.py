"""Where a worker's connection comes out of the HTTP server: Sanic's protocol class with a data path of our own behind the upgrade.

Sanic's own WebSocket object keeps received frames in a queue that a close throws away, and ends the handler with it. Here the bytes of
an upgraded connection go straight to its `WorkerConnection`. Knows Sanic; what the frames mean is known elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from sanic.exceptions import SanicException
from sanic.request import Request
from sanic.server import HttpProtocol

from ryusen_protocol.problems import CONTENT_TYPE, problem
from ryusen_server.transports.connected.connection import GOING_AWAY, WorkerConnection
from ryusen_server.transports.connected.gateway import Gateway, HandshakeRefused
from ryusen_server.transports.connected.session import MayExecute, anybody

CONNECTIONS_MAX = 2_000
"""Open connections of one listening address, workers' and others'. One more is told to come back later."""
_LINGER_S = 1.0
_DISCARDED_BYTES_MAX = 64 * 1024 * 1024


def _busy() -> bytes:
    body = msgspec.json.encode(problem("busy", f"{CONNECTIONS_MAX} connections are open already. Close idle ones, or try again later."))
    head = (
        f"HTTP/1.1 429 Too Many Requests\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        "retry-after: 1\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n"
    )
    return head.encode() + body


def _may_execute(request: Request) -> MayExecute:
    """What the API found out of who asks, before anything else."""
    return cast("MayExecute", getattr(request.ctx, "may_execute", anybody))


class UpgradeRefused(SanicException):
    """The request for the gateway is no handshake of its protocol."""

    status_code = 400
    quiet = True


class Upgraded:
    """What Sanic holds of an upgraded connection."""

    def __init__(self, connection: WorkerConnection) -> None:
        self._connection = connection

    async def wait_closed(self) -> None:
        """Return once the socket is gone."""
        await asyncio.shield(self._connection.lost)

    def end_connection(self, code: int = GOING_AWAY) -> None:
        """Sanic gives the connection up."""
        self._connection.close(code, "the server ends the connection")

    async def close(self, code: int = GOING_AWAY) -> None:
        """As `end_connection`: the handler is over."""
        self.end_connection(code)


class ServerConnection(HttpProtocol):
    """One HTTP connection that may become a worker's.

    An answer given before the request was read through closes behind it gently, so that the client gets to see the answer.
    """

    __slots__ = ("_discarded_bytes", "_linger", "_worker")

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)  # pyright: ignore[reportUnknownMemberType]  # Sanic types it in part
        self._worker: WorkerConnection | None = None
        self._discarded_bytes: int | None = None
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A peer has connected."""
        connections = cast("set[object]", cast("Any", self).connections)
        if len(connections) < CONNECTIONS_MAX:
            super().connection_made(transport)  # pyright: ignore[reportUnknownMemberType]  # as above
            return
        transport.write(_busy())
        transport.close()

    async def websocket_handshake(self, request: Request, subprotocols: Sequence[str] | None = None) -> Upgraded:
        """Called by Sanic for the gateway's route. `subprotocols` is what the route names; the gateway knows its own."""
        del subprotocols
        gateway = cast("Gateway", request.app.ctx.gateway)
        transport = cast("asyncio.Transport", self.transport)
        received = bytes(self.recv_buffer)
        try:
            headers = cast("Iterable[tuple[str, str]]", request.headers.items())
            connection = gateway.accept(request.path, headers, transport, received, _may_execute(request))
        except HandshakeRefused as refused:
            raise UpgradeRefused(refused.why) from None
        self.recv_buffer.clear()
        self._worker = connection
        if not transport.is_closing():
            transport.resume_reading()
        return Upgraded(connection)

    def answered_early(self) -> None:
        """The answer does not wait for the rest of the request: what still comes is thrown away for a while."""
        self._discarded_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Bytes from the socket."""
        if self._worker is not None:
            self._worker.data_received(data)
        elif self.transport is None:
            pass  # turned away
        elif self._linger is not None and self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _DISCARDED_BYTES_MAX:
                self.abort()
        else:
            super().data_received(data)

    def eof_received(self) -> bool | None:
        """The peer sends no more."""
        if self._worker is not None:
            self._worker.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._linger is not None:
            self._linger.cancel()
        if self._worker is not None:
            self._worker.connection_lost(exc)
        if self.conn_info is not None:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        super().pause_writing()
        if self._worker is not None:
            self._worker.pause_writing()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        super().resume_writing()
        if self._worker is not None:
            self._worker.resume_writing()

    def close(self, timeout: float | None = None) -> None:
        """Called at the end of the connection's task; an upgraded connection closes itself."""
        if self._worker is not None:
            self._worker.close(GOING_AWAY, "the server ends the connection")
        elif self._discarded_bytes is not None and self._linger is None and self._may_linger():
            transport = cast("asyncio.Transport", self.transport)
            self.recv_buffer.clear()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, super().close)
            transport.write_eof()
            transport.resume_reading()
        else:
            super().close(timeout)

    def close_if_idle(self) -> bool:
        """Called at the server's end. A worker's connection is closed by the gateway."""
        return False if self._worker is not None else bool(super().close_if_idle())

    def _may_linger(self) -> bool:
        transport = self.transport
        return transport is not None and not transport.is_closing() and transport.can_write_eof()
