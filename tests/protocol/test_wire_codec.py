"""Frames and documents: what cannot be read is told by kind and name, and no input raises anything else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ryusen_protocol import codec
from ryusen_protocol.codec import MalformedDocument, UnknownVariant, UnsupportedProtocolVersion
from ryusen_protocol.frames import Draining, Heartbeat, OutcomeAck
from ryusen_protocol.ids import RequestId, RunId
from ryusen_protocol.outcome import Outcome, Succeeded

HOSTILE: list[str | bytes] = [
    "",
    b"",
    "\ud800",
    b"\xff",
    b"[" * 5_000,
    b'{"type":"draining","protocol_version":1,"x":' + b"[" * 100_000,
    b'{"protocol_version":' + b"9" * 5_000 + b',"type":"draining"}',
    b'{"protocol_version":1e999,"type":"draining"}',
    b'{"protocol_version":1,"type":"heartbeat","request_ids":["\\ud800"]}',
    b'{"protocol_version":1,"type":"heartbeat","request_ids":[' + b"1" * 5_000 + b"]}",
    b"null",
    b'{"protocol_version":NaN}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: ascii(data)[:30])
@pytest.mark.parametrize("decode", [codec.decode_worker_frame, codec.decode_server_frame, codec.decode_outcome, codec.decode_invocation])
def test_hostile_text_is_malformed(decode: Any, data: str | bytes) -> None:
    with pytest.raises(MalformedDocument) as refused:
        decode(data)
    assert refused.value.why
    assert len(refused.value.why) < 300


@pytest.mark.req("PRO-22")
def test_unknown_frame_type_is_named_and_clipped() -> None:
    with pytest.raises(UnknownVariant, match=r"unknown variant 'pause' at \$\.type") as refused:
        codec.decode_worker_frame('{"protocol_version":1,"type":"pause","until":5}')
    assert (refused.value.variant, refused.value.at) == ("pause", "$.type")
    with pytest.raises(UnknownVariant) as long:
        codec.decode_worker_frame(json.dumps({"protocol_version": 1, "type": "z" * 10_000}))
    assert long.value.variant == "z" * 64


@pytest.mark.req("PRO-20")
@pytest.mark.parametrize("version", [0, 2, -1, 2**53 - 1])
def test_other_versions_are_told_apart_from_malformed(version: int) -> None:
    for document in ({"type": "draining"}, {"type": "a frame of the future"}, {"kind": 1}):
        with pytest.raises(UnsupportedProtocolVersion) as refused:
            codec.decode_worker_frame(json.dumps({"protocol_version": version, **document}))
        assert refused.value.found == version


def test_integers_are_bounded() -> None:
    ack = {"protocol_version": 1, "type": "outcome", "request_id": "r", "run_id": "n"}
    for attempt in (2**53, 2**64, 10**100, -(2**53)):
        body = {"type": "succeeded", "result": {"type": "null"}, "attempt": attempt, "attempt_generation": 1}
        with pytest.raises(MalformedDocument, match="attempt"):
            codec.decode_outcome(json.dumps({**ack, "outcome": body}))


def test_values_travel_as_their_exact_text() -> None:
    text = b'{ "value":"1.0" ,"type":"f64","x":[1e400] }'
    outcome = Outcome(1, RequestId("rq"), RunId("rn"), Succeeded(msgspec.Raw(text), 1, 1))
    read = codec.decode_worker_frame(codec.encode(outcome))
    assert isinstance(read, Outcome)
    assert isinstance(read.outcome, Succeeded)
    assert bytes(read.outcome.result) == text


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ('{"type":"heartbeat","x":"\\ud800"}', "lone surrogate"),
        (b'{"type":"\xff"}', "not valid UTF-8 at byte 9"),
        ('{"type":"draining",}', "line 1, column 20"),
        ("", "not valid JSON"),
        ("[" * 5_000, "Expected `object`"),
    ],
)
def test_reason_says_what_is_wrong(data: str | bytes, why: str) -> None:
    with pytest.raises(MalformedDocument) as refused:
        codec.decode_worker_frame(data)
    assert why in refused.value.why


def test_text_and_bytes_read_alike() -> None:
    for frame in (Draining(1), Heartbeat(1, [RequestId("é😀")])):
        data = codec.encode(frame)
        assert codec.decode_worker_frame(data) == codec.decode_worker_frame(data.decode()) == frame


def test_text_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(MalformedDocument, match="lone surrogate"):
        codec.encode(OutcomeAck(1, RequestId("rq"), "malformed", "\ud800"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100) | st.text(st.characters(), max_size=100))
def test_any_text_is_a_frame_or_malformed(data: str | bytes) -> None:
    for decode in (codec.decode_worker_frame, codec.decode_server_frame):
        with pytest.raises(MalformedDocument):
            decode(data)


def test_an_outcome_whose_logs_and_more_cannot_be_read_is_malformed() -> None:
    data = codec.encode(Outcome(1, RequestId("rq_1"), RunId("rn_1"), Succeeded(msgspec.Raw(b'{"type":"null"}'), 1, 1)))
    broken = data[:-1] + b',"logs":[{"at_ms":"yesterday","level":3\xbd]}'
    for decode in (codec.decode_outcome, codec.decode_worker_frame):
        with pytest.raises(MalformedDocument):
            decode(broken)
