"""Errors over the limits are cut, marked, and never fail."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ryusen_protocol import values
from ryusen_protocol.clipping import CUT_DETAIL, clip_error, minimal_error
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.limits import (
    ERROR_BYTES_MAX,
    ERROR_CAUSE_DEPTH_MAX,
    ERROR_DETAILS_BYTES_MAX,
    ERROR_MESSAGE_BYTES_MAX,
    REPLAY_RESERVE_BYTES,
)


def _size(part: object) -> int:
    return len(msgspec.json.encode(part))


def _chain(record: ErrorRecord) -> list[ErrorRecord]:
    links = [record]
    while links[-1].cause is not None:
        links.append(links[-1].cause)
    return links


def _caused(depth: int, **members: object) -> ErrorRecord:
    record = ErrorRecord("c", "the root", retryable=True)
    for level in range(depth):
        record = msgspec.structs.replace(ErrorRecord("c", f"level {level}", retryable=False, cause=record), **members)
    return record


def _detail(bytes_count: int) -> msgspec.Raw:
    return msgspec.Raw(values.encode("y" * bytes_count))


def test_record_within_the_limits_is_untouched() -> None:
    record = ErrorRecord("a.B", "x" * 100, retryable=True, details={"n": _detail(10)}, stack="s")
    assert clip_error(record) is record
    large = ErrorRecord("a.B", "x" * ERROR_MESSAGE_BYTES_MAX, retryable=True, details={"n": _detail(40_000)}, stack="s" * 9_000)
    assert clip_error(large) == large
    assert clip_error(_caused(ERROR_CAUSE_DEPTH_MAX)) == _caused(ERROR_CAUSE_DEPTH_MAX)


def test_long_message_is_cut_at_a_character_and_says_how_long_it_was() -> None:
    for text in ("x" * (ERROR_MESSAGE_BYTES_MAX + 1), "é" * ERROR_MESSAGE_BYTES_MAX, "😀" * ERROR_MESSAGE_BYTES_MAX):
        clipped = clip_error(ErrorRecord("a", text, retryable=True))
        data = clipped.message.encode()
        assert ERROR_MESSAGE_BYTES_MAX - 4 < len(data) <= ERROR_MESSAGE_BYTES_MAX
        assert clipped.message.endswith(f"… [cut, {len(text.encode())} bytes]")
        assert clipped.message.startswith(text[:100])
        assert clipped.retryable


def test_details_are_kept_whole_or_counted_as_missing() -> None:
    record = ErrorRecord("a", "m", retryable=False, details={"first": _detail(10), "huge": _detail(70_000), "last": _detail(10)})
    details = clip_error(record).details
    assert details is not None
    assert list(details) == ["first", "last", CUT_DETAIL]
    assert values.decode(details["last"]) == "y" * 10
    assert values.decode(details[CUT_DETAIL]) == "1 details cut, over the size limit"
    assert _size(details) <= ERROR_DETAILS_BYTES_MAX


@pytest.mark.parametrize("depth", [ERROR_CAUSE_DEPTH_MAX + 1, 5_000])
def test_deep_causes_are_cut_with_a_mark(depth: int) -> None:
    links = _chain(clip_error(_caused(depth)))
    assert len(links) == ERROR_CAUSE_DEPTH_MAX + 1
    assert links[-1].message.endswith(" [further causes cut]")
    assert not links[-2].message.endswith("cut]")


def test_stack_keeps_its_end() -> None:
    clipped = clip_error(ErrorRecord("a", "m", retryable=True, stack="é" * 100_000 + "the failing frame"))
    assert clipped.stack is not None
    assert clipped.stack.startswith("[cut, 200017 bytes] …\n")
    assert clipped.stack.endswith("the failing frame")


def test_whole_record_gives_up_stacks_then_details_of_causes_then_causes() -> None:
    stacks = clip_error(_caused(8, stack="s" * 30_000, details={"d": _detail(5_000)}))
    assert _size(stacks) <= ERROR_BYTES_MAX
    assert [link.stack is not None for link in _chain(stacks)] == [True] + [False] * 8
    assert len(_chain(stacks)) == 9

    details = clip_error(_caused(8, details={"d": _detail(60_000)}))
    assert _size(details) <= ERROR_BYTES_MAX
    assert len(_chain(details)) == 9
    assert details.details is not None
    assert "d" in details.details
    deepest = _chain(details)[-2].details
    assert deepest is not None
    assert list(deepest) == [CUT_DETAIL]

    causes = clip_error(_caused(8, message="\x00" * ERROR_MESSAGE_BYTES_MAX))
    assert _size(causes) <= ERROR_BYTES_MAX
    assert len(_chain(causes)) == 2
    assert _chain(causes)[-1].message.endswith(" [further causes cut]")


def test_lone_surrogates_can_be_reported() -> None:
    clipped = clip_error(ErrorRecord("a\udcff", "bad \ud800", retryable=True, details={"\ud800": _detail(1)}, stack="\ud800"))
    assert (clipped.category, clipped.message, clipped.stack) == ("a\\udcff", "bad \\ud800", "\\ud800")
    assert _size(clipped)


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00" * 100_000, "😀" * 50_000, "short", "\ud800" * 9_000])
def test_minimal_error_fits_the_reserve(text: str) -> None:
    record = ErrorRecord("c" * 1_000, text, retryable=True, details={"d": _detail(10)}, cause=_caused(3), stack="s" * 10_000)
    reduced = minimal_error(record)
    assert _size({"failure": reduced}) <= REPLAY_RESERVE_BYTES
    assert (reduced.details, reduced.cause, reduced.stack, reduced.retryable) == (None, None, None, True)
    assert reduced.message.endswith(" [details and causes cut]")
    assert minimal_error(ErrorRecord("c", "short", retryable=False)) == ErrorRecord("c", "short", retryable=False)


_any_text = st.text(max_size=20) | st.integers(0, 20_000).map(lambda count: "é\x00" * count)
_records = st.recursive(
    st.builds(
        ErrorRecord,
        category=_any_text,
        message=_any_text,
        retryable=st.booleans(),
        details=st.none() | st.dictionaries(_any_text, st.integers(0, 70_000).map(_detail), max_size=4),
        stack=st.none() | _any_text,
    ),
    lambda cause: st.builds(ErrorRecord, category=_any_text, message=_any_text, retryable=st.booleans(), cause=cause, stack=_any_text),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(_records)
def test_any_record_ends_within_every_limit_and_stays_there(record: ErrorRecord) -> None:
    clipped = clip_error(record)
    assert _size(clipped) <= ERROR_BYTES_MAX
    links = _chain(clipped)
    assert len(links) <= ERROR_CAUSE_DEPTH_MAX + 1
    for link in links:
        assert len(link.message.encode()) <= ERROR_MESSAGE_BYTES_MAX
        assert link.details is None or _size(link.details) <= ERROR_DETAILS_BYTES_MAX
    assert clipped.retryable == record.retryable
    assert clip_error(clipped) == clipped
    assert _size(minimal_error(record)) <= REPLAY_RESERVE_BYTES
