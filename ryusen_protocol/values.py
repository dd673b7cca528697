"""Portable values: the data that crosses between languages, runs and years.

Owns the tagged JSON form `{"type": T, "value": V}`, its canonical bytes and its limits. The codec's version is
`ryusen_protocol.VALUE_CODEC_VERSION`. Refuses to know any language's own dates, models or conversions: `Instant`, `Duration` and
`BlobRef` are neutral, and whoever speaks to users converts.

One value has one form. `encode` writes it; `decode` takes any order of members, any white space, unknown members and repeated
members (the last one counts), but no second spelling of a decimal, of base64 or of minus zero.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from typing import Final, TypeAlias, cast

import msgspec

from ryusen_protocol import canonical, strict_json
from ryusen_protocol.limits import MIB, NESTING_MAX, VALUE_BYTES_MAX


class Instant(msgspec.Struct, frozen=True, order=True):
    """A point in time: `seconds` (i64) since the epoch, UTC, plus `nanos` (0 to 999,999,999)."""

    seconds: int
    nanos: int


class Duration(msgspec.Struct, frozen=True, order=True):
    """A signed span: `seconds` (i64) plus `nanos` (0 to 999,999,999), so minus half a second is `(-1, 500_000_000)`."""

    seconds: int
    nanos: int


class BlobRef(msgspec.Struct, frozen=True):
    """Bytes kept elsewhere. `size` is u64, `sha256` 64 lower-case hex digits."""

    uri: str
    size: int
    sha256: str
    media_type: str


Value: TypeAlias = bool | int | float | str | bytes | list["Value"] | dict[str, "Value"] | Instant | Duration | BlobRef | None

I64_MIN: Final = -(2**63)
I64_MAX: Final = 2**63 - 1
U64_MAX: Final = 2**64 - 1
NANOS_MAX: Final = 999_999_999

_NODE_BYTES_MIN: Final = len(b'{"type":"null"}')
_TAG_NESTING_MAX: Final = 3 * NESTING_MAX
"""Levels of JSON: two for each level of value, and room for what unknown members hold."""
_DECIMAL_DIGITS_MAX: Final = 20
_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MINUS_ZERO: Final = re.compile(rb"(?:^|[:\[,\s])-0(?:$|[,\]}\s])")
_KEY_CHARACTERS_MAX: Final = 64

_HINTS: Final = {
    "tuple": "a list",
    "set": "a list",
    "frozenset": "a list",
    "Decimal": "a string",
    "UUID": "a string",
    "bytearray": "bytes",
    "memoryview": "bytes",
    "datetime": "an instant",
    "timedelta": "a duration",
    "date": "a string",
}


class InvalidValue(ValueError):
    """Not a portable value. `path` leads to the place in the language's own value (`$.items[3].price`), `why` says what is wrong."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self._outward: list[str] = []

    @property
    def path(self) -> str:
        return "$" + "".join(reversed(self._outward))

    def passed(self, step: str) -> None:
        """Notes the step to the container that the refusal is passing on its way out."""
        self._outward.append(step)

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class ValueTooLarge(InvalidValue):
    """A portable value beyond the limits of size or nesting."""


class _TooManyBytes(Exception):
    """The canonical form cannot fit, whatever the rest of the value is."""


def encode(value: Value) -> bytes:
    """The canonical tagged bytes of a value. Raises `InvalidValue`, or `ValueTooLarge` beyond 2 MiB or 64 levels.

    Takes exact types only: a subclass could carry more than its base, and that would be lost.
    """
    try:
        data = canonical.write(_tag(value, 0, [VALUE_BYTES_MAX]))
    except _TooManyBytes:
        data = None
    if data is None or len(data) > VALUE_BYTES_MAX:
        raise ValueTooLarge(f"larger than {VALUE_BYTES_MAX // MIB} MiB in canonical form; keep the bytes elsewhere and pass a reference")
    return data


def decode(data: bytes | memoryview | msgspec.Raw) -> Value:
    """The value of tagged bytes. Raises `InvalidValue`, or `ValueTooLarge` beyond 64 levels; size is bounded by `canonicalize`."""
    text = data if type(data) is bytes else bytes(cast("memoryview", data))
    return _untag(_parse(text), 0)


def canonicalize(data: bytes | memoryview | msgspec.Raw) -> bytes:
    """The canonical bytes of the value that any accepted spelling stands for. Raises as `encode` and `decode` do."""
    return encode(decode(data))


def digest(canonical_bytes: bytes) -> str:
    """`sha256:<hex>` of canonical bytes: the same payload has the same digest in every language."""
    return canonical.sha256_digest(canonical_bytes)


# Encoding. `room` holds how many bytes the canonical form may still take: a list that holds one large list many times is
# refused before it is spelled out.


def _tag(value: object, depth: int, room: list[int]) -> dict[str, object]:  # noqa: PLR0911 - one branch a kind, the hot path
    """The tagged document of one value with members in canonical order."""
    kind = type(value)
    if kind is str:
        text = cast("str", value)
        _take(room, len(text))
        return {"type": "string", "value": _unicode(text)}
    if kind is int:
        return _tag_int(cast("int", value))
    if kind is dict:
        return _tag_object(cast("dict[object, object]", value), depth, room)
    if kind is list:
        return _tag_array(cast("list[object]", value), depth, room)
    if value is None:
        return {"type": "null"}
    if kind is bool:
        return {"type": "bool", "value": value}
    if kind is float:
        return _tag_float(cast("float", value))
    if kind is bytes:
        raw = cast("bytes", value)
        _take(room, len(raw))
        return {"type": "bytes", "value": binascii.b2a_base64(raw, newline=False).decode("ascii")}
    return _tag_struct(value, room)


def _take(room: list[int], count: int) -> None:
    room[0] -= count
    if room[0] < 0:
        raise _TooManyBytes


def _unicode(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as refused:
            raise InvalidValue(f"the text has a lone surrogate at character {refused.start}; only valid Unicode is portable") from None
    return text


def _tag_int(value: int) -> dict[str, object]:
    if I64_MIN <= value <= I64_MAX:
        return {"type": "i64", "value": str(value)}
    if I64_MAX < value <= U64_MAX:
        return {"type": "u64", "value": str(value)}
    raise InvalidValue("the integer is beyond 64 bits; pass it as a string")


def _tag_float(value: float) -> dict[str, object]:
    if not math.isfinite(value):
        raise InvalidValue(f"{value} is not a finite number")
    if value == 0.0 and math.copysign(1.0, value) < 0:
        return {"type": "f64", "value": "-0"}
    return {"type": "f64", "value": canonical.number(value)}


def _tag_array(value: list[object], depth: int, room: list[int]) -> dict[str, object]:
    _enter(depth)
    _take(room, _NODE_BYTES_MIN * len(value))
    items: list[object] = []
    try:
        for item in value:
            items.append(_tag(item, depth + 1, room))  # noqa: PERF401 - the length so far is the index of a refused item
    except InvalidValue as refused:
        refused.passed(f"[{len(items)}]")
        raise
    return {"type": "array", "value": items}


def _tag_object(value: dict[object, object], depth: int, room: list[int]) -> dict[str, object]:
    _enter(depth)
    _take(room, _NODE_BYTES_MIN * len(value))
    for key in value:
        if type(key) is not str:
            raise InvalidValue(f"an object's keys are strings, and one here is {_a(type(key).__name__)}")
        _take(room, len(key))
        _unicode(key)
    members: dict[str, object] = {}
    name = ""
    try:
        for name in canonical.member_order(cast("dict[str, object]", value)):
            members[name] = _tag(value[name], depth + 1, room)
    except InvalidValue as refused:
        refused.passed(_step(name))
        raise
    return {"type": "object", "value": members}


def _tag_struct(value: object, room: list[int]) -> dict[str, object]:
    kind = type(value)
    if kind is Instant or kind is Duration:
        span = cast("Instant | Duration", value)
        if type(span.seconds) is not int or not I64_MIN <= span.seconds <= I64_MAX:
            raise InvalidValue("`seconds` must be a signed 64-bit integer")
        _check_nanos(span.nanos)
        tag = "instant" if kind is Instant else "duration"
        return {"type": tag, "value": {"nanos": span.nanos, "seconds": str(span.seconds)}}
    if kind is BlobRef:
        blob = cast("BlobRef", value)
        if type(blob.size) is not int or not 0 <= blob.size <= U64_MAX:
            raise InvalidValue("`size` must be an unsigned 64-bit integer")
        for text in (blob.uri, blob.sha256, blob.media_type):
            _take(room, len(_unicode(_text(text))))
        _check_sha256(blob.sha256)
        described = {"media_type": blob.media_type, "sha256": blob.sha256, "size": str(blob.size), "uri": blob.uri}
        return {"type": "blob_ref", "value": described}
    name = kind.__name__
    hint = f"; convert it to {_HINTS[name]}" if name in _HINTS else "; convert it to plain data first"
    raise InvalidValue(f"{_a(name)} is not a portable value{hint}")


# Decoding.


def _parse(text: bytes) -> object:
    if strict_json.deeper_than(text, _TAG_NESTING_MAX):
        raise ValueTooLarge(f"nested deeper than {NESTING_MAX} levels")
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as refused:
        raise InvalidValue(strict_json.reason(text, refused)) from None
    if b"-0" in text and _MINUS_ZERO.search(text) is not None:
        # msgspec reads the number -0 as the integer 0, which hides that it is no form of any value.
        return json.loads(text, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))
    return document


def _untag(document: object, depth: int) -> Value:  # noqa: C901, PLR0911, PLR0912 - one branch a kind, the hot path
    if type(document) is not dict:
        raise InvalidValue('a portable value is an object with a "type"')
    node = cast("dict[str, object]", document)
    tag = node.get("type")
    content = node.get("value", _ABSENT)
    match tag:
        case "string":
            return _text(content)
        case "i64":
            return _decimal(content, I64_MIN, I64_MAX, "i64")
        case "object":
            return _untag_object(content, depth)
        case "array":
            return _untag_array(content, depth)
        case "null":
            if content is not _ABSENT:
                raise InvalidValue('a null has no "value"')
            return None
        case "bool":
            if type(content) is not bool:
                raise InvalidValue("a bool is true or false")
            return content
        case "f64":
            return _untag_float(content)
        case "bytes":
            return _untag_bytes(content)
        case "u64":
            return _decimal(content, I64_MAX + 1, U64_MAX, "u64")
        case "instant" | "duration":
            fields = _members(content)
            seconds = _decimal(fields.get("seconds"), I64_MIN, I64_MAX, "i64")
            nanos = _check_nanos(fields.get("nanos"))
            return Instant(seconds, nanos) if tag == "instant" else Duration(seconds, nanos)
        case "blob_ref":
            return _untag_blob(_members(content))
        case str():
            raise InvalidValue(f"the value type {_shown(tag)} is not known to this codec")
        case _:
            raise InvalidValue('a portable value names its kind in "type"')


_ABSENT: Final = object()


def _untag_array(content: object, depth: int) -> list[Value]:
    if type(content) is not list:
        raise InvalidValue("an array's value is a list")
    _enter(depth)
    items: list[Value] = []
    try:
        for item in cast("list[object]", content):
            items.append(_untag(item, depth + 1))  # noqa: PERF401 - the length so far is the index of a refused item
    except InvalidValue as refused:
        refused.passed(f"[{len(items)}]")
        raise
    return items


def _untag_object(content: object, depth: int) -> dict[str, Value]:
    entries = _members(content)
    _enter(depth)
    members: dict[str, Value] = {}
    name = ""
    try:
        for name, item in entries.items():
            members[name] = _untag(item, depth + 1)
    except InvalidValue as refused:
        refused.passed(_step(name))
        raise
    return members


def _untag_float(content: object) -> float:
    if content == "-0":
        return -0.0
    if type(content) is not int and type(content) is not float:
        raise InvalidValue("an f64 is a JSON number")
    try:
        value = float(content)
    except OverflowError:
        raise InvalidValue("the number is beyond a double") from None
    if value == 0.0 and math.copysign(1.0, value) < 0:
        raise InvalidValue('minus zero is written as the string "-0"')
    return value


def _untag_bytes(content: object) -> bytes:
    text = _text(content)
    try:
        raw = binascii.a2b_base64(text)
    except ValueError:
        raise InvalidValue("not standard base64") from None
    # Writing it again is the whole test: no blanks, no missing padding, no other alphabet, no unused bits set.
    if binascii.b2a_base64(raw, newline=False) != text.encode("ascii"):
        raise InvalidValue("not the one base64 form: standard alphabet, padded, no blanks, unused bits zero")
    return raw


def _untag_blob(fields: dict[str, object]) -> BlobRef:
    return BlobRef(
        uri=_text(fields.get("uri")),
        size=_decimal(fields.get("size"), 0, U64_MAX, "u64"),
        sha256=_check_sha256(_text(fields.get("sha256"))),
        media_type=_text(fields.get("media_type")),
    )


# Checks that both directions share.


def _enter(depth: int) -> None:
    if depth >= NESTING_MAX:
        raise ValueTooLarge(f"nested deeper than {NESTING_MAX} levels")


def _text(content: object) -> str:
    if type(content) is not str:
        raise InvalidValue("text is expected here")
    return content


def _members(content: object) -> dict[str, object]:
    if type(content) is not dict:
        raise InvalidValue("an object is expected here")
    return cast("dict[str, object]", content)


def _decimal(content: object, least: int, most: int, kind: str) -> int:
    if type(content) is str and len(content) <= _DECIMAL_DIGITS_MAX and _DECIMAL.fullmatch(content):
        value = int(content)
        if least <= value <= most:
            return value
    raise InvalidValue(f"{_a(kind)} is a decimal string from {least} to {most} without leading zeros")


def _check_nanos(nanos: object) -> int:
    if type(nanos) is not int or not 0 <= nanos <= NANOS_MAX:
        raise InvalidValue(f"`nanos` must be an integer from 0 to {NANOS_MAX}")
    return nanos


def _check_sha256(text: str) -> str:
    if _SHA256.fullmatch(text) is None:
        raise InvalidValue("`sha256` must be 64 lower-case hex digits")
    return text


def _step(key: str) -> str:
    return f".{key}" if key.isidentifier() and len(key) <= _KEY_CHARACTERS_MAX else f"[{_shown(key)}]"


def _shown(name: str) -> str:
    """A short quoted spelling for a message; always valid Unicode."""
    clipped = name if len(name) <= _KEY_CHARACTERS_MAX else name[:_KEY_CHARACTERS_MAX] + "…"
    return json.dumps(clipped, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aefiou' and noun != 'u64' else 'a'} {noun}"
