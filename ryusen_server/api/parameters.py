"""Reads the parts of a call: path segments, query parameters, JSON bodies. What cannot be read is refused with what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar, get_args
from urllib.parse import unquote_to_bytes

import msgspec

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.limits import LONG_POLL_MS_MAX
from ryusen_protocol.problems import invalid, limit_exceeded, problem
from ryusen_protocol.strict_json import JsonRefused, check
from ryusen_protocol.submission import identifier_problem
from ryusen_server.api.route import Call, Refused

T = TypeVar("T")

PAGE_ITEMS_DEFAULT: Final = 50
PAGE_ITEMS_MAX: Final = 500
_POSITION_MAX: Final = 2**63 - 1
_AT: Final = re.compile(r"(.*) - at `(.*)`", re.DOTALL)
_TOO_LONG: Final = re.compile(r"Expected `(\w+)` of length <= (\d+)")
_UNITS: Final = {"object": "pairs", "array": "items"}
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def segment(name: str, raw: str) -> str:
    """One path segment, decoded. Raises `Refused` for what no identifier is."""
    decoded = _decoded(raw, f"The {name} in the path")
    refusal = identifier_problem(name.replace("_", " "), decoded, "$")
    if refusal is not None:
        raise Refused(msgspec.structs.replace(refusal, path=msgspec.UNSET))
    return decoded


def query(raw: bytes, known: frozenset[str]) -> Mapping[str, str]:
    """The query parameters. A parameter that is unknown or given twice is refused: passed over, it would answer another question."""
    parameters: dict[str, str] = {}
    for pair in raw.decode("ascii", "replace").split("&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition("=")
        name = _decoded(raw_name.replace("+", " "), "The name of a query parameter")
        if name not in known:
            takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
            raise Refused(invalid(f"The query parameter {name[:64]!a} is not known here; this route {takes}."))
        if name in parameters:
            raise Refused(invalid(f"The query parameter {name} is given twice. Give it once."))
        parameters[name] = _decoded(raw_value.replace("+", " "), f"The query parameter {name}")
    return parameters


def _decoded(raw: str, what: str) -> str:
    if _BROKEN_ESCAPE.search(raw) is not None:
        raise Refused(invalid(f"{what} holds a % that begins no escape. Write it as %25."))
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Refused(invalid(f"{what} is not valid UTF-8.")) from None


def workspace(call: Call) -> Workspace:
    """The workspace of the path."""
    return Workspace(call.segments["workspace"])


def application(call: Call) -> Application:
    """The application of the path."""
    return Application(call.segments["application"])


def integer(call: Call, name: str, *, least: int, most: int) -> int | None:
    """A whole number of the query, if it is given."""
    text = call.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise Refused(invalid(f"The query parameter {name} is a whole number from {least} to {most}, not {text[:64]!a}."))
    return int(text)


def limit(call: Call, most: int = PAGE_ITEMS_MAX) -> int:
    """How many items a page has at most."""
    return integer(call, "limit", least=1, most=most) or min(PAGE_ITEMS_DEFAULT, most)


def wait_ms(call: Call) -> int:
    """How long the answer may wait; 0 without the parameter."""
    return integer(call, "wait_ms", least=0, most=LONG_POLL_MS_MAX) or 0


def position(call: Call, name: str) -> int | None:
    """A commit position of the query, if it is given."""
    return integer(call, name, least=0, most=_POSITION_MAX)


def choice(call: Call, name: str, words: object) -> str | None:
    """One of the words of a `Literal`, if it is given."""
    text = call.query.get(name)
    if text is None:
        return None
    known: tuple[str, ...] = get_args(words)
    if text not in known:
        raise Refused(invalid(f"The query parameter {name} is one of {', '.join(known)}, not {text[:64]!a}."))
    return text


def identifier(call: Call, name: str) -> str | None:
    """An identifier of the query, if it is given."""
    text = call.query.get(name)
    if text is None:
        return None
    refusal = identifier_problem(f"query parameter {name}", text, "$")
    if refusal is not None:
        raise Refused(msgspec.structs.replace(refusal, path=msgspec.UNSET))
    return text


def document(call: Call, shape: type[T], *, bytes_max: int) -> T:
    """The body as `shape`. Raises `Refused` with where in the body it is wrong."""
    if len(call.body) > bytes_max:
        raise Refused(limit_exceeded("The request body", size=len(call.body), limit=bytes_max))
    try:
        check(call.body, bytes_max=bytes_max)
    except JsonRefused as refused:
        extra = bytes_max if refused.code == "limit_exceeded" and len(call.body) > bytes_max else msgspec.UNSET
        raise Refused(problem(refused.code, f"The request body is refused: {refused.why}.", limit=extra)) from None
    try:
        return msgspec.json.decode(call.body, type=shape)
    except msgspec.DecodeError as refused:
        found = _AT.fullmatch(str(refused))
        why, path = (str(refused), "$") if found is None else (found[1], found[2])
        too_long = _TOO_LONG.search(why)
        if too_long is not None:
            # A bound of the schema, in characters: no text has fewer bytes than that, so the bound in bytes is passed as well.
            bound = int(too_long[2])
            told = f"The request body is over a limit: {path} may have {bound} {_UNITS.get(too_long[1], 'bytes')}."
            raise Refused(problem("limit_exceeded", told, path=path, limit=bound)) from None
        if "matching regex" in why:
            why = "a NUL character is no part of an identifier"
        raise Refused(invalid(f"The request body is not what this route takes: {why} at {path}.", path=path)) from None
