"""The client for applications: sends events and looks after runs, over HTTP.

Owns sockets, waiting and the exceptions of an answer. Requests and documents are those of `ryusen_protocol.client`, which the command
line shares.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack
from urllib.parse import urlsplit

import httpx
import msgspec
from typing_extensions import TypedDict

from ryusen_protocol.api import (
    JSON_NULL,
    Attention,
    CancelReceipt,
    EventReceipt,
    EventRun,
    Page,
    Recovery,
    RunDetail,
    RunOutcome,
    RunStatus,
    RunSummary,
)
from ryusen_protocol.client import Api, ApiProblem, Request, UnreadableAnswer
from ryusen_protocol.durations import InvalidDuration, to_ms
from ryusen_protocol.limits import LONG_POLL_MS_MAX
from ryusen_sdk.app import DEFAULT_URL
from ryusen_sdk.convert import from_wire
from ryusen_sdk.errors import ClientError, MisuseError, RequestRefused, ServerUnreachable
from ryusen_sdk.payload import raw_bytes
from ryusen_sdk.plain_data import json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ryusen_sdk.options import Span

T = TypeVar("T")

_ANSWER_SECONDS: Final = 10.0
"""For the answer itself, on top of what the server was asked to wait."""
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
"""What a server, or one in front of it, says while it starts, stops or is busy."""


class RunFilter(TypedDict, total=False):
    """What `runs` can be narrowed by; joined by *and*."""

    status: RunStatus
    outcome: RunOutcome
    recovery: Recovery
    function: str
    application: str
    event: str
    attention: Attention
    q: str


class Client:
    """A blocking client of one workspace. Use it as a context manager, or `close` it; threads may share it. Uses no proxy.

    Raises `RequestRefused` when the server says no, `ServerUnreachable` when no usable answer came.
    """

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, workspace: str = "default") -> None:
        self._api = _api(url, workspace, token)
        self._was_there = False
        """A server has answered this client."""
        self._http = httpx.Client(base_url=url, timeout=_ANSWER_SECONDS, trust_env=False)

    def send(
        self,
        name: str,
        data: object = None,
        key: str | None = None,
        metadata: dict[str, str] | None = None,
        wait: Span | None = None,
    ) -> EventReceipt:
        """Submits an event and returns the acknowledgement. `bytes` are sent as they are, anything else as JSON.

        With a `key` it may be sent again: the server keeps one event for each key. With `wait` the answer comes when every run of the
        event has ended, or at that time, and carries the runs; `result_of` reads their results. Raises `ConversionError` for data that
        is not JSON.
        """
        remaining = _Remaining(wait)
        receipt = self._call(lambda api: _event(api, name, data, key, metadata, remaining.next_ms()))
        event_id = receipt.event_id
        while remaining.is_worth_asking(receipt):
            try:
                detail = self._call(lambda api: api.get_event(event_id, wait_ms=remaining.next_ms()))
            except ClientError as error:
                time.sleep(remaining.pause_s(error, was_there=self._was_there))
                continue
            receipt = msgspec.structs.replace(receipt, expansion=detail.expansion, runs=detail.runs)
        return receipt

    def runs(self, *, limit: int | None = None, cursor: str | None = None, **only: Unpack[RunFilter]) -> Page[RunSummary]:
        """Runs, newest first."""
        return self._call(lambda api: api.list_runs(limit=limit, cursor=cursor, **only))

    def run(self, run_id: str) -> RunDetail:
        """One run in full; `result_of` reads its result."""
        return self._call(lambda api: api.get_run(run_id))

    def wait(self, run_id: str, timeout: Span | None = None) -> RunDetail:
        """The run once it has ended. Raises `TimeoutError` after `timeout`; without one it waits as long as it takes.

        A server that was there before may go away and come back meanwhile.
        """
        remaining = _Remaining(timeout, is_endless=timeout is None)
        while True:
            try:
                run = self._call(lambda api: api.get_run(run_id, wait_ms=remaining.next_ms()))
            except ClientError as error:
                time.sleep(remaining.pause_s(error, was_there=self._was_there))
                remaining.check(f"run {run_id} is not known to have ended: {error}")
                continue
            if run.status == "ended":
                return run
            remaining.check(f"run {run_id} is still {run.status}")

    def cancel(self, run_id: str) -> CancelReceipt:
        """Asks a run to stop. Safe to send again."""
        return self._call(lambda api: api.cancel(run_id))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, build: Callable[[Api], Request[T]]) -> T:
        request = _request(self._api, build)
        try:
            answer = self._http.send(_built(self._http, request))
        except httpx.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        document = _read(request, answer)
        self._was_there = True
        return document


class AsyncClient:
    """The same for `asyncio`. Use it as an async context manager, or `aclose` it."""

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, workspace: str = "default") -> None:
        self._api = _api(url, workspace, token)
        self._was_there = False
        self._http = httpx.AsyncClient(base_url=url, timeout=_ANSWER_SECONDS, trust_env=False)

    async def send(
        self,
        name: str,
        data: object = None,
        key: str | None = None,
        metadata: dict[str, str] | None = None,
        wait: Span | None = None,
    ) -> EventReceipt:
        """As `Client.send`."""
        remaining = _Remaining(wait)
        receipt = await self._call(lambda api: _event(api, name, data, key, metadata, remaining.next_ms()))
        event_id = receipt.event_id
        while remaining.is_worth_asking(receipt):
            try:
                detail = await self._call(lambda api: api.get_event(event_id, wait_ms=remaining.next_ms()))
            except ClientError as error:
                await asyncio.sleep(remaining.pause_s(error, was_there=self._was_there))
                continue
            receipt = msgspec.structs.replace(receipt, expansion=detail.expansion, runs=detail.runs)
        return receipt

    async def runs(self, *, limit: int | None = None, cursor: str | None = None, **only: Unpack[RunFilter]) -> Page[RunSummary]:
        """As `Client.runs`."""
        return await self._call(lambda api: api.list_runs(limit=limit, cursor=cursor, **only))

    async def run(self, run_id: str) -> RunDetail:
        """As `Client.run`."""
        return await self._call(lambda api: api.get_run(run_id))

    async def wait(self, run_id: str, timeout: Span | None = None) -> RunDetail:  # noqa: ASYNC109 - bounds the run, not the call
        """As `Client.wait`."""
        remaining = _Remaining(timeout, is_endless=timeout is None)
        while True:
            try:
                run = await self._call(lambda api: api.get_run(run_id, wait_ms=remaining.next_ms()))
            except ClientError as error:
                await asyncio.sleep(remaining.pause_s(error, was_there=self._was_there))
                remaining.check(f"run {run_id} is not known to have ended: {error}")
                continue
            if run.status == "ended":
                return run
            remaining.check(f"run {run_id} is still {run.status}")

    async def cancel(self, run_id: str) -> CancelReceipt:
        """As `Client.cancel`."""
        return await self._call(lambda api: api.cancel(run_id))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def _call(self, build: Callable[[Api], Request[T]]) -> T:
        request = _request(self._api, build)
        try:
            answer = await self._http.send(_built(self._http, request))
        except httpx.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        document = _read(request, answer)
        self._was_there = True
        return document


class _Remaining:
    """How much of a wait is left, asked for in parts that the server grants. `None` asks for no wait at all.

    Asking again is safe: it only reads. So a server that was there before is waited for while it restarts, at a pace.
    """

    def __init__(self, wait: Span | None, *, is_endless: bool = False) -> None:
        try:
            self._until = None if wait is None else time.monotonic() + to_ms(wait) / 1000
        except InvalidDuration as refused:
            raise MisuseError(str(refused)) from None
        self._is_endless = is_endless
        self._pace_s = _PAUSE_SECONDS

    def pause_s(self, error: ClientError, *, was_there: bool) -> float:
        """How long to wait before asking again. Raises the error if it says no, or if no server was ever there."""
        is_passing = error.status in _TRANSIENT_STATUS if isinstance(error, RequestRefused) else was_there or _was_cut(error)
        if not is_passing:
            raise error
        pace_s, self._pace_s = self._pace_s, min(_PAUSE_SECONDS_MAX, 2 * self._pace_s)
        return pace_s if self._until is None else max(0.0, min(pace_s, self._until - time.monotonic()))

    def check(self, why: str) -> None:
        """Raises `TimeoutError` once the time is over."""
        if self.is_over:
            raise TimeoutError(why)

    def next_ms(self) -> int | None:
        if self._until is None:
            return LONG_POLL_MS_MAX if self._is_endless else None
        return max(0, min(LONG_POLL_MS_MAX, round((self._until - time.monotonic()) * 1000)))

    @property
    def is_over(self) -> bool:
        return not self._is_endless and (self._until is None or time.monotonic() >= self._until)

    def is_worth_asking(self, receipt: EventReceipt) -> bool:
        """Whether there is time left and a run of the event has not ended."""
        if self._until is None or self.is_over:
            return False
        runs = receipt.runs if not isinstance(receipt.runs, msgspec.UnsetType) else []
        return receipt.expansion == "pending" or len(runs) < receipt.matched or any(run.status != "ended" for run in runs)


def _was_cut(error: ClientError) -> bool:
    """The connection stood and ended without an answer, as when a server stops while it holds a request."""
    cause = error.__cause__
    return isinstance(cause, httpx.TransportError) and not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)


def result_of(run: EventRun | RunDetail) -> Any:
    """The result of a run as Python data; `None` while there is none. Raises `ConversionError` for one that Python cannot hold exactly."""
    return None if bytes(run.result) == bytes(JSON_NULL) else from_wire(run.result)


def _api(url: str, workspace: str, token: str | None) -> Api:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise MisuseError(f"{url!r} is no server address; write http://HOST:PORT or https://HOST:PORT")
    try:
        return Api(workspace, token)
    except ValueError as refused:
        raise MisuseError(str(refused)) from None


def _request(api: Api, build: Callable[[Api], Request[T]]) -> Request[T]:
    """The request, or what no request can be made of."""
    try:
        return build(api)
    except UnicodeEncodeError:
        raise MisuseError("a name, key, id or metadata is not valid Unicode: it has a lone surrogate") from None
    except ValueError as refused:
        raise MisuseError(str(refused)) from None


def _event(
    api: Api, name: str, data: object, key: str | None, metadata: dict[str, str] | None, wait_ms: int | None
) -> Request[EventReceipt]:
    raw = raw_bytes(data)
    if raw is not None:
        return api.send_event(name, payload=raw, metadata=metadata, key=key, wait_ms=wait_ms)
    return api.send_event(name, data=json_bytes(data), metadata=metadata, key=key, wait_ms=wait_ms)


def _built(http: httpx.Client | httpx.AsyncClient, request: Request[Any]) -> httpx.Request:
    wait_ms = int(dict(request.query).get("wait_ms", "0"))
    return http.build_request(
        request.method,
        request.target,
        content=request.body,
        headers=request.headers,
        timeout=_ANSWER_SECONDS + wait_ms / 1000,
    )


def _read(request: Request[T], answer: httpx.Response) -> T:
    try:
        return request.read(answer.status_code, answer.content)
    except ApiProblem as problem:
        raise RequestRefused(problem.code, problem.status, problem.detail) from None
    except UnreadableAnswer as unreadable:
        raise ServerUnreachable(str(unreadable)) from None


def _unreachable(url: httpx.URL, error: httpx.TransportError) -> ServerUnreachable:
    return ServerUnreachable(f"no answer from {url}: {error or type(error).__name__}")
