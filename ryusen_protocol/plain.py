"""Portable values, payloads, errors and instants as text on one line."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from ryusen_protocol import values
from ryusen_protocol.errors import ErrorRecord

_FRAME: Final = re.compile(r'^  File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
_INSTALLED: Final = re.compile(r"^<|[/\\](?:site-packages|dist-packages|ryusen_sdk|lib[/\\]python3[^/\\]*)[/\\]")


def value_text(tagged: msgspec.Raw) -> str:
    """The value of a tagged document as JSON; what JSON has no form for is written as an object that names its kind."""
    try:
        value = values.decode(tagged)
    except values.InvalidValue:
        return bytes(tagged).decode("utf-8", "replace")
    return _compact(value)


def is_value(tagged: msgspec.Raw) -> bool:
    """Whether there is a value at all; a missing one is the bare text `null`."""
    return bytes(tagged) != b"null"


def payload_text(payload: bytes) -> str:
    """A payload as the text it was sent as, or as base64 where it is no text."""
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(payload)} bytes, base64 {base64.b64encode(payload).decode()}"


def input_text(raw: msgspec.Raw) -> str:
    """The input of a run: the payload of its event, or the value it was invoked with."""
    document = cast("dict[str, Any]", msgspec.json.decode(raw))
    tagged = document.get("payload", document.get("value"))
    if not isinstance(tagged, dict):
        return _compact(document)
    encoded = msgspec.Raw(msgspec.json.encode(tagged))
    try:
        value = values.decode(encoded)
    except values.InvalidValue:
        return _compact(document)
    return payload_text(value) if isinstance(value, bytes) else _compact(value)


def error_text(error: ErrorRecord) -> str:
    """`category: message`."""
    return f"{error.category}: {error.message}"


def error_lines(error: ErrorRecord, *, title: str = "failure") -> list[str]:
    """The error, where it was raised, its details, and what caused it, one line each."""
    lines: list[str] = []
    current: ErrorRecord | None = error
    while current is not None:
        lines.append(f"{title}  {error_text(current)}")
        place = error_place(current)
        if place is not None:
            lines.append(f"  at {place}")
        lines.extend(f"  {name} = {value_text(detail)}" for name, detail in (current.details or {}).items())
        current = current.cause
        title = "  cause"
    return lines


def error_place(error: ErrorRecord) -> str | None:
    """Where it was raised, unless its message says so or its stack does not."""
    place = None if error.stack is None else raised_at(error.stack)
    return None if place is None or place in error.message else place


def raised_at(stack: str) -> str | None:
    """`file:line in name` of the innermost frame that is no installed package's, of a stack as Python writes it."""
    frames = _FRAME.findall(stack)
    own = [frame for frame in frames if not _INSTALLED.search(frame[0])]
    if not frames:
        return None
    file, line, name = (own or frames)[-1]
    return f"{file}:{line} in {name}"


def instant_text(at_ms: int) -> str:
    """An instant in the reader's time zone, to the millisecond, with its offset."""
    try:
        local = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    return f"{local:%Y-%m-%d %H:%M:%S}.{at_ms % 1_000:03d}{local:%z}"


def clock_text(at_ms: int) -> str:
    """The time of day alone, for a log that a person reads while it grows."""
    try:
        local = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    return f"{local:%H:%M:%S}.{at_ms % 1_000:03d}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=_foreign)


def _foreign(value: object) -> Any:
    match value:
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case values.Instant(seconds=seconds, nanos=nanos):
            return {"instant": f"{seconds}.{nanos:09d}"}
        case values.Duration(seconds=seconds, nanos=nanos):
            return {"duration": {"seconds": seconds, "nanos": nanos}}
        case values.BlobRef():
            return {"blob": value.uri, "size": value.size}
        case _:
            return repr(value)
