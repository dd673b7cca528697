"""Canonical JSON against the reference implementation and the examples of RFC 8785."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from ryusen_protocol import canonical
from ryusen_protocol.canonical import NotCanonical

_text = st.text(st.characters(exclude_categories=["Cs"]))
_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner) | st.dictionaries(_text, inner),
    max_leaves=30,
)


@pytest.mark.req("VAL-05")
@settings(max_examples=300, deadline=None)
@given(_plain)
def test_equals_the_reference(document: Any) -> None:
    assert canonical.jcs(document) == rfc8785.dumps(document)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(st.sampled_from("a\uffff\ue000\U00010000\U0010ffffé"), max_size=3), st.none()))
def test_members_are_sorted_by_utf_16_code_units(document: Any) -> None:
    assert canonical.jcs(document) == rfc8785.dumps(document)


def test_example_of_the_rfc() -> None:
    document = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '€$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical.jcs(document) == expected.encode()


@pytest.mark.parametrize(
    "document",
    [float("nan"), float("-inf"), 2**53, -(2**53), {1: 2}, {"a": {1}}, b"a", "\ud800", ["\udfff"], {"\ud800": 1}, object()],
    ids=lambda document: type(document).__name__,
)
def test_what_has_no_canonical_form_is_refused(document: object) -> None:
    with pytest.raises(NotCanonical):
        canonical.jcs(document)


def test_endless_document_is_refused() -> None:
    document: list[object] = []
    document.append(document)
    with pytest.raises(NotCanonical, match="deeper"):
        canonical.jcs(document)


class _Text(str):
    __slots__ = ()


class _Count(int):
    pass


def test_subclasses_are_written_as_their_base() -> None:
    assert canonical.jcs({_Text("b"): _Text("x"), "a": [_Count(5), enum.IntEnum("N", "ONE").ONE]}) == b'{"a":[5,1],"b":"x"}'


def test_digest() -> None:
    assert canonical.sha256_digest(b"abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
