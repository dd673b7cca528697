"""A real server and a client of it, for tests of the HTTP API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from ryusen_server.api.context import Context
from ryusen_server.bootstrap import running_server
from ryusen_server.bootstrap.server import Server
from ryusen_server.store.memory import MemoryStore
from tests.gateway.worker_peer import publication

W = "/v1/workspaces/default"
JSON_BODY = {"content-type": "application/json"}


class ClosableMemoryStore(MemoryStore):
    """The memory store as a server's own."""

    async def close(self) -> None:
        """There is nothing to let go of."""


async def open_memory(path: Path | None, on_fatal: Callable[[str], None]) -> ClosableMemoryStore:
    """A store for tests that storage is not the point of."""
    del path, on_fatal
    return ClosableMemoryStore()


class ApiHarness:
    """A running server with a client at its base URL."""

    def __init__(self, server: Server, client: httpx.AsyncClient) -> None:
        self.server = server
        self.client = client

    @property
    def context(self) -> Context:
        """What the routes answer from."""
        context = self.server._context
        assert context is not None
        return context

    @property
    def authority(self) -> str:
        """Host and port."""
        return self.server.url.removeprefix("http://")

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        """The document at a path."""
        answer = await self.client.get(path, params=query or None)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, document: Any, status: int = 200, **query: Any) -> Any:
        """The answer to a document."""
        answer = await self.client.post(path, params=query or None, json=document)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def publish(self, application: str = "shop", **options: Any) -> Any:
        """Activate a manifest of one function."""
        return await self.post(f"{W}/applications/{application}/manifests", publication(**options), 201)

    async def send(self, name: str = "order/placed", *, status: int = 201, wait_ms: int | None = None, **members: Any) -> Any:
        """Submit an event."""
        query = {} if wait_ms is None else {"wait_ms": wait_ms}
        return await self.post(f"{W}/events", {"name": name, "data": {}, **members}, status, **query)

    async def raw(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to exactly these bytes."""
        host, _, port = self.authority.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
            status = int(head.split(" ", 2)[1])
            headers = dict(re.findall(r"(?m)^([^:\r\n]+): *([^\r\n]*)", head.lower()))
            body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", "0"))), 10)
            return status, headers, body
        finally:
            writer.close()


@asynccontextmanager
async def api_server(folder: Path, *, memory: bool = False, **settings: Any) -> AsyncGenerator[ApiHarness, None]:
    """A server with a client, on the running loop."""
    store_factory = open_memory if memory else None
    async with (
        running_server(folder, store_factory=store_factory, **settings) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as client,
    ):
        yield ApiHarness(server, client)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds, for at most ten seconds."""
    async with asyncio.timeout(10):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
