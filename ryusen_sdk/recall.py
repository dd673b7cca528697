"""Recorded results as Python values, read from their text once.

A run replays every recorded result in every pass, and reading the tagged text is most of what a replay costs. The same text is always the
same value, so a value is read once and every replay gets a copy of it: whatever a body does to what it was given stays its own.

Owns how much memory that may take. Any thread may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, cast

from ryusen_sdk.convert import from_wire

if TYPE_CHECKING:
    import msgspec

KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
"""How many bytes of text may be kept with their values."""

Copier = Callable[[Any], object]

TEXT_BYTES_MAX: Final = 16 * 1024
"""A longer text is read anew each time: few results are, and they would push out many others."""


class Recall:
    """The values of the texts met lately."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: dict[bytes, tuple[Copier | None, Any]] = {}
        self._lock = threading.Lock()

    def value(self, data: msgspec.Raw) -> Any:
        """As `from_wire`: a value of the caller's own. Raises `ConversionError`."""
        text = bytes(data)
        try:
            copy, value = self._values[text]
        except KeyError:
            return self._read(data, text)
        return value if copy is None else copy(value)

    def _read(self, data: msgspec.Raw, text: bytes) -> object:
        value = from_wire(data)
        if len(text) <= TEXT_BYTES_MAX:
            copy = _copier(value)
            self._keep(text, (copy, value if copy is None else copy(value)))
        return value

    def _keep(self, text: bytes, kept: tuple[Copier | None, Any]) -> None:
        with self._lock:
            if text not in self._values:
                self._values[text] = kept
                self._bytes += len(text)
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._values))
                del self._values[oldest]
                self._bytes -= len(oldest)

    @property
    def kept_bytes(self) -> int:
        """How many bytes of text are kept."""
        return self._bytes


def _copier(value: object) -> Copier | None:
    """How a value is copied: lists and dicts anew, all the way down; everything else that a recorded value can hold never changes."""
    kind = type(value)
    if kind is dict:
        members = cast("dict[str, object]", value)
        return _each_member if any(type(item) in _CHANGEABLE for item in members.values()) else _flat_copy
    if kind is list:
        items = cast("list[object]", value)
        return _each_item if any(type(item) in _CHANGEABLE for item in items) else _flat_copy
    return None


def _each_member(members: dict[str, Any]) -> object:
    return {name: _copied(item) if type(item) in _CHANGEABLE else item for name, item in members.items()}


def _each_item(items: list[Any]) -> object:
    return [_copied(item) if type(item) in _CHANGEABLE else item for item in items]


def _copied(value: dict[str, Any] | list[Any]) -> object:
    return _each_member(value) if isinstance(value, dict) else _each_item(value)


_CHANGEABLE: Final = frozenset[type]((dict, list))
_flat_copy: Final[Copier] = methodcaller("copy")

recalled: Final = Recall().value
"""The process's own."""
