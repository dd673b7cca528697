"""Reads the parts of a call: path segments, query parameters, JSON bodies. What cannot be read is refused with what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, get_args
from urllib.parse import unquote_to_bytes

import msgspec

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.limits import ID_BYTES_MAX, LONG_POLL_MS_MAX
from ryusen_protocol.problems import invalid, limit_exceeded, problem
from ryusen_protocol.strict_json import JsonRefused, check
from ryusen_protocol.submission import identifier_problem
from ryusen_server.api.route import Call, Parameter, Refused

T = TypeVar("T")

PAGE_ITEMS_DEFAULT: Final = 50
PAGE_ITEMS_MAX: Final = 500
CURSOR_CHARACTERS_MAX: Final = 4_608
"""Two identifiers of control characters, six characters each as JSON, in base64."""
POSITION_MAX: Final = 2**63 - 1
IDENTIFIER_SCHEMA: Final[dict[str, object]] = {"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX, "pattern": r"^[^\u0000]+$"}
"""What a schema can say of an identifier; that its bound counts bytes of UTF-8 is told in words."""
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


def query(raw: bytes, known: Sequence[Parameter]) -> Mapping[str, str]:
    """The query parameters. A parameter that is unknown or given twice is refused: passed over, it would answer another question."""
    parameters: dict[str, str] = {}
    names = [parameter.name for parameter in known]
    for pair in raw.decode("ascii", "replace").split("&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition("=")
        name = _decoded(raw_name.replace("+", " "), "The name of a query parameter")
        if name not in names:
            takes = f"takes {', '.join(sorted(names))}" if names else "takes none"
            raise Refused(invalid(f"The query parameter {name[:64]!a} is not known here; this route {takes}."))
        if name in parameters:
            raise Refused(invalid(f"The query parameter {name} is given twice. Give it once."))
        parameters[name] = _decoded(raw_value.replace("+", " "), f"The query parameter {name}")
    return parameters


def parameter_names(raw: bytes) -> list[str]:
    """The names of the parameters given, as far as they can be read."""
    pairs = raw.decode("ascii", "replace").split("&")
    return [unquote_to_bytes(pair.partition("=")[0].replace("+", " ")).decode("utf-8", "replace") for pair in pairs]


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


class WholeNumber(msgspec.Struct, frozen=True):
    """A whole number of the query, from `least` to `most`."""

    name: str
    says: str
    least: int
    most: int

    def schema(self) -> dict[str, object]:
        """See `Parameter`."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, call: Call) -> int | None:
        """The number, if it is given."""
        text = call.query.get(self.name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(self.most)) and self.least <= int(text) <= self.most):
            told = f"The query parameter {self.name} is a whole number from {self.least} to {self.most}, not {text[:64]!a}."
            raise Refused(invalid(told))
        return int(text)


class Word(msgspec.Struct, frozen=True):
    """One of the words of a `Literal`."""

    name: str
    says: str
    words: tuple[str, ...]

    def schema(self) -> dict[str, object]:
        """See `Parameter`."""
        return {"type": "string", "enum": list(self.words)}

    def read(self, call: Call) -> str | None:
        """The word, if it is given."""
        text = call.query.get(self.name)
        if text is not None and text not in self.words:
            raise Refused(invalid(f"The query parameter {self.name} is one of {', '.join(self.words)}, not {text[:64]!a}."))
        return text


def word(name: str, says: str, literal: object) -> Word:
    """A parameter that takes the words of a `Literal` type."""
    return Word(name, says, get_args(literal))


class Identifier(msgspec.Struct, frozen=True):
    """An identifier of the query: 1 to 256 bytes without NUL. `or_empty`: the empty text stands for nothing."""

    name: str
    says: str
    or_empty: bool = False

    def schema(self) -> dict[str, object]:
        """See `Parameter`."""
        return IDENTIFIER_SCHEMA if not self.or_empty else {**IDENTIFIER_SCHEMA, "minLength": 0, "pattern": r"^[^\u0000]*$"}

    def read(self, call: Call) -> str | None:
        """The identifier, if it is given."""
        text = call.query.get(self.name)
        if text is None or (self.or_empty and not text):
            return None
        refusal = identifier_problem(f"query parameter {self.name}", text, "$")
        if refusal is not None:
            raise Refused(msgspec.structs.replace(refusal, path=msgspec.UNSET))
        return text


class Opaque(msgspec.Struct, frozen=True):
    """Text that only this server can make, such as a cursor. Who reads it refuses what it did not make."""

    name: str
    says: str
    characters_max: int

    def schema(self) -> dict[str, object]:
        """See `Parameter`."""
        return {"type": "string", "minLength": 1, "maxLength": self.characters_max}


def page_limit(most: int = PAGE_ITEMS_MAX) -> WholeNumber:
    """How many items a page has at most."""
    return WholeNumber("limit", f"How many items at most; {min(PAGE_ITEMS_DEFAULT, most)} unless given.", 1, most)


LIMIT: Final = page_limit()
WAIT_MS: Final = WholeNumber("wait_ms", "How long the answer may wait for what it tells of to end, in milliseconds.", 0, LONG_POLL_MS_MAX)
CURSOR: Final = Opaque("cursor", "`next_cursor` of the page before, with the same filters.", CURSOR_CHARACTERS_MAX)
PAGED: Final = (CURSOR, LIMIT)


def page_size(call: Call, limit: WholeNumber = LIMIT) -> int:
    """How many items the page may have."""
    return limit.read(call) or min(PAGE_ITEMS_DEFAULT, limit.most)


def wait_ms(call: Call) -> int:
    """How long the answer may wait; 0 without the parameter."""
    return WAIT_MS.read(call) or 0


def position(name: str, says: str) -> WholeNumber:
    """A parameter that takes a commit position."""
    return WholeNumber(name, says, 0, POSITION_MAX)


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
