"""One server over HTTP: asks, changes, follows. Owns the difference between a request that never left and an answer that was lost.

Knows no route and no screen.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ryusen_protocol.sse import StreamBroken, StreamEvent, StreamParser

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx

    from ryusen_protocol.client import Request, StreamRequest

T = TypeVar("T")

ANSWER_S: Final = 10.0
CONNECT_S: Final = 3.0
SILENCE_S: Final = 60.0
"""A stream that says nothing for longer is given up: every server tells that it lives more often."""


class NoServer(Exception):
    """Nothing was asked: nobody answers there. The text is the cause."""


class AnswerLost(Exception):
    """The request left, and no answer came. What it did is not known."""


class Link:
    """All connections to one server. `url` may be set later, when the server's address is known."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._clients: dict[bool, httpx.AsyncClient] = {}
        """By whether they know authorities."""
        self._is_closed = False

    async def ask(self, request: Request[T], *, within_s: float = ANSWER_S) -> T:
        """The answer. Raises `NoServer`, `AnswerLost`, and whatever `Request.read` raises."""
        _import_lean()
        import httpx

        try:
            answer = await self._http().request(
                request.method,
                self.url + request.target,
                content=request.body,
                headers=request.headers,
                timeout=httpx.Timeout(within_s, connect=CONNECT_S),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise NoServer(_cause(error)) from error
        except httpx.HTTPError as error:
            raise AnswerLost(_cause(error)) from error
        return request.read(answer.status_code, answer.content)

    async def follow(self, request: StreamRequest) -> AsyncGenerator[StreamEvent, None]:
        """Events as they come, until the server closes. Raises as `ask` does."""
        _import_lean()
        import httpx

        from ryusen_protocol.client import parse

        parser = StreamParser()
        timeout = httpx.Timeout(CONNECT_S, read=SILENCE_S)
        try:
            async with self._http().stream("GET", self.url + request.target, headers=request.headers, timeout=timeout) as answer:
                if answer.status_code != 200:
                    parse(answer.status_code, await answer.aread(), object)
                async for piece in answer.aiter_raw():
                    for event in parser.feed(piece):
                        yield event
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NoServer(_cause(error)) from error
        except (httpx.HTTPError, StreamBroken) as error:
            raise AnswerLost(_cause(error)) from error

    async def close(self) -> None:
        """Let go of every connection; nothing is asked any more."""
        self._is_closed = True
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()

    def _http(self) -> httpx.AsyncClient:
        import httpx

        if self._is_closed:
            raise NoServer("the dashboard is closed")
        # Authorities are loaded for who needs them: that takes longer than a plain server takes to answer.
        verify = not self.url.startswith("http://")
        if verify not in self._clients:
            # No proxy and no .netrc of the environment: a server of one's own is asked directly.
            limits = httpx.Limits(max_connections=8, max_keepalive_connections=4)
            self._clients[verify] = httpx.AsyncClient(trust_env=False, verify=verify, limits=limits)
        return self._clients[verify]


def _import_lean() -> None:
    """The HTTP library without the command line that comes with it, which takes longer to import than all the rest of it."""
    if "httpx" not in sys.modules:
        modules = cast("dict[str, Any]", sys.modules)
        modules["httpx._main"] = None
        try:
            import_module("httpx")
        finally:
            del modules["httpx._main"]


def _cause(error: Exception) -> str:
    text = str(error)
    if "All connection attempts failed" in text or "Connection refused" in text:
        return "connection refused"
    return text or type(error).__name__
