"""Portable values: round trips, the one form, refusals with their path, and the limits."""

from __future__ import annotations

import enum
import json
import math
import sys
import tracemalloc
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from ryusen_protocol import values
from ryusen_protocol.limits import NESTING_MAX, VALUE_BYTES_MAX
from ryusen_protocol.values import BlobRef, Duration, Instant, InvalidValue, Value, ValueTooLarge

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

_seconds = st.integers(values.I64_MIN, values.I64_MAX)
_nanos = st.integers(0, values.NANOS_MAX)
_text = st.text(st.characters(exclude_categories=["Cs"]))
_hex = st.text("0123456789abcdef", min_size=64, max_size=64)
_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(values.I64_MIN, values.U64_MAX),
    st.floats(allow_nan=False, allow_infinity=False),
    _text,
    st.binary(),
    st.builds(Instant, _seconds, _nanos),
    st.builds(Duration, _seconds, _nanos),
    st.builds(BlobRef, _text, st.integers(0, values.U64_MAX), _hex, _text),
)
portable = st.recursive(_leaves, lambda inner: st.lists(inner) | st.dictionaries(_text, inner), max_leaves=30)


def _same(left: Any, right: Any) -> bool:
    """Equality that also tells kinds and the sign of zero apart."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return left == right


@pytest.mark.req("VAL-01", "VAL-04")
@settings(max_examples=200, deadline=None)
@given(portable)
def test_values_come_back_as_they_went(value: Value) -> None:
    assert _same(values.decode(values.encode(value)), value)


@pytest.mark.req("VAL-05")
@settings(max_examples=200, deadline=None)
@given(portable)
def test_canonical_bytes_are_rfc_8785(value: Value) -> None:
    data = values.encode(value)
    # An independent writer, given the same document in another order, must agree to the byte.
    assert rfc8785.dumps(_as_doubles(json.loads(data))) == data
    scrambled = json.dumps(_reversed(json.loads(data)), indent=1)
    assert values.canonicalize(scrambled.encode()) == data


def _as_doubles(node: Any) -> Any:
    """JSON numbers as doubles where a double is meant, so that the independent writer sees what RFC 8785 sees."""
    if isinstance(node, dict):
        if node.get("type") == "f64" and isinstance(node["value"], int) and not isinstance(node["value"], bool):
            return {"type": "f64", "value": float(node["value"])}
        return {name: _as_doubles(content) for name, content in node.items()}
    return [_as_doubles(item) for item in node] if isinstance(node, list) else node


def _reversed(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _reversed(node[name]) for name in reversed(node)}
    return [_reversed(item) for item in node] if isinstance(node, list) else node


@pytest.mark.req("VAL-01")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**53 + 1, b'{"type":"i64","value":"9007199254740993"}'),
        (2**63 - 1, b'{"type":"i64","value":"9223372036854775807"}'),
        (2**63, b'{"type":"u64","value":"9223372036854775808"}'),
        (2**64 - 1, b'{"type":"u64","value":"18446744073709551615"}'),
        (-(2**63), b'{"type":"i64","value":"-9223372036854775808"}'),
        (True, b'{"type":"bool","value":true}'),
        (1, b'{"type":"i64","value":"1"}'),
        (1.0, b'{"type":"f64","value":1}'),
        (-0.0, b'{"type":"f64","value":"-0"}'),
        (0.0, b'{"type":"f64","value":0}'),
        ("1", b'{"type":"string","value":"1"}'),
        (b"1", b'{"type":"bytes","value":"MQ=="}'),
        ({}, b'{"type":"object","value":{}}'),
        ([], b'{"type":"array","value":[]}'),
        (Instant(-1, 5), b'{"type":"instant","value":{"nanos":5,"seconds":"-1"}}'),
        (Duration(-1, 5), b'{"type":"duration","value":{"nanos":5,"seconds":"-1"}}'),
    ],
)
def test_confusable_values_stay_apart(value: Value, expected: bytes) -> None:
    assert values.encode(value) == expected
    assert _same(values.decode(expected), value)


@pytest.mark.req("VAL-04")
def test_every_byte_comes_back() -> None:
    every = bytes(range(256))
    for data in (every, b"", every * 3 + b"\x00", "grüße".encode()):
        back = values.decode(values.encode(data))
        assert type(back) is bytes
        assert back == data
    assert type(values.decode(values.encode("text"))) is str


def test_text_is_never_normalized() -> None:
    for text in ("\u00e9", "e\u0301", "😀", "\x00", "\u2028"):
        assert values.decode(values.encode(text)) == text


class _Colour(enum.IntEnum):
    RED = 1


class _Text(str):
    __slots__ = ()


class _Flagged(float):
    pass


class _Listing(list[int]):
    pass


REFUSED = [
    (1,),
    {1},
    frozenset(),
    Decimal("1.5"),
    UUID(int=1),
    datetime(2024, 1, 1, tzinfo=UTC),
    date(2024, 1, 1),
    timedelta(1),
    _Colour.RED,
    _Text("a"),
    _Flagged(1.0),
    _Listing([1]),
    OrderedDict(a=1),
    bytearray(b"a"),
    memoryview(b"a"),
    object(),
    lambda: None,
    int,
    1j,
    float("nan"),
    float("inf"),
    float("-inf"),
    2**64,
    -(2**63) - 1,
    10**5000,
    "\ud800",
    "a\udfffb",
    {1: "a"},
    {None: "a"},
    {b"a": 1},
    {_Text("a"): 1},
    {"\ud800": 1},
    Instant(2**63, 0),
    Instant(0, 10**9),
    Instant(0, -1),
    Instant(True, 0),
    Duration(0, True),
    BlobRef("u", -1, EMPTY_SHA256, "a/b"),
    BlobRef("u", 2**64, EMPTY_SHA256, "a/b"),
    BlobRef("u", 1, EMPTY_SHA256.upper(), "a/b"),
    BlobRef("\ud800", 1, EMPTY_SHA256, "a/b"),
]


@pytest.mark.req("VAL-03")
@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_unportable_values_are_refused_where_they_stand(value: Any) -> None:
    with pytest.raises(InvalidValue) as bare:
        values.encode(value)
    assert bare.value.path == "$"
    with pytest.raises(InvalidValue) as nested:
        values.encode({"items": [None, {"price": value}]})
    assert nested.value.path == "$.items[1].price"
    assert nested.value.why == bare.value.why
    assert str(nested.value).startswith("$.items[1].price: ")
    str(nested.value).encode()  # a message about broken text is itself sound


@pytest.mark.req("VAL-03")
def test_refusal_says_what_to_do() -> None:
    with pytest.raises(InvalidValue, match=r"^\$\.pair: a tuple is not a portable value; convert it to a list$"):
        values.encode({"pair": (1, 2)})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("price", ".price"),
        ("größe", ".größe"),
        ("a b", '["a b"]'),
        ("", '[""]'),
        ('"', r'["\""]'),
        ("0", '["0"]'),
        ("k" * 100, '["' + "k" * 64 + '…"]'),
    ],
)
def test_path_quotes_what_is_no_identifier(key: str, step: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        values.encode({key: [math.nan]})
    assert refused.value.path == f"${step}[0]"


@pytest.mark.req("VAL-13")
@pytest.mark.parametrize("kind", ["array", "object"])
def test_nesting_limit(kind: str) -> None:
    def nested(levels: int) -> Any:
        value: Any = None
        for _ in range(levels):
            value = [value] if kind == "array" else {"a": value}
        return value

    assert values.decode(values.encode(nested(NESTING_MAX))) == nested(NESTING_MAX)
    with pytest.raises(ValueTooLarge, match="64 levels"):
        values.encode(nested(NESTING_MAX + 1))


@pytest.mark.req("VAL-13")
def test_size_limit() -> None:
    fits = "x" * (VALUE_BYTES_MAX - len('{"type":"string","value":""}'))
    assert len(values.encode(fits)) == VALUE_BYTES_MAX
    with pytest.raises(ValueTooLarge, match="2 MiB"):
        values.encode(fits + "x")
    # What takes little memory here may still be large once it is written.
    with pytest.raises(ValueTooLarge, match="2 MiB"):
        values.encode("\x00" * (VALUE_BYTES_MAX // 4))
    with pytest.raises(ValueTooLarge, match="2 MiB"):
        values.encode(bytes(VALUE_BYTES_MAX * 3 // 4))


def test_shared_containers_cannot_explode() -> None:
    value: Any = ["x" * 100]
    for _ in range(NESTING_MAX - 1):
        value = [value] * 10
    with pytest.raises(ValueTooLarge):
        values.encode(value)


@pytest.mark.parametrize("kind", ["array", "object"])
def test_refusing_a_large_value_takes_no_more_memory_than_writing_one(kind: str) -> None:
    value: Any = None
    for _ in range(6):
        value = [value] * 10 if kind == "array" else dict.fromkeys("abcdefghij", value)
    tracemalloc.start()
    try:
        with pytest.raises(ValueTooLarge):
            values.encode(value)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_endless_value_is_refused() -> None:
    value: Any = []
    value.append(value)
    with pytest.raises(ValueTooLarge):
        values.encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 5_000 + b"]" * 5_000,
        b'{"type":"array","value":[' * 5_000,
        b'{"type":"null","x":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
        b'{"type":"string","value":"\\' + b'"[' * 5_000,
        b"[" * 1_000_000,
    ],
    ids=["closed", "unclosed", "unknown member", "after an escape", "a million"],
)
def test_hostile_depth_is_refused_without_recursion(data: bytes) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # nothing may lean on the interpreter's own limit
    try:
        with pytest.raises(InvalidValue):
            values.decode(data)
    finally:
        sys.setrecursionlimit(limit)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = values.decode(data)
    except InvalidValue:
        return
    assert _same(values.decode(values.encode(value)), value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["i64", "f64", "0", "-0", "Zg=="]),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["type", "value", "nanos", "seconds", "a"]), inner)
        | st.fixed_dictionaries({"type": st.sampled_from(["array", "object", "f64", "bytes", "instant"]), "value": inner})
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(_json)
def test_any_json_is_a_value_or_refused(document: Any) -> None:
    try:
        canonical = values.canonicalize(json.dumps(document).encode())
    except InvalidValue:
        return
    assert values.canonicalize(canonical) == canonical


def test_digest_names_its_algorithm() -> None:
    assert values.digest(b"") == "sha256:" + EMPTY_SHA256
