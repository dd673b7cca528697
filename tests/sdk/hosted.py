"""One invocation answered by the real host: its pool, the test's loop, real callbacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from ryusen_protocol.codec import decode_invocation
from ryusen_protocol.invocation import Invocation
from ryusen_sdk import Event, Ryusen
from ryusen_sdk.host import Answer, Host
from ryusen_sdk.threads import ThreadPool
from tests.sdk.peer import JsonDict

Body = Callable[[Event, Any], Any]


async def answer(app: Ryusen, document: JsonDict) -> Answer:
    """The host's answer to one invocation document."""
    pool = ThreadPool(4)
    host = Host(app.registry, asyncio.get_running_loop(), pool)
    host.check()
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[Answer] = loop.create_future()

    def finish(_invocation: Invocation, given: Answer) -> None:
        loop.call_soon_threadsafe(finished.set_result, given)

    host.start([decode_invocation(json.dumps(document))], finish)
    async with asyncio.timeout(10):
        given = await finished
    pool.close()
    return given


async def outcome_of(app: Ryusen, document: JsonDict) -> JsonDict:
    """The outcome's body, of an application."""
    given = await answer(app, document)
    assert isinstance(given, bytes), given
    envelope = json.loads(given)
    assert envelope["request_id"] == document["request_id"]
    return envelope["outcome"]


async def outcome(body: Body, document: JsonDict) -> JsonDict:
    """The outcome's body, of one function `fulfil`."""
    app = Ryusen("shop")
    app.function(id="fulfil")(body)
    return await outcome_of(app, document)
