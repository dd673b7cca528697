"""Moves the bytes of exchanges between the engine and the configured endpoints.

Owns how far the bytes of an exchange have come, which is what tells a proof from a doubt: before its connection stands, nobody has
accepted anything; from then on anybody may have. Every exchange has a connection of its own: one kept from before might be closing on the
other side, and an effect sent into that would be in doubt for nothing. Nothing is sent twice, no redirect is followed, no proxy of the
environment is used, and no cookie is kept. What counts as an answer is decided in `exchange`.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp.abc import AbstractCookieJar
from yarl import URL

from ryusen_protocol.exchange import SIGNATURE_HEADER, TIMESTAMP_HEADER
from ryusen_protocol.limits import KIB, REQUEST_BYTES_MAX
from ryusen_protocol.words import printable
from ryusen_server.ports.worker import Exchange, ExchangeEnd, Lost, NotSent
from ryusen_server.transports.http.exchange import OK, Reply, read_reply, request_headers

_log = logging.getLogger(__name__)

_SHOWN_CHARACTERS_MAX = 200
_EXCERPT_BYTES = 4 * KIB
"""What is read of a response that is no answer, to tell people why."""


class HttpConfig(msgspec.Struct, frozen=True):
    """Bounds of an exchange, in milliseconds and bytes. Keep-alive probes find a machine that has gone without a word."""

    connect_ms: int = 10_000
    response_bytes_max: int = REQUEST_BYTES_MAX
    excerpt_ms: int = 1_000
    probe_after_ms: int = 15_000
    probe_every_ms: int = 5_000
    probes: int = 3


class _Progress:
    """How far one exchange has come."""

    __slots__ = ("connected",)

    def __init__(self) -> None:
        self.connected = False


class HttpInvoker:
    """Every exchange of one server. Made and closed on the loop's thread. `secret` signs requests and is asked of responses."""

    def __init__(self, secret: bytes | None, config: HttpConfig | None = None) -> None:
        self._secret = secret
        self._config = config or HttpConfig()
        self._tasks: set[asyncio.Task[None]] = set()
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_connected)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=self._socket),
            cookie_jar=cast("AbstractCookieJar", aiohttp.DummyCookieJar()),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._config.connect_ms / 1000),
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
        )

    def endpoint(self, url: str) -> HttpEndpoint:
        """Where exchanges with one URL go."""
        return HttpEndpoint(self, URL(url, encoded=True))

    def begin(self, url: URL, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        """Start one exchange."""
        task = asyncio.get_running_loop().create_task(self._run(url, exchange, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is open: each exchange ends as far as it has come."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _run(self, url: URL, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        progress = _Progress()
        try:
            end = await self._exchange(url, exchange, progress)
        except asyncio.CancelledError:
            end = _broken(progress, "this server stopped")
        except TimeoutError:
            within = f"{exchange.within_ms} ms" if progress.connected else f"{self._config.connect_ms} ms"
            end = _broken(progress, f"no answer came within {within}" if progress.connected else f"no connection within {within}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            end = _broken(progress, _told(error))
        except Exception:  # noqa: BLE001 - whatever went wrong, the engine is owed an end; the log says what
            _log.exception("an exchange failed here")
            end = _broken(progress, "this server failed to carry out the exchange")
        try:
            ended(end)
        except Exception:  # noqa: BLE001 - the exchange is over; the log says what could not be done about it
            _log.exception("the end of an exchange could not be handled")

    async def _exchange(self, url: URL, exchange: Exchange, progress: _Progress) -> ExchangeEnd:
        async with (
            asyncio.timeout(exchange.within_ms / 1000),
            self._session.post(
                url,
                # As a file: bytes of a megabyte and more would be copied to the socket in one turn of the loop.
                data=io.BytesIO(exchange.invocation),
                headers=request_headers(exchange, self._secret, _now_s()),
                allow_redirects=False,
                trace_request_ctx=progress,
            ) as response,
        ):
            if response.status != OK:
                return read_reply(exchange, Reply(response.status, await self._excerpt(response)), self._secret, _now_s())
            body = await self._body(response)
            if body is None:
                return Lost(f"its response is over {self._config.response_bytes_max} bytes")
            reply = Reply(response.status, body, _only(response, TIMESTAMP_HEADER), _only(response, SIGNATURE_HEADER))
            return read_reply(exchange, reply, self._secret, _now_s())

    async def _body(self, response: aiohttp.ClientResponse) -> bytes | None:
        """All of it, or none when it is over the bound; bytes are counted as they arrive."""
        if (response.content_length or 0) > self._config.response_bytes_max:
            return None
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._config.response_bytes_max:
                return None
        return bytes(body)

    async def _excerpt(self, response: aiohttp.ClientResponse) -> bytes:
        """What a refusal says, if it says it soon. The status has decided already."""
        try:
            async with asyncio.timeout(self._config.excerpt_ms / 1000):
                return await response.content.read(_EXCERPT_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return b""

    def _socket(self, address: Any) -> socket.socket:
        family, kind, protocol = address[:3]
        made = socket.socket(family=family, type=kind, proto=protocol)
        made.setblocking(False)  # noqa: FBT003 - the name of the call says it
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", self._config.probe_after_ms // 1000),
            ("TCP_KEEPINTVL", self._config.probe_every_ms // 1000),
            ("TCP_KEEPCNT", self._config.probes),
        ):
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return made


class HttpEndpoint:
    """One configured URL: the engine's `Endpoint`."""

    def __init__(self, invoker: HttpInvoker, url: URL) -> None:
        self._invoker = invoker
        self._url = url

    def invoke(self, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        """See `Endpoint`."""
        self._invoker.begin(self._url, exchange, ended)


async def _connected(_session: aiohttp.ClientSession, traced: SimpleNamespace, _params: aiohttp.TraceConnectionCreateEndParams) -> None:
    cast("_Progress", traced.trace_request_ctx).connected = True


def _broken(progress: _Progress, why: str) -> ExchangeEnd:
    return Lost(why) if progress.connected else NotSent(why)


def _only(response: aiohttp.ClientResponse, header: str) -> str | None:
    """A header that stands one time."""
    values = response.headers.getall(header, [])
    return values[0] if len(values) == 1 else None


def _told(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return printable(text[:_SHOWN_CHARACTERS_MAX])


def _now_s() -> int:
    return int(time.time())
