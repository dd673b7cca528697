"""Cuts error records down to the limits, visibly, and never fails: a report that is too large is still a report.

Owns what is given up first: stacks, then the details of causes, then the deepest causes, then all but the message. What was cut says
so where it was. Records within the limits come back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.limits import (
    ERROR_BYTES_MAX,
    ERROR_CAUSE_DEPTH_MAX,
    ERROR_DETAILS_BYTES_MAX,
    ERROR_MESSAGE_BYTES_MAX,
    ID_BYTES_MAX,
    KIB,
    REPLAY_RESERVE_BYTES,
)

CUT_DETAIL: Final = "sdk.cut"
"""The name of the detail that tells how many others are missing."""

_STACK_BYTES_MAX: Final = 32 * KIB
_ENVELOPE_BYTES: Final = 256
"""Kept of the reserve for what the record is wrapped in."""
_CAUSES_CUT: Final = " [further causes cut]"
_REDUCED: Final = " [details and causes cut]"

_encoder: Final = msgspec.json.Encoder()


def clip_error(record: ErrorRecord) -> ErrorRecord:
    """The record within every limit of `limits`: message, details, depth of causes, whole size. Cuts are marked."""
    if _is_small(record):
        return record
    chain = [_clip_one(link) for link in _links(record, ERROR_CAUSE_DEPTH_MAX + 1)]
    for smaller in _ever_smaller(chain):
        if _size(smaller) <= ERROR_BYTES_MAX:
            return smaller
    return minimal_error(record)


def minimal_error(record: ErrorRecord) -> ErrorRecord:
    """Category, retryability and as much of the message as the replay reserve holds; details, causes and stack are gone."""
    category = _cut(record.category, ID_BYTES_MAX)
    mark = _REDUCED if record.details or record.cause is not None else ""
    room = REPLAY_RESERVE_BYTES - _ENVELOPE_BYTES
    bytes_max = min(room, ERROR_MESSAGE_BYTES_MAX)
    while True:
        reduced = ErrorRecord(category, _cut(record.message, bytes_max, mark), record.retryable)
        if _size(reduced) <= room:
            return reduced
        # Characters that JSON escapes take up to six bytes each.
        bytes_max = bytes_max * 2 // 3


def _is_small(record: ErrorRecord) -> bool:
    """Whether the record is so small that no single limit can be passed."""
    depth = 0
    cause = record.cause
    while cause is not None:
        depth += 1
        if depth > ERROR_CAUSE_DEPTH_MAX:
            return False
        cause = cause.cause
    if any(len(link.category.encode("utf-8", "replace")) > ID_BYTES_MAX for link in _links(record, depth + 1)):
        return False
    try:
        return _size(record) <= ERROR_MESSAGE_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _links(record: ErrorRecord, most: int) -> list[ErrorRecord]:
    """The record and its causes, outermost first."""
    links: list[ErrorRecord] = []
    link: ErrorRecord | None = record
    while link is not None and len(links) < most:
        links.append(link)
        link = link.cause
    return links


def _ever_smaller(chain: list[ErrorRecord]) -> Iterator[ErrorRecord]:
    """The chain as it is, then with less and less of what is given up first."""
    yield _joined(chain)
    chain = [_without_stack(link) if depth else link for depth, link in enumerate(chain)]
    yield _joined(chain)
    chain = [_without_stack(link) for link in chain]
    yield _joined(chain)
    for depth in range(len(chain) - 1, 0, -1):
        chain[depth] = _without_details(chain[depth])
        yield _joined(chain)
    while len(chain) > 1:
        chain = [*chain[:-2], _with_causes_cut(chain[-2])]
        yield _joined(chain)


def _joined(chain: list[ErrorRecord]) -> ErrorRecord:
    """One record again. A last link that still has a cause is where the limit of depth fell."""
    last = chain[-1]
    joined = last if last.cause is None else _with_causes_cut(last)
    for link in reversed(chain[:-1]):
        joined = msgspec.structs.replace(link, cause=joined)
    return joined


def _with_causes_cut(link: ErrorRecord) -> ErrorRecord:
    return msgspec.structs.replace(link, message=_cut(link.message, ERROR_MESSAGE_BYTES_MAX, _CAUSES_CUT), cause=None)


def _without_stack(link: ErrorRecord) -> ErrorRecord:
    return msgspec.structs.replace(link, stack=None)


def _without_details(link: ErrorRecord) -> ErrorRecord:
    return msgspec.structs.replace(link, details={CUT_DETAIL: _count_mark(len(link.details))}) if link.details else link


def _clip_one(link: ErrorRecord) -> ErrorRecord:
    return msgspec.structs.replace(
        link,
        category=_cut(link.category, ID_BYTES_MAX),
        message=_cut(link.message, ERROR_MESSAGE_BYTES_MAX),
        details=_clip_details(link.details) if link.details else link.details,
        stack=_cut_front(link.stack, _STACK_BYTES_MAX) if link.stack is not None else None,
    )


def _clip_details(details: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """As many details as fit, in their order, each whole or not at all, and a mark for the others."""
    named = {_valid(name): content for name, content in details.items()}
    if len(_encoder.encode(named)) <= ERROR_DETAILS_BYTES_MAX:
        return named
    kept: dict[str, msgspec.Raw] = {}
    room = ERROR_DETAILS_BYTES_MAX - _ENVELOPE_BYTES
    for name, content in named.items():
        taken = len(_encoder.encode({name: content}))
        if taken <= room:
            room -= taken
            kept[name] = content
    kept[CUT_DETAIL] = _count_mark(len(named) - len(kept))
    return kept


def _count_mark(missing: int) -> msgspec.Raw:
    """A portable string value."""
    return msgspec.Raw(_encoder.encode({"type": "string", "value": f"{missing} details cut, over the size limit"}))


def _cut(text: str, bytes_max: int, mark: str = "") -> str:
    """Valid text of at most that many bytes of UTF-8 with the mark at its end; a cut adds how much there was."""
    data = _valid(text).encode()
    if len(data) + len(mark) <= bytes_max:
        return data.decode() + mark
    ending = f"… [cut, {len(data)} bytes]{mark}"
    return data[: max(0, bytes_max - len(ending.encode()))].decode("utf-8", "ignore") + ending


def _cut_front(text: str, bytes_max: int) -> str:
    """The end of a stack, where the failing frame is."""
    data = _valid(text).encode()
    if len(data) <= bytes_max:
        return data.decode()
    opening = f"[cut, {len(data)} bytes] …\n"
    return opening + data[len(data) - bytes_max + len(opening.encode()) :].decode("utf-8", "ignore")


def _valid(text: str) -> str:
    """Text that can be written: a lone surrogate becomes its escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _size(record: ErrorRecord) -> int:
    return len(_encoder.encode(record))
