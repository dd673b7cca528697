"""Reads the change stream's past: bounded pages of the history in commit order, from one state of the store.

A page is bounded in rows and in bytes. Rows of other workspaces are walked and counted but not read, so that no page walks without end:
an index by workspace would cost every transaction a write for the few readers that come back late.
"""

from __future__ import annotations

from typing import Final

from ryusen_protocol.changes import ResyncReason
from ryusen_protocol.ids import RunId, Workspace
from ryusen_server.ports.changes import ChangePage, ChangeRow
from ryusen_server.store.sqlite.readers import Readers

PAGE_ROWS_MAX: Final = 500
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of records. A single larger transaction is a page of its own."""

LAST_CHANGE: Final = "SELECT coalesce(max(position), 0) FROM history"
PRUNED_UP_TO: Final = "SELECT coalesce((SELECT value FROM meta WHERE key = ?), 0)"
CHANGE_SIZES: Final = "SELECT position, length(records) FROM history WHERE position > ? ORDER BY position LIMIT ?"
CHANGES: Final = """
SELECT position, run_id, at_ms, records FROM history WHERE position > ? AND position <= ? AND workspace = ? ORDER BY position
"""


def pruned_key(workspace: Workspace) -> str:
    """Where `meta` keeps the last position that was removed from a workspace's history."""
    return f"pruned:{workspace}"


class ChangeReader:
    """Reads for the change stream."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def position(self) -> int:
        """See the port."""
        return int((await self._readers.rows(LAST_CHANGE))[0][0])

    async def changes(self, workspace: Workspace, *, after: int) -> ChangePage | ResyncReason:
        """See the port."""
        async with self._readers.snapshot() as read:
            pruned = int((await read(PRUNED_UP_TO, (pruned_key(workspace),)))[0][0])
            sizes = await read(CHANGE_SIZES, (after, PAGE_ROWS_MAX + 1))
            if not sizes and after > int((await read(LAST_CHANGE, ()))[0][0]):
                return "unknown_position"
            if after < pruned:
                return "pruned"
            until, taken = after, 0
            size = 0
            for position, length in sizes[:PAGE_ROWS_MAX]:
                size += length
                if taken and size > PAGE_BYTES_MAX:
                    break
                until, taken = position, taken + 1
            rows = await read(CHANGES, (after, until, workspace)) if taken else []
        found = [ChangeRow(position, RunId(run_id) if run_id else None, at_ms, records) for position, run_id, at_ms, records in rows]
        return ChangePage(found, until, complete=taken == len(sizes))
