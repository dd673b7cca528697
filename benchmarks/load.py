"""A load generator on bare sockets: one keep-alive connection a client, so that the client is never what is measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any


class Client:
    """One connection to the server."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> Any:
        """Send one request and read its JSON answer."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        status = await self._reader.readline()
        length = 0
        while (line := await self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        document = json.loads(await self._reader.readexactly(length))
        if b" 20" not in status:
            raise RuntimeError(f"{path}: {status.decode().strip()}: {document}")
        return document

    async def run(self, name: str, data: str) -> float:
        """Send an event, wait for its run to end, and return the seconds it took."""
        body = f'{{"name":"{name}","data":{data}}}'.encode()
        began = time.perf_counter()
        answer = await self.request("POST", "/v1/workspaces/default/events?wait_ms=60000", body)
        took = time.perf_counter() - began
        states = [run["status"] for run in answer["runs"]]
        if states != ["ended"]:
            raise RuntimeError(f"the run did not end: {answer}")
        return took

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()


async def one_by_one(host: str, port: int, name: str, data: str, count: int) -> list[float]:
    """Runs one after another on one connection; the seconds each took, after a few that do not count."""
    client = Client(host, port)
    for _ in range(min(10, count)):
        await client.run(name, data)
    took = [await client.run(name, data) for _ in range(count)]
    await client.close()
    return took


async def in_flight(host: str, port: int, name: str, data: str, *, count: int, width: int) -> float:
    """`count` runs with `width` of them in flight; the runs a second."""
    clients = [Client(host, port) for _ in range(width)]
    await asyncio.gather(*(client.run(name, data) for client in clients))
    left = iter(range(count))

    async def work(client: Client) -> None:
        for _ in left:
            await client.run(name, data)

    began = time.perf_counter()
    await asyncio.gather(*(work(client) for client in clients))
    took = time.perf_counter() - began
    for client in clients:
        await client.close()
    return count / took


async def accept(host: str, port: int, *, count: int, width: int) -> float:
    """Durable events that match nothing, `width` at once; the events a second."""
    clients = [Client(host, port) for _ in range(width)]
    left = iter(range(count))

    async def work(client: Client) -> None:
        for index in left:
            await client.request("POST", "/v1/workspaces/default/events", f'{{"name":"bench/none","data":{index}}}'.encode())

    began = time.perf_counter()
    await asyncio.gather(*(work(client) for client in clients))
    took = time.perf_counter() - began
    for client in clients:
        await client.close()
    return count / took


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
