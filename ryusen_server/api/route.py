"""What a route is to the resource modules: a call comes in, an answer goes out, and no web framework is in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from ryusen_protocol.problems import CONTENT_TYPE, Problem

if TYPE_CHECKING:
    from ryusen_server.api.context import Context

JSON: Final = "application/json"
Method = Literal["GET", "POST"]
Capability = Literal["events:send", "events:read", "read", "operate", "deploy", "execute"]

_encode = msgspec.json.Encoder().encode


class Call(msgspec.Struct, frozen=True):
    """One request that passed the gate: decoded path segments, query parameters each given once, and the body's bytes."""

    segments: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


class Answer(msgspec.Struct, frozen=True):
    """One response: a status and an encoded document."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = {}


class Refused(Exception):
    """The request cannot be answered as asked; `problem` says why. Raised by the readers of a call's parts."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


Handler: TypeAlias = "Callable[[Context, Call], Awaitable[Answer | Problem]]"


class Route(msgspec.Struct, frozen=True):
    """One route. `path` names its segments in braces; `query` are the parameters it takes, any other is refused.

    `capability` is what a caller needs in the workspace or, for `deploy` and `execute`, in the application; none for liveness.
    """

    method: Method
    path: str
    handler: Handler
    capability: Capability | None
    query: frozenset[str] = frozenset()


def answer(document: object, status: int = 200) -> Answer:
    """The document, encoded."""
    return Answer(status, _encode(document))


def answer_problem(problem: Problem, headers: Mapping[str, str] | None = None) -> Answer:
    """The problem, encoded."""
    return Answer(problem.status, _encode(problem), CONTENT_TYPE, headers or {})
