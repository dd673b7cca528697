"""The handler's half of an HTTP exchange without I/O: which requests are read, what they ask for, and what is sent back.

| the request | answer |
|---|---|
| another path than the handler's, if it has one | 404 |
| another method than POST | 405 |
| a media type other than application/json, or an encoded body | 415 |
| a body over the limit, however it was announced | 413 |
| a signature that is missing or wrong, where a secret is set | 401 |
| no invocation of this protocol version | 400 |
| else | the invocation; what it comes to is 200 with the outcome, signed where a secret is set |

None but the last runs anything. Problems are RFC 9457 documents. Knows no web server, clock or user code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from ryusen_protocol import problems
from ryusen_protocol.codec import MalformedDocument, UnsupportedProtocolVersion, decode_invocation
from ryusen_protocol.exchange import MEDIA_TYPE, signature_problem, signed_headers, utf8
from ryusen_protocol.limits import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from ryusen_protocol.invocation import Invocation
    from ryusen_protocol.problems import Problem

BODY_BYTES_MAX: Final = REQUEST_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Head:
    """A request before its body. A header that is missing is none; `path` is the one the web server gives."""

    method: str
    path: str
    content_type: str | None
    content_length: str | None
    content_encoding: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What to send back, header by header."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Exchanges:
    """What one handler takes and gives. `path` is the only one it answers at, none for every path it is given."""

    def __init__(self, secret: bytes | None, path: str | None) -> None:
        self._secret = secret
        self._path = path

    def refusal(self, head: Head) -> Reply | None:
        """The answer to a request whose body need not be read, or nothing."""
        if self._path is not None and head.path != self._path:
            return _refused(problems.problem("not_found", f"There is nothing at this path; invocations are posted to {self._path}."))
        if head.method != "POST":
            problem = problems.problem("method_not_allowed", "Invocations are posted; this handler takes no other method.")
            return _refused(problem, Allow="POST")
        media_type = (head.content_type or "").partition(";")[0].strip().lower()
        if media_type != MEDIA_TYPE or head.content_encoding not in {None, "", "identity"}:
            return _refused(problems.problem("unsupported_media_type", f"An invocation is sent as plain {MEDIA_TYPE}."))
        announced = head.content_length
        if announced and not (announced.isascii() and announced.isdigit()):
            return _refused(problems.invalid("The Content-Length is not a number of bytes."))
        return too_large() if announced and int(announced[:20]) > BODY_BYTES_MAX else None

    def invocation(self, body: bytes, timestamp: str | None, signature: str | None, now_s: int) -> Invocation | Reply:
        """What a complete body asks for, or the answer to a body that asks for nothing."""
        wrong = signature_problem(self._secret, timestamp, signature, body, now_s)
        if wrong is not None:
            return _refused(problems.problem("unauthorized", f"The request does not count: {wrong}. Nothing was run."))
        try:
            return decode_invocation(utf8(body))
        except UnsupportedProtocolVersion as refused:
            return _refused(problems.problem("unsupported_version", f"{refused.why}. Nothing was run."))
        except MalformedDocument as refused:
            return _refused(problems.invalid(f"The body is no invocation: {refused.why}. Nothing was run."))

    def answer(self, outcome: bytes, now_s: int) -> Reply:
        """What an invocation came to."""
        return Reply(200, outcome, {"Content-Type": MEDIA_TYPE, **_COMMON, **signed_headers(self._secret, outcome, now_s)})


def too_large() -> Reply:
    """The answer to a body over the limit, as soon as that is known."""
    return _refused(problems.limit_exceeded("The body", size=None, limit=BODY_BYTES_MAX))


def cut_off() -> Reply:
    """The answer to a body that ended before its announced length."""
    return _refused(problems.invalid("The body ended before its Content-Length. Nothing was run."))


def length_required() -> Reply:
    """The answer where a body's end cannot be found."""
    return _refused(problems.invalid("The request has no Content-Length, and this web server does not mark the end of a body."))


def failed() -> Reply:
    """The answer when there will be no outcome: the status says nothing of what a callback did."""
    return _refused(problems.problem("internal", "The invocation ended without an outcome. What it did is not known."))


_COMMON: Final = {"Cache-Control": "no-store"}


def _refused(problem: Problem, **headers: str) -> Reply:
    return Reply(problem.status, msgspec.json.encode(problem), {"Content-Type": problems.CONTENT_TYPE, **_COMMON, **headers})
