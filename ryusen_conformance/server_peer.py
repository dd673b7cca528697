"""A fake server: a real listener on a free port of the loopback that workers connect to.

Owns the sockets, the publication routes a worker asks at its start, and what was published. Decides nothing: a suite says what is sent, and
reads what was received. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec
from aiohttp import WSMsgType, web

from ryusen_conformance.transcript import StageFailed
from ryusen_protocol import problems
from ryusen_protocol.frames import CONNECT_PATH, SUBPROTOCOL
from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.limits import REQUEST_BYTES_MAX
from ryusen_protocol.manifest import Publication, PublicationReceipt
from ryusen_protocol.manifests import check_publication, content_digest, initial_routing_generation, manifest_generation_id
from ryusen_protocol.scope import Scope

if TYPE_CHECKING:
    from ryusen_conformance.expectation import JsonDict

_WORKSPACE: Final = "/v1/workspaces/{workspace}"


class PeerConnection:
    """One accepted WebSocket of a worker."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self._socket = socket
        self._transport = request.transport
        self.ended = asyncio.Event()

    async def send(self, document: JsonDict) -> None:
        """One frame. Raises `StageFailed` when the connection has ended."""
        try:
            await self._socket.send_str(msgspec.json.encode(document).decode())
        except ConnectionError as error:
            raise StageFailed(f"the connection ended: {error}") from None

    async def receive(self, within_s: float) -> JsonDict:
        """The next frame. Raises `StageFailed` when none comes, or none that is a JSON object in a text frame."""
        try:
            message = await self._socket.receive(within_s)
        except TimeoutError:
            raise StageFailed(f"no frame within {within_s:g} s") from None
        if message.type is not WSMsgType.TEXT:
            raise StageFailed(f"the worker closed the connection ({message.type.name.lower()} {message.data!r})")
        try:
            frame = json.loads(message.data)
        except ValueError as error:
            raise StageFailed(f"a frame that is no JSON: {error}") from None
        if not isinstance(frame, dict):
            raise StageFailed("a frame that is no JSON object")
        return cast("JsonDict", frame)

    def cut(self) -> None:
        """Ends the connection without a closing handshake."""
        if self._transport is not None:
            self._transport.abort()
        self.ended.set()


class FakeServer:
    """Use it as an async context manager. `url` is its address, `publications` what was published by application."""

    def __init__(self) -> None:
        self.url = ""
        self.publications: dict[str, Publication] = {}
        self._accepted: asyncio.Queue[PeerConnection] = asyncio.Queue()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=REQUEST_BYTES_MAX)
        app.router.add_get(CONNECT_PATH, self._connect)
        app.router.add_get("/v1/health", self._health)
        app.router.add_get(_WORKSPACE + "/applications/{application}", self._application)
        app.router.add_post(_WORKSPACE + "/applications/{application}/manifests", self._publish)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def accept(self, within_s: float) -> PeerConnection:
        """The next connection of a worker. Raises `StageFailed`."""
        try:
            async with asyncio.timeout(within_s):
                return await self._accepted.get()
        except TimeoutError:
            raise StageFailed(f"no worker connected within {within_s:g} s") from None

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), compress=False, max_msg_size=REQUEST_BYTES_MAX, timeout=1.0)
        await socket.prepare(request)
        connection = PeerConnection(socket, request)
        await self._accepted.put(connection)
        await connection.ended.wait()
        return socket

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _application(self, _request: web.Request) -> web.Response:
        return _problem("not_found", "Nothing was published yet; every publication is taken.")

    async def _publish(self, request: web.Request) -> web.Response:
        try:
            publication = msgspec.json.decode(await request.read(), type=Publication)
        except msgspec.MsgspecError as refused:
            return _problem("invalid", str(refused))
        wrong = check_publication(publication)
        if wrong is not None:
            return _problem("invalid", f"{wrong.message} ({wrong.path})")
        scope = Scope(Workspace(request.match_info["workspace"]), Application(request.match_info["application"]))
        self.publications[scope.application] = publication
        receipt = PublicationReceipt(
            "created",
            manifest_generation_id(scope, None, publication),
            initial_routing_generation(scope.workspace),
            content_digest(publication.contents, publication.functions, publication.triggers),
        )
        return web.Response(status=201, body=msgspec.json.encode(receipt), content_type="application/json")


def _problem(code: problems.ProblemCode, detail: str) -> web.Response:
    problem: Any = problems.problem(code, detail)
    return web.Response(status=problem.status, body=msgspec.json.encode(problem), content_type=problems.CONTENT_TYPE)
