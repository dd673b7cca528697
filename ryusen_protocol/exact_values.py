"""Reads a portable value exactly: what the worker codec would pass over is refused here.

Owns which members the tagged form of each kind has, and nothing else of a value: its content is `ryusen_protocol.values`'. For
readers that act on a document as it was meant, where a field that is dropped makes another document. What is told of a refusal
never repeats the value: members of an object stand as `.*` in a place, positions of a list as `[3]`.
"""

from __future__ import annotations

import re
from typing import Final, cast

from ryusen_protocol.values import InvalidValue

_FIELDS: Final = {
    "instant": frozenset(("nanos", "seconds")),
    "duration": frozenset(("nanos", "seconds")),
    "blob_ref": frozenset(("media_type", "sha256", "size", "uri")),
}
_KINDS: Final = frozenset(("array", "bool", "bytes", "f64", "i64", "null", "object", "string", "u64", *_FIELDS))
_KNOWN: Final = ", ".join(sorted(_KINDS))
_TAGGED: Final = {"type", "value"}
_MEMBER_STEP: Final = re.compile(r'\.[^.\[]+|\["(?:[^"\\]|\\.)*"\]')


class InexactValue(ValueError):
    """Not written exactly as one value. `why` is for people; `place` leads from the value (`[3].*`) and repeats no content."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.place = ""

    def passed(self, step: str) -> None:
        """Notes the step to the container that the refusal is passing on its way out."""
        self.place = step + self.place


def check_members(node: object) -> None:
    """Raises `InexactValue` unless plain JSON data has, at every level, the members of its kind and no others.

    The keys of an object's content are data. The caller has bounded the nesting.
    """
    if type(node) is not dict:
        raise InexactValue('a portable value is an object with "type" and "value"')
    members = cast("dict[str, object]", node)
    kind = members.get("type")
    if type(kind) is not str:
        raise InexactValue('a portable value names its kind in "type", as a string')
    if kind not in _KINDS:
        raise InexactValue(f"the type is not known; it is one of {_KNOWN}")
    if kind == "null":
        if len(members) > 1:
            raise InexactValue('a null has the member "type" and no other')
        return
    if members.keys() != _TAGGED:
        raise InexactValue('a portable value has the members "type" and "value" and no others')
    _check_content(kind, members["value"])


def place_of(refused: InvalidValue) -> str:
    """The place of a refusal of `values`, without the value's own names."""
    return _MEMBER_STEP.sub(".*", refused.path.removeprefix("$"))


def _check_content(kind: str, content: object) -> None:
    if kind == "array":
        if type(content) is not list:
            raise InexactValue("an array's value is a list")
        for index, item in enumerate(cast("list[object]", content)):
            _check_child(item, index)
    elif kind == "object":
        if type(content) is not dict:
            raise InexactValue("an object's value is an object")
        for item in cast("dict[str, object]", content).values():
            _check_child(item, None)
    elif kind in _FIELDS:
        fields = _FIELDS[kind]
        if type(content) is not dict or cast("dict[str, object]", content).keys() != fields:
            raise InexactValue(f"the value of this kind is an object with {', '.join(sorted(fields))} and nothing else")


def _check_child(item: object, index: int | None) -> None:
    try:
        check_members(item)
    except InexactValue as refused:
        refused.passed(".*" if index is None else f"[{index}]")
        raise
