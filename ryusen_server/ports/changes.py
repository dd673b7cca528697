"""What readers of the change stream ask of a store: to be told of commits as they happen, and to read again what they missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from ryusen_protocol.changes import ResyncReason
from ryusen_protocol.ids import RunId, Workspace

if TYPE_CHECKING:
    from ryusen_server.ports.store import Unit

Watcher: TypeAlias = "Callable[[Sequence[tuple[Unit, int]]], None]"
"""Called on the loop with the units of one commit, each with the position of its last write, in commit order."""


class ChangeRow(msgspec.Struct, frozen=True):
    """One committed transaction: of a run, or of the workspace if `run_id` is none. `records` is a JSON array."""

    position: int
    run_id: RunId | None
    at_ms: int
    records: bytes


class ChangePage(msgspec.Struct, frozen=True):
    """The workspace's changes up to `until`, oldest first; `complete` when nothing more was committed at the time of the read."""

    rows: list[ChangeRow]
    until: int
    complete: bool


class ChangeStore(Protocol):
    """Commits as they happen, and again."""

    def watch(self, watcher: Watcher | None) -> None:
        """Tell `watcher`, before the callers of `submit`, of every commit from now on; none ends it. One watcher at a time."""
        ...

    async def position(self) -> int:
        """The position of the last committed change of any workspace; 0 when there is none."""
        ...

    async def changes(self, workspace: Workspace, *, after: int) -> ChangePage | ResyncReason:
        """A bounded page of what committed after a position, or why not all of it can be given."""
        ...
