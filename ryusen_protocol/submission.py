"""What a submitted event means: its payload bytes, and every bound that a type cannot express.

Pure. Shared by the API route, which answers the problem, and by clients that want to hear of it before they send.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from ryusen_protocol.limits import ID_BYTES_MAX, METADATA_BYTES_MAX, METADATA_PAIRS_MAX, PAYLOAD_BYTES_MAX
from ryusen_protocol.problems import Problem, invalid, limit_exceeded

if TYPE_CHECKING:
    from ryusen_protocol.api import EventSubmission


def submitted_payload(submission: EventSubmission) -> bytes | Problem:
    """The payload of a valid submission, or the first thing wrong with it (`invalid` or `limit_exceeded`).

    The payload is the exact text of `data`, as it stood between its neighbours, or the decoded `payload_base64`.
    """
    return _bounds(submission) or _payload(submission)


def _bounds(submission: EventSubmission) -> Problem | None:
    named = [("event name", submission.name, "$.name")]
    if submission.idempotency_key is not None:
        named.append(("idempotency key", submission.idempotency_key, "$.idempotency_key"))
    for what, text, path in named:
        refusal = identifier_problem(what, text, path)
        if refusal is not None:
            return refusal
    if len(submission.metadata) > METADATA_PAIRS_MAX:
        return limit_exceeded("The metadata", size=len(submission.metadata), limit=METADATA_PAIRS_MAX, unit="pairs", path="$.metadata")
    for key, value in submission.metadata.items():
        for what, text in (("A metadata key", key), ("A metadata value", value)):
            size = utf8_size(text)
            if size is None:
                return invalid(f"{what} is not valid Unicode: it holds half of a surrogate pair.", path="$.metadata")
            if size > METADATA_BYTES_MAX:
                return limit_exceeded(what, size=size, limit=METADATA_BYTES_MAX, path="$.metadata")
    return None


def _payload(submission: EventSubmission) -> bytes | Problem:
    has_data = submission.data is not msgspec.UNSET
    has_base64 = submission.payload_base64 is not None
    if has_data and has_base64:
        return invalid("The event has both data and payload_base64. Send exactly one of them.")
    if submission.data is not msgspec.UNSET:
        payload = bytes(submission.data)
    elif submission.payload_base64 is not None:
        decoded = strict_base64(submission.payload_base64)
        if decoded is None:
            return invalid(
                "payload_base64 is not standard base64 with padding and without blanks. Encode the bytes again.",
                path="$.payload_base64",
            )
        payload = decoded
    else:
        return invalid("The event has no payload. Send data (any JSON, null too) or payload_base64 (raw bytes).")
    if len(payload) > PAYLOAD_BYTES_MAX:
        path = "$.data" if has_data else "$.payload_base64"
        return limit_exceeded("The event's payload", size=len(payload), limit=PAYLOAD_BYTES_MAX, path=path)
    return payload


def identifier_problem(what: str, text: str, path: str) -> Problem | None:
    """Why `text` cannot be an identifier, if it cannot: 1 to 256 bytes of UTF-8 without NUL."""
    if not text:
        return invalid(f"The {what} is empty. Give it 1 to {ID_BYTES_MAX} bytes.", path=path)
    if "\x00" in text:
        return invalid(f"The {what} contains a NUL character. Remove it.", path=path)
    size = utf8_size(text)
    if size is None:
        return invalid(f"The {what} is not valid Unicode: it holds half of a surrogate pair.", path=path)
    if size > ID_BYTES_MAX:
        return limit_exceeded(f"The {what}", size=size, limit=ID_BYTES_MAX, path=path)
    return None


def utf8_size(text: str) -> int | None:
    """Bytes of the text in UTF-8; `None` if it holds a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def strict_base64(text: str) -> bytes | None:
    """The bytes of standard, padded base64 whose unused bits are zero; `None` for anything else."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded if base64.b64encode(decoded).decode() == text else None
