"""Python values to the wire and back."""

from __future__ import annotations

import base64
import enum
import json
import math
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_sdk import BlobRef, ConversionError
from ryusen_sdk.convert import from_wire, to_wire

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Equal in type as well as in value, minus zero included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


@pytest.mark.req("VAL-02")
@given(PLAIN)
def test_what_goes_out_comes_back_with_its_type(value: Any) -> None:
    assert same(from_wire(to_wire(value)), value)


@pytest.mark.req("VAL-02")
@pytest.mark.parametrize(
    ("value", "tag"),
    [
        (2**53 + 1, "i64"),
        (2**63 - 1, "i64"),
        (-(2**63), "i64"),
        (2**63, "u64"),
        (2**64 - 1, "u64"),
        (True, "bool"),
        (1.0, "f64"),
        (-0.0, "f64"),
    ],
)
def test_numbers_keep_width_and_type(value: Any, tag: str) -> None:
    wire = to_wire(value)
    assert json.loads(bytes(wire))["type"] == tag
    assert same(from_wire(wire), value)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Colour(enum.Enum):
    RED = "red"


class StringColour(enum.StrEnum):
    RED = "red"


@dataclass
class Order:
    id: int
    tags: list[str] = field(default_factory=list)


REFUSED = [
    (1, 2),
    {1},
    frozenset({1}),
    Decimal(1),
    uuid.UUID(int=1),
    Order(1),
    datetime(2024, 1, 1),  # noqa: DTZ001 - the point
    datetime(2024, 1, 1, tzinfo=UTC).date(),
    Colour.RED,
    StringColour.RED,
    Text("x"),
    Number(1),
    bytearray(b"x"),
    memoryview(b"x"),
    {1: "x"},
    {None: "x"},
    float("nan"),
    float("inf"),
    -float("inf"),
    2**64,
    -(2**63) - 1,
    "\ud800",
    {"\ud800": 1},
    print,
    lambda: None,
    object(),
    int,
]


@pytest.mark.req("VAL-03")
@pytest.mark.parametrize("value", REFUSED, ids=[f"{index}-{type(value).__name__}" for index, value in enumerate(REFUSED)])
@pytest.mark.parametrize(
    ("wrap", "path"), [(lambda v: v, "$"), (lambda v: {"items": [0, v]}, "$.items[1]"), (lambda v: [{"a b": v}], '$[0]["a b"]')]
)
def test_what_is_not_portable_is_refused_with_its_path(value: Any, wrap: Any, path: str) -> None:
    with pytest.raises(ConversionError) as refused:
        to_wire(wrap(value))
    assert refused.value.path == path
    assert refused.value.why


def test_a_refused_instant_deep_inside_names_its_path() -> None:
    with pytest.raises(ConversionError) as refused:
        to_wire({"a": [{"when": datetime(2024, 1, 1)}]})  # noqa: DTZ001 - the point
    assert refused.value.path == "$.a[0].when"
    assert "naive" in refused.value.why


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConversionError):
        to_wire(loop)


def test_sixty_four_levels_are_portable_and_one_more_is_not() -> None:
    value: Any = datetime(2024, 1, 1, tzinfo=UTC)
    for _ in range(64):
        value = [value]
    assert from_wire(to_wire(value)) == value
    with pytest.raises(ConversionError):
        to_wire([value])


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=45)), ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo")])
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 10, 27, 2, 30, 0, 123456, tzinfo=UTC, fold=1),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
    ],
)
def test_instants_are_the_same_in_every_zone(zone: tzinfo, moment: datetime) -> None:
    aware = moment.replace(tzinfo=zone)
    back = from_wire(to_wire(aware))
    assert back == aware.astimezone(UTC)
    assert back.tzinfo is UTC


@pytest.mark.parametrize(
    "span", [timedelta(0), timedelta(microseconds=-1), timedelta.min, timedelta.max, timedelta(days=-1, microseconds=1)]
)
def test_durations_keep_their_sign(span: timedelta) -> None:
    assert from_wire(to_wire(span)) == span


@pytest.mark.parametrize(
    "document",
    [
        {"type": "instant", "value": {"seconds": "0", "nanos": 1}},
        {"type": "duration", "value": {"seconds": "0", "nanos": 999}},
        {"type": "instant", "value": {"seconds": "253402300800", "nanos": 0}},
        {"type": "duration", "value": {"seconds": "9223372036854775807", "nanos": 0}},
    ],
)
def test_what_python_cannot_hold_is_refused_and_not_rounded(document: dict[str, Any]) -> None:
    inside = {"type": "object", "value": {"a": {"type": "array", "value": [document]}}}
    with pytest.raises(ConversionError) as refused:
        from_wire(json.dumps(inside).encode())
    assert refused.value.path == "$.a[0]"


@pytest.mark.req("VAL-04")
@given(st.binary())
def test_bytes_are_never_text(data: bytes) -> None:
    wire = json.loads(bytes(to_wire(data)))
    assert wire == {"type": "bytes", "value": base64.b64encode(data).decode()}
    assert from_wire(json.dumps(wire).encode()) == data


def test_a_blob_reference() -> None:
    blob = BlobRef("s3://b/k", 2**64 - 1, "a" * 64, "text/plain")
    assert from_wire(to_wire(blob)) == blob


@pytest.mark.req("VAL-02")
def test_an_instant_that_python_could_not_read_again_is_refused() -> None:
    for moment in (
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5))),
    ):
        with pytest.raises(ConversionError, match=r"^\$\.at: this instant is outside the years 1 to 9999"):
            to_wire({"at": moment})
    for moment in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert from_wire(to_wire(moment)) == moment


def test_a_time_zone_that_raises_is_refused() -> None:
    class Broken(tzinfo):
        def utcoffset(self, _moment: datetime | None) -> timedelta:
            raise LookupError("no such zone")

    with pytest.raises(ConversionError, match=r"^\$\[0\]: its time zone gives no offset \(LookupError\)$"):
        to_wire([datetime(2024, 1, 1, tzinfo=Broken())])


@pytest.mark.req("VAL-01", "VAL-02", "VAL-05")
def test_thousands_of_values_come_back_alike_in_two_time_zones() -> None:
    """5,000 in all; `make fuzz` takes 100,000 in each zone."""
    command = [sys.executable, "-m", "tests.sdk.value_rounds", "--count", "2500", "--seed", "7"]
    folder = Path(__file__).parents[2]
    running = [
        subprocess.Popen(command, cwd=folder, env={**os.environ, "TZ": zone}, stdout=subprocess.PIPE, text=True)
        for zone in ("Asia/Tokyo", "Europe/Berlin")
    ]
    tokyo, berlin = [process.communicate()[0] for process in running]
    assert tokyo.startswith("2500 values came back")
    assert tokyo == berlin
