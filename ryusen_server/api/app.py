"""The one place that touches Sanic: puts the gate in front of it, hands calls to the routes, and turns every end into a document.

Sanic reads requests and writes responses. It decides nothing: its own errors come out as problems too, and no traceback leaves the server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, Protocol, cast

import msgspec
from sanic import Request, Sanic
from sanic.config import Config
from sanic.exceptions import BadURL, MethodNotAllowed, SanicException
from sanic.handlers import ErrorHandler
from sanic.response import HTTPResponse

from ryusen_protocol.frames import CONNECT_PATH
from ryusen_protocol.limits import LONG_POLL_MS_MAX, REQUEST_BYTES_MAX
from ryusen_protocol.problems import Problem, invalid, limit_exceeded, problem, storage_unavailable
from ryusen_protocol.words import printable
from ryusen_server.api.context import Context
from ryusen_server.api.credentials import FORBIDDEN, UNAUTHORIZED, Principal
from ryusen_server.api.credentials import refusal as unauthorized
from ryusen_server.api.gate import HEADER_BYTES_MAX, HEADERS_MAX, URL_BYTES_MAX, GateRules, malformed, refusal
from ryusen_server.api.parameters import parameter_names, query, segment
from ryusen_server.api.requests import NO_ROUTE
from ryusen_server.api.route import EVENT_STREAM, Answer, Call, Refused, Route, Streamed, Text, answer_problem
from ryusen_server.api.table import ROUTES, fits, route_of, taken
from ryusen_server.ports.store import StorageUnavailable
from ryusen_server.transports.connected.gateway import Gateway
from ryusen_server.transports.connected.upgrade import ServerConnection, Upgraded

_log = logging.getLogger(__name__)

_HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Of every answer, unless it brings its own: opened as a page, it runs nothing, loads nothing, is framed by nobody."""
_ASK: Final[Mapping[str, str]] = {"www-authenticate": 'Bearer realm="ryusen"'}
_KEEP_ALIVE_S: Final = 75
_REQUEST_S: Final = 30
_ANSWER_S: Final = LONG_POLL_MS_MAX // 1000 + 30
"""Longer than any long poll, so that only an answer that hangs meets it."""
_STORAGE_RETRY_MS: Final = 1_000
_FILE_METHODS: Final = ("GET", "HEAD")
_STAND_IN: Final = "NONE"
"""The method of the request that Sanic makes up when it could read none."""
_ERRORS: Final = "json"
"""Said for each route: asked to find out, Sanic parses the source of every handler at the start."""

_IN_NAMES: Final = str.maketrans("/{}-.", "_____")

_numbers = itertools.count(1)

App = Sanic[Config, SimpleNamespace]


class ServedFile(Protocol):
    """A file for browsers: everybody may have it, since it holds nothing but code."""

    @property
    def body(self) -> bytes: ...

    @property
    def content_type(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class _Request(Request):
    """A request that can be told an error in every case: a target that cannot be parsed comes with a stand-in, made of the same target."""

    def __init__(self, *, url_bytes: bytes, method: str, **head: Any) -> None:
        try:
            super().__init__(url_bytes=url_bytes, method=method, **head)
        except BadURL:
            if method != _STAND_IN:
                raise
            super().__init__(url_bytes=b"*", method=method, **head)


class _GatedApp(App):
    """A Sanic application that nothing reaches before the gate has let it pass: no route, no 404, no body, no upgrade."""

    async def dispatch(self, *_: Any, **__: Any) -> None:  # type: ignore[override]
        """Called by Sanic at ten places of every request for listeners that this server has none of; it was a quarter of their cost."""

    async def handle_request(self, request: Request) -> None:
        """Called by Sanic once the head of a request is there."""
        try:
            _pass_gate(cast("GateRules", self.ctx.rules), request)
            request.ctx.principal = _authorize(cast("Context", self.ctx.context), request)
        except Refused as refused:
            await self.handle_exception(request, refused, run_middleware=False)
        else:
            await super().handle_request(request)


def _pass_gate(rules: GateRules, request: Request) -> None:
    broken = malformed(request.head)
    if broken is not None:
        cast("Any", request.stream).keep_alive = False  # where the next request begins is as uncertain
        raise Refused(broken)
    headers = request.headers
    if len(headers) > HEADERS_MAX:
        raise Refused(limit_exceeded("The request", size=len(headers), limit=HEADERS_MAX, unit="headers"))

    def values(name: str) -> Sequence[str]:
        return cast("list[str]", headers.getall(name, []))

    refused = refusal(rules, request.method, request.raw_url, values)
    if refused is not None:
        raise Refused(refused)


def _authorize(context: Context, request: Request) -> Principal | None:
    """Who asks, once that is allowed to them: before the body is read, and before anything that was asked for is looked at."""
    if context.access.credentials is None:
        return None
    who = context.access.identify(cast("list[str]", request.headers.getall("authorization", [])))
    path = request.path
    if path == CONNECT_PATH:
        if isinstance(who, Principal) and who.executes:
            request.ctx.may_execute = partial(context.access.may_execute, who)
            return who
        raise Refused(FORBIDDEN if isinstance(who, Principal) else UNAUTHORIZED)
    route = route_of(request.method, path)
    if route is None or route.capability is None:  # what everybody may see, or nothing at all
        return who if isinstance(who, Principal) else None
    if not isinstance(who, Principal):
        raise Refused(UNAUTHORIZED)
    refused = unauthorized(
        who, route, _scope_segments(route, path), parameter_names(_query_bytes(request)), context.access.credentials.workspaces
    )
    if refused is not None:
        raise Refused(refused)
    return who


def _scope_segments(route: Route, path: str) -> Mapping[str, str]:
    """The workspace and the application of the path. What cannot be read is nobody's."""
    scope: dict[str, str] = {}
    for template, raw in zip(route.path.split("/"), path.split("/"), strict=True):
        if template in ("{workspace}", "{application}"):
            name = template.strip("{}")
            try:
                scope[name] = segment(name, raw)
            except Refused:
                raise Refused(FORBIDDEN) from None
    return scope


def _query_bytes(request: Request) -> bytes:
    return request.query_string.encode("ascii", "surrogateescape")


class _Problems(ErrorHandler):
    """Every error as a problem document."""

    def response(self, request: Request, exception: Exception) -> HTTPResponse:
        """Called by Sanic for whatever a request ended with."""
        context = _context_of(request)
        told = _problem_of(context, request, exception)
        if _answers_early(request):
            connection = request.transport.get_protocol()
            if isinstance(connection, ServerConnection):
                connection.answered_early()
        context.requests.answer(request.method, getattr(request.ctx, "route", NO_ROUTE), told.status)
        return _respond(told)

    def default(self, request: Request, exception: Exception) -> HTTPResponse:
        """Called by Sanic when even `response` failed."""
        return self.response(request, exception)

    @staticmethod
    def log(request: Request, exception: Exception) -> None:
        """Sanic's own words go nowhere; what matters is logged where the problem is made."""


def _answers_early(request: Request) -> bool:
    """Whether more of the request may be on its way."""
    return request.stream is None or bool(getattr(request.stream, "request_body", None)) or request.method == _STAND_IN


def _problem_of(context: Context, request: Request, error: BaseException) -> Answer:
    match error:
        case Refused():
            return answer_problem(error.problem, _ASK if error.problem.code == "unauthorized" else None)
        case StorageUnavailable():
            context.storage_failed()
            _log.warning("a request was refused: %s", printable(error.reason))
            return answer_problem(storage_unavailable(error.reason, retry_after_ms=_STORAGE_RETRY_MS), {"retry-after": "1"})
        case MethodNotAllowed():
            takes = ", ".join(_methods(request))
            refused = problem("method_not_allowed", f"This route takes {takes}, not {request.method[:20]!a}.")
            return answer_problem(refused, {"allow": takes})
        case SanicException() if error.status_code in _SAID:
            return answer_problem(_SAID[error.status_code](request))
        case SanicException() if error.status_code < 500:
            return answer_problem(invalid(f"The request cannot be read: {str(error)[:500]}."))
        case asyncio.CancelledError():  # nobody is there to read this
            return answer_problem(_unfinished(request))
        case _:
            _log.error("a request to %s failed", printable(request.path[:200]), exc_info=error)
            return answer_problem(problem("internal", "The server failed to answer. Its log says why; what was asked may have been done."))


def _methods(request: Request) -> list[str]:
    """The methods of the routes a path belongs to, which Sanic does not always tell."""
    path = request.path
    if path == CONNECT_PATH:
        return ["GET"]
    if any(fits(template, path) for template in cast("Mapping[str, ServedFile]", request.app.ctx.files)):
        return list(_FILE_METHODS)
    return sorted({method for route in ROUTES if fits(route.path, path) for method in taken(route)})


def _no_route(request: Request) -> Problem:
    return problem("not_found", f"There is no route {request.path[:200]!a} here.")


def _too_slow(request: Request) -> Problem:
    del request
    return problem("request_timeout", "The request took too long to arrive. Nothing was done.")


def _url_too_long(request: Request) -> Problem:
    del request
    return problem("uri_too_long", f"The URL is longer than {URL_BYTES_MAX} bytes.", limit=URL_BYTES_MAX)


def _too_large(request: Request) -> Problem:
    if request.method == _STAND_IN:
        return limit_exceeded("The head of the request", size=None, limit=HEADER_BYTES_MAX)
    return limit_exceeded("The request body", size=None, limit=REQUEST_BYTES_MAX)


def _unfinished(request: Request) -> Problem:
    if _answers_early(request):
        return problem("request_timeout", "The request body took too long to arrive. Nothing was done.")
    return problem("unavailable", "The server could not answer in time. What was asked may have been done; ask again to find out.")


_SAID: Final[Mapping[int, Callable[[Request], Problem]]] = {
    404: _no_route,
    408: _too_slow,
    413: _too_large,
    414: _url_too_long,
    503: _unfinished,
}
"""What Sanic's own errors are told as, by the status they carry."""


class _Response(HTTPResponse):
    """Without the empty header that Sanic leaves for a step of its own that is switched off."""

    @property
    def processed_headers(self) -> Iterator[tuple[bytes, bytes]]:
        """Called by Sanic for the head of the response."""
        return ((name, value) for name, value in super().processed_headers if value)


def _respond(given: Answer) -> HTTPResponse:
    return _Response(given.body, given.status, {**_HEADERS, **given.headers}, given.content_type)


def create_app(*, rules: GateRules, files: Mapping[str, ServedFile] = MappingProxyType({})) -> App:
    """The application, for `ServerConnection` as its protocol, without what it answers from. `files` are for browsers, by path."""
    app = _GatedApp(
        f"ryusen-{next(_numbers)}",
        config=_config(),
        error_handler=_Problems(),
        request_class=_Request,
        configure_logging=False,
        strict_slashes=True,
    )
    app.ctx.rules = rules
    app.ctx.files = files
    for route in ROUTES:
        name = f"{route.method.lower()}-{route.path}".translate(_IN_NAMES)
        app.add_route(_handler(route), _sanic_path(route.path), methods=taken(route), name=name, error_format=_ERRORS)
    for path, file in files.items():
        name = f"file-{path}".translate(_IN_NAMES)
        app.add_route(_file_handler(path, file), _sanic_path(path), methods=_FILE_METHODS, name=name, error_format=_ERRORS)
    connect = app.websocket(CONNECT_PATH, name="connect", error_format=_ERRORS)
    connect(_connected)
    return app


def attach(app: App, *, context: Context, gateway: Gateway) -> None:
    """What the routes answer from, before the first of them is asked. Routes take long to build and need none of it."""
    app.ctx.context = context
    app.ctx.gateway = gateway


def _context_of(request: Request) -> Context:
    return cast("Context", request.app.ctx.context)


def _sanic_path(template: str) -> str:
    return template.replace("{", "<").replace("}", ":str>")


def retire_app(app: App) -> None:
    """Sanic keeps a registry of applications; one that is over leaves it."""
    Sanic.unregister_app(app)  # pyright: ignore[reportUnknownMemberType]  # as above


def _config() -> Config:
    return Config(
        {
            "ACCESS_LOG": False,
            "AUTO_EXTEND": False,
            "FALLBACK_ERROR_FORMAT": _ERRORS,
            "KEEP_ALIVE_TIMEOUT": _KEEP_ALIVE_S,
            "MOTD": False,
            "REQUEST_MAX_HEADER_SIZE": HEADER_BYTES_MAX,
            "REQUEST_MAX_SIZE": REQUEST_BYTES_MAX,
            "REQUEST_TIMEOUT": _REQUEST_S,
            "RESPONSE_TIMEOUT": _ANSWER_S,
            "TOUCHUP": False,
        },
        env_prefix="",  # Sanic's own environment variables are not ours
    )


async def _connected(request: Request, upgraded: Upgraded) -> None:
    """The gateway's route: the connection lives on its own; this keeps Sanic from ending it."""
    del request
    await upgraded.wait_closed()


def _file_handler(path: str, file: ServedFile) -> Callable[..., Coroutine[Any, Any, HTTPResponse | None]]:
    given = Answer(200, file.body, file.content_type, file.headers)

    async def handle(request: Request, **segments: str) -> HTTPResponse:
        del segments  # the page reads its own address
        request.ctx.route = path
        _context_of(request).requests.answer(request.method, path, given.status)
        return _respond(given)

    return handle


def _handler(route: Route) -> Callable[..., Coroutine[Any, Any, HTTPResponse | None]]:
    streams = route.answers.get(200) == Text(EVENT_STREAM)

    async def handle(request: Request, **raw_segments: str) -> HTTPResponse | None:
        context = _context_of(request)
        request.ctx.route = route.path
        began = context.requests.began(route.path)
        try:
            response = await respond(context, request, raw_segments)
        finally:
            context.requests.ended(route.path, began)
        context.requests.answer(request.method, route.path, 200 if response is None else response.status)
        return response

    async def respond(context: Context, request: Request, raw_segments: Mapping[str, str]) -> HTTPResponse | None:
        segments = {name: segment(name, raw) for name, raw in raw_segments.items()}
        parameters = query(_query_bytes(request), route.query)
        call = Call(segments, parameters, request.body, cast("Principal | None", request.ctx.principal))
        if streams:
            call = msgspec.structs.replace(call, last_event_id=cast("str | None", request.headers.get("last-event-id")))
        given = await route.handler(context, call)
        if isinstance(given, Streamed):
            return await _stream(request, given)
        return _respond(answer_problem(given) if isinstance(given, Problem) else given)

    return handle


async def _stream(request: Request, streamed: Streamed) -> HTTPResponse | None:
    """Send the pieces as they come, until they end or the reader is gone. Nobody who asked for the head alone gets any."""
    answer = _respond(Answer(200, b"", streamed.content_type))
    chunks = streamed.chunks
    try:
        if request.method == "HEAD":
            return answer
        sending = cast("HTTPResponse", await request.respond(answer))
        async for chunk in chunks:
            async with asyncio.timeout(streamed.stalled_s):
                await sending.send(chunk)
        await sending.eof()
    except TimeoutError:
        cast("asyncio.Transport", request.transport).abort()
    finally:
        await chunks.aclose()
    return None
