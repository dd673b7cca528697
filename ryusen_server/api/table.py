"""All routes, and which of them a request asks for. Knows neither Sanic nor callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ryusen_server.api import attempts, deployment, events, fleet, metrics, retention, runs, server, stream
from ryusen_server.api.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *server.ROUTES,
    *events.ROUTES,
    *runs.ROUTES,
    *attempts.ROUTES,
    *deployment.ROUTES,
    *fleet.ROUTES,
    *stream.ROUTES,
    *retention.ROUTES,
    *metrics.ROUTES,
)
_PARTS: Final = tuple((route, route.path.split("/")) for route in ROUTES)


def route_of(method: str, path: str) -> Route | None:
    """The route that a method and a path belong to."""
    given = path.split("/")
    return next((route for route, parts in _PARTS if method in taken(route) and _fit(parts, given)), None)


def taken(route: Route) -> tuple[str, ...]:
    """The methods of a route: what can be read can also be asked for without its body."""
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


def fits(template: str, path: str) -> bool:
    """Whether a path is one of those that a template such as `/v1/runs/{run}` stands for."""
    return _fit(template.split("/"), path.split("/"))


def _fit(parts: Sequence[str], given: Sequence[str]) -> bool:
    return len(parts) == len(given) and all(part.startswith("{") or part == one for part, one in zip(parts, given, strict=True))
