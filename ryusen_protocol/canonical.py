"""The canonical text of JSON documents (RFC 8785) and its digest.

Owns the one order of members, the one spelling of numbers and the one spelling of digests. Knows nothing of portable values: it
takes plain JSON data (`None`, `bool`, `int` within the safe range, finite `float`, `str`, `list`, `dict`).

The `rfc8785` package defines the form. Strings are written by msgspec, whose escapes are the same and which is some twenty times
faster; a property test holds the two equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, cast

import msgspec
import rfc8785

DIGEST_PREFIX: Final = "sha256:"
_DEPTH_MAX: Final = 256
"""Levels of a plain document: enough for the deepest portable value in its tagged form, far from the interpreter's limit."""
_SAFE_INTEGER_MAX: Final = 2**53 - 1

_encoder: Final = msgspec.json.Encoder()


class NotCanonical(ValueError):
    """The data has no canonical form: not JSON data, not finite, beyond the safe integers, a lone surrogate, or too deep."""


def jcs(document: object) -> bytes:
    """The RFC 8785 text of plain JSON data. Raises `NotCanonical`."""
    try:
        return write(_arrange(document, 0))
    except UnicodeEncodeError as refused:
        raise NotCanonical(f"text with a lone surrogate has no canonical form ({refused.reason})") from None


def sha256_digest(data: bytes) -> str:
    """`sha256:` and the lower-case hex digest of exactly these bytes."""
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def member_order(keys: Iterable[str]) -> list[str]:
    """The names in canonical order: by UTF-16 code units, which differs from code points only beyond the BMP."""
    names = list(keys)
    if len(names) > 1:
        names.sort(key=None if "".join(names).isascii() else _utf16)
    return names


def number(value: float) -> msgspec.Raw:
    """The canonical spelling of a finite double, ready to stand in a document given to `write`."""
    return msgspec.Raw(rfc8785.dumps(value))


def write(arranged: object) -> bytes:
    """Compact text of a document whose members already stand in canonical order and whose floats are `number`s."""
    return _encoder.encode(arranged)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _arrange(node: object, depth: int) -> object:
    """The same document with its members in canonical order and its floats spelled."""
    match node:
        case None | bool():
            return node
        case str():
            return str.__str__(node)
        case int():
            if not -_SAFE_INTEGER_MAX <= node <= _SAFE_INTEGER_MAX:
                raise NotCanonical(f"an integer beyond {_SAFE_INTEGER_MAX} has no canonical form; write it as a decimal string")
            return int(node)
        case float():
            return _spelled(node)
        case list() | tuple():
            _check_depth(depth)
            return [_arrange(item, depth + 1) for item in cast("list[object]", node)]
        case dict():
            _check_depth(depth)
            members = cast("dict[object, object]", node)
            names = [name for name in members if isinstance(name, str)]
            if len(names) != len(members):
                raise NotCanonical("every member name must be a string")
            return {name: _arrange(members[name], depth + 1) for name in member_order(names)}
        case _:
            raise NotCanonical(f"{type(node).__name__} is not JSON data")


def _spelled(value: float) -> msgspec.Raw:
    try:
        return number(value)
    except rfc8785.FloatDomainError:
        raise NotCanonical(f"{value} is not a JSON number") from None


def _check_depth(depth: int) -> None:
    if depth >= _DEPTH_MAX:
        raise NotCanonical(f"nested deeper than {_DEPTH_MAX} levels")
