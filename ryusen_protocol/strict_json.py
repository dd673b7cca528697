"""Depth of JSON text."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'"\\[]{}')
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


def deeper_than(data: bytes, levels: int) -> bool:
    """Whether JSON text nests arrays and objects deeper than that, without parsing it: linear, no recursion.

    For text that is no JSON it answers for at least all that a parser can meet before it gives up.
    """
    if data.count(b"[") + data.count(b"{") <= levels:
        return False
    skeleton = data.translate(None, _NOT_STRUCTURE)
    if b"\\" in skeleton:
        # An escape is a pair, so runs of backslashes pair up from their left end.
        skeleton = skeleton.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(skeleton.split(b'"')[::2]).replace(b"\\", b"")
    return max(accumulate(array("b", outside_strings.translate(_STEPS))), default=0) > levels
