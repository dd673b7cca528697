"""Documents and frames on the wire, to and from their types.

Owns how a document that cannot be read is told: `MalformedDocument` and its kinds, each with a reason. Unknown members are passed
over; an unknown variant is refused by name. Frames hold portable values as raw text, which `ryusen_protocol.values` reads.

The whole frame is decoded once. msgspec bounds its own recursion, and what it raises then is told as a refusal.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from ryusen_protocol import PROTOCOL_VERSION, strict_json
from ryusen_protocol.frames import Invoke, ServerFrame, WorkerFrame
from ryusen_protocol.invocation import Invocation
from ryusen_protocol.outcome import Outcome, OutcomeWithoutLogs


class MalformedDocument(ValueError):
    """A document or frame that cannot be read. `why` is for people."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class UnknownVariant(MalformedDocument):
    """A required variant this side does not know. `variant` is its name, `at` where it stands (`$.outcome.type`)."""

    def __init__(self, variant: str, at: str) -> None:
        super().__init__(f"unknown variant {variant!r} at {at}")
        self.variant = variant
        self.at = at


class UnsupportedProtocolVersion(MalformedDocument):
    """A document of another major version. `found` is the version it names."""

    def __init__(self, found: int) -> None:
        super().__init__(f"protocol version {found} is not supported; this side speaks {PROTOCOL_VERSION}")
        self.found = found


class _Head(msgspec.Struct):
    """What every document has, to tell another version from a malformed document of ours."""

    protocol_version: int = PROTOCOL_VERSION


_WORKER_FRAMES: Final = msgspec.json.Decoder(WorkerFrame)
_SERVER_FRAMES: Final = msgspec.json.Decoder(ServerFrame)
_OUTCOMES: Final = msgspec.json.Decoder(Outcome)
_OUTCOMES_WITHOUT_LOGS: Final = msgspec.json.Decoder(OutcomeWithoutLogs)
_INVOCATIONS: Final = msgspec.json.Decoder(Invocation)
_HEADS: Final = msgspec.json.Decoder(_Head)
_ENCODER: Final = msgspec.json.Encoder()
_UNKNOWN: Final = re.compile(r"Invalid (?:enum )?value (.*?)(?: - at `(.*)`)?", re.DOTALL)
_SHOWN_CHARACTERS_MAX: Final = 64

Document = TypeVar("Document", WorkerFrame, ServerFrame, Outcome, OutcomeWithoutLogs, Invocation)


def decode_worker_frame(data: str | bytes) -> WorkerFrame:
    """A frame from a worker. Raises `MalformedDocument`; for a frame type unknown here, `UnknownVariant` at `$.type`.

    An outcome whose `logs` cannot be read is read without them.
    """
    try:
        return _decode(_WORKER_FRAMES, data)
    except MalformedDocument as refused:
        return _without_logs(data, refused)


def decode_server_frame(data: str | bytes) -> ServerFrame:
    """A frame from a server. Raises as `decode_worker_frame` does."""
    frame = _decode(_SERVER_FRAMES, data)
    if type(frame) is Invoke and frame.invocation.protocol_version != PROTOCOL_VERSION:
        raise UnsupportedProtocolVersion(frame.invocation.protocol_version)
    return frame


def decode_outcome(data: str | bytes) -> Outcome:
    """An outcome on its own, as HTTP carries it, without its `logs` if those cannot be read. Raises `MalformedDocument`."""
    try:
        return _decode(_OUTCOMES, data)
    except MalformedDocument as refused:
        return _without_logs(data, refused)


def decode_invocation(data: str | bytes) -> Invocation:
    """An invocation on its own, as HTTP carries it. Raises `MalformedDocument`."""
    return _decode(_INVOCATIONS, data)


def encode(document: WorkerFrame | ServerFrame | Outcome | Invocation) -> bytes:
    """The JSON text of a document or frame. Raises `MalformedDocument` if it holds text that is not valid Unicode."""
    try:
        return _ENCODER.encode(document)
    except UnicodeEncodeError:
        raise MalformedDocument("a text holds a lone surrogate; only valid Unicode can be sent") from None


def _decode(decoder: msgspec.json.Decoder[Document], data: str | bytes) -> Document:
    try:
        document = decoder.decode(data)
    except msgspec.ValidationError as refused:
        raise _refusal(data, str(refused)) from None
    except msgspec.DecodeError as refused:
        raise MalformedDocument(strict_json.reason(data.encode() if isinstance(data, str) else data, refused)) from None
    except RecursionError:
        raise MalformedDocument("nested too deeply") from None
    except UnicodeError:
        raise MalformedDocument("not valid Unicode") from None
    if document.protocol_version != PROTOCOL_VERSION:
        raise UnsupportedProtocolVersion(document.protocol_version)
    return document


def _without_logs(data: str | bytes, refused: MalformedDocument) -> Outcome:
    """What is left of an outcome of which only the lines cannot be read; else why the rest of it cannot, or what was raised before."""
    if "`$.logs" not in refused.why:
        raise refused
    read = _decode(_OUTCOMES_WITHOUT_LOGS, data)
    return Outcome(read.protocol_version, read.request_id, read.run_id, read.outcome)


def _refusal(data: str | bytes, problem: str) -> MalformedDocument:
    """Another version may have another shape, so that is looked at before the problem with ours."""
    try:
        found = _HEADS.decode(data).protocol_version
    except (msgspec.MsgspecError, RecursionError):
        found = PROTOCOL_VERSION
    if found != PROTOCOL_VERSION:
        return UnsupportedProtocolVersion(found)
    unknown = _UNKNOWN.fullmatch(problem)
    if unknown is None:
        return MalformedDocument(problem)
    variant = unknown[1].removeprefix("'").removesuffix("'")
    return UnknownVariant(variant[:_SHOWN_CHARACTERS_MAX], unknown[2] or "$")
