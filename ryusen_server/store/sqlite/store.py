"""The SQLite store as the engine sees it: submits to the writer, asks the readers, and gives rows their types."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from ryusen_protocol.changes import ResyncReason
from ryusen_protocol.ids import (
    Application,
    AttemptId,
    EventId,
    FunctionId,
    ManifestGeneration,
    RoutingGeneration,
    RunId,
    Workspace,
)
from ryusen_server.core.correlation import digest_of
from ryusen_server.core.decision import Obligation, SettleParent, StopChild
from ryusen_server.core.rows import (
    AttemptRow,
    EventKeyRow,
    EventRow,
    HistoryRow,
    LogRow,
    ManifestRow,
    OperatorCommandRow,
    ReleaseRow,
    RoutingRow,
    RunRow,
    WaitRow,
)
from ryusen_server.ports.changes import ChangePage, Watcher
from ryusen_server.ports.measures import StoreMeasures, Tallies
from ryusen_server.ports.retention import EventKey, EventPage, FamilyKey, FamilyPage, Space
from ryusen_server.ports.store import (
    Counts,
    Done,
    Heads,
    RunFilter,
    StorageUnavailable,
    Unit,
    WaitedName,
    WakeRow,
    obligation_key,
)
from ryusen_server.store.sqlite import sql
from ryusen_server.store.sqlite.changes import ChangeReader
from ryusen_server.store.sqlite.config import CommitHooks, NoHooks, SqliteConfig
from ryusen_server.store.sqlite.connection import open_writer
from ryusen_server.store.sqlite.faults import StoreRefused, explain
from ryusen_server.store.sqlite.files import OwnerLock, prepare
from ryusen_server.store.sqlite.readers import Readers
from ryusen_server.store.sqlite.retention import OldReader
from ryusen_server.store.sqlite.run_query import (
    COMMON,
    FUNCTIONS_MAX,
    FUNCTIONS_WITH_PREFIX,
    IDS_WITH_PREFIX,
    prefix_bounds,
    runs_query,
    search_query,
    searches,
)
from ryusen_server.store.sqlite.writer import Writer

_T = TypeVar("_T")


class SqliteStore:
    """Implements `ryusen_server.ports.store.Store` over one file, which it locks against a second server."""

    def __init__(self, path: Path, *, lock: OwnerLock, writer: Writer, readers: Readers, ephemeral: Path | None) -> None:
        """Use `open`."""
        self.path = path
        self._lock = lock
        self._writer = writer
        self._readers = readers
        self._changes = ChangeReader(readers)
        self._old = OldReader(readers)
        self._ephemeral = ephemeral
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path | None,
        *,
        on_fatal: Callable[[str], None],
        config: SqliteConfig | None = None,
        hooks: CommitHooks | None = None,
    ) -> Self:
        """Open or create the database at `path`; none stands for one in a temporary folder that `close` removes.

        `on_fatal` is called once, on the writer's thread, when a sync fails: the process must exit without closing the store, because
        what reached the disk is unknown. Raises `StoreRefused` with one line for people.
        """
        config = config or SqliteConfig()
        ephemeral = None
        if path is None:
            # Readers need connections of their own, which a database in memory does not give.
            ephemeral = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="ryusen-"))
            path = ephemeral / "ryusen.db"
        try:
            return await cls._open(path, config, hooks or NoHooks(), on_fatal, ephemeral)
        except BaseException:
            if ephemeral is not None:
                shutil.rmtree(ephemeral, ignore_errors=True)
            raise

    @classmethod
    async def _open(
        cls, path: Path, config: SqliteConfig, hooks: CommitHooks, on_fatal: Callable[[str], None], ephemeral: Path | None
    ) -> Self:
        path, lock, connection, position = await asyncio.to_thread(_open_files, path, config)
        try:
            readers = await Readers.open(path, config)
        except BaseException as error:
            connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise StoreRefused(explain(error, path, busy_timeout_ms=config.busy_timeout_ms)) from error
            raise
        writer = Writer(connection, path, config, position=position, hooks=hooks, on_fatal=on_fatal)
        return cls(path, lock=lock, writer=writer, readers=readers, ephemeral=ephemeral)

    async def close(self) -> None:
        """Commit what waits, then close and let go of the file. Later units fail and later reads raise `StorageUnavailable`."""
        if self._closed:
            return
        self._closed = True
        await self._readers.close()
        await self._writer.close()
        self._lock.release()
        if self._ephemeral is not None:
            await asyncio.to_thread(shutil.rmtree, self._ephemeral, ignore_errors=True)

    def set_owner_url(self, url: str) -> None:
        """Say where this server answers, for a second one that is refused."""
        self._lock.set_url(url)

    def submit(self, unit: Unit, done: Done) -> int:
        """See the port."""
        return self._writer.submit(unit, done)

    def watch(self, watcher: Watcher | None) -> None:
        """See the port."""
        self._writer.watcher = watcher

    async def position(self) -> int:
        """See the port."""
        return await self._changes.position()

    async def changes(self, workspace: Workspace, *, after: int) -> ChangePage | ResyncReason:
        """See the port."""
        return await self._changes.changes(workspace, after=after)

    async def old_families(self, workspace: Workspace, *, before_ms: int, after: FamilyKey | None, limit: int) -> FamilyPage:
        """See the port."""
        return await self._old.old_families(workspace, before_ms=before_ms, after=after, limit=limit)

    async def old_events(self, workspace: Workspace, *, before_ms: int, after: EventKey | None, limit: int) -> EventPage:
        """See the port."""
        return await self._old.old_events(workspace, before_ms=before_ms, after=after, limit=limit)

    async def space(self) -> Space:
        """See the port."""
        return await self._old.space()

    @property
    def measures(self) -> StoreMeasures:
        """See the port."""
        return self._writer.measures

    @property
    def queued_units(self) -> int:
        """See the port."""
        return self._writer.queued_units

    async def tallies(self) -> Tallies:
        """See the port. Walks indexes of what is open."""
        runs: dict[str, int] = {}
        for status, count in await self._readers.rows(sql.LIVE_RUNS):
            runs[status] = runs.get(status, 0) + count
        queued, authorized, unknown, expanding = (await self._readers.rows(sql.OPEN_COUNTS))[0]
        return Tallies(runs, {"queued": queued, "authorized": authorized, "unknown": unknown}, expanding)

    async def flush(self) -> None:
        """See the port."""
        told = asyncio.get_running_loop().create_future()

        def done(_: StorageUnavailable | None) -> None:
            if not told.done():
                told.set_result(None)

        self._writer.submit(Unit(()), done)
        await told

    async def heads(self) -> Heads:
        """See the port."""
        async with self._readers.snapshot() as read:
            routing = await read(sql.ROUTING_HEADS, ())
            manifests = await read(sql.ACTIVE_MANIFESTS, ())
            releases = await read(sql.RELEASES, ())
        return Heads(
            routing_heads={Workspace(workspace): RoutingGeneration(generation) for workspace, generation in routing},
            manifests=[ManifestRow(*row) for row in manifests],
            releases=[ReleaseRow(*row) for row in releases],
        )

    async def wakes(self, *, until_ms: int, after: WakeRow | None, limit: int) -> list[WakeRow]:
        """See the port."""
        if after is None:
            rows = await self._readers.rows(sql.WAKES, (until_ms, limit))
        else:
            rows = await self._readers.rows(sql.WAKES_AFTER, (until_ms, after.wake_at_ms, after.run_id, limit))
        return [WakeRow(*row) for row in rows]

    async def authorized_runs(self) -> list[RunId]:
        """See the port."""
        return [run_id for (run_id,) in await self._readers.rows(sql.AUTHORIZED_RUNS)]

    async def pending_fan_outs(self, *, after: EventId | None, limit: int) -> list[EventId]:
        """See the port."""
        return [event_id for (event_id,) in await self._readers.rows(sql.PENDING_FAN_OUTS, (after or "", limit))]

    async def expanding_events(self, workspace: Workspace, name: str, *, after: int, limit: int) -> list[EventRow]:
        """See the port."""
        return [_event(row) for row in await self._readers.rows(sql.EXPANDING_EVENTS, (workspace, name, after, limit))]

    async def waited_names(self) -> list[WaitedName]:
        """See the port. Walks the waits' index, once a start."""
        return [WaitedName(*row) for row in await self._readers.rows(sql.WAITED_NAMES)]

    async def wait(self, run_id: RunId) -> WaitRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.WAIT, (run_id,)), WaitRow)

    async def matching_waits(
        self, workspace: Workspace, event_name: str, metadata: Mapping[str, str], *, before: int, after: WaitRow | None, limit: int
    ) -> list[WaitRow]:
        """See the port."""
        found: list[WaitRow] = []
        async with self._readers.snapshot() as read:
            for (shape,) in await read(sql.WAIT_SHAPES, (workspace, event_name)):
                digest = digest_of(shape, metadata)
                if digest is None or (after is not None and shape < after.shape):
                    continue
                start = after.position if after is not None and shape == after.shape else 0
                parameters = (workspace, event_name, shape, digest, start, before, limit - len(found))
                found += [WaitRow(*row) for row in await read(sql.MATCHING_WAITS, parameters)]
                if len(found) == limit:
                    break
        return found

    async def obligations(self, *, after: Obligation | None, limit: int) -> list[Obligation]:
        """See the port."""
        if after is None:
            rows = await self._readers.rows(sql.OBLIGATIONS, (limit,))
        else:
            rows = await self._readers.rows(sql.OBLIGATIONS_AFTER, (*obligation_key(after), limit))
        return [_OBLIGATION[kind](obligation) for kind, obligation in rows]

    async def blocked_runs(self, workspace: Workspace, application: Application, functions: Sequence[FunctionId]) -> list[RunId]:
        """See the port."""
        listed = msgspec.json.encode(list(functions)).decode()
        return [run_id for (run_id,) in await self._readers.rows(sql.BLOCKED_RUNS, (workspace, application, listed))]

    async def history(self, run_id: RunId, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        """See the port."""
        rows = await self._readers.rows(sql.HISTORY, (run_id, after, sql.ENDLESS if limit is None else limit))
        return [HistoryRow(*row) for row in rows]

    async def attempt_log(self, attempt_id: AttemptId) -> LogRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.ATTEMPT_LOG, (attempt_id,)), LogRow)

    async def run_logs(self, run_id: RunId, *, after: int, limit: int) -> list[LogRow]:
        """See the port."""
        return [LogRow(*row) for row in await self._readers.rows(sql.RUN_LOGS, (run_id, after, limit))]

    async def histories(self, run_ids: Sequence[RunId]) -> dict[RunId, list[HistoryRow]]:
        """See the port."""
        listed = msgspec.json.encode(list(dict.fromkeys(run_ids))).decode()
        found: dict[RunId, list[HistoryRow]] = {}
        for run_id, *row in await self._readers.rows(sql.HISTORIES, (listed,)):
            found.setdefault(RunId(run_id), []).append(HistoryRow(*row))
        for rows in found.values():
            rows.sort(key=lambda row: row.position)  # as the index gives them, which is no promise
        return found

    async def run(self, run_id: RunId) -> RunRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.RUN, (run_id,)), RunRow)

    async def runs(self, workspace: Workspace, where: RunFilter, *, before: tuple[int, RunId] | None, limit: int) -> list[RunRow]:
        """See the port."""
        if searches(where):
            functions = await self._functions_with(workspace, where.q or "")
            statement = search_query(workspace, where, before, limit, functions)
        else:
            statement = runs_query(workspace, where, before, limit)
        return [RunRow(*row) for row in await self._readers.rows(*statement)]

    async def _functions_with(self, workspace: Workspace, prefix: str) -> list[FunctionId] | None:
        """The functions with runs that begin so; none where it is better to walk the newest runs than to look for any."""
        bounds = prefix_bounds(prefix)
        (ids,) = (await self._readers.rows(IDS_WITH_PREFIX, (*bounds, COMMON)))[0]
        if ids >= COMMON:
            return None
        rows = await self._readers.rows(FUNCTIONS_WITH_PREFIX, (workspace, *bounds, FUNCTIONS_MAX + 1))
        return None if len(rows) > FUNCTIONS_MAX else [FunctionId(function) for (function,) in rows]

    async def attempt(self, attempt_id: AttemptId) -> AttemptRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.ATTEMPT, (attempt_id,)), AttemptRow)

    async def attempts(
        self, workspace: Workspace, *, state: str | None, after: tuple[int, AttemptId] | None, limit: int
    ) -> list[AttemptRow]:
        """See the port."""
        named = () if state in {None, "queued", "authorized", "unknown"} else (state,)
        statement = sql.attempts(state=state, paged=after is not None)
        return [AttemptRow(*row) for row in await self._readers.rows(statement, (workspace, *named, *(after or ()), limit))]

    async def event(self, event_id: EventId) -> EventRow | None:
        """See the port."""
        rows = await self._readers.rows(sql.EVENT, (event_id,))
        return _event(rows[0]) if rows else None

    async def events(self, workspace: Workspace, *, name: str | None, before: tuple[int, EventId] | None, limit: int) -> list[EventRow]:
        """See the port."""
        statement = sql.events(named=name is not None, paged=before is not None)
        named = () if name is None else (name,)
        return [_event(row) for row in await self._readers.rows(statement, (workspace, *named, *(before or ()), limit))]

    async def event_runs(self, event_id: EventId) -> list[RunRow]:
        """See the port."""
        return [RunRow(*row) for row in await self._readers.rows(sql.EVENT_RUNS, (event_id,))]

    async def event_key(self, workspace: Workspace, key: str) -> EventKeyRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.EVENT_KEY, (workspace, key)), EventKeyRow)

    async def operator_command(self, workspace: Workspace, key: str) -> OperatorCommandRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.OPERATOR_COMMAND, (workspace, key)), OperatorCommandRow)

    async def manifest(self, workspace: Workspace, manifest_generation: ManifestGeneration) -> ManifestRow | None:
        """See the port."""
        return _one(await self._readers.rows(sql.MANIFEST, (workspace, manifest_generation)), ManifestRow)

    async def routing(self, workspace: Workspace, routing_generation: RoutingGeneration) -> RoutingRow | None:
        """See the port."""
        rows = await self._readers.rows(sql.ROUTING, (workspace, routing_generation))
        return _routing(rows[0]) if rows else None

    async def routings(self, workspace: Workspace, *, before: int | None, limit: int) -> list[RoutingRow]:
        """See the port."""
        paged = () if before is None else (before,)
        rows = await self._readers.rows(sql.routings(paged=before is not None), (workspace, *paged, limit))
        return [_routing(row) for row in rows]

    async def counts(self, workspaces: Sequence[Workspace] | None = None) -> Counts:
        """See the port. Counts walk the narrowest index of each table: some 10 ms a million rows."""
        if workspaces is not None:
            listed = msgspec.json.encode(list(workspaces)).decode()
            return Counts(*(await self._readers.rows(sql.COUNTS_IN, (listed,)))[0])
        return Counts(*(await self._readers.rows(sql.COUNTS))[0])


def _open_files(path: Path, config: SqliteConfig) -> tuple[Path, OwnerLock, sqlite3.Connection, int]:
    path = path.absolute()
    prepare(path)
    path = path.resolve()
    lock = OwnerLock.acquire(path)
    try:
        connection, position = open_writer(path, config)
    except BaseException:
        lock.release()
        raise
    return path, lock, connection, position


_OBLIGATION: dict[str, Callable[[bytes], Obligation]] = {
    "settle_parent": msgspec.json.Decoder(SettleParent).decode,
    "stop_child": msgspec.json.Decoder(StopChild).decode,
}


def _one(rows: list[tuple[Any, ...]], row: Callable[..., _T]) -> _T | None:
    return row(*rows[0]) if rows else None


def _event(row: tuple[Any, ...]) -> EventRow:
    event = EventRow(*row)
    return msgspec.structs.replace(event, metadata=msgspec.json.decode(row[4], type=dict[str, str]))


def _routing(row: tuple[Any, ...]) -> RoutingRow:
    routing = RoutingRow(*row)
    return msgspec.structs.replace(routing, applications=msgspec.json.decode(row[4], type=dict[Application, ManifestGeneration]))
