"""An engine on a bench: its store, its clock and its workers are the test's, and whatever a test does is held to what must always be true.

`Bench` is an async context manager; leaving it without an exception checks the whole state:
no callback started before its authorization was committed, or twice; no worker over its capacity; folding the stored history gives the
stored rows and the runs in memory; every slot and every lease belongs to something that is out; nothing was logged as an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from ryusen_protocol import manifests
from ryusen_protocol.ids import EventId, FunctionId, ManifestGeneration, RunId, TriggerId, Workspace
from ryusen_protocol.invocation import DiscoveryTarget, Invocation
from ryusen_protocol.manifest import FunctionDeclaration, TriggerDeclaration
from ryusen_protocol.problems import Problem
from ryusen_protocol.scope import Scope
from ryusen_server.core.evolve import fold
from ryusen_server.core.projection import attempt_row, run_row
from ryusen_server.core.rows import RunRow
from ryusen_server.core.state import Run
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.engine import Engine
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest
from ryusen_server.ports.store import StorageUnavailable, Store
from ryusen_testing.clock import CountedEntropy
from tests.engine.bench_clock import ManualClock
from tests.engine.bench_store import BenchStore
from tests.engine.bench_worker import Answer, FakeWorker, effect_target

DEFAULT = Workspace("default")
TURNS = 24
"""Turns of the loop in which everything in memory comes to rest."""


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


class Bench:
    """Holds one engine at a time over one store."""

    def __init__(self, store: Store | None = None, **config: Any) -> None:
        self.store: Any = store if store is not None else BenchStore()
        self.config = EngineConfig(**config)
        self.clock = ManualClock()
        self.entropy = CountedEntropy()
        self.engine = self._engine()
        self.workers: list[FakeWorker] = []
        self.violations: list[str] = []
        self.starts: Counter[tuple[str, ...]] = Counter()
        self.errors = _Errors()
        self.expect_errors = False

    @property
    def memory(self) -> BenchStore:
        assert isinstance(self.store, BenchStore)
        return self.store

    def _engine(self) -> Engine:
        return Engine(store=self.store, clock=self.clock, entropy=self.entropy, config=self.config)

    async def __aenter__(self) -> Self:
        logging.getLogger("ryusen_server").addHandler(self.errors)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.violations.append(str(context)))
        await self.engine.start()
        await self.settle()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                await self.settle()
                await self.check()
        finally:
            logging.getLogger("ryusen_server").removeHandler(self.errors)
            await self.engine.stop()
        if kind is None:
            await self.settle()
            assert self.violations == []

    # time

    async def settle(self) -> None:
        """Let everything that needs no time happen."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not isinstance(self.store, BenchStore):
            for _ in range(3):
                await self.store.flush()
                for _ in range(TURNS):
                    await asyncio.sleep(0)

    async def advance(self, ms: int, *, beating: Iterable[FakeWorker] = ()) -> None:
        """Let time pass, with a heartbeat of some workers every heartbeat interval."""
        beating = list(beating)
        end_ms = self.clock.elapsed_ms + ms
        beat_ms = self.clock.elapsed_ms + self.config.heartbeat_ms
        while True:
            until_ms = min(end_ms, beat_ms) if beating else end_ms
            timer = self.clock.next_within(until_ms)
            if timer is not None:
                timer.callback()
                await self.settle()
                continue
            self.clock.elapsed_ms = until_ms
            if until_ms == end_ms and (not beating or beat_ms != end_ms):
                break
            for worker in beating:
                if worker.channel is not None:
                    worker.heartbeat()
            await self.settle()
            beat_ms += self.config.heartbeat_ms
        await self.settle()

    # lives

    async def crash(self) -> None:
        """Kill the server: what was not committed is lost, every connection with it."""
        store = self.memory
        store.crash()
        self.clock.forget_timers()
        for worker in self.workers:
            if worker.channel is not None:
                worker.channel.open = False
                worker.channel = None
        old, self.engine = self.engine, self._engine()
        await old.stop()
        store.crash()
        self.clock.forget_timers()

    async def restart(self) -> None:
        """Kill the server and start another on the same store."""
        await self.crash()
        await self.engine.start()
        await self.settle()

    # the outside

    def worker(self, instance_id: str = "wk_1", **options: Any) -> FakeWorker:
        worker = FakeWorker(self, instance_id, **options)
        self.workers.append(worker)
        return worker

    async def connected(self, instance_id: str = "wk_1", **options: Any) -> FakeWorker:
        worker = self.worker(instance_id, **options)
        await worker.connect()
        return worker

    async def serving(self, answer: Answer, **options: Any) -> FakeWorker:
        """The function `f` is published for the event `go`, and a worker for it is connected."""
        await self.publish()
        return await self.connected(functions={"f": answer}, **options)

    async def publish(
        self,
        triggers: Iterable[tuple[str, str]] = (("go", "f"),),
        *,
        application: str = "shop",
        parent: str | None = None,
        timeouts: dict[str, int] | None = None,
        functions: Iterable[str] = (),
    ) -> ActivatedManifest:
        published = await self.try_publish(triggers, application=application, parent=parent, timeouts=timeouts, functions=functions)
        assert isinstance(published, ActivatedManifest), published
        return published

    async def try_publish(
        self,
        triggers: Iterable[tuple[str, str]] = (("go", "f"),),
        *,
        application: str = "shop",
        parent: str | None = None,
        timeouts: dict[str, int] | None = None,
        functions: Iterable[str] = (),
    ) -> ActivatedManifest | Problem:
        pairs = list(triggers)
        named = sorted({*functions, *(function for _, function in pairs)})
        declared = [FunctionDeclaration(FunctionId(function), (timeouts or {}).get(function)) for function in named]
        bound = [
            TriggerDeclaration(TriggerId(f"{function}/{event}/{index}"), event, FunctionId(function))
            for index, (event, function) in enumerate(pairs)
        ]
        expected = None if parent is None else ManifestGeneration(parent)
        publication = manifests.sdk_publication(declared, bound, expected)
        return await self.engine.publish(Scope(DEFAULT, application), publication)  # type: ignore[arg-type]  # ids are text

    async def submit(self, name: str = "go", *, key: str | None = None, payload: bytes = b"{}", **metadata: str) -> AcceptedEvent:
        accepted = await self.engine.submit_event(DEFAULT, name=name, payload=payload, metadata=metadata, key=key)
        assert isinstance(accepted, AcceptedEvent), accepted
        return accepted

    async def submit_lost(self) -> None:
        """Send an event that the store cannot keep."""
        with pytest.raises(StorageUnavailable):
            await self.submit()

    async def begin(self, name: str = "go") -> RunId:
        """Send an event that starts one run, and let it get on."""
        accepted = await self.submit(name)
        await self.settle()
        return await self.only_run(accepted.event.event_id)

    async def only_run(self, event_id: EventId) -> RunId:
        rows = await self.store.event_runs(event_id)
        assert len(rows) == 1
        return rows[0].run_id

    async def row(self, run_id: RunId) -> RunRow:
        row = await self.store.run(run_id)
        assert row is not None
        return row

    async def run(self, run_id: RunId) -> Run:
        """The run as its committed history gives it."""
        run = fold(await self.store.history(run_id))
        assert run is not None
        return run

    async def cancel(self, run_id: RunId) -> Any:
        stopped = await self.engine.cancel(DEFAULT, run_id, by="tester")
        await self.settle()
        return stopped

    async def ended(self, run_id: RunId) -> tuple[str | None, str | None]:
        """Outcome and recovery of a run that has ended."""
        row = await self.row(run_id)
        assert row.status == "ended", row
        return row.outcome, row.recovery

    # what workers report

    def invoked(self, worker: FakeWorker, invocation: Invocation) -> None:
        """An invocation has left the server: is what it may rest on committed?"""
        if not isinstance(self.store, BenchStore):
            return
        target = invocation.target
        committed = self.store.folded(invocation.run.run_id)
        if isinstance(target, DiscoveryTarget):
            if not self.config.early and (committed is None or committed.history_digest != invocation.history.digest):
                self.violations.append("a discovery left before the commit of what it is built on")
            return
        row = self.store.attempt_of_request(invocation.request_id)
        if row is None or row.state not in {"authorized", "unknown"} or row.instance_id != worker.instance_id:
            self.violations.append(f"{target.step_id} was sent before its authorization was committed: {row}")

    def completed(self, worker: FakeWorker, invocation: Invocation) -> None:
        """A worker has put an invocation's history together: is it the run's?"""
        live = self.engine._runs.get(invocation.run.run_id)
        given = [entry.step_id for entry in invocation.history.steps]
        if live is not None and (given, invocation.history.digest) != (live.run.completed, live.run.history_digest):
            self.violations.append(f"{worker.instance_id} was given the history {given}; the run's is {live.run.completed}")
        if invocation.input is None:
            self.violations.append(f"{worker.instance_id} was given an invocation without its input")

    def started(self, worker: FakeWorker, invocation: Invocation) -> None:
        """A callback has run."""
        target = effect_target(invocation)
        key = (invocation.run.run_id, target.step_id, str(target.__struct_config__.tag), str(target.attempt_generation))
        self.starts[key] += 1
        if self.starts[key] > 1:
            self.violations.append(f"a callback ran twice for one generation: {key}")
        del worker

    def count(self, step_id: str, phase: str = "forward") -> int:
        """How often a step's callback has run."""
        return sum(count for key, count in self.starts.items() if key[1:3] == (step_id, phase))

    # what must be true

    async def check(self) -> None:
        """See the module."""
        assert self.violations == []
        if not self.expect_errors:
            assert self.errors.records == []
        if isinstance(self.store, BenchStore):
            assert self.store.violations == []
            self._check_history(self.store)
            self._check_memory(self.store)

    def _check_history(self, store: BenchStore) -> None:
        for run_id in store.run_ids():
            run = store.folded(run_id)
            assert run is not None
            row = store._runs[run_id]
            assert run_row(run) == row
            for attempt in run.attempts.values():
                assert attempt_row(run, attempt) == store.attempt_now(attempt.attempt_id)
            positions = [history.position for history in store.rows_of(run_id)]
            assert positions == sorted(set(positions))

    def _check_memory(self, store: BenchStore) -> None:
        engine = self.engine
        live = engine._runs._live
        out: set[str] = set()
        leased: set[str] = set()
        for run_id, entry in live.items():
            assert not entry.dropped
            if store.waiting == 0:
                assert entry.uncommitted == 0
                assert durable(entry.run) == store.folded(run_id)
            run = entry.run
            if run.dispatch is not None:
                out.add(run.dispatch.request_id)
            attempt = run.current_attempt()
            if attempt is not None and attempt.state == "authorized" and attempt.request_id is not None:
                leased.add(attempt.request_id)
                out.add(attempt.request_id)
        assert set(engine._leases._leases) == leased
        flights = set(engine._fleet._flights)
        abandoned = {request_id for worker in self.workers for request_id in worker.executing}
        assert flights <= out | abandoned, "a slot is taken by nothing that is out"
        for instance in engine._fleet.all():
            assert set(instance.flights) <= flights
            assert instance.in_flight <= instance.capacity
        if all(row.status == "ended" for row in store._runs.values()):
            assert not flights - abandoned
            assert not leased
            assert engine._dispatcher.waiting == 0
            assert not engine._dispatcher._ready


def durable(run: Run) -> Run:
    """The run without what only this server's life knows."""
    repeated = run.discovery_pass is not None and (run.dispatch is not None or run.discovery_repeats > 0)
    due_at_ms = 0 if repeated and run.discovery_repeats else run.discovery_due_at_ms
    return msgspec.structs.replace(run, dispatch=None, discovery_repeats=0, discovery_due_at_ms=due_at_ms)


async def until(condition: Callable[[], bool], bench: Bench) -> None:
    """Give the loop turns until something holds; fails after a bound no test comes near."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    await bench.settle()
    assert condition()
