"""Python values to portable values and back.

Owns what Python alone knows: aware datetimes stand for instants, timedeltas for durations. Refuses to coerce: a type the tagged model
cannot carry is a `ConversionError` that names the path. The wire form itself belongs to `ryusen_protocol.values`, typed objects to
`typed`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import msgspec

from ryusen_protocol import values
from ryusen_protocol.limits import NESTING_MAX
from ryusen_protocol.values import Duration, Instant, InvalidValue, Value
from ryusen_sdk.errors import ConversionError

NULL: Final = msgspec.Raw(b'{"type":"null"}')

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC) - _EPOCH
_LATEST: Final = datetime.max.replace(tzinfo=UTC) - _EPOCH
_SECOND: Final = timedelta(seconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_NANOS_PER_MICRO: Final = 1_000
_KEY_CHARACTERS_MAX: Final = 64


def to_wire(value: object) -> msgspec.Raw:
    """The canonical bytes of a Python value. Raises `ConversionError` for anything not portable or over a limit."""
    try:
        return msgspec.Raw(values.encode(_outward(value, 0)))
    except InvalidValue as refused:
        raise ConversionError(refused.path, refused.why) from None


def from_wire(data: msgspec.Raw | bytes) -> Any:
    """The Python value of tagged bytes. Raises `ConversionError` for one that Python cannot hold exactly."""
    try:
        return _inward(values.decode(data))
    except InvalidValue as refused:
        raise ConversionError(refused.path, refused.why) from None


# Out. Only what has a Python form of its own is replaced; everything else is for `values.encode` to accept or refuse.


def _outward(value: object, depth: int) -> Value:
    kind = type(value)
    if kind is dict:
        members = cast("dict[object, object]", value)
        if depth >= NESTING_MAX or not any(type(item) in _COMPOUND for item in members.values()):
            return cast("Value", value)
        return _each_member(members, depth)
    if kind is list:
        items = cast("list[object]", value)
        if depth >= NESTING_MAX or not any(type(item) in _COMPOUND for item in items):
            return cast("Value", value)
        return _each_item(items, depth)
    if kind is datetime:
        return _instant(cast("datetime", value))
    if kind is timedelta:
        return _duration(cast("timedelta", value))
    return cast("Value", value)


_COMPOUND: Final = frozenset((dict, list, datetime, timedelta))


def _each_member(members: dict[object, object], depth: int) -> Value:
    converted: dict[object, Value] = {}
    key: object = None
    try:
        for key, item in members.items():
            converted[key] = _outward(item, depth + 1)
    except InvalidValue as refused:
        refused.passed(member_step(key))
        raise
    return cast("Value", converted)


def _each_item(items: list[object], depth: int) -> Value:
    converted: list[Value] = []
    try:
        for item in items:
            converted.append(_outward(item, depth + 1))  # noqa: PERF401 - the length so far is the index of a refused item
    except InvalidValue as refused:
        refused.passed(f"[{len(converted)}]")
        raise
    return converted


def _instant(value: datetime) -> Instant:
    try:
        is_naive = value.utcoffset() is None
        since = timedelta(0) if is_naive else value - _EPOCH
    except Exception as refused:  # noqa: BLE001 - a tzinfo of the user's runs here
        raise InvalidValue(f"its time zone gives no offset ({type(refused).__name__})") from None
    if is_naive:
        raise InvalidValue("a naive datetime names no instant; give it a time zone (datetime.now(UTC))")
    if not _EARLIEST <= since <= _LATEST:
        raise InvalidValue("this instant is outside the years 1 to 9999 in UTC, so it could not be read again")
    return Instant(since.days * 86_400 + since.seconds, since.microseconds * _NANOS_PER_MICRO)


def _duration(value: timedelta) -> Duration:
    return Duration(value.days * 86_400 + value.seconds, value.microseconds * _NANOS_PER_MICRO)


# In. `values.decode` makes fresh lists and dicts, so they are changed in place.


def _inward(value: Value) -> object:
    kind = type(value)
    if kind is dict:
        return _inward_members(cast("dict[str, object]", value))
    if kind is list:
        return _inward_items(cast("list[object]", value))
    if kind is Instant:
        return _to_datetime(cast("Instant", value))
    if kind is Duration:
        return _to_timedelta(cast("Duration", value))
    return value


def _inward_members(members: dict[str, object]) -> dict[str, object]:
    key = ""
    try:
        for key, item in members.items():
            if type(item) in _FOREIGN:
                members[key] = _inward(cast("Value", item))
    except InvalidValue as refused:
        refused.passed(member_step(key))
        raise
    return members


def _inward_items(items: list[object]) -> list[object]:
    index = 0
    try:
        for index, item in enumerate(items):
            if type(item) in _FOREIGN:
                items[index] = _inward(cast("Value", item))
    except InvalidValue as refused:
        refused.passed(f"[{index}]")
        raise
    return items


_FOREIGN: Final = frozenset((dict, list, Instant, Duration))


def _to_datetime(value: Instant) -> datetime:
    micros = _micros(value.nanos)
    try:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=micros)
    except OverflowError:
        raise InvalidValue("this instant is outside the years 1 to 9999 that datetime can hold") from None


def _to_timedelta(value: Duration) -> timedelta:
    micros = _micros(value.nanos)
    try:
        return value.seconds * _SECOND + micros * _MICROSECOND
    except OverflowError:
        raise InvalidValue("this duration is longer than timedelta can hold") from None


def _micros(nanos: int) -> int:
    micros, rest = divmod(nanos, _NANOS_PER_MICRO)
    if rest:
        raise InvalidValue("finer than a microsecond, which Python's time types would round")
    return micros


def member_step(key: object) -> str:
    """One member of a path, as `ryusen_protocol.values` spells it."""
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{json.dumps(str(key)[:_KEY_CHARACTERS_MAX])}]"
