"""Holds a server to the fixtures with a fake worker: `ryusen conformance server URL`.

The worker here runs nothing: a transcript says what it declares and answers, and what the server must ask next. Every transcript
publishes an application of its own, so that a suite may run on a server that others use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import aiohttp
import msgspec

from ryusen_conformance import fixtures
from ryusen_conformance.report import Impossible, Result
from ryusen_conformance.transcript import StageFailed, play
from ryusen_protocol.exchange import MEDIA_TYPE
from ryusen_protocol.frames import CONNECT_PATH, SUBPROTOCOL
from ryusen_protocol.limits import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from ryusen_conformance.expectation import JsonDict

SUITE: Final = "server_sessions"
PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.05


class ServerStage:
    """A server's address and the connection a fake worker has to it now."""

    def __init__(self, client: aiohttp.ClientSession, url: str, patience_s: float) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._patience_s = patience_s
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._pauses_left = int(patience_s / _POLL_S)

    async def open(self) -> None:
        """A new connection; one that is still up is cut."""
        await self.cut()
        try:
            self._socket = await self._client.ws_connect(
                self._url + CONNECT_PATH, protocols=(SUBPROTOCOL,), max_msg_size=REQUEST_BYTES_MAX, autoping=True
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StageFailed(f"no connection: {error or type(error).__name__}") from None

    async def send(self, frame: JsonDict) -> None:
        try:
            await self._up.send_str(msgspec.json.encode(frame).decode())
        except ConnectionError as error:
            raise StageFailed(f"the connection ended: {error}") from None

    async def receive(self) -> JsonDict:
        try:
            message = await self._up.receive(self._patience_s)
        except TimeoutError:
            raise StageFailed(f"no frame within {self._patience_s:g} s") from None
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise StageFailed(f"the server closed the connection ({message.data!r}, {message.extra!r})")
        frame = json.loads(message.data)
        if not isinstance(frame, dict):
            raise StageFailed("a frame that is no JSON object")
        return cast("JsonDict", frame)

    async def cut(self) -> None:
        if self._socket is None:
            return
        wire = self._socket.get_extra_info("socket")
        if wire is not None:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)  # without the closing handshake
        await self._socket.close()
        self._socket = None

    async def stop(self) -> None:
        raise StageFailed("a server is not stopped")

    async def ended(self) -> None:
        raise StageFailed("a server is not ended")

    async def calls(self, run_id: str) -> list[str]:
        raise StageFailed(f"a server notes no calls of {run_id}")

    async def post(self, path: str, body: JsonDict) -> tuple[int, Any]:
        return await self._request("POST", path, msgspec.json.encode(body))

    async def get(self, path: str) -> tuple[int, Any]:
        return await self._request("GET", path, None)

    async def pause(self) -> bool:
        self._pauses_left -= 1
        await asyncio.sleep(_POLL_S)
        return self._pauses_left > 0

    async def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        headers = {} if body is None else {"Content-Type": MEDIA_TYPE}
        try:
            async with self._client.request(method, self._url + path, data=body, headers=headers, allow_redirects=False) as response:
                return response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise StageFailed(f"{method} {path}: {error or type(error).__name__}") from None

    @property
    def _up(self) -> aiohttp.ClientWebSocketResponse:
        if self._socket is None:
            raise StageFailed("there is no connection")
        return self._socket


async def run(url: str, token: str | None = None, patience_s: float = PATIENCE_S) -> AsyncIterator[Result]:
    """Every transcript, one result each; `token` is a bearer token. Raises `Impossible` when no server answers."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Impossible(f"{url!r} is no address of a server; write http://HOST:PORT")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=patience_s), headers=headers) as client:
        await _answers(client, url, patience_s)
        for case in fixtures.cases(SUITE):
            yield Result(SUITE, case.name, case.exercises, await _played(client, url, case, patience_s))


async def _answers(client: aiohttp.ClientSession, url: str, patience_s: float) -> None:
    try:
        status, _ = await ServerStage(client, url, patience_s).get("/v1/health")
    except StageFailed as failed:
        raise Impossible(f"no server answers: {failed}") from None
    if status != 200:
        raise Impossible(f"no server answers: /v1/health has status {status}")


async def _played(client: aiohttp.ClientSession, url: str, case: fixtures.Case, patience_s: float) -> str | None:
    stage = ServerStage(client, url, patience_s)
    own = secrets.token_hex(4)
    names: dict[str, Any] = {"app": f"cf-{case.name}-{own}", "event": f"cf/{case.name}/{own}", "instance": f"wi_{case.name}_{own}"}
    try:
        return await play(case.document["steps"], stage, names)
    finally:
        await stage.cut()
