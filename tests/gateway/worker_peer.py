"""A worker played frame by frame over a real WebSocket, for tests of what the server does with it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

SUBPROTOCOL = Subprotocol("ryusen.v1.json")
PATIENCE_S = 5.0

_instances = itertools.count(1)


def register_frame(instance_id: str | None = None, **members: Any) -> dict[str, Any]:
    """A register frame that the server takes, but for the members given."""
    return {
        "protocol_version": 1,
        "type": "register",
        "scope": {"workspace": "default", "application": "shop"},
        "instance_id": instance_id or f"wk_{next(_instances)}",
        "connection": 1,
        "previous_session": None,
        "release_id": None,
        "manifest_digest": "sha256:0",
        "functions": ["fulfil"],
        "contract": {"protocol_version": 1, "value_codec": 1, "features": []},
        "capabilities": [],
        "capacity": 4,
        "draining": False,
        "sdk": {"name": "peer", "version": "1"},
        "runtime": {"name": "python", "version": "3"},
        "held": [],
        **members,
    }


def string(text: str) -> dict[str, Any]:
    """A portable string."""
    return {"type": "string", "value": text}


class WorkerPeer:
    """One connection of a worker."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session_id = ""

    async def send(self, frame: dict[str, Any]) -> None:
        """Send one frame."""
        await self.socket.send(msgspec.json.encode(frame).decode())

    async def receive(self) -> dict[str, Any]:
        """The next frame."""
        return msgspec.json.decode(await asyncio.wait_for(self.socket.recv(), PATIENCE_S))

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next frame, which must be of that type."""
        frame = await self.receive()
        assert frame["type"] == kind, frame
        return frame

    async def register(self, **members: Any) -> dict[str, Any]:
        """Register and return the answer."""
        await self.send(register_frame(**members))
        answer = await self.receive()
        self.session_id = answer.get("session_id", "")
        return answer

    async def answer(self, invoke: dict[str, Any], outcome: dict[str, Any], **members: Any) -> None:
        """Answer an invocation; attempt and generation are repeated for an effect."""
        invocation = invoke["invocation"]
        target = invocation["target"]
        repeated = {} if target["mode"] == "discovery" else {name: target[name] for name in ("attempt", "attempt_generation")}
        await self.send(
            {
                "protocol_version": 1,
                "type": "outcome",
                "request_id": invocation["request_id"],
                "run_id": invocation["run"]["run_id"],
                "outcome": {**outcome, **repeated},
                **members,
            }
        )

    async def declare(self, invoke: dict[str, Any], step_id: str, **members: Any) -> None:
        """Answer a discovery with a run step."""
        await self.answer(invoke, {"type": "declared", "declaration": {"kind": "run", "step_id": step_id, "name": step_id, **members}})

    async def closed(self) -> tuple[int | None, str | None]:
        """Code and reason of the close, once it is closed; frames before it are passed over."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionClosed):
                async for _ in self.socket:
                    pass
            await self.socket.wait_closed()
        return self.socket.close_code, self.socket.close_reason

    async def play(self, steps: list[str], *, until: asyncio.Event | None = None) -> None:
        """Answer everything: declare each step in turn, let it succeed with its own name, and complete with the last."""
        while until is None or not until.is_set():
            frame = await self.receive()
            if frame["type"] != "invoke":
                continue
            target = frame["invocation"]["target"]
            if target["mode"] != "discovery":
                await self.answer(frame, {"type": "succeeded", "result": string(target["step_id"])})
                continue
            done = len(frame["invocation"]["history"]["steps"])
            if done < len(steps):
                await self.declare(frame, steps[done])
            else:
                await self.answer(frame, {"type": "completed", "result": string("done")})


@asynccontextmanager
async def worker_peer(
    url: str, *, registers: bool = True, headers: dict[str, str] | None = None, **members: Any
) -> AsyncGenerator[WorkerPeer, None]:
    """A worker connected to the server at that base URL, registered unless told otherwise. `headers` go with the handshake."""
    target = url.replace("http://", "ws://") + "/v1/connect"
    async with connect(
        target,
        subprotocols=[SUBPROTOCOL],
        additional_headers=headers,
        compression=None,
        max_size=None,
        open_timeout=PATIENCE_S,
        close_timeout=1,
        proxy=None,
    ) as socket:
        peer = WorkerPeer(socket)
        if registers:
            answer = await peer.register(**members)
            assert answer["type"] == "registered", answer
        yield peer


def publication(function: str = "fulfil", *, events: tuple[str, ...] = ("order/placed",), parent: str | None = None) -> dict[str, Any]:
    """A publication of one function that the events start."""
    triggers = [{"id": f"{function}/{event}", "event_name": event, "function": function} for event in events]
    return {
        "protocol_version": 1,
        "expected_parent": parent,
        "functions": [{"id": function}],
        "triggers": triggers,
        "contents": base64.b64encode(b"{}").decode(),
    }
