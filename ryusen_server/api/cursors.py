"""Cursors of lists: opaque text that stands for where a page ended, and for the question it belongs to.

A cursor holds the key of the last item, not an offset, so that rows written meanwhile move nothing: a later page neither repeats nor
passes over an item that was there when the first was read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final, NoReturn, TypeVar

import msgspec

from ryusen_protocol.api import Page
from ryusen_protocol.problems import invalid
from ryusen_server.api.parameters import CURSOR_CHARACTERS_MAX, POSITION_MAX, page_size
from ryusen_server.api.route import Call, Refused

T = TypeVar("T")

_ORDER: Final = msgspec.Meta(ge=-POSITION_MAX - 1, le=POSITION_MAX)
"""What a store can compare with; a cursor that somebody wrote may hold any number."""


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    question: str
    order: Annotated[int, _ORDER]
    key: str


def after(call: Call, kind: str) -> tuple[int, str] | None:
    """The key of the last item of the page before, if there was one. Raises `Refused` for a cursor of another list or other filters."""
    text = call.query.get("cursor")
    if text is None:
        return None
    if len(text) > CURSOR_CHARACTERS_MAX or not text.isascii():
        _refuse()
    try:
        cursor = msgspec.json.decode(_decoded(text), type=_Cursor)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        _refuse()
    if cursor.question != _question(call, kind):
        _refuse()
    return cursor.order, cursor.key


def cursor(call: Call, kind: str, order: int, key: str) -> str:
    """The cursor behind an item with that key."""
    encoded = msgspec.json.encode(_Cursor(_question(call, kind), order, key))
    return base64.urlsafe_b64encode(encoded).rstrip(b"=").decode()


def page_of(call: Call, kind: str, items: Iterable[T], key: Callable[[T], tuple[int, str]]) -> Page[T]:
    """One page of a list that is in memory, in the order of its keys."""
    last = after(call, kind)
    most = page_size(call)
    ordered: Sequence[T] = sorted((item for item in items if last is None or key(item) > last), key=key)
    shown = list(ordered[:most])
    return Page(items=shown, next_cursor=cursor(call, kind, *key(shown[-1])) if len(ordered) > most else None)


def _decoded(text: str) -> bytes:
    """Read to the letter: a cursor with anything between is none."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _question(call: Call, kind: str) -> str:
    parts = [kind, *sorted(call.segments.items()), *sorted((k, v) for k, v in call.query.items() if k not in ("cursor", "limit"))]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _refuse() -> NoReturn:
    raise Refused(invalid("The cursor is not one of this list with these filters. Ask for the first page without a cursor."))
