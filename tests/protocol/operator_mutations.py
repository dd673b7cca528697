"""Operator envelopes that read well, and ways to break one: each class has the code it must be refused with.

Everything a sender chooses holds `SECRET`, so that an answer which repeats any of it can be told.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from ryusen_protocol.limits import ERROR_DETAILS_BYTES_MAX, ERROR_MESSAGE_BYTES_MAX, OPERATOR_COMMAND_BYTES_MAX, VALUE_BYTES_MAX

SECRET = "S3cr3t"
ATTEMPT_ID = "at_5Tfex6DIBgcUSs1JJuoKYS"

Node = dict[str, Any]


class Malformed(NamedTuple):
    """A body, what is wrong with it, and the code of its refusal."""

    mutation: str
    body: bytes
    code: str


def valid_envelope(rng: Random) -> Node:
    """A command that is read: any variant, values of every kind."""
    variant = rng.choice(("supply_success", "declare_failure", "authorize_retry"))
    content: Node = {}
    if variant == "supply_success":
        content = {"result": _value(rng, 3)}
    elif variant == "declare_failure":
        content = {"failure": _failure(rng, rng.randrange(4))}
    return _envelope(rng, {variant: content})


def spelled(rng: Random, document: Node) -> bytes:
    """The document in some order of members, with some white space and some escapes."""
    text = json.dumps(_shuffled(rng, document), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 0, 1)))
    return text.encode()


def malformed_envelope(rng: Random, mutation: str) -> Malformed:
    """A valid envelope with one thing wrong. The mutation is one of `MUTATIONS`."""
    mutate, code = MUTATIONS[mutation]
    body = mutate(rng)
    return Malformed(mutation, body if isinstance(body, bytes) else spelled(rng, body), code)


# --- Valid parts -----------------------------------------------------------------------------------------------------


def _secret(rng: Random) -> str:
    return f"{SECRET}-{rng.getrandbits(32):08x}{rng.choice(('', 'é', '😀', chr(10), '.', '[', chr(34)))}"


def _envelope(rng: Random, command: object) -> Node:
    return {
        "version": 1,
        "attempt_id": ATTEMPT_ID,
        "attempt_generation": rng.choice((1, 2, 2**53 - 1)),
        "idempotency_key": _secret(rng),
        "command": command,
    }


def _value(rng: Random, depth: int) -> Node:
    if depth and rng.random() < 0.6:
        if rng.random() < 0.5:
            return {"type": "array", "value": [_value(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
        keys = [_secret(rng), "type", "value", "", "result", "version"]
        return {"type": "object", "value": {key: _value(rng, depth - 1) for key in rng.sample(keys, rng.randrange(1, 5))}}
    return rng.choice(_LEAVES)(rng)


def _blob(rng: Random) -> Node:
    return {"uri": _secret(rng), "size": "18446744073709551615", "sha256": "0a" * 32, "media_type": _secret(rng)}


_LEAVES: tuple[Callable[[Random], Node], ...] = (
    lambda _: {"type": "null"},
    lambda _: {"type": "bool", "value": False},
    lambda _: {"type": "i64", "value": "-9223372036854775808"},
    lambda _: {"type": "u64", "value": "9223372036854775808"},
    lambda _: {"type": "f64", "value": "-0"},
    lambda rng: {"type": "f64", "value": rng.random()},
    lambda rng: {"type": "string", "value": _secret(rng)},
    lambda _: {"type": "bytes", "value": "AP8="},
    lambda _: {"type": "instant", "value": {"seconds": "-1", "nanos": 999_999_999}},
    lambda _: {"type": "duration", "value": {"seconds": "0", "nanos": 0}},
    lambda rng: {"type": "blob_ref", "value": _blob(rng)},
)


def _failure(rng: Random, causes: int) -> Node:
    record: Node = {"category": _secret(rng), "message": _secret(rng), "retryable": rng.random() < 0.5}
    if rng.random() < 0.5:
        record["details"] = {_secret(rng): _value(rng, 2) for _ in range(rng.randrange(3))}
    if causes:
        record["cause"] = _failure(rng, causes - 1)
    return record


def _success(rng: Random) -> Node:
    return _envelope(rng, {"supply_success": {"result": _value(rng, 3)}})


def _declared(rng: Random, causes: int = 2) -> Node:
    return _envelope(rng, {"declare_failure": {"failure": _failure(rng, causes)}})


def _shuffled(rng: Random, node: Any) -> Any:
    if isinstance(node, dict):
        names = list(node)
        rng.shuffle(names)
        return {name: _shuffled(rng, node[name]) for name in names}
    return [_shuffled(rng, item) for item in node] if isinstance(node, list) else node


# --- Places in a document --------------------------------------------------------------------------------------------


def _objects(node: Any) -> Iterator[Node]:
    """Every object, the contents of object values too."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _objects(child)


def _tags(value: Node) -> Iterator[Node]:
    """Every tagged object of a value."""
    yield value
    content = value.get("value")
    if value["type"] in ("array", "object"):
        for child in content.values() if isinstance(content, dict) else content or ():
            yield from _tags(child)


def _links(record: Node) -> list[Node]:
    return [record, *(_links(record["cause"]) if "cause" in record else [])]


def _some_value(rng: Random) -> tuple[Node, Node]:
    """An envelope and one tagged object somewhere in a value of it, in a result or in the details of a failure or a cause."""
    if rng.random() < 0.6:
        document = _success(rng)
        return document, rng.choice(list(_tags(document["command"]["supply_success"]["result"])))
    document = _declared(rng)
    link = rng.choice(_links(document["command"]["declare_failure"]["failure"]))
    link["details"] = {_secret(rng): _value(rng, 2)}
    return document, rng.choice([tag for detail in link["details"].values() for tag in _tags(detail)])


def _some_link(rng: Random) -> tuple[Node, Node]:
    document = _declared(rng)
    return document, rng.choice(_links(document["command"]["declare_failure"]["failure"]))


def _become(node: Node, other: Node) -> None:
    node.clear()
    node.update(other)


# --- Mutations -------------------------------------------------------------------------------------------------------


def _truncated(rng: Random) -> bytes:
    body = json.dumps(valid_envelope(rng)).encode()
    return body[: rng.randrange(len(body))]


def _garbled(rng: Random) -> bytes:
    body = json.dumps(valid_envelope(rng))
    return rng.choice((f"{body}{SECRET}", f"'{body}'", body.replace(":", "=", 1), body.replace("1", "NaN", 1))).encode()


def _not_unicode(rng: Random) -> bytes:
    body = json.dumps(valid_envelope(rng)).encode()
    return body.replace(SECRET.encode(), rng.choice((b"\xff", b"\xc3", b"\\ud800", b"\xed\xa0\x80")), 1)


def _repeated(rng: Random) -> bytes:
    if rng.random() < 0.5:
        document = valid_envelope(rng)
        node = rng.choice([found for found in _objects(document) if found])
    else:
        document, tag = _some_value(rng)
        node = {_secret(rng): _value(rng, 1)}
        _become(tag, {"type": "object", "value": node})
    name = rng.choice(list(node))
    node[f"{name}%again%"] = node[name] if rng.random() < 0.5 else SECRET
    return spelled(rng, document).replace(b"%again%", b"")


def _other_version(rng: Random) -> Node:
    version = rng.choice((0, 2, -1, 3, 2**31, 2**64, 10**40))
    return {"version": version, SECRET: SECRET} if rng.random() < 0.3 else valid_envelope(rng) | {"version": version}


def _no_version(rng: Random) -> Node:
    return valid_envelope(rng) | {"version": rng.choice((None, "1", "2", 1.0, 2.5, True, False, [1], {}, SECRET))}


def _missing(rng: Random) -> Node:
    document = rng.choice((_success, _declared))(rng)
    [(variant, content)] = document["command"].items()
    fixed = [document] if variant == "supply_success" else [document, *_links(content["failure"])]
    node = rng.choice([*fixed, content])
    del node[rng.choice([name for name in node if name not in ("details", "cause")])]
    return document


def _unknown_member(rng: Random) -> Node:
    document = valid_envelope(rng)
    [content] = document["command"].values()
    rng.choice((document, content))[rng.choice((SECRET, "", "Version", "result ", "type"))] = rng.choice((None, SECRET, 1))
    return document


def _unknown_failure_member(rng: Random) -> Node:
    document, link = _some_link(rng)
    link[rng.choice(("code", "stack", SECRET, "", "result", "Retryable"))] = rng.choice((None, SECRET, {}))
    return document


def _two_commands(rng: Random) -> Node:
    parts = {"supply_success": {"result": _value(rng, 1)}, "declare_failure": {"failure": _failure(rng, 0)}, "authorize_retry": {}}
    return _envelope(rng, {name: parts[name] for name in rng.sample(list(parts), rng.choice((2, 3)))})


def _no_command(rng: Random) -> Node:
    return _envelope(rng, rng.choice(({}, {SECRET: {}}, {"Authorize_retry": {}}, {"retry": {}}, {"": {}})))


def _foreign_field(rng: Random) -> Node:
    document = valid_envelope(rng)
    [(variant, content)] = document["command"].items()
    content["failure" if variant == "supply_success" else "result"] = _value(rng, 1) if variant != "supply_success" else _failure(rng, 0)
    return document


def _positional(rng: Random) -> bytes:
    document = valid_envelope(rng)
    place: Any = document
    while True:
        names = [name for name in place if isinstance(place[name], dict)]
        if not names or (place is not document and rng.random() < 0.3):
            break
        name = rng.choice(names)
        holder, place = place, place[name]
    holder[name] = list(place.values())
    return spelled(rng, document if rng.random() < 0.9 else list(document.values()))  # type: ignore[arg-type]


def _unnamed_variant(rng: Random) -> Node:
    if rng.random() < 0.5:
        return _envelope(rng, rng.choice((0, 2, None, True, "authorize_retry", SECRET, 1.5, {"type": 2}, {"type": "authorize_retry"})))
    document, tag = _some_value(rng)
    tag["type"] = rng.choice((0, 3, None, True, ["i64"], {"i64": 1}, 1.5))
    return document


def _unknown_kind(rng: Random) -> Node:
    document, tag = _some_value(rng)
    tag["type"] = rng.choice((SECRET, "", "I64", "decimal", "i64 ", "date", "map"))
    return document


def _extra_value_member(rng: Random) -> Node:
    document, tag = _some_value(rng)
    tag[rng.choice((SECRET, "", "Type", "unit", "schema"))] = rng.choice((None, SECRET, 1, {}))
    return document


def _extra_value_field(rng: Random) -> Node:
    document, tag = _some_value(rng)
    span = {"seconds": "1", "nanos": 1}
    kind, fields = rng.choice((("instant", span), ("duration", span), ("blob_ref", _blob(rng))))
    _become(tag, {"type": kind, "value": {**fields, rng.choice((SECRET, "zone", "etag", "Nanos")): rng.choice((SECRET, 0, None))}})
    return document


def _missing_value_part(rng: Random) -> Node:
    document, tag = _some_value(rng)
    fields = copy.deepcopy(_blob(rng))
    del fields[rng.choice(list(fields))]
    broken = ({"type": "i64"}, {"value": SECRET}, {}, {"type": "blob_ref", "value": fields}, {"type": "instant", "value": {"seconds": "1"}})
    _become(tag, rng.choice(broken))
    return document


def _second_spelling(rng: Random) -> bytes:
    """Forms that mean a value to somebody, and are not its one form."""
    document, tag = _some_value(rng)
    spellings = [
        ("null", None),
        ("bool", "true"),
        ("i64", 1),
        ("i64", "01"),
        ("i64", "+1"),
        ("i64", "-0"),
        ("i64", "9223372036854775808"),
        ("u64", "1"),
        ("u64", "18446744073709551616"),
        ("f64", "1.5"),
        ("f64", -0.0),
        ("string", 1),
        ("bytes", "AA"),
        ("bytes", "AP8=\n"),
        ("bytes", "AP9="),
        ("array", {}),
        ("object", []),
        ("instant", {"seconds": 1, "nanos": 0}),
        ("duration", {"seconds": "1", "nanos": 1_000_000_000}),
        ("blob_ref", _blob(rng) | {"sha256": "0A" * 32}),
        ("blob_ref", _blob(rng) | {"size": 1}),
    ]
    kind, content = rng.choice(spellings)
    _become(tag, {"type": kind, "value": content})
    return spelled(rng, document)


def _huge_number(rng: Random) -> bytes:
    document, tag = _some_value(rng)
    _become(tag, {"type": "f64", "value": "%number%"})
    return spelled(rng, document).replace(b'"%number%"', rng.choice((b"1e999", b"9" * 5_000, b"-" + b"9" * 400, b"Infinity", b"01", b"1.")))


def _other_attempt(rng: Random) -> Node:
    return valid_envelope(rng) | {"attempt_id": rng.choice((SECRET, "at_1", ATTEMPT_ID.upper(), f"{ATTEMPT_ID} ", "", "\x00", 1, None))}


def _no_generation(rng: Random) -> Node:
    return valid_envelope(rng) | {"attempt_generation": rng.choice((0, -1, 2**53, 10**40, 1.0, "1", True, None, [1]))}


def _no_key(rng: Random) -> Node:
    return valid_envelope(rng) | {"idempotency_key": rng.choice(("", f"{SECRET}\x00", SECRET * 50, "é" * 129, 7, None, [SECRET]))}


def _wrong_failure_part(rng: Random) -> Node:
    document, link = _some_link(rng)
    wrong = [
        ("category", None),
        ("category", ""),
        ("category", f"{SECRET}\x00"),
        ("category", 3),
        ("message", None),
        ("message", [SECRET]),
        ("retryable", "false"),
        ("retryable", 0),
        ("retryable", None),
        ("details", None),
        ("details", [SECRET]),
        ("details", {SECRET: SECRET}),
        ("details", {SECRET: 3}),
        ("cause", None),
        ("cause", SECRET),
        ("cause", {}),
    ]
    name, content = rng.choice(wrong)
    link[name] = content
    return document


def _reserved_category(rng: Random) -> Node:
    document = _declared(rng)
    document["command"]["declare_failure"]["failure"]["category"] = rng.choice(("sdk.timeout", "sdk.", f"sdk.{SECRET}"))
    return document


def _long_message(rng: Random) -> Node:
    document, link = _some_link(rng)
    link["message"] = SECRET + "é" * (ERROR_MESSAGE_BYTES_MAX // 2)
    return document


def _long_category(rng: Random) -> Node:
    document, link = _some_link(rng)
    link["category"] = SECRET * 50
    return document


def _large_details(rng: Random) -> Node:
    document, link = _some_link(rng)
    link["details"] = {f"{SECRET}{index}": {"type": "string", "value": "x" * (ERROR_DETAILS_BYTES_MAX // 4)} for index in range(4)}
    return document


def _large_failure(rng: Random) -> Node:
    document = _declared(rng, causes=3)
    for link in _links(document["command"]["declare_failure"]["failure"]):
        link["details"] = {SECRET: {"type": "string", "value": "x" * (ERROR_DETAILS_BYTES_MAX * 3 // 4)}}
    return document


def _many_causes(rng: Random) -> Node:
    return _declared(rng, causes=rng.randrange(9, 20))


def _deep_value(rng: Random) -> Node:
    document, tag = _some_value(rng)
    for _ in range(rng.choice((65, 66, 100))):
        inner = dict(tag)
        _become(tag, {"type": "array", "value": [inner]} if rng.random() < 0.5 else {"type": "object", "value": {SECRET: inner}})
    return document


def _deep_body(rng: Random) -> bytes:
    opening, closing = rng.choice((("[", "]"), (f'{{"{SECRET}":', "}")))
    depth = rng.choice((200, 1_000, 50_000))
    inner = opening * depth + ("0" + closing * depth if rng.random() < 0.5 else "")
    return json.dumps(_envelope(rng, "%deep%")).replace('"%deep%"', inner).encode()


def _large_value(rng: Random) -> bytes:
    document, tag = _some_value(rng)
    _become(tag, {"type": "string", "value": SECRET + "x" * VALUE_BYTES_MAX})
    return json.dumps(document).encode()


def _large_body(rng: Random) -> bytes:
    body = json.dumps(valid_envelope(rng)).encode()
    return body + b" " * (OPERATOR_COMMAND_BYTES_MAX + 1 - len(body))


MUTATIONS: dict[str, tuple[Callable[[Random], Node | bytes], str]] = {
    "truncated": (_truncated, "invalid"),
    "garbled": (_garbled, "invalid"),
    "not unicode": (_not_unicode, "invalid"),
    "repeated member": (_repeated, "invalid"),
    "another version": (_other_version, "unsupported_version"),
    "no version": (_no_version, "invalid"),
    "missing member": (_missing, "invalid"),
    "unknown member": (_unknown_member, "invalid"),
    "unknown failure member": (_unknown_failure_member, "invalid"),
    "two commands": (_two_commands, "invalid"),
    "no command": (_no_command, "invalid"),
    "another variant's field": (_foreign_field, "invalid"),
    "positional": (_positional, "invalid"),
    "variant not named by text": (_unnamed_variant, "invalid"),
    "unknown kind of value": (_unknown_kind, "invalid"),
    "extra member of a value": (_extra_value_member, "invalid"),
    "extra field of a value": (_extra_value_field, "invalid"),
    "missing part of a value": (_missing_value_part, "invalid"),
    "second spelling of a value": (_second_spelling, "invalid"),
    "number beyond JSON": (_huge_number, "invalid"),
    "another attempt": (_other_attempt, "invalid"),
    "no generation": (_no_generation, "invalid"),
    "no key": (_no_key, "invalid"),
    "wrong part of a failure": (_wrong_failure_part, "invalid"),
    "reserved category": (_reserved_category, "invalid"),
    "long message": (_long_message, "limit_exceeded"),
    "long category": (_long_category, "limit_exceeded"),
    "large details": (_large_details, "limit_exceeded"),
    "large failure": (_large_failure, "limit_exceeded"),
    "many causes": (_many_causes, "limit_exceeded"),
    "deep value": (_deep_value, "limit_exceeded"),
    "deep body": (_deep_body, "limit_exceeded"),
    "large value": (_large_value, "limit_exceeded"),
    "large body": (_large_body, "limit_exceeded"),
}
