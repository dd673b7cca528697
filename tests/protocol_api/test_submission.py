"""What a submitted event means, and what is refused."""

import json
from typing import Any

import msgspec
import pytest

from ryusen_protocol.api import EventSubmission
from ryusen_protocol.limits import PAYLOAD_BYTES_MAX
from ryusen_protocol.problems import Problem
from ryusen_protocol.submission import strict_base64, submitted_payload


def read(body: bytes) -> bytes | Problem:
    return submitted_payload(msgspec.json.decode(body, type=EventSubmission))


def submit(**members: Any) -> bytes | Problem:
    return read(json.dumps({"name": "order/placed"} | members).encode())


def test_the_payload_is_the_exact_text_of_data():
    assert read(b'{"name": "e", "data" :  {"a":  1.0, "a2":"\\u00fc"} }') == b'{"a":  1.0, "a2":"\\u00fc"}'
    assert read(b'{"name": "e", "data": null}') == b"null"


def test_the_payload_is_the_decoded_base64():
    assert submit(payload_base64="AP8=") == b"\x00\xff"
    assert submit(payload_base64="") == b""


@pytest.mark.parametrize(
    ("members", "code", "path"),
    [
        ({}, "invalid", msgspec.UNSET),
        ({"data": 1, "payload_base64": ""}, "invalid", msgspec.UNSET),
        ({"payload_base64": "AP8"}, "invalid", "$.payload_base64"),
        ({"payload_base64": "AP9="}, "invalid", "$.payload_base64"),
        ({"payload_base64": "AP8=\n"}, "invalid", "$.payload_base64"),
        ({"payload_base64": "ü"}, "invalid", "$.payload_base64"),
        ({"data": 1, "name": "ü" * 129}, "limit_exceeded", "$.name"),
        ({"data": 1, "idempotency_key": "ü" * 129}, "limit_exceeded", "$.idempotency_key"),
        ({"data": 1, "metadata": {"k": "ü" * 513}}, "limit_exceeded", "$.metadata"),
        ({"data": 1, "metadata": {"ü" * 513: ""}}, "limit_exceeded", "$.metadata"),
        ({"data": "x" * (PAYLOAD_BYTES_MAX - 1)}, "limit_exceeded", "$.data"),
    ],
)
def test_refusals_name_code_and_place(members: dict[str, Any], code: str, path: object):
    refusal = submit(**members)
    assert isinstance(refusal, Problem)
    assert (refusal.code, refusal.path) == (code, path)


def test_bounds_are_reached_exactly():
    assert isinstance(submit(data="x" * (PAYLOAD_BYTES_MAX - 2)), bytes)
    assert isinstance(submit(data=1, name="ü" * 128, idempotency_key="k" * 256), bytes)
    assert isinstance(submit(data=1, metadata={str(number): "v" * 1024 for number in range(64)}), bytes)


@pytest.mark.parametrize(
    "members",
    [
        {"name": ""},
        {"name": "a\x00"},
        {"name": "n" * 257},
        {"metadata": {str(number): "" for number in range(65)}},
        {"idempotency_key": ""},
    ],
)
def test_the_type_refuses_what_it_can(members: dict[str, Any]):
    with pytest.raises(msgspec.ValidationError):
        submit(data=1, **members)


@pytest.mark.req("ING-10")
def test_metadata_maps_text_to_text_only():
    for value in (1, None, True, ["v"], {"v": "v"}):
        with pytest.raises(msgspec.ValidationError, match=r"metadata"):
            submit(data=1, metadata={"k": value})
    assert submit(data=1, metadata={"k": "v", "empty": ""}) == b"1"


def test_base64_has_one_form():
    assert strict_base64("AP8=") == b"\x00\xff"
    assert strict_base64("AP8") is None
    assert strict_base64("_w==") is None
