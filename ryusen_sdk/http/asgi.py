"""Hosts an application in an ASGI 3 web server: `uvicorn shop:asgi` and the like.

Owns the ASGI messages: requests, bodies as they arrive, the lifespan protocol. User coroutines run on the web server's loop, sync code in
the SDK's own threads. The lifespan of the application is entered at start-up where the server speaks that protocol, else at the first
invocation. A client that goes away stops nothing that has begun.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from ryusen_protocol.exchange import SIGNATURE_HEADER, TIMESTAMP_HEADER
from ryusen_sdk.errors import MisuseError
from ryusen_sdk.host import Stopped, rejection
from ryusen_sdk.http.exchange import BODY_BYTES_MAX, Exchanges, Head, Reply, failed, too_large
from ryusen_sdk.http.handler import Handler, capacity_checked, path_checked, secret_bytes

if TYPE_CHECKING:
    from ryusen_protocol.invocation import Invocation
    from ryusen_sdk.app import Ryusen
    from ryusen_sdk.lifespan import Hold

_log: Final = logging.getLogger("ryusen.http")

Message = MutableMapping[str, Any]
"""One ASGI message, and the scope of a connection."""
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiHandler:
    """The ASGI application. One loop at a time."""

    def __init__(self, app: Ryusen, *, secret: str | bytes | None, capacity: int, path: str | None) -> None:
        self._app = app
        self._exchanges = Exchanges(secret_bytes(secret), path_checked(path))
        self._capacity = capacity_checked(capacity)
        self._handler: Handler | None = None
        self._hold: Hold | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._request(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise MisuseError(f"this handler answers HTTP, not {other!r}")

    # one process's life

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            try:
                if message["type"] == "lifespan.startup":
                    await self._entered()
                else:
                    await self._leave()
            except Exception as error:
                # Told both ways: a server may pass over the message, and a person needs the trace.
                await send({"type": f"{message['type']}.failed", "message": str(error) or type(error).__name__})
                raise
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _entered(self) -> Handler:
        handler = self._at_hand()
        if self._hold is None:
            self._hold = self._app.lifespan()
        await self._hold.enter()
        return handler

    def _at_hand(self) -> Handler:
        loop = asyncio.get_running_loop()
        handler = self._handler
        if handler is None or (handler.loop is not loop and handler.loop.is_closed()):
            self._hold = None
            handler = self._handler = Handler(self._app, loop, self._capacity)
        if handler.loop is not loop:
            raise MisuseError("the handler serves on another event loop of this process; make one for each with app.asgi()")
        return handler

    async def _leave(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            await handler.drain()
            handler.close()
        hold, self._hold = self._hold, None
        if hold is not None:
            await hold.leave()

    # one request

    async def _request(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = _Headers(scope)
        path = scope["path"]
        head = Head(scope["method"], path, headers.only("content-type"), headers.only("content-length"), headers.only("content-encoding"))
        refusal = self._exchanges.refusal(head)
        if refusal is not None:
            await _reply(send, refusal)
            return
        body = await _body(receive)
        if body is None:
            return
        if isinstance(body, Reply):
            await _reply(send, body)
            return
        timestamp, signature = headers.only(TIMESTAMP_HEADER.lower()), headers.only(SIGNATURE_HEADER.lower())
        asked = self._exchanges.invocation(body, timestamp, signature, _now_s())
        await _reply(send, asked if isinstance(asked, Reply) else await self._answer(asked, send))

    async def _answer(self, invocation: Invocation, send: Send) -> Reply:
        try:
            handler = await self._entered()
        except Exception:  # noqa: BLE001 - nothing has run; said so, the invocation comes again, and an effect is in no doubt
            _log.exception("the application could not be started")
            handler = self._handler
            refused = rejection(invocation, "busy") if handler is None else handler.reject(invocation, "busy")
            return self._exchanges.answer(refused, _now_s())
        answer = await asyncio.wrap_future(handler.begin(invocation))
        if isinstance(answer, Stopped):
            await _reply(send, failed())
            raise await handler.settle(answer)
        return self._exchanges.answer(answer, _now_s())


class _Headers:
    """The headers of a scope, of which only those that stand once count."""

    def __init__(self, scope: Message) -> None:
        self._values: dict[str, str | None] = {}
        for name, value in scope["headers"]:
            key = bytes(name).decode("latin-1").lower()
            self._values[key] = None if key in self._values else bytes(value).decode("latin-1")

    def only(self, name: str) -> str | None:
        return self._values.get(name)


async def _body(receive: Receive) -> bytes | Reply | None:
    """All of it; the answer as soon as it is over the limit; none when the client is gone before its end."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return too_large()
        if not message.get("more_body", False):
            return bytes(body)


async def _reply(send: Send, reply: Reply) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    headers.append((b"content-length", str(len(reply.body)).encode()))
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
    except OSError as gone:
        # Whoever asked does not wait any more; what the answer says is then found out in another way.
        _log.warning("an answer could not be delivered: %s", gone)


def _now_s() -> int:
    return int(time.time())
