"""Server-sent events without I/O: bytes in any pieces in, events out. Knows the format, no name of an event and no document."""

from __future__ import annotations

import msgspec

from ryusen_protocol.limits import MIB

EVENT_BYTES_MAX = 4 * MIB


class StreamEvent(msgspec.Struct, frozen=True):
    """One event. `id` is the last id the stream has named, which a reader sends as `Last-Event-ID` to go on behind it."""

    name: str
    data: bytes
    id: str | None


class StreamBroken(Exception):
    """The bytes are no event stream a server of ours sends."""


def encode_event(name: str, data: bytes, id: int | None = None) -> bytes:  # noqa: A002 — the format's own word
    """One event with one line of data: JSON text has no line break."""
    if id is None:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (id, name.encode(), data)


class StreamParser:
    """Reads one connection. Comments and unknown fields are passed over; an event without data is none."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None

    def feed(self, received: bytes) -> list[StreamEvent]:
        """The events that these bytes complete. Raises `StreamBroken` for an event beyond all bounds."""
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) + self._size > EVENT_BYTES_MAX:
            raise StreamBroken(f"an event is larger than {EVENT_BYTES_MAX} bytes")
        found: list[StreamEvent] = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: bytes) -> StreamEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"event":
                self._name = value.decode("utf-8", "replace")
            case b"data":
                self._data.append(value)
                self._size += len(value)
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case _:
                pass
        return None

    def _dispatch(self) -> StreamEvent | None:
        name, data = self._name or "message", self._data
        self._name, self._data, self._size = "", [], 0
        return StreamEvent(name, b"\n".join(data), self._id) if data else None
