"""A store of dictionaries, for tests and simulations. Commits in the loop's next turn, keeps nothing when the process ends.

As dumb as it can be: every list is a filter and a sort over all rows. It does check what a store shared by several servers would refuse:
with one server, a unit decided on a position that the run has left behind is a defect of the engine, and `submit` raises there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

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
from ryusen_server.core.decision import Obligation
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
from ryusen_server.ports.changes import ChangePage, ChangeRow, Watcher
from ryusen_server.ports.commits import changes_of
from ryusen_server.ports.logs import LogWrite
from ryusen_server.ports.measures import StoreMeasures, Tallies
from ryusen_server.ports.retention import (
    EventKey,
    EventPage,
    FamilyKey,
    FamilyPage,
    OldEvent,
    OldRun,
    PruneWrite,
    ReclaimWrite,
    Space,
)
from ryusen_server.ports.store import (
    Counts,
    DischargeWrite,
    Done,
    EventWrite,
    FanOutWrite,
    Heads,
    ManifestWrite,
    ObligationWrite,
    OperatorWrite,
    ReleaseWrite,
    RunFilter,
    RunWrite,
    StorageUnavailable,
    Unit,
    WaitedName,
    WakeRow,
    obligation_key,
)


class Inconsistent(Exception):
    """The engine submitted what cannot follow from what it submitted before."""


class MemoryStore:
    """Implements `ryusen_server.ports.store.Store`."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """While set, commits fail and reads raise, with this reason."""
        self._position = 0
        self._queue: list[tuple[Unit, int, Done]] = []
        self._failing: StorageUnavailable | None = None
        self._submitted: dict[RunId, int] = {}
        self._history: dict[RunId, list[HistoryRow]] = {}
        self._runs: dict[RunId, RunRow] = {}
        self._attempts: dict[AttemptId, AttemptRow] = {}
        self._logs: dict[AttemptId, LogRow] = {}
        self._events: dict[EventId, EventRow] = {}
        self._waits: dict[RunId, WaitRow] = {}
        self._unknown_below: dict[RunId, RunId] = {}
        self._obligations: dict[tuple[RunId, str], Obligation] = {}
        self._event_keys: dict[tuple[Workspace, str], EventKeyRow] = {}
        self._operator_commands: dict[tuple[Workspace, str], OperatorCommandRow] = {}
        self._manifests: dict[tuple[Workspace, ManifestGeneration], ManifestRow] = {}
        self._routings: dict[tuple[Workspace, RoutingGeneration], RoutingRow] = {}
        self._applications: dict[tuple[Workspace, Application], ManifestGeneration] = {}
        self._workspaces: dict[Workspace, RoutingGeneration] = {}
        self._releases: dict[tuple[str, ...], ReleaseRow] = {}
        self._watcher: Watcher | None = None
        self._changes: list[tuple[Workspace, ChangeRow]] = []
        self._pruned: dict[Workspace, int] = {}
        self.measures = StoreMeasures()

    def submit(self, unit: Unit, done: Done) -> int:
        """See the port. Raises `Inconsistent`."""
        self._check(unit)
        self._position += len(unit.writes)
        self._queue.append((unit, self._position, done))
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._commit)
        return self._position

    def watch(self, watcher: Watcher | None) -> None:
        """See the port."""
        self._watcher = watcher

    async def position(self) -> int:
        """See the port."""
        self._readable()
        return self._changes[-1][1].position if self._changes else 0

    async def changes(self, workspace: Workspace, *, after: int) -> ChangePage | ResyncReason:
        """See the port."""
        last = await self.position()
        if after > last:
            return "unknown_position"
        if after < self._pruned.get(workspace, 0):
            return "pruned"
        rows = [row for of, row in self._changes if of == workspace and row.position > after]
        return ChangePage(rows, last, complete=True)

    async def old_families(self, workspace: Workspace, *, before_ms: int, after: FamilyKey | None, limit: int) -> FamilyPage:
        """See the port."""
        self._readable()
        tops = [(run.ended_at_ms, run.run_id) for run in self._runs.values() if run.workspace == workspace and run.parent_run_id is None]
        ended = sorted((at_ms, run_id) for at_ms, run_id in tops if at_ms is not None and at_ms < before_ms)
        page = [key for key in ended if after is None or key > after][:limit]
        families = [self._family(run_id) for _, run_id in page]
        old = [family for family in families if all(self._is_old(run, before_ms) for run in family)]
        shown = [tuple(self._old_run(run.run_id) for run in family) for family in old]
        return FamilyPage(shown, page[-1] if len(page) == limit else None)

    def _family(self, top: RunId) -> list[RunRow]:
        family = [self._runs[top]]
        for member in family:
            family += [run for run in self._runs.values() if run.parent_run_id == member.run_id]
        return family

    def _is_old(self, run: RunRow, before_ms: int) -> bool:
        owed = any(child_run_id == run.run_id for child_run_id, _ in self._obligations)
        return run.ended_at_ms is not None and run.ended_at_ms < before_ms and not owed

    def _old_run(self, run_id: RunId) -> OldRun:
        attempts = [attempt.attempt_id for attempt in self._attempts.values() if attempt.run_id == run_id]
        return OldRun(run_id, tuple(attempts), self._history[run_id][-1].position)

    async def old_events(self, workspace: Workspace, *, before_ms: int, after: EventKey | None, limit: int) -> EventPage:
        """See the port."""
        self._readable()
        received = [event for event in self._events.values() if event.workspace == workspace and event.received_at_ms < before_ms]
        received.sort(key=lambda event: (event.received_at_ms, event.event_id))
        page = [event for event in received if after is None or (event.received_at_ms, event.event_id) > after][:limit]
        used = {run.event_id for run in self._runs.values()}
        old = [OldEvent(event.event_id, event.position) for event in page if event.fan_out_next is None and event.event_id not in used]
        return EventPage(old, (page[-1].received_at_ms, page[-1].event_id) if len(page) == limit else None)

    @property
    def queued_units(self) -> int:
        """See the port."""
        return len(self._queue)

    async def tallies(self) -> Tallies:
        """See the port."""
        self._readable()
        runs = Counter(run.status for run in self._runs.values() if run.status != "ended")
        attempts = Counter(attempt.state for attempt in self._attempts.values())
        expanding = sum(event.fan_out_next is not None for event in self._events.values())
        return Tallies(dict(runs), {state: attempts[state] for state in ("queued", "authorized", "unknown")}, expanding)

    async def space(self) -> Space:
        """See the port."""
        return Space(0, 0)

    async def flush(self) -> None:
        """See the port."""
        told = asyncio.get_running_loop().create_future()
        self.submit(Unit(()), lambda _: None if told.done() else told.set_result(None))
        await told

    def _check(self, unit: Unit) -> None:
        position = self._position
        for write in unit.writes:
            position += 1
            if not isinstance(write, RunWrite):
                continue
            history = self._history.get(write.run_id)
            last = self._submitted.get(write.run_id, history[-1].position if history else None)
            base = write.base_position
            if (last is None) != (base is None) or (last is not None and base is not None and base < last):
                raise Inconsistent(f"A unit for {write.run_id} was decided on position {base}, but the run stands at {last}")
            self._submitted[write.run_id] = position

    def _commit(self) -> None:
        failure = self._failing or (None if self.fault is None else StorageUnavailable(self.fault))
        batch, self._queue = self._queue, []
        if failure is None:
            for unit, last_position, _ in batch:
                self._apply(unit, last_position)
                self._changes += changes_of(unit, last_position)
            if self._watcher is not None:
                self._watcher([(unit, last_position) for unit, last_position, _ in batch])
        for _, _, done in batch:
            done(failure)
        # What was submitted by those callbacks waits in the queue: after a failure it goes the same way.
        self._failing = failure if self._queue else None
        self._submitted.clear()

    def _apply(self, unit: Unit, last_position: int) -> None:  # noqa: C901, PLR0912  # one branch a kind of write
        position = last_position - len(unit.writes)
        for write in unit.writes:
            position += 1
            match write:
                case RunWrite():
                    self._apply_run(write, position)
                case EventWrite():
                    self._events[write.event.event_id] = msgspec.structs.replace(write.event, position=position)
                    if write.key is not None:
                        self._event_keys[write.key.workspace, write.key.key] = write.key
                case FanOutWrite():
                    event = self._events[write.event_id]
                    self._events[write.event_id] = msgspec.structs.replace(event, fan_out_next=write.fan_out_next)
                case ObligationWrite():
                    self._obligations[obligation_key(write.obligation)] = write.obligation
                case DischargeWrite():
                    self._obligations.pop(obligation_key(write.obligation), None)
                case ManifestWrite():
                    self._apply_manifest(write, position)
                case OperatorWrite():
                    self._operator_commands[write.command.workspace, write.command.key] = write.command
                case ReleaseWrite():
                    release = write.release
                    self._releases[release.workspace, release.application, release.release_id] = msgspec.structs.replace(
                        release, position=position
                    )
                case LogWrite(row) if row.run_id not in self._runs:
                    pass
                case LogWrite(row):
                    held = self._logs.get(row.attempt_id)
                    number = len(self._logs) + 1 if held is None else held.number
                    self._logs[row.attempt_id] = msgspec.structs.replace(row, number=number)
                case PruneWrite():
                    self._prune(write)
                case ReclaimWrite():
                    pass
                case _:
                    assert_never(write)

    def _prune(self, write: PruneWrite) -> None:
        gone = {run.run_id for run in write.runs}
        for run in write.runs:
            self._history.pop(run.run_id, None)
            self._runs.pop(run.run_id, None)
            for attempt_id in run.attempt_ids:
                self._attempts.pop(attempt_id, None)
        self._logs = {attempt_id: row for attempt_id, row in self._logs.items() if row.run_id not in gone}
        for event in write.events:
            self._events.pop(event.event_id, None)
        positions = {event.position for event in write.events}
        self._changes = [(of, row) for of, row in self._changes if row.run_id not in gone and row.position not in positions]
        last = max([run.last_position for run in write.runs] + [event.position for event in write.events], default=0)
        self._pruned[write.workspace] = max(last, self._pruned.get(write.workspace, 0))

    def _apply_run(self, write: RunWrite, position: int) -> None:
        self._history.setdefault(write.run_id, []).append(HistoryRow(position, write.at_ms, write.records))
        if write.run is not None:
            self._runs[write.run_id] = write.run
        for attempt in write.attempts:
            self._attempts[attempt.attempt_id] = attempt
        if write.wait is not None:
            self._waits[write.run_id] = msgspec.structs.replace(write.wait, position=position)
        elif write.wait_over:
            self._waits.pop(write.run_id, None)
        if write.unknown_moved and write.run is not None:
            self._carry_unknown(write.run)

    def _carry_unknown(self, run: RunRow) -> None:
        above = run.parent_run_id
        while above is not None:
            if run.attention == "unknown":
                self._unknown_below[above] = run.run_id
            else:
                self._unknown_below.pop(above, None)
            above = self._runs[above].parent_run_id

    def _shown(self, run: RunRow) -> RunRow:
        below = self._unknown_below.get(run.run_id)
        return run if below is None else msgspec.structs.replace(run, unknown_below_run_id=below)

    def _apply_manifest(self, write: ManifestWrite, position: int) -> None:
        manifest, routing = write.manifest, write.routing
        self._manifests[manifest.workspace, manifest.manifest_generation] = manifest
        self._routings[routing.workspace, routing.routing_generation] = msgspec.structs.replace(routing, position=position)
        self._applications[manifest.workspace, manifest.application] = manifest.manifest_generation
        self._workspaces[routing.workspace] = routing.routing_generation

    def _readable(self) -> None:
        if self.fault is not None:
            raise StorageUnavailable(self.fault)

    async def heads(self) -> Heads:
        """See the port."""
        self._readable()
        active = sorted(self._applications.items())
        return Heads(
            routing_heads=dict(self._workspaces),
            manifests=[self._manifests[workspace, generation] for (workspace, _), generation in active],
            releases=sorted(self._releases.values(), key=lambda release: release.position),
        )

    async def wakes(self, *, until_ms: int, after: WakeRow | None, limit: int) -> list[WakeRow]:
        """See the port."""
        self._readable()
        due = [(run.wake_at_ms, run.run_id) for run in self._runs.values() if run.wake_at_ms is not None and run.wake_at_ms <= until_ms]
        start = (after.wake_at_ms, after.run_id) if after is not None else None
        return [WakeRow(run_id, wake_at_ms) for wake_at_ms, run_id in sorted(due) if start is None or (wake_at_ms, run_id) > start][:limit]

    async def authorized_runs(self) -> list[RunId]:
        """See the port."""
        self._readable()
        return sorted({attempt.run_id for attempt in self._attempts.values() if attempt.state == "authorized"})

    async def pending_fan_outs(self, *, after: EventId | None, limit: int) -> list[EventId]:
        """See the port."""
        self._readable()
        return sorted(e.event_id for e in self._events.values() if e.fan_out_next is not None and e.event_id > (after or ""))[:limit]

    async def expanding_events(self, workspace: Workspace, name: str, *, after: int, limit: int) -> list[EventRow]:
        """See the port."""
        self._readable()
        of_name = (e for e in self._events.values() if (e.workspace, e.name) == (workspace, name))
        found = [msgspec.structs.replace(e, payload=b"") for e in of_name if e.fan_out_next is not None and e.position > after]
        return sorted(found, key=lambda event: event.position)[:limit]

    async def waited_names(self) -> list[WaitedName]:
        """See the port."""
        self._readable()
        names = [(wait.workspace, wait.event_name) for wait in self._waits.values()]
        return [WaitedName(*name, waits=names.count(name)) for name in sorted(set(names))]

    async def wait(self, run_id: RunId) -> WaitRow | None:
        """See the port."""
        self._readable()
        return self._waits.get(run_id)

    async def matching_waits(
        self, workspace: Workspace, event_name: str, metadata: Mapping[str, str], *, before: int, after: WaitRow | None, limit: int
    ) -> list[WaitRow]:
        """See the port."""
        self._readable()
        waits = [w for w in self._waits.values() if (w.workspace, w.event_name) == (workspace, event_name) and w.position < before]
        found = sorted((w for w in waits if digest_of(w.shape, metadata) == w.digest), key=_wait_key)
        return [w for w in found if after is None or _wait_key(w) > _wait_key(after)][:limit]

    async def obligations(self, *, after: Obligation | None, limit: int) -> list[Obligation]:
        """See the port."""
        self._readable()
        start = None if after is None else obligation_key(after)
        return [owed for key, owed in sorted(self._obligations.items(), key=lambda item: item[0]) if start is None or key > start][:limit]

    async def blocked_runs(self, workspace: Workspace, application: Application, functions: Sequence[FunctionId]) -> list[RunId]:
        """See the port."""
        self._readable()
        blocked = (run for run in self._runs.values() if run.status == "definition_blocked")
        return [r.run_id for r in blocked if (r.workspace, r.application) == (workspace, application) and r.function in functions]

    async def history(self, run_id: RunId, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        """See the port."""
        self._readable()
        return [row for row in self._history.get(run_id, ()) if row.position > after][:limit]

    async def attempt_log(self, attempt_id: AttemptId) -> LogRow | None:
        """See the port."""
        self._readable()
        return self._logs.get(attempt_id)

    async def run_logs(self, run_id: RunId, *, after: int, limit: int) -> list[LogRow]:
        """See the port."""
        self._readable()
        return sorted((row for row in self._logs.values() if row.run_id == run_id and row.number > after), key=lambda row: row.number)[
            :limit
        ]

    async def histories(self, run_ids: Sequence[RunId]) -> dict[RunId, list[HistoryRow]]:
        """See the port."""
        self._readable()
        return {run_id: list(self._history[run_id]) for run_id in run_ids if run_id in self._history}

    async def run(self, run_id: RunId) -> RunRow | None:
        """See the port."""
        self._readable()
        run = self._runs.get(run_id)
        return None if run is None else self._shown(run)

    async def runs(self, workspace: Workspace, where: RunFilter, *, before: tuple[int, RunId] | None, limit: int) -> list[RunRow]:
        """See the port."""
        self._readable()
        found = [run for run in map(self._shown, self._runs.values()) if run.workspace == workspace and _matches(run, where)]
        found.sort(key=_run_key, reverse=True)
        return [run for run in found if before is None or _run_key(run) < before][:limit]

    async def attempt(self, attempt_id: AttemptId) -> AttemptRow | None:
        """See the port."""
        self._readable()
        return self._attempts.get(attempt_id)

    async def attempts(
        self, workspace: Workspace, *, state: str | None, after: tuple[int, AttemptId] | None, limit: int
    ) -> list[AttemptRow]:
        """See the port."""
        self._readable()
        found = [a for a in self._attempts.values() if a.workspace == workspace and state in {None, a.state}]
        found.sort(key=lambda attempt: (attempt.queued_at_ms, attempt.attempt_id))
        return [a for a in found if after is None or (a.queued_at_ms, a.attempt_id) > after][:limit]

    async def event(self, event_id: EventId) -> EventRow | None:
        """See the port."""
        self._readable()
        return self._events.get(event_id)

    async def events(self, workspace: Workspace, *, name: str | None, before: tuple[int, EventId] | None, limit: int) -> list[EventRow]:
        """See the port."""
        self._readable()
        found = [e for e in self._events.values() if e.workspace == workspace and name in {None, e.name}]
        found.sort(key=lambda event: (event.received_at_ms, event.event_id), reverse=True)
        page = [e for e in found if before is None or (e.received_at_ms, e.event_id) < before][:limit]
        return [msgspec.structs.replace(event, payload=b"") for event in page]

    async def event_runs(self, event_id: EventId) -> list[RunRow]:
        """See the port."""
        self._readable()
        return sorted((self._shown(run) for run in self._runs.values() if run.event_id == event_id), key=_run_key)

    async def event_key(self, workspace: Workspace, key: str) -> EventKeyRow | None:
        """See the port."""
        self._readable()
        return self._event_keys.get((workspace, key))

    async def operator_command(self, workspace: Workspace, key: str) -> OperatorCommandRow | None:
        """See the port."""
        self._readable()
        return self._operator_commands.get((workspace, key))

    async def manifest(self, workspace: Workspace, manifest_generation: ManifestGeneration) -> ManifestRow | None:
        """See the port."""
        self._readable()
        return self._manifests.get((workspace, manifest_generation))

    async def routing(self, workspace: Workspace, routing_generation: RoutingGeneration) -> RoutingRow | None:
        """See the port."""
        self._readable()
        return self._routings.get((workspace, routing_generation))

    async def routings(self, workspace: Workspace, *, before: int | None, limit: int) -> list[RoutingRow]:
        """See the port."""
        self._readable()
        found = [r for r in self._routings.values() if r.workspace == workspace and (before is None or r.position < before)]
        return sorted(found, key=lambda routing: routing.position, reverse=True)[:limit]

    async def counts(self, workspaces: Sequence[Workspace] | None = None) -> Counts:
        """See the port."""
        self._readable()
        runs = [run for run in self._runs.values() if workspaces is None or run.workspace in workspaces]
        attempts = [attempt for attempt in self._attempts.values() if workspaces is None or attempt.workspace in workspaces]
        return Counts(
            events=sum(workspaces is None or event.workspace in workspaces for event in self._events.values()),
            runs=len(runs),
            runs_live=sum(run.status != "ended" for run in runs),
            attempts_unknown=sum(attempt.state == "unknown" for attempt in attempts),
            runs_blocked=sum(run.status == "definition_blocked" for run in runs),
        )


def _run_key(run: RunRow) -> tuple[int, RunId]:
    return run.created_at_ms, run.run_id


def _wait_key(wait: WaitRow) -> tuple[str, int]:
    return wait.shape, wait.position


def _matches(run: RunRow, where: RunFilter) -> bool:
    shown = run.attention or (None if run.unknown_below_run_id is None else "unknown")
    if where.attention not in {None, shown}:
        return False
    members = ("status", "outcome", "recovery", "function", "application", "event_id")
    if any(getattr(where, name) not in {None, getattr(run, name)} for name in members):
        return False
    return not where.q or run.run_id.startswith(where.q) or run.function.startswith(where.q)
