"""Whether an answer is the expected one, and in words where it is not. Pure: documents in, words out.

Two ways to compare. `difference` holds an outcome to the whole of what is expected, leaving out what belongs to one language: source
locations, stacks and captured output, and the members a case declares open. `mismatch` holds a frame to a pattern: what the pattern names
must be there and equal, what it does not name may be anything, and a text `$name` stands for a value that is the same everywhere in one
transcript. A pattern `{"$any_order": […]}` is a list whose order does not matter.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final, cast

from ryusen_protocol import codec

if TYPE_CHECKING:
    from collections.abc import Iterable

JsonDict = dict[str, Any]

_SHOWN_CHARACTERS_MAX: Final = 200


class Unreadable(Exception):
    """An answer that is no document of the protocol."""


def outcome_body(document: Any) -> JsonDict:
    """The body of an outcome document as the protocol understands it: defaults filled in, unknown members and source metadata gone.

    Raises `Unreadable`.
    """
    try:
        outcome = codec.decode_outcome(json.dumps(document).encode())
    except codec.MalformedDocument as refused:
        raise Unreadable(f"the answer is no outcome: {refused.why}") from None
    return _neutral(json.loads(codec.encode(outcome))["outcome"])


def difference(actual: JsonDict, expected: JsonDict, open_members: Iterable[str], run_id: str) -> str | None:
    """What is wrong with an outcome's body as `outcome_body` gives it; `None` if nothing is."""
    envelope = {"protocol_version": 1, "type": "outcome", "request_id": "rq", "run_id": "rn", "outcome": expected}
    wanted = cast("JsonDict", _bound(outcome_body(envelope), {"run_id": run_id}))
    told = copy.deepcopy(actual)
    for pointer in open_members:
        content = _take(told, pointer)
        if content is None or content == "":
            return f"{pointer} is {_shown(content)}, and should say something"
        _take(wanted, pointer)
    return _first_difference("", told, wanted)


def mismatch(actual: Any, pattern: Any, names: dict[str, Any], place: str = "") -> str | None:
    """What is wrong with a document beside a pattern; `None` if it matches. Names met for the first time are bound in `names`."""
    if isinstance(pattern, str) and pattern.startswith("$"):
        name = pattern[1:]
        if name not in names:
            names[name] = actual
            return None if actual is not None else f"{place or 'the document'} is missing"
        pattern = names[name]
    if isinstance(pattern, dict) and "$any_order" in pattern:
        return _any_order_mismatch(actual, cast("JsonDict", pattern)["$any_order"], place)
    if isinstance(pattern, dict) and isinstance(actual, dict):
        told = cast("JsonDict", actual)
        for member, content in cast("JsonDict", pattern).items():
            if content is None and told.get(member) is None:
                continue
            wrong = mismatch(told.get(member), content, names, f"{place}/{member}")
            if wrong is not None:
                return wrong
        return None
    if isinstance(pattern, list) and isinstance(actual, list):
        return _list_mismatch(cast("list[Any]", actual), cast("list[Any]", pattern), names, place)
    return None if _same(actual, pattern) else f"{place or 'the document'} is {_shown(actual)}, not {_shown(pattern)}"


def bound(pattern: Any, names: dict[str, Any]) -> Any:
    """A document to send: every `$name` replaced by what it stands for."""
    return _bound(pattern, names)


def _list_mismatch(actual: list[Any], pattern: list[Any], names: dict[str, Any], place: str) -> str | None:
    if len(actual) != len(pattern):
        return f"{place} has {len(actual)} items, not {len(pattern)}: {_shown(actual)}"
    for position, (one, other) in enumerate(zip(actual, pattern, strict=True)):
        wrong = mismatch(one, other, names, f"{place}/{position}")
        if wrong is not None:
            return wrong
    return None


def _any_order_mismatch(actual: Any, wanted: list[Any], place: str) -> str | None:
    told = cast("list[Any]", actual) if isinstance(actual, list) else []
    if sorted(map(json.dumps, told)) == sorted(map(json.dumps, wanted)):
        return None
    return f"{place} is {_shown(actual)}, not {_shown(wanted)} in any order"


def _neutral(body: JsonDict) -> JsonDict:
    declaration = body.get("declaration")
    if isinstance(declaration, dict):
        cast("JsonDict", declaration).pop("location", None)
    for name in ("first", "duplicate"):
        body.pop(name, None)
    failure = body.get("failure")
    while isinstance(failure, dict):
        link = cast("JsonDict", failure)
        link.pop("stack", None)
        failure = link.get("cause")
    return body


def _bound(node: Any, names: dict[str, Any]) -> Any:
    if isinstance(node, str) and node.startswith("$") and node[1:] in names:
        return names[node[1:]]
    if isinstance(node, dict):
        return {name: _bound(content, names) for name, content in cast("JsonDict", node).items()}
    if isinstance(node, list):
        return [_bound(item, names) for item in cast("list[Any]", node)]
    return node


def _take(document: JsonDict, pointer: str) -> Any:
    *path, last = pointer.split("/")[1:]
    node: Any = document
    for step in path:
        node = cast("JsonDict", node).get(step) if isinstance(node, dict) else None
    return cast("JsonDict", node).pop(last, None) if isinstance(node, dict) else None


def _first_difference(place: str, actual: Any, expected: Any) -> str | None:
    if isinstance(actual, dict) and isinstance(expected, dict):
        told, wanted = cast("JsonDict", actual), cast("JsonDict", expected)
        for name in sorted(told.keys() | wanted.keys()):
            if name not in told or name not in wanted:
                if told.get(name) is None and wanted.get(name) is None:
                    continue
                there = "is missing" if name not in told else f"is {_shown(told[name])} and should not be there"
                return f"{place}/{name} {there}"
            wrong = _first_difference(f"{place}/{name}", told[name], wanted[name])
            if wrong is not None:
                return wrong
        return None
    if isinstance(actual, list) and isinstance(expected, list):
        return _first_of_lists(place, cast("list[Any]", actual), cast("list[Any]", expected))
    return None if _same(actual, expected) else f"{place or 'the outcome'} is {_shown(actual)}, not {_shown(expected)}"


def _first_of_lists(place: str, actual: list[Any], expected: list[Any]) -> str | None:
    if len(actual) != len(expected):
        return f"{place} has {len(actual)} items, not {len(expected)}: {_shown(actual)}"
    for position, (one, other) in enumerate(zip(actual, expected, strict=True)):
        wrong = _first_difference(f"{place}/{position}", one, other)
        if wrong is not None:
            return wrong
    return None


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON is: `1` and `1.0` are one number, `true` is none."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _shown(content: Any) -> str:
    text = json.dumps(content, ensure_ascii=True)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
