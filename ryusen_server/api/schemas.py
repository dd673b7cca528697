"""JSON Schemas of the documents that routes take and answer, made from their types.

A request's schema says what may be left out and every bound of its type, with the bounds that only a check in code knows added by name. A
response's schema says what is always there. Values of the wire, and commands that are read by hand, are written out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import inspect as types

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.api import EventSubmission
from ryusen_protocol.limits import ID_BYTES_MAX, MANIFEST_TIMEOUT_MS_MAX, PAYLOAD_BYTES_MAX
from ryusen_protocol.manifest import FunctionDeclaration, Publication, TriggerDeclaration
from ryusen_protocol.operator import ENVELOPE_VERSION, ResolveCommand

Schema = dict[str, Any]
Direction = Literal["taken", "answered"]

IDENTIFIER: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": ID_BYTES_MAX,
    "pattern": r"^[^\u0000]+$",
    "description": f"1 to {ID_BYTES_MAX} bytes of UTF-8, without NUL.",
}
BASE64: Final[Schema] = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
}
_REFERENCE: Final = "#/components/schemas/"
_INTEGER_TEXT: Final = r"^(?:0|-?[1-9][0-9]*)$"
_PAYLOAD_CHARACTERS_MAX: Final = (PAYLOAD_BYTES_MAX + 2) // 3 * 4
_GENERATION_MAX: Final = 2**53 - 1

_TAKEN_BOUNDS: Final[Mapping[tuple[type, str], Schema]] = {
    (FunctionDeclaration, "id"): IDENTIFIER,
    (FunctionDeclaration, "timeout_ms"): {"type": ["integer", "null"], "minimum": 1, "maximum": MANIFEST_TIMEOUT_MS_MAX},
    (TriggerDeclaration, "id"): IDENTIFIER,
    (TriggerDeclaration, "event_name"): IDENTIFIER,
    (TriggerDeclaration, "function"): {**IDENTIFIER, "description": "The id of a function of the same publication."},
    (Publication, "protocol_version"): {"const": PROTOCOL_VERSION},
    (Publication, "expected_parent"): {"type": ["string", "null"], "description": "The active manifest generation, null for none."},
    (Publication, "contents"): {**BASE64, "description": "Opaque bytes; what an SDK publishes is the canonical text of both lists."},
    (EventSubmission, "data"): {"description": "Any JSON. Its exact text, as it stands between its neighbours, is the payload."},
    (EventSubmission, "payload_base64"): {
        "anyOf": [{**BASE64, "maxLength": _PAYLOAD_CHARACTERS_MAX}, {"type": "null"}],
    },
}
"""What a check in code says of a member of a request."""

_TAKEN_EXTRAS: Final[Mapping[type, Schema]] = {
    EventSubmission: {
        "oneOf": [
            {"required": ["data"], "properties": {"payload_base64": {"type": "null"}}},
            {"required": ["payload_base64"], "properties": {"payload_base64": {"type": "string"}}, "not": {"required": ["data"]}},
        ]
    },
}
"""What holds between members of a request."""

_VALUE: Final[Schema] = {"$ref": f"{_REFERENCE}Value"}
_VALUE_OR_NULL: Final[Schema] = {"anyOf": [_VALUE, {"type": "null"}]}
_TEXTS: Final[Mapping[str, Schema]] = {
    "result": {**_VALUE_OR_NULL, "description": "The tagged value; null where there is none."},
    "details": _VALUE,
    "input": {"type": ["object", "null"], "description": "The wire document of the run's input."},
    "records": {"type": "object", "description": "A record of the history, tagged by `kind`."},
}
"""What stands in a member that is kept as exact text, by the name of the member."""


class Schemas:
    """Collects the schemas of named types, so that each stands once in the document."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {"Value": _value(), "BlobRef": _blob_ref(), "ErrorTaken": _error_taken()}
        self._names: dict[tuple[str, Direction], str] = {}

    def of(self, shape: Any, direction: Direction) -> Schema:
        """The schema of a type, by reference where it has a name."""
        if shape is ResolveCommand:
            self.components.setdefault("ResolveCommand", _resolve_command())
            return {"$ref": f"{_REFERENCE}ResolveCommand"}
        return self._schema(types.type_info(shape), direction, "")

    def _schema(self, info: types.Type, direction: Direction, member: str) -> Schema:  # noqa: C901, PLR0911, PLR0912 - one branch a kind of type
        match info:
            case types.AnyType():
                return {}
            case types.RawType():
                return _TEXTS.get(member, {})
            case types.NoneType():
                return {"type": "null"}
            case types.BoolType():
                return {"type": "boolean"}
            case types.IntType():
                return {"type": "integer", **_bounds(minimum=info.ge, maximum=info.le)}
            case types.FloatType():
                return {"type": "number"}
            case types.StrType():
                return {"type": "string", **_bounds(minLength=info.min_length, maxLength=info.max_length, pattern=_pattern(info.pattern))}
            case types.LiteralType():
                return {"enum": sorted(info.values, key=str)}
            case types.ListType():
                return {"type": "array", "items": self._schema(info.item_type, direction, member), **_bounds(maxItems=info.max_length)}
            case types.DictType():
                keys = self._schema(info.key_type, direction, "")
                return {
                    "type": "object",
                    "additionalProperties": self._schema(info.value_type, direction, member),
                    **_bounds(maxProperties=info.max_length),
                    **({} if keys in ({"type": "string"}, {}) else {"propertyNames": keys}),
                }
            case types.UnionType():
                return _union([self._schema(kind, direction, member) for kind in info.types])
            case types.StructType():
                return {"$ref": f"{_REFERENCE}{self._struct(info, direction)}"}
            case _:
                raise AssertionError(f"no schema is known for {info}")

    def _struct(self, info: types.StructType, direction: Direction) -> str:
        identity = str(info.cls)
        known = self._names.get((identity, direction))
        if known is not None:
            return known
        name = _name(info)
        if name in self.components:  # the same type the other way round
            name = f"{name}{direction.title()}"
        self._names[identity, direction] = name
        self.components[name] = {}  # a type may hold itself
        self.components[name] = self._members(info, direction)
        return name

    def _members(self, info: types.StructType, direction: Direction) -> Schema:
        kind: type[msgspec.Struct] = getattr(info.cls, "__origin__", info.cls)
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if info.tag_field is not None:
            properties[info.tag_field] = {"const": info.tag}
            required.append(info.tag_field)
        for field in info.fields:
            bounds = _TAKEN_BOUNDS.get((kind, field.name)) if direction == "taken" else None
            properties[field.encode_name] = self._schema(field.type, direction, field.name) if bounds is None else bounds
            if field.required or (direction == "answered" and _always_there(kind, field)):
                required.append(field.encode_name)
        schema: Schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if info.forbid_unknown_fields:
            schema["additionalProperties"] = False
        if direction == "taken":
            schema.update(_TAKEN_EXTRAS.get(kind, {}))
        told = (kind.__doc__ or "").strip()
        return {"description": " ".join(told.split()), **schema} if told else schema


def _always_there(kind: type[msgspec.Struct], field: types.Field) -> bool:
    """Whether an encoder writes a member that has a default: it does, unless the member can be unset or defaults are left out."""
    unset = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    return not unset and not kind.__struct_config__.omit_defaults


def _name(info: types.StructType) -> str:
    """`Page[RunSummary]` is a `RunSummaryPage`."""
    arguments: Iterable[Any] = getattr(info.cls, "__args__", ())
    return "".join(argument.__name__ for argument in arguments) + info.cls.__name__


def _bounds(**given: Any) -> Schema:
    return {name: bound for name, bound in given.items() if bound is not None}


def _pattern(pattern: str | None) -> str | None:
    """A pattern of Python's as one of JSON Schema's."""
    return None if pattern is None else pattern.replace(r"\A", "^").replace(r"\Z", "$").replace(r"\x", r"\u00")


def _union(kinds: list[Schema]) -> Schema:
    plain = [kind["type"] for kind in kinds if set(kind) == {"type"}]
    return {"type": plain} if len(plain) == len(kinds) else {"anyOf": kinds}


# --- Written by hand: what types alone do not say --------------------------------------------------------------------


def _tagged(kind: str, content: Schema | None) -> Schema:
    properties: Schema = {"type": {"const": kind}}
    if content is not None:
        properties["value"] = content
    required = ["type"] if content is None else ["type", "value"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _span() -> Schema:
    seconds = {"type": "string", "pattern": _INTEGER_TEXT, "maxLength": 20}
    nanos = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
    return {
        "type": "object",
        "properties": {"seconds": seconds, "nanos": nanos},
        "required": ["seconds", "nanos"],
        "additionalProperties": False,
    }


def _value() -> Schema:
    return {
        "description": "A portable value: one tagged object at every level. Integers are decimal text, so that every language keeps them.",
        "oneOf": [
            _tagged("null", None),
            _tagged("bool", {"type": "boolean"}),
            _tagged("i64", {"type": "string", "pattern": _INTEGER_TEXT, "maxLength": 20}),
            _tagged("u64", {"type": "string", "pattern": "^[1-9][0-9]{18,19}$"}),
            _tagged("f64", {"anyOf": [{"type": "number"}, {"const": "-0"}]}),
            _tagged("string", {"type": "string"}),
            _tagged("bytes", BASE64),
            _tagged("array", {"type": "array", "items": _VALUE}),
            _tagged("object", {"type": "object", "additionalProperties": _VALUE}),
            _tagged("instant", _span()),
            _tagged("duration", _span()),
            _tagged("blob_ref", {"$ref": f"{_REFERENCE}BlobRef"}),
        ],
    }


def _blob_ref() -> Schema:
    return {
        "type": "object",
        "properties": {
            "uri": {"type": "string", "minLength": 1},
            "size": {"type": "string", "pattern": "^(?:0|[1-9][0-9]*)$", "maxLength": 20},
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "media_type": {"type": "string", "minLength": 1},
        },
        "required": ["uri", "size", "sha256", "media_type"],
        "additionalProperties": False,
    }


def _error_taken() -> Schema:
    return {
        "description": "A failure as an operator declares it.",
        "type": "object",
        "properties": {
            "category": {**IDENTIFIER, "description": "Stable text to branch on; what begins with sdk. is reserved."},
            "message": {"type": "string"},
            "retryable": {"type": "boolean"},
            "details": {"type": "object", "additionalProperties": _VALUE},
            "cause": {"$ref": f"{_REFERENCE}ErrorTaken"},
        },
        "required": ["category", "message", "retryable"],
        "additionalProperties": False,
    }


def _variant(name: str, properties: Schema) -> Schema:
    content = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": {name: content}, "required": [name], "additionalProperties": False}


def _resolve_command() -> Schema:
    return {
        "description": "One command on exactly one generation of one attempt, read strictly at every level.",
        "type": "object",
        "properties": {
            "version": {"const": ENVELOPE_VERSION},
            "attempt_id": {**IDENTIFIER, "description": "The attempt of the path."},
            "attempt_generation": {"type": "integer", "minimum": 1, "maximum": _GENERATION_MAX},
            "idempotency_key": IDENTIFIER,
            "command": {
                "oneOf": [
                    _variant("supply_success", {"result": _VALUE}),
                    _variant("declare_failure", {"failure": {"$ref": f"{_REFERENCE}ErrorTaken"}}),
                    _variant("authorize_retry", {}),
                ]
            },
        },
        "required": ["version", "attempt_id", "attempt_generation", "idempotency_key", "command"],
        "additionalProperties": False,
    }
