"""Holds a connected worker, in whatever language, to the fixtures: `ryusen conformance worker -- CMD…`.

Owns the order of the suites: registration and the contract first, then message conformance on one session, then the transport's lifecycle,
where connections end, come back and processes stop. A worker that cannot even register is told as that and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ryusen_conformance import executions, fixtures
from ryusen_conformance.expectation import mismatch
from ryusen_conformance.report import Impossible, Result
from ryusen_conformance.server_peer import FakeServer, PeerConnection
from ryusen_conformance.subject import Subject
from ryusen_conformance.transcript import StageFailed, play
from ryusen_protocol.limits import Limits

if TYPE_CHECKING:
    from ryusen_conformance.expectation import JsonDict

SUITE: Final = "worker_sessions"
PATIENCE_S: Final = 20.0
"""How long a worker may take to start, to reconnect and to answer."""


class WorkerStage:
    """A worker's process and the connection it has now."""

    def __init__(self, command: list[str], server: FakeServer, patience_s: float) -> None:
        self._command = command
        self._server = server
        self._patience_s = patience_s
        self._subject: Subject | None = None
        self._connection: PeerConnection | None = None

    @property
    def last_words(self) -> str:
        return "" if self._subject is None else self._subject.last_words

    async def open(self) -> None:
        """The worker's next connection; its process is started if none runs."""
        await self.cut()
        if self._subject is None or not self._subject.is_running:
            await self.end()
            self._subject = await Subject.start(self._command, self._server.url)
        self._connection = await self._server.accept(self._patience_s)

    async def send(self, frame: JsonDict) -> None:
        await self._up.send(frame)

    async def receive(self) -> JsonDict:
        return await self._up.receive(self._patience_s)

    async def cut(self) -> None:
        if self._connection is not None:
            self._connection.cut()
            self._connection = None

    async def stop(self) -> None:
        if self._subject is not None:
            self._subject.stop()

    async def ended(self) -> None:
        if self._subject is not None:
            await self._subject.ended(self._patience_s)

    async def calls(self, run_id: str) -> list[str]:
        try:
            return await executions.calls_of(self.ask, run_id, f"rq_calls_{secrets.token_hex(6)}")
        except executions.NoAnswer as failed:
            raise StageFailed(str(failed)) from None

    async def post(self, path: str, body: JsonDict) -> tuple[int, Any]:
        raise StageFailed(f"a worker takes no {len(body)} members at {path}")

    async def get(self, path: str) -> tuple[int, Any]:
        raise StageFailed(f"a worker has no {path} to read")

    async def pause(self) -> bool:
        return False

    async def ask(self, invocation: JsonDict) -> JsonDict:
        """Invokes and gives the outcome document, acknowledged if it is an effect's."""
        request_id = invocation["request_id"]
        try:
            await self.send({"protocol_version": 1, "type": "invoke", "invocation": invocation})
            while True:
                frame = await self.receive()
                if frame.get("type") == "outcome" and frame.get("request_id") == request_id:
                    break
                if frame.get("type") == "error":
                    raise executions.Unread(f"the worker reports {frame.get('code')}: {frame.get('message')}")
        except StageFailed as failed:
            raise executions.NoAnswer(str(failed)) from None
        if invocation["target"]["mode"] != "discovery":
            ack = {"protocol_version": 1, "type": "outcome_ack", "request_id": request_id, "disposition": "accepted", "message": None}
            await self.send(ack)
        return frame

    async def end(self) -> None:
        """No process is left."""
        if self._subject is not None:
            await self._subject.kill()
            self._subject = None

    @property
    def _up(self) -> PeerConnection:
        if self._connection is None:
            raise StageFailed("there is no connection")
        return self._connection


async def run(command: list[str], patience_s: float = PATIENCE_S) -> AsyncIterator[Result]:
    """Every case, one result each. Raises `Impossible` when no worker registers."""
    async with FakeServer() as server:
        stage = WorkerStage(command, server, patience_s)
        try:
            capabilities = await _registered(stage)
            token = secrets.token_hex(4)
            async for result in executions.run(stage.ask, token):
                yield result
            async for result in _lifecycle(stage, capabilities):
                yield result
        finally:
            await stage.cut()
            await stage.end()


async def _registered(stage: WorkerStage) -> list[str]:
    """Opens the session that messages are tried on. Gives the worker's capabilities."""
    try:
        await stage.open()
        register = await stage.receive()
        await stage.send(registered_frame("ss_messages"))
        wrong = mismatch(register, {"protocol_version": 1, "type": "register"}, {})
    except StageFailed as failed:
        wrong = str(failed)
        register = {}
    if wrong is not None:
        said = f". It printed:\n{stage.last_words}" if stage.last_words else ""
        raise Impossible(f"no worker registered: {wrong}{said}")
    return register.get("capabilities") or []


def registered_frame(session_id: str) -> JsonDict:
    """A registration accepted without any capability, with limits of the protocol's own."""
    return {
        "protocol_version": 1,
        "type": "registered",
        "session_id": session_id,
        "capabilities": [],
        "limits": msgspec.to_builtins(Limits()),
        "heartbeat_ms": 10_000,
        "lease_ms": 30_000,
        "wanted": [],
    }


async def _lifecycle(stage: WorkerStage, capabilities: list[str]) -> AsyncIterator[Result]:
    for case in fixtures.cases(SUITE):
        needed = case.document.get("needs")
        if needed is not None and needed not in capabilities:
            continue
        names: dict[str, Any] = {"token": secrets.token_hex(4)}
        yield Result(SUITE, case.name, case.exercises, await play(case.document["steps"], stage, names))
