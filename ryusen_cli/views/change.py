"""The changes of a workspace, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ryusen_protocol.plain import clock_text

if TYPE_CHECKING:
    from ryusen_cli.output import Cell
    from ryusen_protocol.changes import Change, ChangeRecord

_OF_WHAT: Final = ("run_id", "kind")


def change_line(change: Change) -> list[Cell]:
    """When, where in the order of commits, which run, and what happened to it."""
    run_id = next((record.run_id for record in change.records if record.run_id is not None), None)
    happened = ", ".join(map(_told, change.records))
    return [f"{clock_text(change.at_ms)}  {change.position:>6}  {run_id or '-'}  {happened}"]


def _told(record: ChangeRecord) -> str:
    members = {name: value for name in record.__struct_fields__ if name not in _OF_WHAT and (value := getattr(record, name)) is not None}
    shown = " ".join(f"{name}={value}" for name, value in members.items())
    words = record.kind.replace("_", " ")
    return f"{words} ({shown})" if shown else words


def encoded(change: Change) -> bytes:
    """The change as a document."""
    return msgspec.json.encode(change)
