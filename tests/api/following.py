"""A reader of the change stream, for tests: the events of one connection, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from ryusen_protocol.sse import StreamEvent, StreamParser
from tests.api.api_harness import ApiHarness, W

PATIENCE_S = 10.0


class Reader:
    """One connection to the stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.last_id: str | None = None
        self._parser = StreamParser()
        self._bytes: AsyncIterator[bytes] = answer.aiter_raw()
        self._events: list[StreamEvent] = []

    async def event(self) -> tuple[str, dict[str, Any]]:
        """The next event of any name."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._events:
                self._events = self._parser.feed(await anext(self._bytes))
        event = self._events.pop(0)
        self.last_id = event.id
        return event.name, msgspec.json.decode(event.data)

    async def next(self, name: str) -> dict[str, Any]:
        """The next event of that name; others are passed over."""
        while True:
            found, document = await self.event()
            if found == name:
                return document

    async def change(self) -> dict[str, Any]:
        """The next change. Its position is the event's id."""
        found = await self.next("change")
        assert self.last_id == str(found["position"])
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The changes up to the first for which it holds."""
        changes = [await self.change()]
        while not holds(changes[-1]):
            changes.append(await self.change())
        return changes

    async def ended(self) -> bool:
        """Whether the stream ends, with nothing but heartbeats before."""
        async with asyncio.timeout(PATIENCE_S):
            async for received in self._bytes:
                assert all(event.name == "heartbeat" for event in self._parser.feed(received))
        return True


def kinds(change: dict[str, Any]) -> list[str]:
    """What a change says happened."""
    return [record["kind"] for record in change["records"]]


def tells(kind: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a change says that this happened."""
    return lambda change: kind in kinds(change)


@asynccontextmanager
async def following(
    api: ApiHarness, *, after: int | None = None, last_event_id: str | None = None, root: str = W
) -> AsyncGenerator[Reader, None]:
    """A reader of the stream. It has begun when this is entered: the first heartbeat or resync is still to be read."""
    query = {} if after is None else {"after": after}
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    async with api.client.stream("GET", f"{root}/stream", params=query, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Reader(answer)
