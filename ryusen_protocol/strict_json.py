"""The one gate for JSON text from outside.

Owns which texts count as JSON at all: UTF-8, one value, no repeated members, finite numbers of bounded length, no lone surrogates,
bounded size and depth. Refuses to know what the document means. Everything is a pure function of the bytes; no input raises
anything but `JsonRefused`, and nothing recurses before the depth is known.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, Literal, NoReturn, cast

import msgspec

from ryusen_protocol.limits import NESTING_MAX

INTEGER_MAX: Final = 10**308
"""An integer literal beyond this is beyond a double, as 1e999 is. Documents with typed fields bound them further."""

_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}:')
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS: Final = b"0" * 309
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NAME_CHARACTERS_MAX: Final = 64
_EXPLAINED_NESTING_MAX: Final = 256
"""Levels that the slower parser may be asked to recurse into when it explains a refusal."""


class JsonRefused(ValueError):
    """Text that is not taken as JSON. `why` is for people; `code` is `limit_exceeded` for size and depth, else `invalid`."""

    def __init__(self, why: str, code: Literal["invalid", "limit_exceeded"] = "invalid") -> None:
        super().__init__(why)
        self.why = why
        self.code: Literal["invalid", "limit_exceeded"] = code


class MemberRepeated(JsonRefused):
    """An object names a member twice. `why` shows the name, which may be anybody's data."""


def loads(data: bytes, *, bytes_max: int, nesting_max: int = NESTING_MAX) -> object:
    """The plain data of one JSON document. Raises `JsonRefused`."""
    if len(data) > bytes_max:
        raise JsonRefused(f"the document has {len(data)} bytes; at most {bytes_max} are taken", "limit_exceeded")
    if not data or data.isspace():
        raise JsonRefused("the document is empty; a JSON value is expected")
    structure = _structure(data)
    if _depth(structure) > nesting_max:
        raise JsonRefused(f"nested deeper than {nesting_max} levels", "limit_exceeded")
    try:
        document: object = msgspec.json.decode(data)
    except msgspec.DecodeError as refused:
        raise JsonRefused(reason(data, refused)) from None
    if structure.count(b":") != _member_count(document):
        _name_repeated(data)
    if _MANY_DIGITS in data.translate(_DIGITS_ALIKE) and _holds_huge_integer(document):
        raise JsonRefused("an integer has more than 308 digits; pass it as a string")
    return document


def check(data: bytes, *, bytes_max: int, nesting_max: int = NESTING_MAX) -> None:
    """Raises `JsonRefused` as `loads` does, for a caller that decodes into a struct afterwards."""
    loads(data, bytes_max=bytes_max, nesting_max=nesting_max)


def deeper_than(data: bytes, levels: int) -> bool:
    """Whether JSON text nests arrays and objects deeper than that, without parsing it: linear, no recursion.

    For text that is no JSON it answers for at least all that a parser can meet before it gives up.
    """
    return data.count(b"[") + data.count(b"{") > levels and _depth(_structure(data)) > levels


def reason(data: bytes, refused: Exception) -> str:
    """What is wrong with text that msgspec refused as JSON, in words a caller can act on."""
    if deeper_than(data, _EXPLAINED_NESTING_MAX):
        return "not valid JSON, and nested too deeply to say where"
    try:
        text = data.decode()
    except UnicodeDecodeError as broken:
        return f"not valid UTF-8 at byte {broken.start}"
    if text.startswith("\ufeff"):
        return "the document starts with a byte order mark; send plain UTF-8"
    try:
        document: object = json.loads(text, parse_constant=_refuse_constant)
    except JsonRefused as constant:
        return constant.why
    except json.JSONDecodeError as broken:
        return f"not valid JSON: {broken.msg.removesuffix(' at')} at line {broken.lineno}, column {broken.colno}"
    except ValueError:
        return "an integer has more than 308 digits; pass it as a string"
    if _LONE_SURROGATE.search(json.dumps(document, ensure_ascii=False)) is not None:
        return "a string holds a lone surrogate; only valid Unicode is taken"
    return f"not valid JSON: {str(refused).partition(' - at ')[0].lower()}"


def _structure(data: bytes) -> bytes:
    """The brackets and colons outside strings."""
    if b"\\" in data:
        # An escape is a pair, so a run of backslashes pairs up from its left end. This comes before anything else is dropped, or
        # the backslash of another escape would come to stand before a quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(data.translate(None, _NOT_STRUCTURE).split(b'"')[::2])


def _depth(structure: bytes) -> int:
    return max(accumulate(array("b", structure.translate(_STEPS, b":"))), default=0)


def _member_count(document: object) -> int:
    """Members of all objects together. Fewer than the text has colons means that one replaced another."""
    count = 0
    objects: list[dict[str, object]] = []
    arrays: list[list[object]] = [[document]]
    while arrays or objects:
        count += sum(map(len, objects))
        contents: list[Iterable[object]] = [*arrays, *map(dict[str, object].values, objects)]
        nested: list[object] = [child for content in contents for child in content if type(child) is dict or type(child) is list]
        objects = cast("list[dict[str, object]]", [child for child in nested if type(child) is dict])
        arrays = cast("list[list[object]]", [child for child in nested if type(child) is list])
    return count


def _holds_huge_integer(document: object) -> bool:
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if type(node) is dict:
            waiting.extend(cast("dict[str, object]", node).values())
        elif type(node) is list:
            waiting.extend(cast("list[object]", node))
        elif type(node) is int and not -INTEGER_MAX < node < INTEGER_MAX:
            return True
    return False


def _name_repeated(data: bytes) -> NoReturn:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members: dict[str, object] = {}
        for name, content in pairs:
            if name in members:
                shown = name if len(name) <= _NAME_CHARACTERS_MAX else name[:_NAME_CHARACTERS_MAX] + "…"
                raise MemberRepeated(f"the member {json.dumps(shown, ensure_ascii=False)} appears twice in one object")
            members[name] = content
        return members

    json.loads(data, object_pairs_hook=unique)
    raise AssertionError("the count of members is wrong")


def _refuse_constant(name: str) -> NoReturn:
    raise JsonRefused(f"{name} is not a JSON number")
