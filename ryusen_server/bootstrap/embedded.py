"""A server without sockets or files: the engine over a store in memory, on the running loop and on a clock of the caller's.

For harnesses that run somebody's functions in their tests. Owns what a crash of it means: what was not committed is gone, nobody is told,
and another engine starts on what was. Everything else is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from ryusen_protocol.ids import AttemptId, RunId, Workspace
from ryusen_server.core.evolve import fold
from ryusen_server.core.rows import AttemptRow, RunRow
from ryusen_server.core.state import Run
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.engine import Engine
from ryusen_server.ports.store import Done, RunFilter, StorageUnavailable, Unit, WakeRow
from ryusen_server.ports.time import Clock, Entropy
from ryusen_server.store.memory import MemoryStore

CrashPoint = Literal["before", "after"]
"""Whether the commit a server dies at is lost with it, or durable with nobody told of it."""

ALL: Final = 1_000_000


class _Disk(MemoryStore):
    """A store that its server may die at."""

    def __init__(self, died: Callable[[], None]) -> None:
        super().__init__()
        self.commits = 0
        self.crash_at: dict[int, CrashPoint] = {}
        self.is_dead = False
        self._died = died

    def submit(self, unit: Unit, done: Done) -> int:
        if self.is_dead:  # what the dying server still says reaches nobody
            return self._position
        return super().submit(unit, done)

    def _commit(self) -> None:
        if self.is_dead or not self._queue:
            return
        if any(unit.writes for unit, _, _ in self._queue):
            self.commits += 1
        how = self.crash_at.pop(self.commits, None)
        if how is None:
            super()._commit()
            return
        if how == "after":
            self._queue = [(unit, position, _unheard) for unit, position, _ in self._queue]
            super()._commit()
        self.die()
        self._died()

    def die(self) -> None:
        """Whatever is not committed never happened."""
        self.is_dead = True
        self._queue = []
        self._failing = None
        self._submitted.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether something is submitted and not committed."""
        return bool(self._queue) and not self.is_dead

    def folded(self, run_id: RunId) -> Run | None:
        """A run as its committed history gives it."""
        return fold(self._history.get(run_id, ()))


class EmbeddedServer:
    """One server's lives over one store. `on_crash` is called when a server dies at a commit; `restart` is then the caller's to call."""

    def __init__(self, *, clock: Clock, entropy: Entropy, config: EngineConfig, on_crash: Callable[[], None]) -> None:
        self._clock = clock
        self._entropy = entropy
        self._config = config
        self._disk = _Disk(on_crash)
        self.engine = self._new_engine()

    def _new_engine(self) -> Engine:
        return Engine(store=self._disk, clock=self._clock, entropy=self._entropy, config=self._config)

    async def start(self) -> None:
        """Begin the first life."""
        await self.engine.start()

    async def stop(self) -> None:
        """End."""
        await self.engine.stop()

    def die(self) -> None:
        """The process is gone, between two commits."""
        self._disk.die()

    async def restart(self, forget_timers: Callable[[], None]) -> None:
        """Another life on the same store, after a death. `forget_timers` takes the dead life's wake-ups from the clock."""
        dead = self.engine
        await dead.stop()
        forget_timers()
        self.engine = self._new_engine()
        self._disk.is_dead = False
        await self.engine.start()

    def crash_at(self, commit: int, how: CrashPoint) -> None:
        """Die at this commit, counted from 1 over all lives."""
        self._disk.crash_at[commit] = how

    @property
    def is_dead(self) -> bool:
        """Whether it has died and not been started again."""
        return self._disk.is_dead

    @property
    def commits(self) -> int:
        """How many commits there have been."""
        return self._disk.commits

    @property
    def is_idle(self) -> bool:
        """Whether nothing more happens in it until time passes or somebody asks for something."""
        return not self._disk.is_waiting and self.engine.is_idle

    # What it holds. Committed state only.

    def run(self, run_id: RunId) -> Run | None:
        """A run in full."""
        return self._disk.folded(run_id)

    async def runs(self, workspace: Workspace) -> list[RunRow]:
        """Every run, oldest first."""
        return (await self._disk.runs(workspace, RunFilter(), before=None, limit=ALL))[::-1]

    async def event_runs(self, workspace: Workspace, event_id: str) -> list[RunRow]:
        """The runs of one event, oldest first."""
        return [row for row in await self.runs(workspace) if row.event_id == event_id]

    async def authorized(self, workspace: Workspace) -> list[AttemptRow]:
        """Every attempt that is out or was lost sight of."""
        return await self._disk.attempts(workspace, state="authorized", after=None, limit=ALL)

    async def attempt(self, attempt_id: AttemptId) -> AttemptRow | None:
        """One attempt."""
        return await self._disk.attempt(attempt_id)

    async def next_wake_ms(self, *, after_ms: int, until_ms: int) -> int | None:
        """The first instant after one and up to another at which some run is to be looked at."""
        found = await self._disk.wakes(until_ms=until_ms, after=WakeRow(RunId("\U0010ffff"), after_ms), limit=1)
        return found[0].wake_at_ms if found else None


def _unheard(error: StorageUnavailable | None) -> None:
    del error
