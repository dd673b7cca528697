"""Human durations to whole milliseconds and back to words."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ryusen_protocol.durations import InvalidDuration, format_ms, to_ms


@pytest.mark.req("TMR-09")
@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("200ms", 200),
        ("1.5s", 1_500),
        ("2h30m", 9_000_000),
        ("1d", 86_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("1m5ms", 60_005),
        ("0.5h", 1_800_000),
        ("007s", 7_000),
        (2, 2_000),
        (1.5, 1_500),
        (0.1, 100),
        (1e3, 1_000_000),
        (timedelta(minutes=1, milliseconds=1), 60_001),
        (timedelta.max, 86_399_999_999_999_999 + 1),
        ("18446744073709551615ms", 2**64 - 1),
    ],
)
def test_durations_become_whole_milliseconds(value: Any, ms: int) -> None:
    assert to_ms(value) == ms


@pytest.mark.req("TMR-10")
@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0.1ms", 1),
        ("1.0000000001ms", 2),
        (0.0001, 1),
        (5e-324, 1),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1_001), 2),
        ("0s", 0),
        ("0.0ms", 0),
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (timedelta(), 0),
        ("-5s", 0),
        (-1, 0),
        (-0.0001, 0),
        (-(10**400), 0),
        (timedelta(microseconds=-1), 0),
    ],
)
def test_positive_rounds_up_zero_stays_and_negative_is_due_at_once(value: Any, ms: int) -> None:
    assert to_ms(value) == ms


MALFORMED: list[Any] = [
    "",
    "5",
    "s",
    "-",
    ".5s",
    "5.s",
    "1e3s",
    "1 s",
    " 1s",
    "1s ",
    "1s\n",
    "1S",
    "30m2h",
    "1s1s",
    "1m30",
    "+1s",
    "--1s",
    "1w",
    "1us",
    "٣s",
    "nan",
    "9" * 5_000 + "s",
    "\ud800",
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    None,
    b"1s",
    Decimal(1),
    1j,
    [1],
]


@pytest.mark.req("TMR-11")
@pytest.mark.parametrize("value", MALFORMED, ids=lambda value: ascii(value)[:20])
def test_malformed_durations_are_refused_with_the_forms_taken(value: Any) -> None:
    with pytest.raises(InvalidDuration, match=r'write "200ms", "1\.5s", "2h30m", "1d", a number of seconds, or a timedelta'):
        to_ms(value)


@pytest.mark.req("TMR-11")
@pytest.mark.parametrize(
    "value", ["18446744073709551615.1ms", "18446744073709551616ms", "213503982335d", 2**64, 1.8e16 * 1.1, 1e300, 10**400]
)
def test_durations_past_the_portable_range_are_refused(value: Any) -> None:
    with pytest.raises(InvalidDuration, match="longer than 18446744073709551615 ms"):
        to_ms(value)


@settings(max_examples=200, deadline=None)
@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=10**6)))
def test_never_early_and_less_than_a_millisecond_late(span: timedelta) -> None:
    ms = to_ms(span)
    assert timedelta(milliseconds=ms) >= span
    assert timedelta(milliseconds=ms) - span < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (310, "310ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_800, "1.8s"),
        (59_949, "59.9s"),
        (59_950, "1m"),
        (120_000, "2m"),
        (125_000, "2m5s"),
        (3_599_600, "1h"),
        (9_000_000, "2h30m"),
        (86_399_999, "1d"),
        (100_800_000, "1d4h"),
        (2**64 - 1, "213503982334d14h"),
        (-1_500, "-1.5s"),
    ],
)
def test_spans_are_told_in_two_units(ms: int, text: str) -> None:
    assert format_ms(ms) == text


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**40))
def test_what_is_told_can_be_read_and_is_near(ms: int) -> None:
    read = to_ms(format_ms(ms))
    assert abs(read - ms) <= max(50, ms // 48)
