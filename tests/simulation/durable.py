"""A store whose commits take time, fail and are cut short by a crash. What was committed outlives the server that wrote it.

One `Disk` holds what is durable. Each life of the server opens a `SimulatedStore` over it: units wait for a commit, one commit is under way
at a time, and a failed one takes everything behind it along. A crash comes before a commit, after it with nobody told, or between
two of those who are told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from ryusen_server.ports.store import (
    Done,
    EventWrite,
    ManifestWrite,
    ObligationWrite,
    OperatorWrite,
    ReleaseWrite,
    RunWrite,
    StorageUnavailable,
    Unit,
)
from ryusen_server.store.memory import MemoryStore


class Witness(Protocol):
    """Who is told what has become of each unit, before the engine is."""

    def committed(self, unit: Unit, last_position: int) -> None: ...
    def rolled_back(self, unit: Unit) -> None: ...


class Faults:
    """What the disk does wrong at the moment. Chances are for each commit or read."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.commit_ms_max = 2
        self.read_ms_max = 1
        self.full = False
        """Every commit fails, reads work."""
        self.unplugged = False
        """Everything fails."""
        self.commit_fails = 0.0
        self.read_fails = 0.0
        self.hiccups = 0.0
        """How often everything fails for a moment just when a server is ready."""
        self.crash_at_commit = 0.0
        self.crash_at_obligation = 0.0
        """How often the server dies with the commit of what one run owes another, before it is carried out."""
        self.crash_at: dict[int, str] = {}
        """Commits, counted over the simulation, at which the server dies: `before`, `after`, `between`."""

    def calm(self) -> None:
        self.full = self.unplugged = False
        self.commit_fails = self.read_fails = self.hiccups = self.crash_at_commit = self.crash_at_obligation = 0.0

    def server_is_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """It has read what it must; what it reads from now on may have to wait."""
        if self.hiccups and self.chance.random() < self.hiccups:
            self.unplugged = True
            loop.call_later(0.7, setattr, self, "unplugged", False)


class Disk(MemoryStore):
    """What is durable. Only commits change it."""

    def __init__(self, witness: Witness, faults: Faults) -> None:
        super().__init__()
        self.witness = witness
        self.faults = faults
        self.commits = 0
        self.failures = 0
        self.last_position = 0

    def write(self, unit: Unit, last_position: int) -> None:
        """Make one unit durable."""
        self._refuse_repeats(unit)
        if unit.writes:
            assert last_position - len(unit.writes) >= self.last_position, f"invariant 26: position {last_position} is used twice"
            self.last_position = last_position
        self._apply(unit, last_position)
        self.witness.committed(unit, last_position)

    def _refuse_repeats(self, unit: Unit) -> None:
        for write in unit.writes:
            match write:
                case EventWrite():
                    assert write.event.event_id not in self._events, f"invariant 1: event {write.event.event_id} is inserted twice"
                    key = write.key
                    assert key is None or (key.workspace, key.key) not in self._event_keys, f"invariant 1: key {key} is used twice"
                case ManifestWrite():
                    manifest = write.manifest
                    known = (manifest.workspace, manifest.manifest_generation) in self._manifests
                    assert not known, f"manifest {manifest.manifest_generation} is activated twice"
                case ReleaseWrite():
                    release = write.release
                    known = (release.workspace, release.application, release.release_id) in self._releases
                    assert not known, f"release {release.release_id} is recorded twice"
                case OperatorWrite():
                    command = write.command
                    known = (command.workspace, command.key) in self._operator_commands
                    assert not known, f"invariant 21: the key {command.key} is used twice"
                case RunWrite():
                    assert not (write.new_run and write.run_id in self._runs), f"invariant 2: run {write.run_id} is created twice"
                case _:
                    pass


_DURABLE = (
    "_history",
    "_runs",
    "_attempts",
    "_events",
    "_waits",
    "_unknown_below",
    "_obligations",
    "_event_keys",
    "_operator_commands",
    "_manifests",
    "_routings",
    "_applications",
    "_workspaces",
    "_releases",
)
"""What the disk holds, and every life of the server sees."""


class SimulatedStore(MemoryStore):
    """One life's view of the disk. `crash` is called when the disk decides that the server dies now."""

    def __init__(self, disk: Disk, crash: Callable[[str], None]) -> None:
        super().__init__()
        self._disk = disk
        self._faults = disk.faults
        self._crash = crash
        self._under_way = False
        for name in _DURABLE:
            setattr(self, name, getattr(disk, name))
        self._position = disk.last_position
        self._batch: list[tuple[Unit, int, Done]] = []

    @property
    def is_idle(self) -> bool:
        """Whether everything submitted is durable."""
        return not self._under_way

    def submit(self, unit: Unit, done: Done) -> int:
        self._check(unit)
        self._position += len(unit.writes)
        self._queue.append((unit, self._position, done))
        self._begin()
        return self._position

    def _begin(self) -> None:
        if self._under_way or not self._queue:
            return
        self._under_way = True
        asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        """Begins a commit with everything that waits now."""
        self._batch, self._queue = self._queue, []
        delay_s = self._faults.commit_ms_max * self._faults.chance.random() / 1000
        asyncio.get_running_loop().call_later(delay_s, self._commit)

    def _death(self) -> str | None:
        """Whether the server dies at this commit, and how."""
        faults = self._faults
        self._disk.commits += 1
        death = faults.crash_at.get(self._disk.commits)
        if death is None and faults.crash_at_commit and faults.chance.random() < faults.crash_at_commit:
            death = faults.chance.choice(("before", "after", "between"))
        owes = any(isinstance(write, ObligationWrite) for unit, _, _ in self._batch for write in unit.writes)
        if death is None and owes and faults.chance.random() < faults.crash_at_obligation:
            death = "after"
        return death

    def _commit(self) -> None:
        faults = self._faults
        death = self._death()
        if death == "before":
            self._crash("before a commit")
            return
        batch, self._batch = self._batch, []
        failure = self._failure()
        if failure is None:
            for unit, last_position, _ in batch:
                self._disk.write(unit, last_position)
        else:
            self._disk.failures += 1
            for unit, _, _ in batch:
                self._disk.witness.rolled_back(unit)
        if death == "after":
            self._crash("after a commit, before anybody is told")
            return
        told_max = faults.chance.randrange(len(batch) + 1) if death == "between" else len(batch)
        for _, _, done in batch[:told_max]:
            done(failure)
        if death == "between":
            self._crash("between a commit and its effects")
            return
        if failure is not None:
            self._fail_behind(failure)
        else:
            self._forget_submitted()
        self._under_way = False
        self._begin()

    def _forget_submitted(self) -> None:
        waiting = {write.run_id for unit, _, _ in self._queue for write in unit.writes if isinstance(write, RunWrite)}
        for run_id in list(self._submitted):
            if run_id not in waiting:
                del self._submitted[run_id]

    def _fail_behind(self, failure: StorageUnavailable) -> None:
        """What was submitted before the last of them was told goes the same way."""
        while self._queue:
            behind, self._queue = self._queue, []
            for unit, _, _ in behind:
                self._disk.witness.rolled_back(unit)
            for _, _, done in behind:
                done(failure)
        self._submitted.clear()

    def _failure(self) -> StorageUnavailable | None:
        faults = self._faults
        if faults.unplugged or faults.full:
            return StorageUnavailable("the disk is full" if faults.full else "the disk is unplugged")
        if faults.commit_fails and faults.chance.random() < faults.commit_fails:
            return StorageUnavailable("this commit fails")
        return None

    def _readable(self) -> None:
        faults = self._faults
        if faults.unplugged or (faults.read_fails and faults.chance.random() < faults.read_fails):
            raise StorageUnavailable("this read fails")


def _slow(name: str) -> Any:
    read = getattr(MemoryStore, name)

    async def reading(self: SimulatedStore, *args: Any, **options: Any) -> Any:
        faults = self._faults
        if faults.read_ms_max:
            await asyncio.sleep(faults.read_ms_max * faults.chance.random() / 1000)
        answer = await read(self, *args, **options)
        if faults.read_ms_max:
            await asyncio.sleep(faults.read_ms_max * faults.chance.random() / 1000)
        return answer

    return reading


for _name in (
    "heads",
    "wakes",
    "authorized_runs",
    "pending_fan_outs",
    "blocked_runs",
    "history",
    "run",
    "attempt",
    "event",
    "event_key",
    "manifest",
    "routing",
    "operator_command",
):
    setattr(SimulatedStore, _name, _slow(_name))
