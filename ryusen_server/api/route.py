"""What a route is to the resource modules: a call comes in, an answer goes out, and no web framework is in between.

A route says everything about itself where it is declared: who may call it, what it takes, and every way it answers. The server obeys
that declaration, and the OpenAPI document is made of it, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from ryusen_protocol.problems import CONTENT_TYPE, Problem, ProblemCode

if TYPE_CHECKING:
    from ryusen_server.api.context import Context
    from ryusen_server.api.credentials import Principal

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
Method = Literal["GET", "POST"]
WorkspaceCapability = Literal["events:send", "events:read", "read", "operate"]
ApplicationCapability = Literal["deploy", "execute"]
Capability = Literal["events:send", "events:read", "read", "operate", "deploy", "execute"]

_encode = msgspec.json.Encoder().encode


class Call(msgspec.Struct, frozen=True):
    """One request that passed the gate: decoded path segments, query parameters each given once, and the body's bytes.

    `principal` is whom a token stands for; none on a server without credentials, where everybody may do everything. `last_event_id` is
    where the reader of a stream left off, read for streams alone.
    """

    segments: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    principal: Principal | None = None
    last_event_id: str | None = None

    def author(self, anybody: str) -> str:
        """How what this call does is signed: with the token's name, if it has one."""
        return anybody if self.principal is None or self.principal.name is None else self.principal.name


class Answer(msgspec.Struct, frozen=True):
    """One response: a status and an encoded document."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = {}


class Streamed(msgspec.Struct, frozen=True):
    """An answer that goes on: its pieces as they come. A reader that takes none for `stalled_s` seconds is cut off."""

    chunks: AsyncGenerator[bytes, None]
    stalled_s: float
    content_type: str = EVENT_STREAM


class Refused(Exception):
    """The request cannot be answered as asked; `problem` says why. Raised by the readers of a call's parts."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


Handler: TypeAlias = "Callable[[Context, Call], Awaitable[Answer | Streamed | Problem]]"


class Parameter(Protocol):
    """A query parameter: its name, what it does, and the JSON Schema of its value. `parameters` has the kinds there are."""

    @property
    def name(self) -> str: ...

    @property
    def says(self) -> str: ...

    def schema(self) -> dict[str, object]:
        """Which values are taken."""
        ...


class Text(msgspec.Struct, frozen=True):
    """An answer that is no JSON document."""

    content_type: str


Shape: TypeAlias = Any
"""A type of `ryusen_protocol` whose document is sent or taken, or a `Text`."""


class _Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What a route says of itself.

    `says`: one sentence for people. `answers`: what a success answers, by status. `takes`: what the body holds, if the route takes one.
    `query`: the parameters it takes; any other is refused. `refuses`: the problems it answers beside those that any route may.
    `also_by`: capabilities in the application of the path that serve in place of `capability`. `parameter_needs`: what a caller needs
    besides to give a parameter. `details`: more than one sentence, for the OpenAPI document. `everywhere`: it tells of all
    workspaces, so its caller may read each of them. `refusals`: documents that stand for a
    problem, by status, where a route answers refusals of its own.
    """

    says: str
    answers: Mapping[int, Shape]
    takes: Shape | None = None
    query: tuple[Parameter, ...] = ()
    refuses: tuple[ProblemCode, ...] = ()
    also_by: tuple[ApplicationCapability, ...] = ()
    parameter_needs: Mapping[str, WorkspaceCapability] = {}
    details: str = ""
    everywhere: bool = False
    refusals: Mapping[int, Shape] = {}


class Route(_Declared, frozen=True):
    """One route. `path` names its segments in braces.

    `capability` is what a caller needs in the workspace of the path or, for `deploy` and `execute`, in its application; none for what
    everybody may see.
    """

    method: Method
    path: str
    handler: Handler
    capability: Capability | None


def answer(document: object, status: int = 200) -> Answer:
    """The document, encoded."""
    return Answer(status, _encode(document))


def answer_problem(problem: Problem, headers: Mapping[str, str] | None = None) -> Answer:
    """The problem, encoded."""
    return Answer(problem.status, _encode(problem), CONTENT_TYPE, headers or {})
