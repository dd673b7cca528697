"""Lines of a callback: bounded whatever comes, each once, and never a reason to lose an answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol import codec
from ryusen_protocol.codec import MalformedDocument
from ryusen_protocol.limits import LOG_BYTES_MAX
from ryusen_protocol.log_lines import CUT_LEVEL, LINE_BYTES_MAX, BoundedLines, fitted, merged
from ryusen_protocol.outcome import LogLine, Outcome

LINES = st.lists(st.builds(LogLine, st.integers(0, 3), st.sampled_from(["stdout", "info"]), st.text(max_size=3)), max_size=8)


def lines(*texts: str, at_ms: int = 1) -> list[LogLine]:
    return [LogLine(at_ms, "stdout", text) for text in texts]


@pytest.mark.parametrize("text", ["x" * 100, "\x00" * 3_000, "\U0001f600" * 9_000, '"\\' * 20_000])
def test_the_first_and_the_last_stay_and_the_gap_is_marked(text: str) -> None:
    kept = BoundedLines(LogLine(number, "stdout", f"{number} {text}") for number in range(3_000)).lines()
    assert len(msgspec.json.encode(kept)) <= LOG_BYTES_MAX
    assert all(len(msgspec.json.encode(line)) <= LINE_BYTES_MAX for line in kept)
    assert kept[0].text.startswith("0 ")
    assert kept[-1].text.startswith("2999 ")
    assert [line.level for line in kept].count(CUT_LEVEL) == 1
    assert len(msgspec.json.encode(kept)) > LOG_BYTES_MAX // 2, "the room is used"


def test_a_long_line_and_a_long_level_are_cut_visibly() -> None:
    line = fitted(LogLine(1, "l" * 500, "y" * 20_000))
    assert line.text.endswith("characters cut]")
    assert line.text.startswith("yyyy")
    assert len(line.level) == 32
    assert fitted(LogLine(1, "info", "y" * 5_000)) == LogLine(1, "info", "y" * 5_000)


def test_a_line_that_was_told_before_is_not_told_again_and_one_that_was_lost_is() -> None:
    assert merged(lines("a", "b"), lines("a", "b", "c")) == lines("a", "b", "c")
    assert merged(lines("a"), lines("a", "a")) == lines("a", "a")
    assert merged(lines("a"), lines("b")) == lines("a", "b")
    assert merged(lines("a"), []) == lines("a")
    late = [*lines("a", at_ms=1), *lines("c", at_ms=3)]
    assert merged(late, [*lines("a", at_ms=1), *lines("b", at_ms=2), *lines("c", at_ms=3)])[1].text == "b"


@given(LINES, LINES)
def test_merging_is_complete_and_does_it_once(held: list[LogLine], told: list[LogLine]) -> None:
    both = merged(held, told)
    assert merged(both, told) == both
    for line in {*held, *told}:
        assert both.count(line) == max(held.count(line), told.count(line))


def outcome(logs: Any) -> bytes:
    done = {"type": "succeeded", "result": {"type": "null"}, "attempt": 1, "attempt_generation": 1}
    document = {"protocol_version": 1, "type": "outcome", "request_id": "rq", "run_id": "rn", "outcome": done, "logs": logs}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "logs", ["text", 7, None, [1], [{}], [{"at_ms": "x", "level": "a", "text": "b"}], [{"at_ms": 2**60, "level": "", "text": ""}]]
)
def test_lines_that_cannot_be_read_cost_no_answer(logs: Any) -> None:
    for decode in (codec.decode_worker_frame, codec.decode_outcome):
        read = decode(outcome(logs))
        assert isinstance(read, Outcome)
        assert read.request_id == "rq"
        assert read.logs == []


def test_an_answer_that_cannot_be_read_stays_unread_whatever_its_lines() -> None:
    document = json.loads(outcome("text"))
    document["outcome"]["attempt"] = "one"
    with pytest.raises(MalformedDocument):
        codec.decode_outcome(json.dumps(document).encode())
    with pytest.raises(MalformedDocument):
        codec.decode_worker_frame(b'{"protocol_version":1,"type":"log","request_id":"rq","lines":"text"}')
