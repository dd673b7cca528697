"""The closed list of problems the HTTP API answers with (RFC 9457), and how each is built.

Owns code, status and title of every problem. Knows no route and no transport; the operator route has envelopes of its own.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ryusen_protocol.api import RunOutcome

CONTENT_TYPE: Final = "application/problem+json"

ProblemCode = Literal[
    "invalid",
    "unsupported_version",
    "unauthorized",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "request_timeout",
    "idempotency_key_reused",
    "parent_conflict",
    "not_cancellable",
    "not_blocked",
    "limit_exceeded",
    "uri_too_long",
    "unsupported_media_type",
    "host_not_allowed",
    "busy",
    "internal",
    "storage_unavailable",
    "unavailable",
]

_KNOWN: Final[dict[ProblemCode, tuple[int, str]]] = {
    "invalid": (400, "The request is not valid"),
    "unsupported_version": (400, "The protocol version is not supported"),
    "unauthorized": (401, "The request carries no valid token"),
    "forbidden": (403, "The request is not allowed"),
    "not_found": (404, "There is no such thing"),
    "method_not_allowed": (405, "The route does not take this method"),
    "request_timeout": (408, "The request took too long to arrive"),
    "idempotency_key_reused": (409, "The idempotency key belongs to another request"),
    "parent_conflict": (409, "Another manifest generation is active"),
    "not_cancellable": (409, "The run can no longer be cancelled"),
    "not_blocked": (409, "The run is not blocked"),
    "limit_exceeded": (413, "The request is over a limit"),
    "uri_too_long": (414, "The URL is too long"),
    "unsupported_media_type": (415, "The body is not plain application/json"),
    "host_not_allowed": (421, "The server does not answer for this host"),
    "busy": (429, "Too many requests at once"),
    "internal": (500, "The server failed"),
    "storage_unavailable": (503, "The database cannot be written"),
    "unavailable": (503, "The server takes no new work"),
}

CODES: Final[frozenset[ProblemCode]] = frozenset(_KNOWN)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem document. Branch on `code`; `detail` tells a person what, why and what to do.

    `code` is plain text, so that a client reads the codes of a newer server too. `path` is where in the body; `limit` is the
    bound, in the unit the detail names; `active_generation` is what a publisher has to build on, null for nothing;
    `outcome` is how the run ended or is ending.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    path: str | msgspec.UnsetType = msgspec.UNSET
    limit: int | msgspec.UnsetType = msgspec.UNSET
    active_generation: str | msgspec.UnsetType | None = msgspec.UNSET
    outcome: RunOutcome | msgspec.UnsetType | None = msgspec.UNSET
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET


def status_of(code: ProblemCode) -> int:
    """The HTTP status a code is answered with."""
    return _KNOWN[code][0]


def title_of(code: ProblemCode) -> str:
    """What a code means, in a few words."""
    return _KNOWN[code][1]


def problem(
    code: ProblemCode,
    detail: str,
    *,
    path: str | msgspec.UnsetType = msgspec.UNSET,
    limit: int | msgspec.UnsetType = msgspec.UNSET,
    active_generation: str | msgspec.UnsetType | None = msgspec.UNSET,
    outcome: RunOutcome | msgspec.UnsetType | None = msgspec.UNSET,
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET,
) -> Problem:
    """The problem document of a code; see `Problem` for the extras."""
    status, title = _KNOWN[code]
    return Problem(
        type=f"urn:ryusen:problem:{code}",
        title=title,
        status=status,
        detail=detail,
        code=code,
        path=path,
        limit=limit,
        active_generation=active_generation,
        outcome=outcome,
        retry_after_ms=retry_after_ms,
    )


def invalid(detail: str, *, path: str | None = None) -> Problem:
    """The body or a parameter cannot be read as what the route takes."""
    return problem("invalid", detail, path=msgspec.UNSET if path is None else path)


def limit_exceeded(what: str, *, size: int | None, limit: int, unit: str = "bytes", path: str | None = None) -> Problem:
    """Something is over its bound. `size` is `None` where reading stopped at the bound."""
    measured = "more than" if size is None else f"{size} {unit}, over"
    return problem(
        "limit_exceeded",
        f"{what} is {measured} the limit of {limit} {unit}.",
        path=msgspec.UNSET if path is None else path,
        limit=limit,
    )


def not_found(kind: str, identity: str) -> Problem:
    """`kind` names what was looked for, for instance `run`."""
    return problem("not_found", f"There is no {kind} {identity} in this workspace.")


def idempotency_key_reused() -> Problem:
    """Names no key and no fingerprint: the answer may reach somebody who never knew them."""
    return problem(
        "idempotency_key_reused",
        "This idempotency key was used for an event with another name, payload or metadata. Nothing was changed. "
        "Send the same content to get the first answer again, or use a new key for a new event.",
    )


def parent_conflict(active_generation: str | None, expected_parent: str | None) -> Problem:
    """The publication builds on a generation that is not the active one."""
    active = "no manifest is active" if active_generation is None else f"{active_generation} is active"
    expected = "no active manifest" if expected_parent is None else expected_parent
    return problem(
        "parent_conflict",
        f"The publication expects {expected} as its parent, but {active}. Nothing was changed. "
        "Read the active generation, check what was published meanwhile, and publish again on top of it.",
        active_generation=active_generation,
    )


def not_cancellable(outcome: RunOutcome | None) -> Problem:
    """The run has ended, or is being compensated, for another reason than a cancel."""
    reached = "is already stopping" if outcome is None else f"already has the outcome {outcome}"
    return problem("not_cancellable", f"The run {reached}, so it can no longer be cancelled.", outcome=outcome)


def storage_unavailable(cause: str, *, retry_after_ms: int | None = None) -> Problem:
    """The commit did not happen: nothing was accepted. `cause` is what a person can act on, for instance `disk full`."""
    return problem(
        "storage_unavailable",
        f"The database cannot be written ({cause}). Nothing was accepted; send the request again once this is over.",
        retry_after_ms=msgspec.UNSET if retry_after_ms is None else retry_after_ms,
    )
