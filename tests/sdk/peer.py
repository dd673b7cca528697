"""A fake server: a real WebSocket listener on a free port that a test drives frame by frame. It also answers the publication routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

JsonDict = dict[str, Any]

LIMITS: JsonDict = {}


class Peer:
    """One accepted connection."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.register: JsonDict = {}

    async def send(self, frame: JsonDict) -> None:
        await self.connection.send(json.dumps({"protocol_version": 1, **frame}))

    async def receive(self, *kinds: str, within: float = 10.0) -> JsonDict:
        """The next frame of one of these types; heartbeats are passed over unless asked for."""
        async with asyncio.timeout(within):
            while True:
                frame = json.loads(await self.connection.recv())
                if frame["type"] in kinds:
                    return frame
                assert frame["type"] == "heartbeat", f"expected {kinds}, got {frame}"

    async def registered(self, *, heartbeat_ms: int = 10_000, session: str = "ss_1") -> None:
        self.register = await self.receive("register")
        await self.send(
            {
                "type": "registered",
                "session_id": session,
                "capabilities": [],
                "limits": LIMITS,
                "heartbeat_ms": heartbeat_ms,
                "lease_ms": 3 * heartbeat_ms,
                "wanted": [],
            }
        )

    async def invoke(self, invocation: JsonDict) -> None:
        await self.send({"type": "invoke", "invocation": invocation})

    async def outcome(self, within: float = 10.0) -> JsonDict:
        """The next outcome, with its envelope."""
        return await self.receive("outcome", within=within)

    async def ack(self, outcome: JsonDict, disposition: str = "accepted") -> None:
        await self.send({"type": "outcome_ack", "request_id": outcome["request_id"], "disposition": disposition})

    async def call(self, invocation: JsonDict, within: float = 10.0) -> JsonDict:
        """Invokes and returns the outcome's body; acknowledges an effect's."""
        await self.invoke(invocation)
        answer = await self.outcome(within)
        if invocation["target"]["mode"] != "discovery":
            await self.ack(answer)
        return answer["outcome"]

    async def closed(self, within: float = 10.0) -> None:
        async with asyncio.timeout(within):
            await self.connection.wait_closed()


class FakeServer:
    """Listens on a free port of the loopback."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self.refuse_with: int | None = None
        self.port = 0
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            subprotocols=["ryusen.v1.json"],  # type: ignore[list-item]
            compression=None,
            max_size=None,
            process_request=self._process,
            ping_interval=None,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def peer(self, within: float = 10.0) -> Peer:
        async with asyncio.timeout(within):
            return await self.accepted.get()

    async def _serve(self, connection: ServerConnection) -> None:
        await self.accepted.put(Peer(connection))
        with contextlib.suppress(ConnectionClosed):
            await connection.wait_closed()

    def _process(self, _connection: ServerConnection, request: Request) -> Response | None:
        if self.refuse_with is None or not request.path.endswith("/connect"):
            return None
        return Response(self.refuse_with, "Refused", Headers({"Content-Length": "2"}), b"no")


@contextlib.asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


# Invocation documents.

NULL: JsonDict = {"type": "null"}


def text(value: str) -> JsonDict:
    return {"type": "string", "value": value}


def number(value: int) -> JsonDict:
    return {"type": "i64", "value": str(value)}


def done(step_id: str, value: JsonDict, kind: str = "run") -> JsonDict:
    return {"step_id": step_id, "kind": kind, "outcome": {"success": value}}


def failed(step_id: str, category: str = "Boom", message: str = "went wrong", kind: str = "run", **more: Any) -> JsonDict:
    return {
        "step_id": step_id,
        "kind": kind,
        "outcome": {"failure": {"category": category, "message": message, "retryable": False, **more}},
    }


def discovery(*history: JsonDict, pass_: int = 1, **more: Any) -> JsonDict:
    return invocation({"mode": "discovery", "pass": pass_}, *history, **more)


def forward(step_id: str, *history: JsonDict, attempt: int = 1, **more: Any) -> JsonDict:
    target = {"mode": "forward", "step_id": step_id, "operation_id": f"op_{step_id}", "attempt": attempt, "attempt_generation": attempt}
    return invocation(target, *history, **more)


def compensation(step_id: str, *history: JsonDict, result: JsonDict = NULL, **more: Any) -> JsonDict:
    target = {
        "mode": "compensation",
        "step_id": step_id,
        "operation_id": f"op_{step_id}_undo",
        "attempt": 1,
        "attempt_generation": 1,
        "forward_result": result,
    }
    return invocation(target, *history, **more)


_requests = iter(range(1, 1_000_000))


def invocation(
    target: JsonDict,
    *history: JsonDict,
    function: str = "fulfil",
    request_id: str | None = None,
    data: bytes = b'{"id": 7}',
    failure: JsonDict | None = None,
    application: str = "shop",
) -> JsonDict:
    import base64

    return {
        "protocol_version": 1,
        "type": "invocation",
        "request_id": request_id or f"rq_{next(_requests)}",
        "scope": {"workspace": "default", "application": application},
        "run": {"run_id": "rn_1", "function": function, "deadline_at_ms": None, "created_at_ms": 1_000, "failure": failure},
        "input": {
            "kind": "event",
            "event_id": "ev_1",
            "name": "order/placed",
            "payload": {"type": "bytes", "value": base64.b64encode(data).decode()},
            "metadata": {"k": "v"},
            "received_at_ms": 1_500,
        },
        "history": {"mode": "full", "digest": "sha256:0", "steps": list(history)},
        "target": target,
    }
