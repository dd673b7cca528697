"""Typed objects and JSON text, to plain values and back.

Owns `returns=T` and `Event[T]`: dataclasses, msgspec Structs, TypedDicts, attrs classes and Pydantic models, alone, nested, optional,
generic or in lists, become plain values and come back as T; and the JSON view of an event's bytes, which never changes them. Knows
nothing of the wire: what is portable belongs to `convert`.

Inside typed data, and only there, tuples and sets become lists, enums their value, and UUIDs, decimals, dates and the keys of
mappings their text: the declared type is what brings them back. What would not come back is refused before it is recorded.
"""

from __future__ import annotations

import re
import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ryusen_protocol import strict_json
from ryusen_protocol.values import InvalidValue
from ryusen_sdk.convert import member_step
from ryusen_sdk.errors import ConversionError, MisuseError
from ryusen_sdk.models import Misfit, adapter, is_model, last_line, validated, validated_json
from ryusen_sdk.plain_data import NATIVE, flattened, is_structured

if TYPE_CHECKING:
    from collections.abc import Callable

_PATH_STEP: Final = re.compile(r"\.[^.\[]+|\[\d+\]|\[\.\.\.\]")
_ANY_MEMBER: Final = "[...]"
_PROBED_MEMBERS_MAX: Final = 1_000


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
        document = flattened(value)
        again = flattened(typed(document, kind))
        _check_same(document, again)
    except InvalidValue as refused:
        raise ConversionError(refused.path, f"no {type_name(kind)} that can be kept: {refused.why}") from None
    return document


def typed(value: object, kind: Any) -> Any:
    """Plain values as T, checked. Raises `ConversionError` with the path of the first member that does not fit."""
    if is_model(kind):
        return _fitted(kind, value, lambda document: validated(kind, document))
    return _fitted(kind, value, lambda document: _converted(kind, document))


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
    if is_model(kind):
        return _fitted(kind, data, lambda _: validated_json(kind, data))
    return _fitted(kind, document, lambda given: _decoded(kind, data if given is document else msgspec.json.encode(given)))


def type_name(kind: Any) -> str:
    """The name of a T for people."""
    name = getattr(kind, "__name__", None) if isinstance(kind, type) and not typing.get_args(kind) else None
    return name or str(kind).replace("typing.", "")


def returns_hint(result: object) -> str | None:
    """What `returns=` would be for a result that is a typed object, or a list of them; `None` for any other."""
    if is_structured(type(result)):
        return type_name(type(result))
    if isinstance(result, list) and result and is_structured(type(cast("list[object]", result)[0])):
        return f"list[{type_name(type(cast('list[object]', result)[0]))}]"
    return None


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


def _fitted(kind: Any, document: object, convert: Callable[[object], object]) -> object:
    """The document as T, or the `ConversionError` that says where and why not. A type's own checks may raise anything."""
    try:
        return convert(document)
    except Misfit as refused:
        path, why = "$" + refused.path, str(refused)
    except msgspec.ValidationError as refused:
        path, why = _place(refused)
        if _ANY_MEMBER in path:
            path = _named(path, document, convert)
    except RecursionError:
        path, why = "$", "nested too deeply"
    except Exception as refused:  # noqa: BLE001 - user code runs here
        path, why = "$", f"{type(refused).__name__}: {refused}"
    raise ConversionError(path, f"does not fit {type_name(kind)}: {why}")


def _place(refused: msgspec.ValidationError) -> tuple[str, str]:
    """Path and reason of a refusal; a member of a mapping stands as `[...]`."""
    why, _, path = str(refused).partition(" - at `")
    within = refused.__cause__.path if isinstance(refused.__cause__, Misfit) else ""
    return (path.rstrip("`") or "$").replace("key` in `", "") + within, why


def _named(path: str, document: object, convert: Callable[[object], object]) -> str:
    """The path with the keys of mappings by name: found by leaving out the other members until the same refusal remains."""
    told, keys, node = "$", list[Any](), document
    for step in _PATH_STEP.findall(path):
        key: Any = step[1:] if step.startswith(".") else step[1:-1]
        if step == _ANY_MEMBER and isinstance(node, dict):
            members = cast("dict[str, object]", node)
            if len(members) > _PROBED_MEMBERS_MAX:
                return path
            key = next((name for name in members if _refusal(convert, _only(document, keys, name)) == path), None)
            if key is None:
                return path
            document = _only(document, keys, key)
            step = member_step(key)  # noqa: PLW2901 - told by its name
        elif isinstance(node, list):
            key = int(key)
        keys.append(key)
        told += step
        node = _member(node, key)
    return told


def _refusal(convert: Callable[[object], object], document: object) -> str | None:
    try:
        convert(document)
    except msgspec.ValidationError as refused:
        return _place(refused)[0]
    except Exception:  # noqa: BLE001 - another refusal than the one looked for
        return None
    return None


def _only(document: Any, keys: list[Any], name: str) -> Any:
    """The document with one member of the mapping at the end of these keys, and no other."""
    if not keys:
        return {name: document[name]}
    copied = list(document) if isinstance(document, list) else dict(document)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    copied[keys[0]] = _only(document[keys[0]], keys[1:], name)
    return cast("Any", copied)


def _member(node: Any, key: Any) -> Any:
    try:
        return node[key]
    except (LookupError, TypeError):
        return None


def _converted(kind: Any, value: object) -> object:
    return msgspec.convert(value, type=kind, builtin_types=NATIVE, strict=True, str_keys=True, dec_hook=validated)


def _decoded(kind: Any, data: bytes) -> object:
    return msgspec.json.decode(data, type=kind, dec_hook=validated)


@lru_cache(maxsize=256)
def _problem(kind: Any) -> str | None:
    try:
        if is_model(kind):
            adapter(kind)
            return None
        msgspec.json.Decoder(kind)
        unknown = _unknown_class(msgspec.inspect.type_info(kind), set())
    except Exception as refused:  # noqa: BLE001 - annotations of user code are evaluated here
        return last_line(refused)
    return None if unknown is None else f"{unknown.__name__} is no dataclass, Struct, TypedDict, attrs class or Pydantic model"


def _unknown_class(info: object, seen: set[int]) -> type[Any] | None:
    """The first class in the description of a type that nothing here can make."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return None if is_model(info.cls) else info.cls
    if isinstance(info, tuple):
        inner = cast("tuple[object, ...]", info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        inner = tuple(cast("object", getattr(info, name)) for name in info.__struct_fields__)
    else:
        return None
    return next((found for part in inner if (found := _unknown_class(part, seen)) is not None), None)
