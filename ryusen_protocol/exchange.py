"""What both sides of an HTTP exchange agree on beside its documents: the media type, the header names, and how a body is signed.

Owns the signature and its window. Knows no client, no server and no clock: instants and headers are arguments. Without a secret nothing is
signed and nothing is checked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from ryusen_protocol.codec import MalformedDocument

MEDIA_TYPE: Final = "application/json"
TIMESTAMP_HEADER: Final = "Ryusen-Timestamp"
"""Unix seconds at which the body was signed."""
SIGNATURE_HEADER: Final = "Ryusen-Signature"
"""`v1=` and the hex HMAC-SHA256 of the timestamp, a full stop and the body."""
WINDOW_S: Final = 300
"""How far the clocks of the two sides may be apart, the time on the way included."""

_SECONDS: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


def sign(secret: bytes, timestamp: str, body: bytes) -> str:
    """The value of the signature header for a body."""
    digest = hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"v1={digest}"


def signed_headers(secret: bytes | None, body: bytes, now_s: int) -> dict[str, str]:
    """The two headers that go with a body; none without a secret."""
    if secret is None:
        return {}
    timestamp = str(now_s)
    return {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: sign(secret, timestamp, body)}


def signature_problem(secret: bytes | None, timestamp: str | None, signature: str | None, body: bytes, now_s: int) -> str | None:
    """What is wrong with the signature of a body, in words for people; `None` if it is right, or no secret asks for one."""
    if secret is None:
        return None
    if timestamp is None or signature is None:
        return f"it is not signed: {TIMESTAMP_HEADER} and {SIGNATURE_HEADER} are expected, made with the shared secret"
    if _SECONDS.fullmatch(timestamp) is None:
        return f"its {TIMESTAMP_HEADER} is not a number of seconds"
    # Compared before the clock is looked at, so that a stranger learns nothing about it.
    if not hmac.compare_digest(sign(secret, timestamp, body).encode(), signature.encode(errors="replace")):
        return "its signature does not match; both sides need the same secret"
    apart_s = abs(now_s - int(timestamp))
    if apart_s > WINDOW_S:
        return f"it was signed {apart_s} s from now; at most {WINDOW_S} s are accepted, so set both clocks"
    return None


def utf8(body: bytes) -> bytes:
    """The body again, if it is UTF-8: values stay raw text below, which nothing there checks. Raises `MalformedDocument`."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as broken:
            raise MalformedDocument(f"not valid UTF-8 at byte {broken.start}") from None
    return body
