"""Typed objects and JSON text, to plain values and back.

Owns `returns=T` and `Event[T]`: dataclasses, msgspec Structs, TypedDicts, attrs classes and Pydantic models, alone, nested, optional,
generic or in lists, become plain values and come back as T; and the JSON view of an event's bytes, which never changes them. Loads
Pydantic only for a type that is made of it. Knows nothing of the wire: what is portable belongs to `convert`.

Inside typed data, and only there, tuples and sets become lists, enums their value, and UUIDs, decimals, dates and the keys of
mappings their text: the declared type is what brings them back. What would not come back is refused before it is recorded.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from ryusen_protocol import strict_json
from ryusen_protocol.limits import NESTING_MAX
from ryusen_protocol.values import I64_MIN, U64_MAX, BlobRef, InvalidValue, ValueTooLarge
from ryusen_sdk.convert import member_step
from ryusen_sdk.errors import ConversionError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import TypeAdapter

_NATIVE: Final = (bytes, datetime, timedelta)
"""What stays itself in plain data, because the tagged model has a place for it."""
_ATOMS: Final = frozenset((type(None), bool, int, float, str, BlobRef, *_NATIVE))
_TEXTS: Final = (UUID, Decimal)
_MODEL_MARK: Final = "__pydantic_validator__"
"""What every Pydantic model and Pydantic dataclass has, so that Pydantic is asked only about its own."""


class _Misfit(ValueError):
    """Data that is not a T; `path` leads from the place where the T was asked for."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


def check_type(kind: Any) -> None:
    """Raises `MisuseError` for a T that no value could be turned into, before anything depends on it."""
    problem = type_problem(kind)
    if problem is not None:
        raise MisuseError(f"{type_name(kind)} is no type for values: {problem}")


def type_problem(kind: Any) -> str | None:
    """Why no value could be turned into this T; `None` if one can."""
    try:
        return _problem(kind)
    except TypeError:  # not even hashable
        return "it is not a type"


def plain(value: object, kind: Any) -> object:
    """A T as plain values that are known to come back as it. Raises `ConversionError` with the path of what would not."""
    try:
        document = _plain(value, 0)
        again = _plain(typed(document, kind), 0)
        _check_same(document, again)
    except InvalidValue as refused:
        raise ConversionError(refused.path, f"no {type_name(kind)} that can be kept: {refused.why}") from None
    return document


def typed(value: object, kind: Any) -> Any:
    """Plain values as T, checked. Raises `ConversionError` with the path of the first member that does not fit."""
    if _is_model(kind):
        return _fitted(kind, _validated, kind, value)
    return _fitted(kind, _converted, kind, value)


def json_view(data: bytes, kind: Any) -> Any:
    """The JSON document that bytes hold, as T unless that is `None`. Never changes the bytes.

    Raises `ConversionError`: bytes that are no JSON are no text either, and a number that a double cannot hold is no number.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as refused:
        why = strict_json.reason(data, refused)
        raise ConversionError("$", f"the payload is not JSON: {why}; its exact bytes are in event.payload") from None
    if kind is None:
        return document
    if _is_model(kind):
        return _fitted(kind, _validated_json, kind, data)
    return _fitted(kind, _decoded, kind, data)


def json_bytes(data: object) -> bytes:
    """Strict JSON text of plain data or of a typed object. Raises `ConversionError` with the path.

    Bytes, instants, durations, blob references, non-finite numbers and integers beyond 64 bits have no JSON form. A typed object
    writes them as its type reads them again.
    """
    try:
        return msgspec.json.encode(_json(data, 0))
    except InvalidValue as refused:
        raise ConversionError(refused.path, refused.why) from None


def type_name(kind: Any) -> str:
    """The name of a T for people."""
    name = getattr(kind, "__name__", None) if isinstance(kind, type) and not typing.get_args(kind) else None
    return name or str(kind).replace("typing.", "")


# Out: typed objects to plain data.


def _plain(value: object, depth: int) -> object:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if depth > NESTING_MAX:
        raise ValueTooLarge(f"nested deeper than {NESTING_MAX} levels")
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if hasattr(kind, _MODEL_MARK):
        return _plain(_dumped(value, "python"), depth)
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


def _check_same(left: object, right: object) -> None:
    """Raises `InvalidValue` where the second differs: what was there went missing, or changed, on the way through the type."""
    if isinstance(left, dict) and isinstance(right, dict):
        _check_same_members(cast("dict[str, object]", left), cast("dict[str, object]", right))
    elif isinstance(left, list) and isinstance(right, list) and len(cast("list[object]", left)) == len(cast("list[object]", right)):
        for index, (one, other) in enumerate(zip(cast("list[object]", left), cast("list[object]", right), strict=True)):
            _check_same_at(f"[{index}]", one, other)
    elif left != right and not (left != left and right != right):  # noqa: PLR0124 - NaN, which is refused by its own name later
        raise InvalidValue("it comes back changed, so the type and what was returned do not agree")


def _check_same_members(left: dict[str, object], right: dict[str, object]) -> None:
    for name, item in left.items():
        if name not in right:
            refused = InvalidValue("the type has no place for it, so it would be lost")
            refused.passed(member_step(name))
            raise refused
        _check_same_at(member_step(name), item, right[name])


def _check_same_at(step: str, left: object, right: object) -> None:
    try:
        _check_same(left, right)
    except InvalidValue as refused:
        refused.passed(step)
        raise


# In: plain data to T.


def _fitted(kind: Any, convert: Callable[[Any, Any], object], *given: Any) -> object:
    """What `convert` gives, or the `ConversionError` that says where and why not. A type's own checks may raise anything."""
    try:
        return convert(*given)
    except _Misfit as refused:
        path, why = "$" + refused.path, str(refused)
    except msgspec.ValidationError as refused:
        why, _, path = str(refused).partition(" - at `")
        within = refused.__cause__.path if isinstance(refused.__cause__, _Misfit) else ""
        path = (path.rstrip("`") or "$").replace("key` in `", "") + within
    except RecursionError:
        path, why = "$", "nested too deeply"
    except Exception as refused:  # noqa: BLE001 - user code runs here
        path, why = "$", f"{type(refused).__name__}: {refused}"
    raise ConversionError(path, f"does not fit {type_name(kind)}: {why}")


def _converted(kind: Any, value: object) -> object:
    return msgspec.convert(value, type=kind, builtin_types=_NATIVE, strict=True, str_keys=True, dec_hook=_validated)


def _decoded(kind: Any, data: bytes) -> object:
    return msgspec.json.decode(data, type=kind, dec_hook=_validated)


# Pydantic, for the types that are made of it.


def _is_model(kind: Any) -> bool:
    """Whether Pydantic is asked: a model, or a list, mapping or union of them. A dataclass or Struct with models inside is not."""
    if hasattr(kind, _MODEL_MARK):
        return True
    origin = typing.get_origin(kind)
    is_structure = isinstance(origin, type) and origin is not types.UnionType and origin.__module__ not in _CONTAINERS
    return not is_structure and any(_is_model(arg) for arg in typing.get_args(kind))


_CONTAINERS: Final = frozenset(("builtins", "typing", "collections", "collections.abc"))


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _dumped(value: object, mode: str) -> object:
    """A model as plain data: by its fields' names to be recorded, by their aliases for JSON that others read too."""
    try:
        return _adapter(type(value)).dump_python(value, mode=mode, round_trip=True, by_alias=mode == "json", warnings="error")  # pyright: ignore[reportArgumentType]
    except Exception as refused:  # noqa: BLE001 - a model's own serializers run here
        raise InvalidValue(f"{type(value).__name__} cannot be written: {_last_line(refused)}") from None


def _validated(kind: Any, value: object) -> object:
    """The model of plain data. Also how msgspec reads a class that it does not know."""
    if not _is_model(kind):
        raise _Misfit("", f"{type_name(kind)} is no type for values")
    return _modelled(lambda: _adapter(kind).validate_python(value, strict=False, by_name=True, by_alias=True))


def _validated_json(kind: Any, data: bytes) -> object:
    return _modelled(lambda: _adapter(kind).validate_json(data))


def _modelled(validate: Callable[[], object]) -> object:
    from pydantic import ValidationError

    try:
        return validate()
    except ValidationError as refused:
        first, *others = refused.errors(include_url=False, include_context=False, include_input=False)
        path = "".join(f"[{step}]" if isinstance(step, int) else member_step(step) for step in first["loc"])
        raise _Misfit(path, first["msg"] + (f" (and {len(others)} more)" if others else "")) from None


@lru_cache(maxsize=256)
def _problem(kind: Any) -> str | None:
    try:
        if _is_model(kind):
            _adapter(kind)
            return None
        msgspec.json.Decoder(kind)
        unknown = _unknown_class(msgspec.inspect.type_info(kind), set())
    except Exception as refused:  # noqa: BLE001 - annotations of user code are evaluated here
        return _last_line(refused)
    return None if unknown is None else f"{unknown.__name__} is no dataclass, Struct, TypedDict, attrs class or Pydantic model"


def _unknown_class(info: object, seen: set[int]) -> type[Any] | None:
    """The first class in the description of a type that nothing here can make."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return None if _is_model(info.cls) else info.cls
    if isinstance(info, tuple):
        inner = cast("tuple[object, ...]", info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        inner = tuple(cast("object", getattr(info, name)) for name in info.__struct_fields__)
    else:
        return None
    return next((found for part in inner if (found := _unknown_class(part, seen)) is not None), None)


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2].strip() or type(error).__name__


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
    if hasattr(kind, _MODEL_MARK):
        return _json(_dumped(value, "json"), depth)
    if kind is not BlobRef and (isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value) or hasattr(kind, "__attrs_attrs__")):
        try:
            written = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=lambda model: _dumped(model, "json"))
        except InvalidValue:
            raise
        except (TypeError, ValueError, RecursionError) as refused:
            raise InvalidValue(f"{kind.__name__} cannot be written: {_last_line(refused)}") from None
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
