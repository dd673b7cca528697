"""The control plane of a workspace: heads, publications, event acceptance and fan-out.

Heads live in memory and move at once; their commits follow in the same order, so an event that names a head commits after it. When a commit
fails, the heads are read again from the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ryusen_protocol import problems
from ryusen_protocol.identity import event_fingerprint, run_id_for_event
from ryusen_protocol.ids import Application, EventId, FunctionId, ManifestGeneration, ReleaseId, RoutingGeneration, Workspace
from ryusen_protocol.manifest import Publication
from ryusen_protocol.manifests import check_publication, initial_routing_generation, manifest_generation_id
from ryusen_protocol.problems import Problem
from ryusen_protocol.scope import Scope
from ryusen_server.core.children import ChildTarget
from ryusen_server.core.commands import create_run
from ryusen_server.core.decision import EmittedEvent
from ryusen_server.core.evolve import begin, evolve
from ryusen_server.core.routing import Binding, RoutingTable, activation, manifest_content, routing_table, run_for
from ryusen_server.core.rows import EventKeyRow, EventRow, ManifestRow, ReleaseRow
from ryusen_server.core.state import Run
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.matching import Matching
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest
from ryusen_server.engine.waited import UnderWay, WaitedNames
from ryusen_server.engine.waiting import Waiters
from ryusen_server.ports.store import Done, EventWrite, FanOutWrite, ManifestWrite, ReleaseWrite, StorageUnavailable, Store, Unit, Write
from ryusen_server.ports.time import Clock, Entropy

log = logging.getLogger(__name__)

TABLES_KEPT_MAX = 64
"""Old routing generations kept ready for events that still refer to them."""


class Control:
    """Everything of a workspace that is not a run. Accepts what is submitted and what runs emit (`Acceptor`)."""

    def __init__(
        self,
        *,
        store: Store,
        runs: Runs,
        dispatcher: Dispatcher,
        clock: Clock,
        entropy: Entropy,
        config: EngineConfig,
        waiters: Waiters,
        waited: WaitedNames,
        under_way: UnderWay,
        matching: Matching,
    ) -> None:
        self._waited = waited
        self._under_way = under_way
        self._matching = matching
        self.spawn: Callable[[str, Coroutine[Any, Any, None]], None]
        """Runs what takes time. Set once by the engine."""
        self._timeouts: dict[ManifestGeneration, dict[FunctionId, int | None]] = {}
        """Of active manifests: each function with its declared run timeout."""
        self._store = store
        self._runs = runs
        self._dispatcher = dispatcher
        self._clock = clock
        self._entropy = entropy
        self._config = config
        self._waiters = waiters
        self._heads: dict[Workspace, RoutingGeneration] = {}
        self._active: dict[Workspace, dict[Application, ManifestRow]] = {}
        self._durable_heads: dict[Workspace, RoutingGeneration] = {}
        self._durable_active: dict[Workspace, dict[Application, ManifestRow]] = {}
        self._tables: dict[RoutingGeneration, RoutingTable] = {}
        self._releases: dict[tuple[Scope, ReleaseId], ReleaseRow] = {}
        self._seeing: dict[tuple[Scope, ReleaseId], asyncio.Future[None]] = {}
        """Releases whose first registration is not durable yet."""
        self._publishing: dict[Workspace, asyncio.Lock] = {}
        self.on_activated: Callable[[ManifestRow], None] | None = None
        """Told of every activation once it is durable."""
        self._keys: dict[tuple[Workspace, str], asyncio.Future[None]] = {}
        self._submissions: set[asyncio.Task[AcceptedEvent | Problem]] = set()
        self._expanding: set[EventId] = set()
        self._retry: set[EventId] = set()

    async def load(self) -> None:
        """Read the heads, and begin again with whatever fan-out was under way."""
        await self._read_heads()
        self._waited.load(await self._store.waited_names())
        after: EventId | None = None
        while page := await self._store.pending_fan_outs(after=after, limit=256):
            for event_id in page:
                await self._resume_alone(event_id)
            after = page[-1]

    async def _read_heads(self) -> None:
        heads = await self._store.heads()
        self._heads = dict(heads.routing_heads)
        self._active = {}
        for manifest in heads.manifests:
            self._active.setdefault(manifest.workspace, {})[manifest.application] = manifest
        self._durable_heads = dict(self._heads)
        self._durable_active = {workspace: dict(manifests) for workspace, manifests in self._active.items()}
        self._releases = {(Scope(row.workspace, row.application), row.release_id): row for row in heads.releases}

    # heads

    def routing_head(self, workspace: Workspace) -> RoutingGeneration:
        """What an event accepted now is routed by."""
        return self._heads.get(workspace) or initial_routing_generation(workspace)

    def active_manifests(self, workspace: Workspace) -> list[ManifestRow]:
        """The active manifest generation of every application, by application."""
        return [row for _, row in sorted(self._active.get(workspace, {}).items())]

    def releases(self, workspace: Workspace) -> list[ReleaseRow]:
        """The workspace's releases, oldest first."""
        found = [row for (scope, _), row in self._releases.items() if scope.workspace == workspace]
        return sorted(found, key=lambda row: row.position)

    def child_target(self, scope: Scope, function: FunctionId) -> ChildTarget | None:
        """A function of the application's active manifest as a step may invoke it; none if the manifest has no such function."""
        manifest = self._active.get(scope.workspace, {}).get(scope.application)
        if manifest is None:
            return None
        timeouts = self._timeouts.get(manifest.manifest_generation)
        if timeouts is None:
            if len(self._timeouts) >= TABLES_KEPT_MAX:
                del self._timeouts[next(iter(self._timeouts))]
            timeouts = {declared.id: declared.timeout_ms for declared in manifest_content(manifest).functions}
            self._timeouts[manifest.manifest_generation] = timeouts
        if function not in timeouts:
            return None
        return ChildTarget(
            manifest.manifest_generation, self.routing_head(scope.workspace), timeouts[function], self._config.default_run_timeout_ms
        )

    async def release(self, scope: Scope, release_id: ReleaseId, contract: str) -> ReleaseRow:
        """A release as its first registration recorded it, which may be this one. Raises `StorageUnavailable`."""
        key = (scope, release_id)
        while (row := self._releases.get(key)) is None:
            seeing = self._seeing.get(key)
            if seeing is None:
                seeing = self._seeing[key] = self._first_seen(scope, release_id, contract)
            await asyncio.shield(seeing)
        return row

    def _first_seen(self, scope: Scope, release_id: ReleaseId, contract: str) -> asyncio.Future[None]:
        row = ReleaseRow(scope.workspace, scope.application, release_id, contract, self._clock.now_ms())
        records = _records("release_seen", application=scope.application, release_id=release_id)

        def seen(error: StorageUnavailable | None) -> None:
            del self._seeing[scope, release_id]
            if error is None:
                self._releases[scope, release_id] = msgspec.structs.replace(row, position=durable.position)

        durable = self._submit(Unit((ReleaseWrite(row, records),)), seen)
        return durable.future

    async def publish(self, scope: Scope, publication: Publication) -> ActivatedManifest | Problem:
        """Activate a complete desired state, or say why not. Raises `StorageUnavailable`."""
        refused = check_publication(publication, timeout_ms_max=self._config.max_run_timeout_ms)
        if refused is not None:
            return problems.problem(refused.code, refused.message, path=refused.path)
        # One at a time in a workspace: what the store says of a generation stays true until this publication is decided.
        async with self._publishing.setdefault(scope.workspace, asyncio.Lock()):
            return await self._activate(scope, publication)

    async def _activate(self, scope: Scope, publication: Publication) -> ActivatedManifest | Problem:
        generation = manifest_generation_id(scope, publication.expected_parent, publication)
        await self._store.flush()
        known = await self._store.manifest(scope.workspace, generation)
        if known is not None:
            return ActivatedManifest(known, replayed=True)
        active = self._active.get(scope.workspace, {})
        current = active.get(scope.application)
        current_id = None if current is None else current.manifest_generation
        if publication.expected_parent != current_id:
            return problems.parent_conflict(current_id, publication.expected_parent)
        head = self.routing_head(scope.workspace)
        generations = {application: row.manifest_generation for application, row in active.items()}
        manifest, routing = activation(scope, publication, head, generations, self._clock.now_ms())
        records = _records(
            "manifest_activated",
            application=scope.application,
            manifest_generation=manifest.manifest_generation,
            routing_generation=routing.routing_generation,
        )
        self._active.setdefault(scope.workspace, {})[scope.application] = manifest
        self._heads[scope.workspace] = routing.routing_generation
        unit = Unit((ManifestWrite(manifest, routing, records),))
        await self._submit(unit, lambda error: self._activated(scope, manifest, error)).future
        return ActivatedManifest(manifest, replayed=False)

    def _activated(self, scope: Scope, manifest: ManifestRow, error: StorageUnavailable | None) -> None:
        """An activation is durable, or the heads go back to what is, before anything else can be decided on them."""
        workspace = scope.workspace
        if error is None:
            self._durable_active.setdefault(workspace, {})[scope.application] = manifest
            self._durable_heads[workspace] = manifest.routing_generation
            if self.on_activated is not None:
                self.on_activated(manifest)
            return
        self._active[workspace] = dict(self._durable_active.get(workspace, {}))
        if workspace in self._durable_heads:
            self._heads[workspace] = self._durable_heads[workspace]
        else:
            self._heads.pop(workspace, None)

    def _submit(self, unit: Unit, first: Done | None = None) -> _Durable:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_heard)

        def done(error: StorageUnavailable | None) -> None:
            if first is not None:
                first(error)
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        return _Durable(self._store.submit(unit, done), future)

    # events

    async def submit_event(
        self, workspace: Workspace, *, name: str, payload: bytes, metadata: dict[str, str], key: str | None
    ) -> AcceptedEvent | Problem:
        """Accept an event, once for each key. Raises `StorageUnavailable`, with nothing accepted."""
        if key is None:
            return await self._accept(workspace, name, payload, metadata, None)
        # In a task of its own: a caller that goes away must not free the key before its event is durable or lost.
        work = asyncio.create_task(self._submit_once(workspace, name, payload, metadata, key))
        self._submissions.add(work)
        work.add_done_callback(self._submissions.discard)
        work.add_done_callback(_heard)
        return await asyncio.shield(work)

    async def _submit_once(
        self, workspace: Workspace, name: str, payload: bytes, metadata: dict[str, str], key: str
    ) -> AcceptedEvent | Problem:
        slot = (workspace, key)
        while (earlier := self._keys.get(slot)) is not None:
            await asyncio.wait([earlier])
        self._keys[slot] = asyncio.get_running_loop().create_future()
        try:
            fingerprint = event_fingerprint(name, payload, metadata)
            known = await self._store.event_key(workspace, key)
            if known is not None:
                return await self._replay(known, fingerprint)
            return await self._accept(workspace, name, payload, metadata, (key, fingerprint))
        finally:
            self._keys.pop(slot).set_result(None)

    async def _replay(self, known: EventKeyRow, fingerprint: str) -> AcceptedEvent | Problem:
        if known.fingerprint != fingerprint:
            return problems.idempotency_key_reused()
        event = await self._store.event(known.event_id)
        return AcceptedEvent(event or _remembered(known), replayed=True)

    async def _accept(
        self, workspace: Workspace, name: str, payload: bytes, metadata: dict[str, str], key: tuple[str, str] | None
    ) -> AcceptedEvent:
        event = self._event(EventId(self._entropy.token("ev")), workspace, name, payload, metadata, self._clock.now_ms())
        key_row = None if key is None else EventKeyRow(workspace, *key, event.event_id, event.routing_generation, event.matched)
        write = EventWrite(event, key_row, _accepted_records(event))
        durable = self._submit(Unit((write,), rides=event.matched > 0), lambda error: self.committed(event, error))
        event = msgspec.structs.replace(event, position=durable.position)
        self.submitted(event)
        at_once: tuple[Binding, ...] = ()
        if event.matched <= self._config.fan_out_batch and (workspace, name) not in self._waited:
            at_once = self._head_table(workspace).bindings.get(name, ())
        await durable.future
        runs = tuple([run_id_for_event(event.event_id, binding.application, binding.trigger_id) for binding in at_once])
        return AcceptedEvent(event, replayed=False, run_ids=runs)

    def _event(self, event_id: EventId, workspace: Workspace, name: str, payload: bytes, metadata: dict[str, str], now_ms: int) -> EventRow:
        """The row of an event that is accepted now, with how many bindings of the routing head it matches."""
        table = self._head_table(workspace)
        matched = len(table.bindings.get(name, ()))
        return EventRow(
            event_id=event_id,
            workspace=workspace,
            name=name,
            payload=payload,
            metadata=metadata,
            received_at_ms=now_ms,
            routing_generation=table.routing_generation,
            matched=matched,
            fan_out_next=0 if matched or (workspace, name) in self._waited else None,
        )

    def accepted(self, run: Run, emitted: EmittedEvent, now_ms: int) -> EventWrite:
        """The acceptance of an event that a run emits. Its derived id is the claim that no key has to make."""
        event = self._event(emitted.event_id, run.workspace, emitted.name, emitted.payload, emitted.metadata, now_ms)
        return EventWrite(event, None, _accepted_records(event))

    def submitted(self, event: EventRow) -> None:
        """The acceptance of an event is on its way to the store: its first runs share the commit."""
        if event.fan_out_next is None:
            return
        self._under_way.add(event)
        if event.matched:
            self._fan_out(event, self._tables[event.routing_generation])

    def committed(self, event: EventRow, error: StorageUnavailable | None) -> None:
        """The acceptance of an event is durable or lost. What it has to begin with then is waits, if it starts no run."""
        if event.matched or event.fan_out_next is None:
            return
        if error is None:
            self._fan_out(event, RoutingTable(event.routing_generation, {}))
        else:
            self._under_way.discard(event.event_id)

    # fan-out

    def _head_table(self, workspace: Workspace) -> RoutingTable:
        generation = self.routing_head(workspace)
        table = self._tables.get(generation)
        if table is None:
            table = self._kept(routing_table(generation, self.active_manifests(workspace)))
        return table

    async def _table(self, workspace: Workspace, generation: RoutingGeneration) -> RoutingTable:
        table = self._tables.get(generation)
        if table is not None:
            return table
        if generation == self.routing_head(workspace):
            return self._head_table(workspace)
        return self._kept(await self._stored_table(workspace, generation))

    def _kept(self, table: RoutingTable) -> RoutingTable:
        self._tables[table.routing_generation] = table
        while len(self._tables) > TABLES_KEPT_MAX:
            del self._tables[next(iter(self._tables))]
        return table

    async def _stored_table(self, workspace: Workspace, generation: RoutingGeneration) -> RoutingTable:
        routing = await self._store.routing(workspace, generation)
        if routing is None:
            return RoutingTable(generation, {})
        manifests: list[ManifestRow] = []
        for manifest_generation in routing.applications.values():
            manifest = await self._store.manifest(workspace, ManifestGeneration(manifest_generation))
            if manifest is None:
                raise AssertionError("a routing generation names stored manifests")
            manifests.append(manifest)
        return routing_table(generation, manifests)

    async def resume_fan_out(self, event_id: EventId) -> None:
        """Go on with an event's expansion where the store says it stands. Raises `StorageUnavailable`."""
        event = await self._store.event(event_id)
        if event is None or event.fan_out_next is None:
            self._under_way.discard(event_id)
            return
        table = await self._table(event.workspace, event.routing_generation)
        if event_id not in self._expanding:
            self._fan_out(event, table)

    def _fan_out(self, event: EventRow, table: RoutingTable) -> None:
        """Create the next batch of the event's runs; the batch after it begins when this one is durable, and behind the last the waits."""
        self._expanding.add(event.event_id)
        self._under_way.add(event)
        bindings = table.bindings.get(event.name, ())
        begin_at = event.fan_out_next or 0
        if begin_at >= len(bindings):
            # However many events wait for their turn, their payloads do not: those are read for the waits that want them.
            self.spawn("matching", self._match_waits(msgspec.structs.replace(event, payload=b""), table))
            return
        end_at = min(begin_at + self._config.fan_out_batch, len(bindings))
        # A wait that an event accepted by now can match is counted by now.
        more = end_at < len(bindings) or (event.workspace, event.name) in self._waited
        following = end_at if more else None
        now_ms = self._clock.now_ms()
        encoded = self._runs.remember_input(event)
        born: list[LiveRun] = []
        writes: list[Write] = []
        for binding in bindings[begin_at:end_at]:
            created, records = create_run.decide(run_for(event, binding, now_ms, self._config.default_run_timeout_ms))
            live = self._runs.begin(evolve(begin(created, now_ms), records, now_ms, 0), encoded)
            writes.append(self._runs.write(live, records, (), now_ms, new=True))
            live.uncommitted += 1
            born.append(live)
        writes.append(FanOutWrite(event.event_id, following))

        def done(error: StorageUnavailable | None) -> None:
            for live in born:
                self._runs.committed(live, error, ended=False)
            self._fanned_out(msgspec.structs.replace(event, fan_out_next=following), table, error)

        position = self._store.submit(Unit(tuple(writes)), done)
        for index, live in enumerate(born):
            live.run.position = position - (len(writes) - 1) + index
            self._dispatcher.offer(live)

    async def _match_waits(self, event: EventRow, table: RoutingTable) -> None:
        try:
            await self._matching.settle_waits(event)
            await self._submit(Unit((FanOutWrite(event.event_id, None),), rides=True)).future
        except StorageUnavailable as error:
            self._fanned_out(event, table, error)
            raise
        self._fanned_out(msgspec.structs.replace(event, fan_out_next=None), table, None)

    def _fanned_out(self, event: EventRow, table: RoutingTable, error: StorageUnavailable | None) -> None:
        self._expanding.discard(event.event_id)
        if error is not None:
            self._retry.add(event.event_id)
        elif event.fan_out_next is None:
            self._under_way.discard(event.event_id)
            self._waiters.notify(event.event_id)
        else:
            self._fan_out(event, table)

    async def retry_fan_outs(self) -> None:
        """Take up again what a failed commit interrupted. Raises `StorageUnavailable`, with the rest kept for later."""
        for event_id in sorted(self._retry):
            await self._resume_alone(event_id)
            self._retry.discard(event_id)

    async def _resume_alone(self, event_id: EventId) -> None:
        """As `resume_fan_out`; a defect of this event is told and keeps no other from going on. It stays in the store as it is."""
        try:
            await self.resume_fan_out(event_id)
        except StorageUnavailable:
            raise
        except Exception:
            log.exception("event %s could not be expanded any further", event_id)


class _Durable(msgspec.Struct, frozen=True):
    position: int
    future: asyncio.Future[None]


def _remembered(known: EventKeyRow) -> EventRow:
    """What an idempotency key keeps of an event that was removed since: enough for the answer it was given first."""
    routing_generation = known.routing_generation or initial_routing_generation(known.workspace)
    return EventRow(known.event_id, known.workspace, "", b"", {}, 0, routing_generation, known.matched, None)


def _heard(future: asyncio.Future[Any]) -> None:
    """Whoever waited may have gone away, which is no reason to report its failure as unheard."""
    if not future.cancelled():
        future.exception()


def _accepted_records(event: EventRow) -> bytes:
    return _records("event_accepted", event_id=event.event_id, name=event.name, matched=event.matched)


def _records(kind: str, **fields: object) -> bytes:
    return msgspec.json.encode([{"kind": kind, **fields}])
