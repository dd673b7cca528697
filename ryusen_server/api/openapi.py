"""The OpenAPI document, made of the routes as they are declared: all that a route takes, answers or refuses, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from ryusen_protocol.frames import CONNECT_PATH, SUBPROTOCOL
from ryusen_protocol.problems import CONTENT_TYPE, Problem, ProblemCode, status_of, title_of
from ryusen_server.api.route import JSON, Route, Shape, Text
from ryusen_server.api.schemas import IDENTIFIER, Schema, Schemas

ANY_ROUTE_REFUSES: Final[tuple[ProblemCode, ...]] = (
    *("invalid", "unauthorized", "forbidden", "request_timeout", "limit_exceeded", "uri_too_long", "unsupported_media_type"),
    *("host_not_allowed", "busy", "internal", "storage_unavailable", "unavailable"),
)
"""What may be answered in front of any route: by the gate, for want of a token, or by a server that cannot answer."""
_ABOUT: Final = (
    "A local-first durable-workflow engine. Every body is JSON read strictly: a repeated member, a number no double holds, or half of a "
    "surrogate pair is refused, and an integer is written without a fraction. Every GET route answers HEAD likewise, without its body. "
    "Cursors are opaque. More members may be added to what is answered, so readers pass over those they do not know. A server without "
    "credentials asks for no token."
)
_SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}, {}]


def openapi_document(routes: Sequence[Route], product_version: str) -> dict[str, Any]:
    """The whole document, as plain data."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    paths[CONNECT_PATH] = {"get": _connect(schemas)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ryusen", "version": product_version, "description": _ABOUT},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Where the server has a credentials file."}},
        },
    }


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.says,
        "parameters": [*_segments(route.path), *_query(route)],
        "responses": _responses(route, schemas),
    }
    if route.details:
        operation["description"] = route.details
    if route.takes is not None:
        content = {JSON: {"schema": schemas.of(route.takes, "taken")}}
        operation["requestBody"] = {"required": True, "content": content}
    operation["security"] = [{}] if route.capability is None else _SECURITY
    if route.capability is not None:
        operation["x-capability"] = route.capability
    if route.everywhere:
        operation["x-capability-everywhere"] = True
    if route.also_by:
        operation["x-capability-in-application"] = list(route.also_by)
    return operation


def operation_id(route: Route) -> str:
    """`GET /v1/workspaces/{workspace}/runs/{run_id}` is `get_runs_run_id`."""
    parts = route.path.removeprefix("/v1/workspaces/{workspace}/").removeprefix("/v1/").split("/")
    return "_".join((route.method.lower(), *(part.strip("{}").replace(".", "_") for part in parts)))


def _segments(path: str) -> list[dict[str, Any]]:
    names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": IDENTIFIER} for name in names]


def _query(route: Route) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    for parameter in route.query:
        one: dict[str, Any] = {"name": parameter.name, "in": "query", "description": parameter.says, "schema": parameter.schema()}
        needed = route.parameter_needs.get(parameter.name)
        if needed is not None:
            one["x-capability"] = needed
        described.append(one)
    return described


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, shape in route.answers.items():
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": _content(shape, schemas)}
    codes = dict.fromkeys((*ANY_ROUTE_REFUSES, *route.refuses))
    if "{" in route.path:
        codes.setdefault("not_found")  # a segment left empty makes another path, and there is nothing
    responses.update(_problems(codes, schemas))
    for status, shape in route.refusals.items():
        own = _content(shape, schemas)
        known = responses.setdefault(str(status), {"description": HTTPStatus(status).phrase, "content": {}})
        known["content"] = {**known["content"], **own}
    return dict(sorted(responses.items()))


def _content(shape: Shape, schemas: Schemas) -> dict[str, Any]:
    if isinstance(shape, Text):
        return {shape.content_type.partition(";")[0]: {"schema": {"type": "string"}}}
    return {JSON: {"schema": schemas.of(shape, "answered")}}


def _problems(codes: Iterable[ProblemCode], schemas: Schemas) -> Mapping[str, Any]:
    """By status: which codes, what each means, and a schema that takes no other."""
    by_status: dict[int, list[ProblemCode]] = {}
    for code in codes:
        by_status.setdefault(status_of(code), []).append(code)
    problem = schemas.of(Problem, "answered")
    return {str(status): _problem_response(status, together, problem) for status, together in sorted(by_status.items())}


def _problem_response(status: int, codes: list[ProblemCode], problem: Schema) -> dict[str, Any]:
    fixed = {"code": {"enum": sorted(codes)}, "status": {"const": status}}
    told = "; ".join(f"`{code}`: {title_of(code)}" for code in sorted(codes))
    return {"description": f"{told}.", "content": {CONTENT_TYPE: {"schema": {"allOf": [problem, {"properties": fixed}]}}}}


def _connect(schemas: Schemas) -> dict[str, Any]:
    return {
        "operationId": "get_connect",
        "summary": "Open a worker's session: a WebSocket.",
        "description": f"The handshake names the subprotocol {SUBPROTOCOL}. Frames are documents of the worker protocol. A registration "
        "needs `execute` in the application it names.",
        "responses": {"101": {"description": "The connection is a WebSocket from here on."}, **_problems(ANY_ROUTE_REFUSES, schemas)},
        "security": _SECURITY,
        "x-capability": "execute",
    }
