"""A fake HTTP server on a free port: records requests and gives the answers a test prepares."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

JsonDict = dict[str, Any]


class Asked(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonDict:
        return json.loads(self.body)


Answer = tuple[int, Any]
"""Status, and a document or raw bytes."""


class HttpPeer:
    """Answers every request with `respond`; `None` closes the connection without an answer."""

    def __init__(self, respond: Callable[[Asked], Answer | None]) -> None:
        self.respond = respond
        self.asked: list[Asked] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            asked = Asked(method, path, headers, body)
            self.asked.append(asked)
            answer = self.respond(asked)
            if answer is not None:
                status, document = answer
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def http_peer(respond: Callable[[Asked], Answer | None]) -> AsyncIterator[HttpPeer]:
    peer = HttpPeer(respond)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await server.wait_closed()


def problem(status: int, code: str, detail: str = "no", **more: Any) -> Answer:
    return status, {"type": f"urn:{code}", "title": code, "status": status, "detail": detail, "code": code, **more}
