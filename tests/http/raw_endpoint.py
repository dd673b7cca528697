"""An endpoint made of bare sockets, which can do what no web server does: a test says per request what is written, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from ryusen_protocol.exchange import signed_headers


class Asked:
    """One request as it arrived, and the hands on its connection."""

    def __init__(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.rstrip().split("\r\n")
        self.method, self.path, _ = first.split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = body
        self.writer = writer

    @property
    def invocation(self) -> Any:
        return json.loads(self.body)

    @property
    def target(self) -> Any:
        return self.invocation["target"]

    @property
    def mode(self) -> str:
        return self.target["mode"]

    def outcome(self, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """The outcome document that belongs to this request, but for the changes."""
        repeated = {} if self.mode == "discovery" else {name: self.target[name] for name in ("attempt", "attempt_generation")}
        invocation = self.invocation
        return {
            "protocol_version": 1,
            "type": "outcome",
            "request_id": invocation["request_id"],
            "run_id": invocation["run"]["run_id"],
            "outcome": {**repeated, **body},
            **changes,
        }

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def respond(self, document: Any, status: int = 200, *, secret: bytes | None = None, now_s: int = 0, **headers: str) -> None:
        """A complete response."""
        await self.write(response(document, status, secret=secret, now_s=now_s, **headers))

    def reset(self) -> None:
        """End the connection at once, with what was not read thrown away."""
        bare = self.writer.get_extra_info("socket")
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def response(document: Any, status: int = 200, *, secret: bytes | None = None, now_s: int = 0, **headers: str) -> bytes:
    """The bytes of a response."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    all_headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **signed_headers(secret, body, now_s),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items() if value)
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + body


Behave = Callable[[Asked], Awaitable[None]]


class RawEndpoint:
    """Answers each request as `behave` does; then the connection closes. `asked` are the requests in order."""

    def __init__(self, behave: Behave) -> None:
        self.behave = behave
        self.asked: list[Asked] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/ryusen"

    def of(self, mode: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.mode == mode]

    async def open(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Refuse connections."""
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # Shut when it is cancelled; the streams module reports a cancelled handler as an error.
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            try:
                await self._serve(reader, writer)
            finally:
                writer.close()
            await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("content-length"))
            asked = Asked(head, await reader.readexactly(int(length)), writer)
            self.asked.append(asked)
            await self.behave(asked)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, for at most ten seconds."""
    async with asyncio.timeout(10):
        while True:
            if holds():
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def raw_endpoint(behave: Behave) -> AsyncGenerator[RawEndpoint, None]:
    endpoint = RawEndpoint(behave)
    await endpoint.open()
    try:
        yield endpoint
    finally:
        await endpoint.shut()
