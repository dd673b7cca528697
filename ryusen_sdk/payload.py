"""Event payloads as user code gives them: bytes as they are, anything else as strict JSON text.

Owns which of the two it is, so that an event that a run sends and one that a client submits carry the same bytes. Sends nothing.
"""

from __future__ import annotations

from typing import cast

from ryusen_sdk.plain_data import json_bytes


def payload_of(data: object) -> bytes:
    """The exact payload of an event with this data. Raises `ConversionError` for what has no JSON form."""
    given = raw_bytes(data)
    return json_bytes(data) if given is None else given


def raw_bytes(data: object) -> bytes | None:
    """Opaque bytes as they are; `None` for data that is to become JSON."""
    return bytes(cast("bytes", data)) if isinstance(data, bytes | bytearray | memoryview) else None
