"""Keeps the worker connections of one server: opens each after its handshake, and closes them all at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ryusen_protocol.frames import SUBPROTOCOL
from ryusen_server.transports.connected.connection import ConnectedConfig, WorkerConnection, WorkersSide
from ryusen_server.transports.connected.session import MayExecute, anybody

_wire_log = logging.getLogger(f"{__name__}.wire")
_wire_log.setLevel(logging.WARNING)  # the library tells every connection's end at INFO


class HandshakeRefused(Exception):
    """The request is no handshake of this protocol. `why` is for people."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Gateway:
    """The connected transport of one server."""

    def __init__(self, engine: WorkersSide, config: ConnectedConfig | None = None) -> None:
        self._engine = engine
        self._config = config or ConnectedConfig()
        self._connections: set[WorkerConnection] = set()

    def accept(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        transport: asyncio.Transport,
        received: bytes,
        may_execute: MayExecute = anybody,
    ) -> WorkerConnection:
        """Answer the handshake on `transport` and open the connection. Raises `HandshakeRefused`, with nothing sent.

        `received` is what the client sent behind its handshake, if it did not wait for the answer. `may_execute` judges its registration.
        """
        websocket = ServerProtocol(
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            state=State.OPEN,
            max_size=self._config.frame_bytes_max,
            logger=_wire_log,
        )
        response = websocket.accept(Request(path, Headers(headers)))
        if response.status_code != 101:
            raise HandshakeRefused(_why_refused(websocket))
        head = [f"HTTP/1.1 101 {response.reason_phrase}", *(f"{name}: {value}" for name, value in response.headers.raw_items()), "", ""]
        transport.write("\r\n".join(head).encode())
        connection = WorkerConnection(
            transport=transport,
            websocket=websocket,
            engine=self._engine,
            config=self._config,
            loop=asyncio.get_running_loop(),
            on_lost=self._connections.discard,
            may_execute=may_execute,
        )
        self._connections.add(connection)
        connection.begin(received)
        return connection

    def access_changed(self) -> None:
        """Who may do what has changed: sessions that would not be opened now end."""
        for connection in list(self._connections):
            connection.access_changed()

    def sessions(self) -> int:
        """How many workers are registered now."""
        return sum(connection.registered for connection in self._connections)

    async def close(self, code: int, reason: str) -> None:
        """Close every connection and wait until all are gone; a peer that does not answer is bounded by `linger_ms`."""
        while self._connections:
            connections = list(self._connections)
            for connection in connections:
                connection.close(code, reason)
            await asyncio.wait([connection.lost for connection in connections])


def _why_refused(websocket: ServerProtocol) -> str:
    reason = websocket.handshake_exc
    if reason is None:
        return f"the worker has to offer the subprotocol {SUBPROTOCOL}"
    causes = [str(reason)]
    while (cause := reason.__cause__) is not None and isinstance(cause, Exception):
        causes.append(str(cause))
        reason = cause
    return f"{'; '.join(causes)}; a worker opens a WebSocket with the subprotocol {SUBPROTOCOL}"
