"""The one thread that writes and checkpoints, and the queue before it.

Everything that waits when the thread turns to the queue becomes one commit. Owns order and completion: `done` of each unit is called
once, on the loop, in the order of submission, one wake-up of the loop a commit. Decides nothing about what is written.

A failed commit takes along what was submitted after it until the loop has been told: all of that was decided on state that no longer holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ryusen_server.ports.changes import Watcher
from ryusen_server.ports.measures import StoreMeasures
from ryusen_server.ports.store import Done, StorageUnavailable, Unit
from ryusen_server.store.sqlite.batch import Batch
from ryusen_server.store.sqlite.config import CommitHooks, SqliteConfig
from ryusen_server.store.sqlite.faults import is_fatal, unavailable
from ryusen_server.store.sqlite.files import Presence
from ryusen_server.store.sqlite.pacing import CheckpointPacer

_STOPPING: Final = "The database is closed: the server is stopping"


class _Pending(NamedTuple):
    unit: Unit
    last_position: int
    done: Done


class Writer:
    """Commits units in order. `submit` and `close` on the loop's thread only."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        config: SqliteConfig,
        *,
        position: int,
        hooks: CommitHooks,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._config = config
        self._hooks = hooks
        self._on_fatal = on_fatal
        self.measures = StoreMeasures()
        """Counted on the writer's thread."""
        self.watcher: Watcher | None = None
        """Told of every commit. Loop thread only."""
        self._presence = Presence(path)
        self._pacer = CheckpointPacer(config.checkpoint_pages)
        self._loop = asyncio.get_running_loop()
        self._position = position
        self._fatal: StorageUnavailable | None = None

        # Shared with the thread, under the condition's lock.
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[_Pending] = deque()
        self._urgent = 0
        self._ride_until = 0.0
        self._failing = False
        self._closing = False

        self._thread = threading.Thread(target=self._run, name="ryusen-store-writer", daemon=True)
        self._stopped = self._loop.create_future()
        self._thread.start()

    def submit(self, unit: Unit, done: Done) -> int:
        """Queue a unit; the position its last write commits at."""
        self._position += len(unit.writes)
        pending = _Pending(unit, self._position, done)
        with self._changed:
            if not self._closing:
                first = not self._queue
                self._queue.append(pending)
                if not unit.rides:
                    self._urgent += 1
                    if self._urgent == 1:
                        self._changed.notify()
                elif first:
                    self._ride_until = time.monotonic() + self._config.ride_wait_ms / 1000
                    self._changed.notify()
                return self._position
        self._loop.call_soon(done, StorageUnavailable(_STOPPING))
        return self._position

    @property
    def queued_units(self) -> int:
        """Units that wait for a commit."""
        return len(self._queue)

    async def close(self) -> None:
        """Commit what waits, close the connection, end the thread. Later units fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.shield(self._stopped)
        self._thread.join()

    # On the writer's thread

    def _run(self) -> None:
        try:
            while (pendings := self._take()) is not None:
                if pendings:
                    self._process(pendings)
                    if self._pacer.due():
                        self._checkpoint()
                else:
                    self._checkpoint()
            self._connection.close()
        finally:
            self._tell(self._end)

    def _take(self) -> list[_Pending] | None:
        """What to commit next; nothing when it has been quiet; none when closed and done."""
        with self._changed:
            while True:
                if self._failing:
                    self._changed.wait()
                elif self._queue:
                    wait_s = self._ride_until - time.monotonic()
                    if self._urgent or self._closing or wait_s <= 0:
                        return self._pop()
                    self._changed.wait(wait_s)
                elif self._closing:
                    return None
                elif not self._changed.wait(self._idle_s()):
                    return []

    def _idle_s(self) -> float | None:
        return self._config.checkpoint_idle_ms / 1000 if self._pacer.pending() and self._fatal is None else None

    def _pop(self) -> list[_Pending]:
        queue = self._queue
        if len(queue) <= self._config.batch_units_max:
            pendings = list(queue)
            queue.clear()
            self._urgent = 0
            return pendings
        pendings = [queue.popleft() for _ in range(self._config.batch_units_max)]
        self._urgent -= sum(not pending.unit.rides for pending in pendings)
        return pendings

    def _process(self, pendings: list[_Pending]) -> None:
        failure = self._commit(pendings)
        if failure is None:
            self._tell(self._succeed, pendings)
            return
        with self._changed:
            self._failing = True
            pendings += self._drain()
        self._tell(self._fail, pendings, failure)

    def _commit(self, pendings: list[_Pending]) -> StorageUnavailable | None:
        if self._fatal is not None:
            return self._fatal
        units = [pending.unit for pending in pendings if pending.unit.writes]
        if not units:
            return None
        try:
            self._hooks.before_commit(units)
            self._presence.verify()
            batch = Batch()
            for pending in pendings:
                batch.add(pending.unit, pending.last_position)
            began = time.perf_counter()
            self._write(batch)
            self.measures.commit_seconds.observe(time.perf_counter() - began)
        except Exception as error:  # noqa: BLE001 — whatever it is, nothing of the batch was committed, and each unit must be told
            self.measures.commits_failed += 1
            return self._failed(error)
        self.measures.commit_units.observe(len(units))
        batch.tally(self.measures)
        self._pacer.wrote(batch.rows(), batch.bytes)
        self._hooks.after_commit(units)
        return None

    def _write(self, batch: Batch) -> None:
        connection = self._connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # one that failed before
        connection.execute("BEGIN IMMEDIATE")
        try:
            batch.write(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # An error here says less than the one that led here; the next commit tries again before it begins.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _failed(self, error: Exception) -> StorageUnavailable:
        failure = unavailable(error, self._path, busy_timeout_ms=self._config.busy_timeout_ms)
        if is_fatal(error):
            self._fatal = failure
            self._on_fatal(failure.reason)
        return failure

    def _checkpoint(self) -> None:
        """Copy the log into the database. A fault leaves the log as it is, which loses nothing; the next turn tries again."""
        if self._fatal is not None:
            return
        try:
            _, pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._pacer.checkpointed(pages)
        except sqlite3.Error as error:
            self._failed(error)
            self._pacer.postponed()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *arguments)

    # On the loop's thread

    def _succeed(self, pendings: list[_Pending]) -> None:
        if self.watcher is not None:
            self._show(self.watcher, pendings)
        for pending in pendings:
            self._call(pending.done, None)

    def _show(self, watcher: Watcher, pendings: list[_Pending]) -> None:
        try:
            watcher([(pending.unit, pending.last_position) for pending in pendings])
        except Exception as error:  # noqa: BLE001 — those who wait for their commit are owed their answer
            self._loop.call_exception_handler({"message": "The watcher of commits failed", "exception": error})

    def _fail(self, pendings: list[_Pending], failure: StorageUnavailable) -> None:
        for pending in pendings:
            self._call(pending.done, failure)
        with self._changed:
            late = self._drain()
            if not late:
                self._failing = False
                self._changed.notify()
        if late:  # in another turn, so that a caller that submits from `done` cannot hold the loop
            self._loop.call_soon(self._fail, late, failure)

    def _drain(self) -> list[_Pending]:
        late = list(self._queue)
        self._queue.clear()
        self._urgent = 0
        return late

    def _call(self, done: Done, failure: StorageUnavailable | None) -> None:
        try:
            done(failure)
        except Exception as error:  # noqa: BLE001 — the units behind it are owed their answer
            self._loop.call_exception_handler({"message": "A caller of the store failed on its answer", "exception": error})

    def _end(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)
