"""The event stream's format: whatever pieces the bytes come in, the same events come out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol.client import Api
from ryusen_protocol.sse import EVENT_BYTES_MAX, StreamBroken, StreamEvent, StreamParser, encode_event

SENT = (
    encode_event("change", '{"name":"ä"}'.encode(), 7)
    + b": a comment\n\n"
    + encode_event("heartbeat", b"{}")
    + b"retry: 5\r\nevent: change\r\ndata: 1\r\ndata: 2\r\nid: 9\r\n\r\n"
    + b"data:bare\n\nevent: unfinished\ndata: x\n"
)
READ = [
    StreamEvent("change", '{"name":"ä"}'.encode(), "7"),
    StreamEvent("heartbeat", b"{}", "7"),
    StreamEvent("change", b"1\n2", "9"),
    StreamEvent("message", b"bare", "9"),
]


@given(st.lists(st.integers(0, len(SENT)), max_size=12))
def test_any_pieces_give_the_same_events(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(SENT)]
    parser = StreamParser()
    assert [event for start, end in itertools.pairwise(bounds) for event in parser.feed(SENT[start:end])] == READ


def test_an_event_beyond_all_bounds_is_no_event() -> None:
    parser = StreamParser()
    for _ in range(2):
        parser.feed(b"data: " + b"x" * (EVENT_BYTES_MAX // 2) + b"\n")
    with pytest.raises(StreamBroken, match="larger"):
        parser.feed(b"y")


def test_the_request_names_workspace_position_and_token() -> None:
    request = Api("a/b", "t0k").stream(after=12)
    assert request.target == "/v1/workspaces/a%2Fb/stream?after=12"
    assert request.headers["authorization"] == "Bearer t0k"
    assert Api().stream().target == "/v1/workspaces/default/stream"
