"""One WebSocket connection as an asyncio protocol: bytes in, whole text messages out, batched per read and per write.

Drives the sans-I/O client of `websockets` directly, so that all frames of one read reach the owner in one call and all frames to send
go out in one write. Decides nothing about sessions.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from ryusen_protocol.frames import CONNECT_PATH, SUBPROTOCOL
from ryusen_protocol.limits import REQUEST_BYTES_MAX
from ryusen_sdk.errors import MisuseError

_TEXT_KINDS: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_CLOSE_SECONDS: Final = 2.0


class Refusal(Exception):
    """The server answered the handshake with something else than a session. `status` is the HTTP status, 0 without one."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Owner(Protocol):
    """Who a connection works for. Every call comes on the connection's loop."""

    def opened(self) -> None: ...
    def messages(self, batch: list[bytes]) -> None: ...


class Connection(asyncio.Protocol):
    """One connection. `closed` resolves with the reason as an exception, or `None` for an orderly end."""

    def __init__(self, url: str, token: str | None, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._client = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=REQUEST_BYTES_MAX, extensions=None)
        self._token = token
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_discarded = False
        self._is_paused = False
        self._waiting: list[bytes] = []
        self._fragments: list[bytes] = []
        self._failure: Exception | None = None
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        self.received_at = loop.time()
        """When the last byte came, by the loop's clock."""

    # What the owner calls.

    def send(self, frames: Iterable[bytes]) -> None:
        """Sends text messages in one write, as soon as the socket takes them."""
        if self._is_paused:
            self._waiting.extend(frames)
            return
        if self._client.state is not State.OPEN:
            return
        for frame in frames:
            self._client.send_text(frame)
        self._write()

    def ping(self) -> None:
        if self._client.state is State.OPEN:
            self._client.send_ping(b"")
            self._write()

    def close(self) -> None:
        """Ends in order, after what was sent."""
        if self._client.state is State.OPEN:
            self._client.send_close(1000)
            self._write()
        self._loop.call_later(_CLOSE_SECONDS, self.abort, None)

    def abort(self, why: Exception | None) -> None:
        """Ends now. Nothing more of this connection is read."""
        self._is_discarded = True
        self._failure = self._failure or why
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        request = self._client.connect()
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        self._client.send_request(request)
        self._write()

    def data_received(self, data: bytes) -> None:
        if self._is_discarded:
            return
        self.received_at = self._loop.time()
        self._client.receive_data(data)
        self._process()

    def eof_received(self) -> bool:
        if not self._is_discarded:
            self._client.receive_eof()
            self._process()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_discarded = True
        if not self.closed.done():
            orderly = self._client.close_rcvd is not None and self._client.close_rcvd.code in {1000, 1001}
            reason = self._failure or self._client.handshake_exc or exc or (None if orderly else self._client.parser_exc)
            if reason is None and not orderly:
                reason = ConnectionError("the server closed the connection")
            self.closed.set_result(reason)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        waiting, self._waiting = self._waiting, []
        self.send(waiting)

    def _process(self) -> None:
        batch: list[bytes] = []
        for event in self._client.events_received():
            if isinstance(event, Response):
                self._handshake(event)
            elif isinstance(event, Frame) and event.opcode in _TEXT_KINDS:
                self._collect(event, batch)
        self._write()
        if batch:
            self._owner.messages(batch)
        if self._client.close_expected() and not self._is_discarded:
            self._loop.call_later(_CLOSE_SECONDS, self.abort, None)

    def _handshake(self, response: Response) -> None:
        error = self._client.handshake_exc
        if error is None and self._client.subprotocol == SUBPROTOCOL:
            self._owner.opened()
            return
        if isinstance(error, InvalidStatus):
            self.abort(Refusal(response.status_code, f"the server answered HTTP {response.status_code}{_excerpt(response)}"))
        else:
            self.abort(error or Refusal(0, f"the server does not speak {SUBPROTOCOL}"))

    def _collect(self, frame: Frame, batch: list[bytes]) -> None:
        if frame.fin and not self._fragments:
            batch.append(bytes(frame.data))
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            batch.append(b"".join(self._fragments))
            self._fragments = []

    def _write(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            self._client.data_to_send()
            return
        data = self._client.data_to_send()
        if not data:
            return
        is_end = data[-1] == b""
        joined = data[0] if len(data) == 1 else b"".join(data)
        if joined:
            transport.write(joined)
        if is_end and transport.can_write_eof():
            transport.write_eof()


def websocket_url(url: str) -> str:
    """The address of the gateway of a server's base URL. Raises `MisuseError`."""
    parts = urlsplit(url)
    schemes = {"http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.hostname or parts.query or parts.fragment:
        raise MisuseError(f"{url!r} is no server address; write http://HOST:PORT or https://HOST:PORT")
    return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}{CONNECT_PATH}"


async def connect(url: str, token: str | None, owner: Owner, made: Callable[[Connection], None]) -> Connection:
    """Opens the socket; the handshake goes on by itself. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    target = parse_uri(url)
    connection = Connection(url, token, owner, loop)
    made(connection)
    context = ssl.create_default_context() if target.secure else None
    await loop.create_connection(
        lambda: connection, target.host, target.port, ssl=context, server_hostname=target.host if context else None
    )
    return connection


def _excerpt(response: Response) -> str:
    body = bytes(response.body or b"")[:300].decode("utf-8", "replace").strip()
    return f": {body}" if body else ""
