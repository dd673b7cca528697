"""The fan-out of committed changes to whoever follows a workspace. In memory; what a follower has missed is the store's to read again.

Costs nothing while nobody follows: the store is watched only then. A change is encoded once, whatever the number of followers, and each
follower holds a bounded number of them; one that lets its buffer run over loses it and is told so.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ryusen_protocol.changes import CHANGE, NOTICE, Notice, ResyncReason
from ryusen_protocol.ids import Workspace
from ryusen_protocol.sse import encode_event
from ryusen_server.core.changes import encode_change
from ryusen_server.ports.changes import ChangeRow
from ryusen_server.ports.commits import changes_of
from ryusen_server.ports.store import Store, Unit

BUFFER_EVENTS_MAX: Final = 16_384
BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024


class Told(NamedTuple):
    """One event as it goes over the wire. `position` is none for a notice, which no history keeps."""

    position: int | None
    frame: bytes


_WORKERS: Final = Told(None, encode_event(NOTICE, msgspec.json.encode(Notice(kind="workers"))))
"""One object for all: of several behind each other a reader needs one."""


def change_frame(row: ChangeRow) -> bytes:
    """A change as it goes over the wire."""
    return encode_event(CHANGE, encode_change(row.position, row.at_ms, row.run_id, row.records), row.position)


class Follower:
    """What has committed in one workspace since the follower began, or since it was emptied. Loop thread only."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.overrun = False
        """Whether something was lost since the last `clear`."""
        self._told: deque[Told] = deque()
        self._bytes = 0
        self._something = asyncio.Event()

    def put(self, told: Told) -> None:
        """Keep an event, or lose all of them where there is no room."""
        if self.overrun or (told.position is None and self._told and self._told[-1] is told):
            return
        self._told.append(told)
        self._bytes += len(told.frame)
        if len(self._told) > BUFFER_EVENTS_MAX or self._bytes > BUFFER_BYTES_MAX:
            self._drop()
            self.overrun = True
        self._something.set()

    def take(self, bytes_max: int) -> list[Told]:
        """The oldest events, up to about so many bytes."""
        taken: list[Told] = []
        size = 0
        while self._told and size < bytes_max:
            told = self._told.popleft()
            size += len(told.frame)
            taken.append(told)
        self._bytes -= size
        if not self._told and not self.overrun:
            self._something.clear()
        return taken

    def clear(self) -> None:
        """Begin anew with what commits from now on."""
        self._drop()
        self.overrun = False
        self._something.clear()

    async def wait(self) -> None:
        """Return once there is something to take, or something was lost."""
        await self._something.wait()

    def _drop(self) -> None:
        self._told.clear()
        self._bytes = 0


class Feed:
    """The followers of every workspace. Loop thread only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: dict[Workspace, dict[Follower, None]] = {}
        self.resyncs: Counter[ResyncReason] = Counter()
        """How often readers were told to begin anew, and why."""

    @property
    def followers(self) -> int:
        """How many there are."""
        return sum(map(len, self._followers.values()))

    def follow(self, workspace: Workspace) -> Follower:
        """Keep what commits from now on. Read the past only after this: so nothing can fall between the two."""
        follower = Follower(workspace)
        if not self._followers:
            self._store.watch(self._committed)
        self._followers.setdefault(workspace, {})[follower] = None
        return follower

    def leave(self, follower: Follower) -> None:
        """Keep nothing more for this one."""
        followers = self._followers.get(follower.workspace)
        if followers is None or follower not in followers:
            return
        del followers[follower]
        if not followers:
            del self._followers[follower.workspace]
        if not self._followers:
            self._store.watch(None)

    def workers_changed(self, workspace: Workspace) -> None:
        """A worker has come, gone or changed."""
        for follower in self._followers.get(workspace, ()):
            follower.put(_WORKERS)

    def _committed(self, commits: Sequence[tuple[Unit, int]]) -> None:
        for unit, last_position in commits:
            for workspace, row in changes_of(unit, last_position):
                followers = self._followers.get(workspace)
                if followers is None:
                    continue
                told = Told(row.position, change_frame(row))
                for follower in followers:
                    follower.put(told)
