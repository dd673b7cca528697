"""Recorded results as Python values, read from their text once.

A run replays every recorded result in every pass, and reading the tagged text is most of what a replay costs. The same text is always the
same value, so a value is read once and every replay gets a copy of it: whatever a body does to what it was given stays its own.

Owns how much memory that may take. Any thread may ask.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, cast

from ryusen_sdk.convert import from_wire

if TYPE_CHECKING:
    import msgspec

KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
"""How many bytes of text may be kept with their values."""

TEXT_BYTES_MAX: Final = 16 * 1024
"""A longer text is read anew each time: few results are, and they would push out many others."""


class Recall:
    """The values of the texts met lately."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: dict[bytes, object] = {}
        self._lock = threading.Lock()

    def value(self, data: msgspec.Raw) -> Any:
        """As `from_wire`: a value of the caller's own. Raises `ConversionError`."""
        text = bytes(data)
        try:
            return _copied(self._values[text])
        except KeyError:
            pass
        value = from_wire(data)
        if len(text) <= TEXT_BYTES_MAX:
            self._keep(text, _copied(value))
        return value

    def _keep(self, text: bytes, value: object) -> None:
        with self._lock:
            if text not in self._values:
                self._values[text] = value
                self._bytes += len(text)
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._values))
                del self._values[oldest]
                self._bytes -= len(oldest)

    @property
    def kept_bytes(self) -> int:
        """How many bytes of text are kept."""
        return self._bytes


def _copied(value: object) -> object:
    """Lists and dicts anew; everything else that a recorded value can hold never changes."""
    kind = type(value)
    if kind is dict:
        members = cast("dict[str, object]", value)
        return {name: _copied(item) if type(item) in _CHANGEABLE else item for name, item in members.items()}
    if kind is list:
        return [_copied(item) if type(item) in _CHANGEABLE else item for item in cast("list[object]", value)]
    return value


_CHANGEABLE: Final = frozenset((dict, list))

recalled: Final = Recall().value
"""The process's own."""
