"""Pydantic, for the types that are made of it: models, Pydantic dataclasses, and lists, mappings and unions of them.

Owns every call of Pydantic, and loads it only when there is such a type. Knows nothing of values or of the wire.
"""

from __future__ import annotations

import types
import typing
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ryusen_protocol.values import BlobRef, InvalidValue
from ryusen_sdk.convert import member_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import TypeAdapter

_MODEL_MARK: Final = "__pydantic_validator__"
"""What every Pydantic model and Pydantic dataclass has, so that Pydantic is asked only about its own."""


class Misfit(ValueError):
    """Data that is not a T; `path` leads from the place where the T was asked for."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


def has_model_mark(kind: type[Any]) -> bool:
    """Whether objects of this class are written by Pydantic."""
    return hasattr(kind, _MODEL_MARK)


def is_model(kind: Any) -> bool:
    """Whether Pydantic is asked: a model, or a list, mapping or union of them. A dataclass or Struct with models inside is not."""
    if hasattr(kind, _MODEL_MARK):
        return True
    origin = typing.get_origin(kind)
    is_structure = isinstance(origin, type) and origin is not types.UnionType and origin.__module__ not in _CONTAINERS
    return not is_structure and any(is_model(arg) for arg in typing.get_args(kind))


_CONTAINERS: Final = frozenset(("builtins", "typing", "collections", "collections.abc"))


@lru_cache(maxsize=256)
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's own reader and writer of a type. Raises Pydantic's errors for one it cannot make."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def dumped(value: object, mode: Literal["python", "json"]) -> object:
    """A model as plain data: by its fields' names to be recorded, by their aliases for JSON that others read too."""
    try:
        document = adapter(type(value)).dump_python(value, mode=mode, round_trip=True, by_alias=mode == "json", warnings="error")
    except Exception as refused:  # noqa: BLE001 - a model's own serializers run here
        raise InvalidValue(f"{type(value).__name__} cannot be written: {last_line(refused)}") from None
    return _spelled(document) if mode == "python" else document


def _spelled(value: object) -> object:
    """Plain data of a model with the values that only Pydantic knows how to write (URLs, paths, addresses, patterns) as their text."""
    kind = type(value)
    if kind is dict:
        return {name: _spelled(item) for name, item in cast("dict[object, object]", value).items()}
    if kind is list or kind is tuple:
        return [_spelled(item) for item in cast("list[object]", value)]
    if kind.__module__ in _PLAIN_MODULES or isinstance(value, Enum | BlobRef):
        return value
    try:
        text = adapter(kind).dump_python(value, mode="json", warnings="error")
        # A secret is written as stars: what does not come back is left, to be refused by its path.
        return text if type(text) is str and adapter(kind).validate_python(text) == value else value
    except Exception:  # noqa: BLE001 - a class that Pydantic knows nothing of
        return value


_PLAIN_MODULES: Final = frozenset(("builtins", "datetime", "decimal", "uuid"))


def validated(kind: Any, value: object) -> object:
    """The model of plain data. Also how msgspec reads a class that it does not know. Raises `Misfit`."""
    if not is_model(kind):
        raise Misfit("", f"{kind} is no type for values")
    return _modelled(lambda: adapter(kind).validate_python(value, strict=False, by_name=True, by_alias=True))


def validated_json(kind: Any, data: bytes) -> object:
    """The model of a JSON text. Raises `Misfit`."""
    return _modelled(lambda: adapter(kind).validate_json(data))


def _modelled(validate: Callable[[], object]) -> object:
    from pydantic import ValidationError

    try:
        return validate()
    except ValidationError as refused:
        first, *others = refused.errors(include_url=False, include_context=False, include_input=False)
        path = "".join(f"[{step}]" if isinstance(step, int) else member_step(step) for step in first["loc"])
        raise Misfit(path, first["msg"] + (f" (and {len(others)} more)" if others else "")) from None


def last_line(error: Exception) -> str:
    """The gist of an error whose text has many lines."""
    return str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
