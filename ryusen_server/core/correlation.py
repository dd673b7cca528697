"""How waits and events find each other by exact look-ups.

A wait asks for some pairs of an event's metadata. Its *shape* is which keys it asks for, and its *digest* stands for the values under them;
an event that has all keys of a shape can only match the waits of that shape whose digest is that of its own values. Few shapes are in
use under one event name, so an event asks once a shape and never walks the waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from ryusen_protocol.identity import framed

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode


def shape_of(correlation: Mapping[str, str]) -> str:
    """The keys a wait asks for, as a JSON array in order."""
    return _encode(sorted(correlation)).decode()


def digest_of(shape: str, metadata: Mapping[str, str]) -> bytes | None:
    """What stands for the values of a shape's keys; none when the metadata lacks one of them."""
    values: list[str] = []
    for key in _decode(shape):
        value = metadata.get(key)
        if value is None:
            return None
        values.append(value)
    return hashlib.sha256(framed(*values)).digest()


def is_match(correlation: Mapping[str, str], metadata: Mapping[str, str]) -> bool:
    """Whether every pair a wait asks for is in an event's metadata. Further pairs do not matter."""
    return all(metadata.get(key) == value for key, value in correlation.items())
