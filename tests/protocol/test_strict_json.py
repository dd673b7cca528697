"""The gate for JSON text from outside: what it takes, and that everything else is told, never raised otherwise."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ryusen_protocol import strict_json
from ryusen_protocol.strict_json import JsonRefused

MAX = 4096


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a":1,"a":2}', 'the member "a" appears twice'),
        (b'[{"x":{"b":1,"c":[],"\\u0062":2}}]', 'the member "b" appears twice'),
        (b'{"a:":1,"a:":2}', 'the member "a:" appears twice'),
        (b"NaN", "NaN is not a JSON number"),
        (b"[Infinity]", "Infinity is not a JSON number"),
        (b'{"a":-Infinity}', "-Infinity is not a JSON number"),
        (b"1e999", "number out of range"),
        (b"-1e999", "number out of range"),
        (b"1" * 309, "308 digits"),
        (b"[-" + b"9" * 3_000 + b"]", "308 digits"),
        (b"1" * 4_096, "308 digits"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udc00":1}', "lone surrogate"),
        (b'"\\ude00\\ud83d"', "lone surrogate"),
        (b'"\xed\xa0\x80"', "not valid UTF-8 at byte 1"),
        (b'"\xff"', "not valid UTF-8 at byte 1"),
        ('"é"'.encode("latin-1"), "not valid UTF-8"),
        ("[1]".encode("utf-16"), "not valid UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[1,]", "line 1, column"),
        (b'{"a":\n tru}', "line 2, column 2"),
        (b"{} {}", "column 4"),
        (b"01", "not valid JSON"),
        (b'"\x01"', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_its_reason(data: bytes, why: str) -> None:
    for gate in (strict_json.loads, strict_json.check):
        with pytest.raises(JsonRefused) as refused:
            gate(data, bytes_max=MAX)
        assert why in refused.value.why
        assert refused.value.code == "invalid"


@pytest.mark.parametrize(
    ("data", "document"),
    [
        (b"null", None),
        (b'"\\ud83d\\ude00"', "😀"),
        ('{"é":"é"}'.encode(), {"é": "é"}),
        (b'{"a":{"b":1},"c":[{"b":2},{"b":3}]}', {"a": {"b": 1}, "c": [{"b": 2}, {"b": 3}]}),
        (b'{"a":"{:[\\"\\\\","b":"\\\\\\":"}', {"a": '{:["\\', "b": '\\":'}),
        (b'["' + b"7" * 400 + b'"]', ["7" * 400]),
        (b"9" * 308, 10**308 - 1),
        (b"-0.0", -0.0),
        (b"18446744073709551616", 2**64),
        (b'"\\u0000"', "\x00"),
    ],
)
def test_strict_json_is_read(data: bytes, document: object) -> None:
    assert strict_json.loads(data, bytes_max=MAX) == document
    strict_json.check(data, bytes_max=MAX)


def test_size_is_looked_at_first() -> None:
    assert strict_json.loads(b"[1]", bytes_max=3) == [1]
    with pytest.raises(JsonRefused, match="at most 3") as refused:
        strict_json.loads(b"not json", bytes_max=3)
    assert refused.value.code == "limit_exceeded"


@pytest.mark.parametrize("nest", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_limit(nest: tuple[bytes, bytes]) -> None:
    def nested(levels: int) -> bytes:
        return nest[0] * levels + (b"" if nest[0] == b"[" else b"1") + nest[1] * levels

    strict_json.loads(nested(64), bytes_max=MAX)
    strict_json.loads(nested(3), bytes_max=MAX, nesting_max=3)
    for data, most in ((nested(65), 64), (nested(4), 3), (nest[0] * 65, 64)):
        with pytest.raises(JsonRefused, match="nested deeper") as refused:
            strict_json.loads(data, bytes_max=MAX, nesting_max=most)
        assert refused.value.code == "limit_exceeded"


@pytest.mark.parametrize(
    "data",
    [b"[" * 2_000_000, b'{"":' * 500_000, b'"\\u0022' + b"[" * 100_000, b'{"a":"\\\\"' + b",[" * 100_000, b'[["\\""],' * 100_000],
    ids=["arrays", "objects", "open text", "malformed", "unclosed"],
)
def test_hostile_depth_never_recurses(data: bytes) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # a parser let loose on this would overflow the stack of the process
    try:
        with pytest.raises(JsonRefused):
            strict_json.loads(data, bytes_max=len(data))
    finally:
        sys.setrecursionlimit(limit)


def _strict(data: bytes) -> tuple[bool, Any]:
    """The same rules, said once more with the standard library and no thought of speed."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        document = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=constant)
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False, None
    return True, document


_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(_documents, st.booleans(), st.sampled_from(["", "NaN", '"', "[", "\\", ",", ":"]), st.integers(0, 100))
@example({"a\n": 1}, True, "", 0)
@example({'\\"': [":", "[{"]}, True, "", 0)
def test_agrees_with_a_plain_reading(document: Any, ascii_only: bool, inserted: str, at: int) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only)
    data = (text[:at] + inserted + text[at:]).encode("utf-8", "surrogatepass")
    _agree(data)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('[]{}:,"\\u0062a1eE-+. \n\x00'), max_size=30))
@example('{"a":1,"\\u0061":2}')
@example('{"b":1,"b\\n":2}')
def test_agrees_with_a_plain_reading_of_any_text(text: str) -> None:
    _agree(text.encode())


def _agree(data: bytes) -> None:
    taken, document = _strict(data)
    try:
        read = strict_json.loads(data, bytes_max=1 << 20)
    except JsonRefused:
        assert not taken
        return
    assert taken
    assert repr(read) == repr(document) or read == document


@settings(max_examples=200, deadline=None)
@given(_documents)
def test_depth_is_exact(document: Any) -> None:
    def depth(node: Any) -> int:
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        return 0 if children is None else 1 + max(map(depth, children), default=0)

    data = json.dumps(document).encode()
    assert strict_json.deeper_than(data, depth(document) - 1) or depth(document) == 0
    assert not strict_json.deeper_than(data, depth(document))
