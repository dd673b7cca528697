"""Reads what a committed unit adds to the change stream. Knows where records and positions are, not what they mean."""

from __future__ import annotations

from collections.abc import Iterator

from ryusen_protocol.ids import Workspace
from ryusen_server.ports.changes import ChangeRow
from ryusen_server.ports.retention import PruneWrite
from ryusen_server.ports.store import EventWrite, ManifestWrite, ReleaseWrite, RunWrite, Unit


def changes_of(unit: Unit, last_position: int) -> Iterator[tuple[Workspace, ChangeRow]]:
    """The unit's changes with their workspaces, in commit order. Writes that are no history of their own are none."""
    position = last_position - len(unit.writes)
    for write in unit.writes:
        position += 1
        match write:
            case RunWrite():
                yield write.workspace, ChangeRow(position, write.run_id, write.at_ms, write.records)
            case EventWrite():
                event = write.event
                yield event.workspace, ChangeRow(position, None, event.received_at_ms, write.records)
            case ManifestWrite():
                manifest = write.manifest
                yield manifest.workspace, ChangeRow(position, None, manifest.activated_at_ms, write.records)
            case ReleaseWrite():
                release = write.release
                yield release.workspace, ChangeRow(position, None, release.first_seen_at_ms, write.records)
            case PruneWrite():
                yield write.workspace, ChangeRow(position, None, write.at_ms, write.records)
            case _:
                pass
