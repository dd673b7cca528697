"""Typed objects to plain data, and plain data and typed objects to JSON text.

Owns the walk through dataclasses, Structs, attrs classes, models and containers, and the path to whatever has no plain form. What of it
the wire can carry belongs to `convert`, what brings it back to `typed`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from ryusen_protocol.limits import NESTING_MAX
from ryusen_protocol.values import I64_MIN, U64_MAX, BlobRef, InvalidValue, ValueTooLarge
from ryusen_sdk.convert import member_step
from ryusen_sdk.errors import ConversionError
from ryusen_sdk.models import dumped, has_model_mark, last_line

if TYPE_CHECKING:
    from collections.abc import Iterable

NATIVE: Final = (bytes, datetime, timedelta)
"""What stays itself in plain data, because the tagged model has a place for it."""
_ATOMS: Final = frozenset((type(None), bool, int, float, str, BlobRef, *NATIVE))
_TEXTS: Final = (UUID, Decimal)


def flattened(value: object) -> object:
    """The object as plain data. Raises `InvalidValue` with the path of what has none."""
    return _plain(value, 0)


def is_structured(kind: type[Any]) -> bool:
    """Whether objects of this class are written by their fields: dataclasses, Structs, attrs classes and models."""
    return kind is not BlobRef and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__") or has_model_mark(kind)
    )


def json_bytes(data: object) -> bytes:
    """Strict JSON text of plain data or of a typed object. Raises `ConversionError` with the path.

    Bytes, instants, durations, blob references, non-finite numbers and integers beyond 64 bits have no JSON form. A typed object
    writes them as its type reads them again.
    """
    try:
        return msgspec.json.encode(_json(data, 0))
    except InvalidValue as refused:
        raise ConversionError(refused.path, refused.why) from None


def _plain(value: object, depth: int) -> object:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if depth > NESTING_MAX:
        raise ValueTooLarge(f"nested deeper than {NESTING_MAX} levels")
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if has_model_mark(kind):
        return _plain(dumped(value, "python"), depth)
    if isinstance(value, Mapping):
        return _plain_mapping(cast("Mapping[object, object]", value), depth)
    if isinstance(value, list | tuple):
        return _items(cast("list[object]", value), depth)
    if isinstance(value, set | frozenset):
        return sorted(_items(cast("set[object]", value), depth), key=repr)  # one set has one form, whatever its order here
    return _plain_object(value, depth)


def _plain_object(value: object, depth: int) -> object:
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value, depth)
    if dataclasses.is_dataclass(value) or hasattr(kind, "__attrs_attrs__"):
        fields = cast("Iterable[Any]", getattr(kind, "__attrs_attrs__", None) or dataclasses.fields(cast("Any", value)))
        return _members(((field.name, getattr(value, field.name)) for field in fields if hasattr(value, field.name)), depth)
    if isinstance(value, _TEXTS):
        return str(value)
    if isinstance(value, date | time) and not isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytearray | memoryview):
        return bytes(cast("bytes", value))
    if isinstance(value, str | int | float | datetime | timedelta):
        return value  # a subclass could carry more than its base: `convert` refuses it
    raise InvalidValue(f"{kind.__name__} has no plain form")


def _plain_struct(value: msgspec.Struct, depth: int) -> object:
    kind = type(value)
    config = kind.__struct_config__
    fields = [(wire, getattr(value, name)) for wire, name in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)]
    if config.array_like:
        tagged = [] if config.tag is None else [config.tag]
        return _items([*tagged, *(item for _, item in fields)], depth)
    tag = [] if config.tag is None or config.tag_field is None else [(config.tag_field, cast("object", config.tag))]
    return _members(((wire, item) for wire, item in (*tag, *fields) if item is not msgspec.UNSET), depth)


def _members(entries: Iterable[tuple[str, object]], depth: int) -> dict[str, object]:
    members: dict[str, object] = {}
    name = ""
    try:
        for name, item in entries:
            members[name] = _plain(item, depth + 1)
    except InvalidValue as refused:
        refused.passed(member_step(name))
        raise
    return members


def _plain_mapping(value: Mapping[object, object], depth: int) -> dict[str, object]:
    names = [_key(key) for key in value]
    if len(set(names)) < len(names):
        raise InvalidValue("two keys of this mapping have one text")
    return _members(zip(names, value.values(), strict=True), depth)


def _items(values: Iterable[object], depth: int) -> list[object]:
    items: list[object] = []
    try:
        for item in values:
            items.append(_plain(item, depth + 1))  # noqa: PERF401 - the length so far is the index of a refused item
    except InvalidValue as refused:
        refused.passed(f"[{len(items)}]")
        raise
    return items


def _key(key: object) -> str:
    if isinstance(key, Enum):
        return _key(key.value)
    if type(key) is str:
        return key
    if type(key) in {int, float} or isinstance(key, _TEXTS):
        return str(key)
    if isinstance(key, date | time):
        return key.isoformat()
    raise InvalidValue(f"a key of this mapping is a {type(key).__name__}, which has no text to stand for it")


# JSON text.


def _json(value: object, depth: int) -> object:
    """The same data with everything in it known to have a JSON form."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, int):
        if not I64_MIN <= value <= U64_MAX:
            raise InvalidValue("JSON does not keep an integer beyond 64 bits; pass it as a string")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValue(f"{value} is no JSON number")
    elif isinstance(value, str):
        if not value.isascii() and len(value.encode("utf-8", "ignore").decode()) < len(value):
            raise InvalidValue("the text has a lone surrogate; only valid Unicode can be sent")
    else:
        return _json_compound(value, depth)
    return value


def _json_compound(value: object, depth: int) -> object:
    if depth >= NESTING_MAX:
        raise ValueTooLarge(f"nested deeper than {NESTING_MAX} levels")
    if isinstance(value, Mapping):
        return _json_members(cast("Mapping[object, object]", value), depth)
    if isinstance(value, list | tuple):
        return _json_items(cast("list[object]", value), depth)
    kind = type(value)
    if has_model_mark(kind):
        return _json(dumped(value, "json"), depth)
    if is_structured(kind):
        try:
            written = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=lambda model: dumped(model, "json"))
        except InvalidValue:
            raise
        except (TypeError, ValueError, RecursionError) as refused:
            raise InvalidValue(f"{kind.__name__} cannot be written: {last_line(refused)}") from None
        return _json(written, depth)
    raise InvalidValue(f"{kind.__name__} has no JSON form; convert it to plain data first")


def _json_members(value: Mapping[object, object], depth: int) -> dict[str, object]:
    for key in value:
        if not isinstance(key, str):
            raise InvalidValue(f"a JSON object's keys are strings, and one here is a {type(key).__name__}")
        _json(key, depth)
    members: dict[str, object] = {}
    name = ""
    try:
        for name, item in cast("Mapping[str, object]", value).items():
            members[name] = _json(item, depth + 1)
    except InvalidValue as refused:
        refused.passed(member_step(name))
        raise
    return members


def _json_items(value: Iterable[object], depth: int) -> list[object]:
    items: list[object] = []
    try:
        for item in value:
            items.append(_json(item, depth + 1))  # noqa: PERF401 - the length so far is the index of a refused item
    except InvalidValue as refused:
        refused.passed(f"[{len(items)}]")
        raise
    return items
