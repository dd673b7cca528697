"""A memory store whose commits and reads the test can hold, fail and lose, and that refuses what a database's keys would."""

from __future__ import annotations

import asyncio

from ryusen_protocol.ids import AttemptId, RunId
from ryusen_server.core.evolve import fold
from ryusen_server.core.rows import AttemptRow, HistoryRow
from ryusen_server.core.state import Run
from ryusen_server.ports.store import EventWrite, ManifestWrite, ReleaseWrite, StorageUnavailable, Unit
from ryusen_server.store.memory import MemoryStore


class BenchStore(MemoryStore):
    """`fault` fails everything; `write_fault` commits alone, as a full disk does."""

    def __init__(self) -> None:
        super().__init__()
        self.write_fault: str | None = None
        self.failing_commits: set[int] = set()
        """Which commits fail, counted from 1; a failed one counts too."""
        self.failing_reads: set[int] = set()
        self.commits = 0
        self.reads = 0
        self.failed = 0
        self.violations: list[str] = []
        self.units: list[Unit] = []
        self._held = False

    # commits

    def hold(self) -> None:
        """Commit nothing until `release`."""
        self._held = True

    def release(self) -> None:
        """Commit what was held."""
        self._held = False
        if self._queue:
            asyncio.get_running_loop().call_soon(self._commit)

    def crash(self) -> None:
        """What was not committed is lost, and nobody is told."""
        self._queue = []
        self._failing = None
        self._submitted.clear()
        self._held = False

    @property
    def waiting(self) -> int:
        """Units with records that are not committed yet."""
        return sum(bool(unit.writes) for unit, _, _ in self._queue)

    def _commit(self) -> None:
        if self._held or not self._queue:
            return
        if any(unit.writes for unit, _, _ in self._queue):
            self.commits += 1
        reason = self.write_fault or ("this commit fails" if self.commits in self.failing_commits else None)
        before = self.fault
        if reason is not None and self._failing is None:
            self._failing = StorageUnavailable(reason)
        if self._failing is not None or before is not None:
            self.failed += 1
        super()._commit()

    def _apply(self, unit: Unit, last_position: int) -> None:
        for write in unit.writes:
            if isinstance(write, EventWrite):
                if write.event.event_id in self._events:
                    self.violations.append(f"event {write.event.event_id} is inserted twice")
                if write.key is not None and (write.key.workspace, write.key.key) in self._event_keys:
                    self.violations.append(f"the key {write.key.key} is inserted twice")
            elif isinstance(write, ManifestWrite):
                if (write.manifest.workspace, write.manifest.manifest_generation) in self._manifests:
                    self.violations.append(f"manifest {write.manifest.manifest_generation} is inserted twice")
            elif isinstance(write, ReleaseWrite):
                release = write.release
                if (release.workspace, release.application, release.release_id) in self._releases:
                    self.violations.append(f"release {release.release_id} is inserted twice")
        self.units.append(unit)
        super()._apply(unit, last_position)

    # reads

    def _readable(self) -> None:
        self.reads += 1
        if self.reads in self.failing_reads:
            raise StorageUnavailable("this read fails")
        super()._readable()

    # what is committed, without a turn of the loop

    def folded(self, run_id: RunId) -> Run | None:
        return fold(self._history.get(run_id, ()))

    def rows_of(self, run_id: RunId) -> list[HistoryRow]:
        return list(self._history.get(run_id, ()))

    def run_ids(self) -> list[RunId]:
        return list(self._runs)

    def attempt_now(self, attempt_id: AttemptId) -> AttemptRow | None:
        return self._attempts.get(attempt_id)

    def attempt_of_request(self, request_id: str) -> AttemptRow | None:
        return next((row for row in self._attempts.values() if row.request_id == request_id), None)
