"""One exchange with an endpoint, without its socket: the request that leaves, and whether what came back is an answer.

| what came back | is |
|---|---|
| status 200, signed rightly if a secret is set, an outcome that repeats request and run and answers the kind of target | the answer |
| for an effect besides: its attempt and generation repeated | the answer |
| any other status, a redirect too | lost: a status of HTTP says nothing of a callback |
| a body that is no outcome of this protocol version | lost |
| an outcome of another request, run, attempt or kind | lost |

Knows no socket, no clock and no engine, and never reads a failure into a status.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.codec import MalformedDocument, decode_outcome
from ryusen_protocol.exchange import MEDIA_TYPE, signature_problem, signed_headers, utf8
from ryusen_protocol.outcome import CallbackFailed, Outcome, RejectedBeforeStart, Succeeded, TargetNotFound
from ryusen_protocol.words import printable
from ryusen_server.ports.worker import Answered, Exchange, Lost

OK = 200
_SHOWN_CHARACTERS_MAX = 200
_USER_AGENT = "ryusen"


class Reply(msgspec.Struct, frozen=True):
    """What an endpoint sent, read to its end. The two headers are those of the signature."""

    status: int
    body: bytes
    timestamp: str | None = None
    signature: str | None = None


class _Problem(msgspec.Struct):
    """What a refusal may say of itself."""

    detail: str


def request_headers(exchange: Exchange, secret: bytes | None, now_s: int) -> dict[str, str]:
    """The headers of the request whose body is the invocation. The connection is for this one request."""
    return {
        "Content-Type": MEDIA_TYPE,
        "Accept": MEDIA_TYPE,
        "Accept-Encoding": "identity",
        "Connection": "close",
        "User-Agent": _USER_AGENT,
        **signed_headers(secret, exchange.invocation, now_s),
    }


def read_reply(exchange: Exchange, reply: Reply, secret: bytes | None, now_s: int) -> Answered | Lost:
    """See the table above."""
    if reply.status != OK:
        return Lost(f"it answered {reply.status}{_said(reply.body)}")
    wrong = signature_problem(secret, reply.timestamp, reply.signature, reply.body, now_s)
    if wrong is not None:
        return Lost(f"its response does not count: {wrong}")
    try:
        outcome = decode_outcome(utf8(reply.body))
    except MalformedDocument as refused:
        return Lost(f"its response is no outcome: {_shown(refused.why)}")
    wrong = _mismatch(exchange, outcome)
    return Answered(outcome) if wrong is None else Lost(f"its response does not belong to the request: {wrong}")


def _mismatch(exchange: Exchange, outcome: Outcome) -> str | None:
    if outcome.request_id != exchange.request_id:
        return "it names another request"
    if outcome.run_id != exchange.run_id:
        return "it names another run"
    body = outcome.outcome
    if isinstance(body, RejectedBeforeStart):
        named = (body.attempt, body.attempt_generation)
    elif isinstance(body, Succeeded | CallbackFailed | TargetNotFound):
        if not exchange.is_effect:
            return "a discovery is answered as an effect"
        named = (body.attempt, body.attempt_generation)
    else:
        return "an effect is answered as a discovery" if exchange.is_effect else None
    if exchange.is_effect and named != (exchange.attempt, exchange.attempt_generation):
        return "it names another attempt or generation"
    return None


def _said(body: bytes) -> str:
    try:
        detail = msgspec.json.decode(body, type=_Problem).detail
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ""
    return f": {_shown(detail)}"


def _shown(text: str) -> str:
    return printable(text[:_SHOWN_CHARACTERS_MAX])
