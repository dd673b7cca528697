"""Event payloads as user code gives them: bytes as they are, anything else as strict JSON text.

Owns that one conversion, so that an event that a run sends and one that a client submits carry the same bytes. Sends nothing.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from ryusen_sdk.errors import ConversionError

_NESTING_MAX: Final = 200


def payload_of(data: object) -> bytes:
    """The exact payload of an event with this data. Raises `ConversionError` for what has no JSON form."""
    given = raw_bytes(data)
    return json_text(data) if given is None else given


def raw_bytes(data: object) -> bytes | None:
    """Opaque bytes as they are; `None` for data that is to become JSON."""
    return bytes(cast("bytes", data)) if isinstance(data, bytes | bytearray | memoryview) else None


def json_text(data: object) -> bytes:
    """Strict JSON text. Non-finite floats are refused rather than sent as null. Raises `ConversionError` with the path."""
    dump = getattr(data, "model_dump", None)
    plain = dump(mode="json") if callable(dump) else data
    _refuse_non_finite(plain, "$", 0)
    try:
        return msgspec.json.encode(plain, enc_hook=_refuse)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as refused:
        raise ConversionError("$", f"not JSON data: {refused}") from None


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _refuse_non_finite(value: object, path: str, depth: int) -> None:
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124 - NaN
        raise ConversionError(path, f"{value} has no JSON form")
    if depth > _NESTING_MAX:
        raise ConversionError(path, "nested too deeply")
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            _refuse_non_finite(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            _refuse_non_finite(item, f"{path}[{index}]", depth + 1)
