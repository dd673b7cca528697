"""`Harness`: an application under test, on the product's own engine and the SDK's own worker, with a clock that only the test moves.

Owns when the world is at rest, how time passes, and the faults a test can ask for. What happens then is the engine's to decide: nothing
of it is imitated here. One harness lives on one event loop, opens no socket and writes no file.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from ryusen_protocol.api import EventSubmission
from ryusen_protocol.durations import to_ms
from ryusen_protocol.ids import RunId
from ryusen_protocol.invocation import Phase
from ryusen_protocol.manifests import sdk_publication
from ryusen_protocol.problems import Problem
from ryusen_protocol.submission import submitted_payload
from ryusen_sdk.app import Ryusen
from ryusen_sdk.payload import payload_of
from ryusen_server.bootstrap.embedded import CrashPoint, EmbeddedServer
from ryusen_server.core.agenda import agenda
from ryusen_server.core.rows import RunRow
from ryusen_server.engine.config import EngineConfig
from ryusen_testing.clock import START_MS, CountedEntropy, VirtualClock
from ryusen_testing.errors import BodyDiffers, HarnessError, NoTrigger, Refused, StillRunning
from ryusen_testing.run import WAITS_PASSED_MAX, HarnessRun
from ryusen_testing.watching import Call, Stub, Watch, giving, raising
from ryusen_testing.worker import HarnessWorker

Span = str | float | timedelta
T = TypeVar("T")

TURNS: Final = 24
"""Turns of the loop in which everything in memory that waits for nothing comes to rest."""
TICK_MS: Final = 1_000


class Harness:
    """One application, its server and its worker: `async with Harness(app) as harness`.

    Waits of the server's own pass by themselves: retries happen at once on the virtual clock, and an attempt whose worker has died is
    Unknown by the time a call returns (`passes_own_waits=False` leaves these to `advance` too). What the function asked to wait for, a
    `sleep`, an event, a deadline, needs `advance` or the event.

    `always_replay` runs every body a second time over the same history and expects it to go the same way: what differs is a hidden
    dependence on time, randomness or state. `patience` bounds, in real seconds, how long user code may run before the harness gives up.
    """

    def __init__(
        self,
        app: Ryusen,
        *,
        always_replay: bool = False,
        passes_own_waits: bool = True,
        capacity: int = 32,
        patience: float = 10.0,
        start: datetime | None = None,
        default_run_timeout: Span | None = None,
    ) -> None:
        self._app = app
        self._always_replay = always_replay
        self._passes_own_waits = passes_own_waits
        self._capacity = capacity
        self._patience = patience
        self._clock = VirtualClock(START_MS if start is None else round(start.timestamp() * 1000))
        self._config = EngineConfig(
            tick_ms=TICK_MS, default_run_timeout_ms=None if default_run_timeout is None else to_ms(default_run_timeout)
        )
        self._watch = Watch()
        self._moved: asyncio.Event
        self._server: EmbeddedServer
        self._workers: list[HarnessWorker] = []
        self._deployments = 0
        self._differences: list[str] = []
        self._server_died = False
        self._is_open = False

    # life

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise HarnessError("the harness is open already; make another one for another world")
        self._moved = asyncio.Event()
        self._server = EmbeddedServer(clock=self._clock, entropy=CountedEntropy(), config=self._config, on_crash=self._on_crash)
        self._is_open = True
        await self._server.start()
        self._lifespan = self._app.lifespan()
        await self._lifespan.__aenter__()
        await self.deploy(self._app)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_open = False
        for worker in self._workers:
            worker.die()
        await self._server.stop()
        await self._lifespan.__aexit__(kind, error, trace)

    async def deploy(self, app: Ryusen) -> None:
        """Publish an application and let a new worker of a newer release take over, as a deployment does.

        What the old worker is executing it finishes; everything else goes on with the new code.
        """
        if app.scope != self._app.scope:
            raise HarnessError(f"a harness holds one application: {self._app!r} is deployed, not {app!r}")
        self._deployments += 1
        old = list(self._workers)
        worker = await self._start_worker(app)
        await self._publish(worker)
        for one in old:
            one.drain()
        self._app = app
        await self.settle()

    async def _start_worker(self, app: Ryusen) -> HarnessWorker:
        worker = HarnessWorker(
            app,
            self._server,
            name=f"worker-{len(self._workers) + self._deployments}-{self._server.commits}",
            release=f"release-{self._deployments}",
            capacity=self._capacity,
            clock=self._clock,
            watch=self._watch,
            moved=self._moved,
            differs=self._differences.append if self._always_replay else None,
        )
        await worker.connect()
        self._workers.append(worker)
        return worker

    async def _publish(self, worker: HarnessWorker) -> None:
        manifest = worker.manifest
        active = next(
            (
                row
                for row in self._server.engine.active_manifests(self._app.scope.workspace)
                if row.application == self._app.scope.application
            ),
            None,
        )
        if active is not None and active.digest == manifest.digest:
            return
        parent = None if active is None else active.manifest_generation
        publication = sdk_publication(list(manifest.functions), list(manifest.triggers), parent)
        activated = await self._server.engine.publish(self._app.scope, publication)
        if isinstance(activated, Problem):
            raise Refused(activated.code, activated.detail)

    # events

    async def send(
        self, name: str, data: object = None, *, metadata: Mapping[str, str] | None = None, key: str | None = None
    ) -> HarnessRun:
        """Submit an event and let its run go as far as it goes without time passing; the one run it starts.

        `data` is what a client sends: exact bytes, or anything with a JSON form. Raises `NoTrigger` unless exactly one function is
        triggered by it.
        """
        runs = await self.send_all(name, data, metadata=metadata, key=key)
        if len(runs) != 1:
            functions = ", ".join(sorted({run.function for run in runs}))
            raise NoTrigger(f"the event {name!r} starts {len(runs)} runs ({functions}); harness.send_all gives them all")
        return runs[0]

    async def send_all(
        self, name: str, data: object = None, *, metadata: Mapping[str, str] | None = None, key: str | None = None
    ) -> list[HarnessRun]:
        """As `send`, for an event that starts several runs. Raises `NoTrigger` if it starts none."""
        event_id = await self.emit(name, data, metadata=metadata, key=key)
        await self.settle()
        rows = await self._server.event_runs(self._app.scope.workspace, event_id)
        if not rows:
            names = sorted({trigger.event_name for trigger in self._app.manifest().triggers})
            raise NoTrigger(f"no function is triggered by {name!r}; there are triggers for {', '.join(map(repr, names)) or 'nothing'}")
        return [self._run(row) for row in rows]

    async def emit(self, name: str, data: object = None, *, metadata: Mapping[str, str] | None = None, key: str | None = None) -> str:
        """Submit an event, whatever it starts, and return its id at once: for what waits for it, and for runs to meet in the middle."""
        self._check_open()
        payload = _acceptable(name, payload_of(data), metadata, key)
        while True:
            submission = self._server.engine.submit_event(
                self._app.scope.workspace, name=name, payload=payload, metadata=dict(metadata or {}), key=key
            )
            accepted = await self._outliving(submission)
            if isinstance(accepted, Problem):
                raise Refused(accepted.code, accepted.detail)
            if accepted is not None:
                return accepted.event.event_id
            # The server died before it answered, as for any client: with a key it is the same event, without one another.

    async def _outliving(self, asked: Awaitable[T]) -> T | None:
        """What the server answers; none if it dies first, and has been started again."""
        asking = asyncio.ensure_future(asked)
        while not asking.done():
            await asyncio.sleep(0)
            if self._server_died:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                await self._revive()
                return None
        return asking.result()

    async def runs(self) -> list[HarnessRun]:
        """Every run, oldest first, those that others invoked too."""
        return [self._run(row) for row in await self._server.runs(self._app.scope.workspace)]

    def _run(self, row: RunRow) -> HarnessRun:
        return HarnessRun(self, row.run_id)

    # time

    @property
    def now(self) -> datetime:
        """The server's wall clock."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    async def advance(self, span: Span) -> None:
        """Let time pass: everything that falls due on the way happens, in order, as far as it goes. `"1h30m"`, seconds, a timedelta."""
        self._check_open()
        end_ms = self._clock.now_ms() + to_ms(span)
        await self.settle()
        while self._clock.now_ms() < end_ms:
            await self._pass_to(min(end_ms, await self._next_ms(end_ms)))
        await self.settle()

    async def _next_ms(self, end_ms: int) -> int:
        now_ms = self._clock.now_ms()
        if await self._server.authorized(self._app.scope.workspace):
            return now_ms + TICK_MS  # a lease ends between two instants of its own
        due_ms = await self._server.next_wake_ms(after_ms=now_ms, until_ms=end_ms)
        return end_ms if due_ms is None else due_ms

    async def _pass_to(self, at_ms: int) -> None:
        for worker in self._workers:
            worker.beat()
        for due in self._clock.move_to(at_ms):
            due()
        await self._rest()
        # What fell due so is known to the server's next tick at the latest.
        for due in self._clock.move_to(self._clock.now_ms()):
            due()
        await self._rest()

    async def settle(self) -> None:
        """Let everything happen that needs no time, or only the server's own waits."""
        self._check_open()
        await self._rest()
        for _ in range(WAITS_PASSED_MAX if self._passes_own_waits else 0):
            at_ms = await self._own_wait_ms()
            if at_ms is None:
                break
            await self._pass_to(at_ms)

    async def _own_wait_ms(self) -> int | None:
        """When the server goes on by itself with what it waits with for its own reasons: a retry, a pace, a lease nobody will renew."""
        now_ms = self._clock.now_ms()
        if not any(worker.is_executing for worker in self._workers) and await self._server.authorized(self._app.scope.workspace):
            return now_ms + TICK_MS
        due: list[int] = []
        for row in await self._server.runs(self._app.scope.workspace):
            run = self._server.run(row.run_id) if row.status != "ended" else None
            need = None if run is None else agenda(run)
            if need is not None and need.need in {"discovery", "attempt"} and need.due_at_ms > now_ms:
                due.append(need.due_at_ms)
        return min(due, default=None)

    async def _rest(self) -> None:
        """Return once nothing moves any more. Raises `StillRunning`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            await self._turn()
            self._raise_differences()
            executing = [told for worker in self._workers for told in worker.executing]
            if not executing and self._server.is_idle and not self._server_died:
                return
            if loop.time() > until:
                what = ", ".join(executing) or "the server"
                raise StillRunning(
                    f"after {self._patience:g} seconds there still runs: {what}. A callback that waits for the test needs harness.emit"
                )
            if executing:
                self._moved.clear()
                try:
                    await asyncio.wait_for(self._moved.wait(), 0.05)
                except TimeoutError:
                    continue

    async def _turn(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self._server_died:
            await self._revive()
        await self._tend_workers()

    async def _tend_workers(self) -> None:
        """Workers that have drained leave, and one that has died is replaced."""
        for worker in self._workers:
            if worker.is_alive and worker.is_drained:
                worker.die()
        died = [worker for worker in self._workers if not worker.is_alive]
        self._workers = [worker for worker in self._workers if worker.is_alive]
        for worker in died:
            if worker.stopped_by is not None:
                stopped_by, worker.stopped_by = worker.stopped_by, None
                raise HarnessError(f"{stopped_by!r} in user code stopped the worker") from stopped_by
        if died and self._is_open and not any(not worker.is_drained for worker in self._workers):
            await self._start_worker(self._app)

    # faults

    async def crash(self) -> None:
        """Kill the server between two commits and start it again on what it had committed. Workers live on and reconnect."""
        self._check_open()
        self._server.die()
        self._on_crash()
        await self.settle()

    def crash_at(self, commit: int, how: CrashPoint = "before") -> None:
        """Kill the server at a commit to come, counted as `commits` counts, and start it again.

        `before`: the commit is lost. `after`: it is durable, and nobody was told.
        """
        if commit <= self._server.commits:
            raise HarnessError(f"commit {commit} is past; the next one is {self._server.commits + 1}")
        self._server.crash_at(commit, how)

    @property
    def commits(self) -> int:
        """How many commits the server has made."""
        return self._server.commits

    def _on_crash(self) -> None:
        self._server_died = True
        for worker in self._workers:
            worker.cut()
        self._moved.set()

    async def _revive(self) -> None:
        self._server_died = False
        await self._server.restart(self._clock.forget_wake_ups)
        for worker in self._workers:
            await worker.connect()

    async def kill_worker(self) -> None:
        """Kill the worker in the middle of whatever it does; another one takes its place."""
        self._check_open()
        for worker in self._workers:
            worker.die()
        await self.settle()

    def lose_result(self, step_id: str, *, phase: Phase = "forward") -> None:
        """When this step's callback has run the next time, its worker dies with the result: the effect happened, and nobody knows."""
        self._watch.losing.append((step_id, phase))

    # stubs

    def stub(self, step_id: str, value: object = None, *, does: Callable[..., object] | None = None, phase: Phase = "forward") -> None:
        """From now on the step's callback is not called; it gives `value`, or does what `does` does with the same arguments."""
        self._watch.stubs[step_id, phase] = Stub([does if does is not None else giving(value)])

    def fail(self, step_id: str, *errors: BaseException, for_ever: bool = False, phase: Phase = "forward") -> None:
        """The step's next calls raise these, one each, and after them its own callback is called again, unless it is to fail for ever."""
        if not errors:
            raise HarnessError(f"name the errors that step {step_id!r} is to raise")
        script = [raising(error) for error in errors]
        self._watch.stubs[step_id, phase] = Stub(script if for_ever else [*script, None])

    def unstub(self, step_id: str, *, phase: Phase = "forward") -> None:
        """The step's own callback is called again."""
        self._watch.stubs.pop((step_id, phase), None)

    def calls(self, step_id: str | None = None, *, phase: Phase | None = None) -> list[Call]:
        """The calls of callbacks and compensators so far, in order; of one step, or one phase, if named."""
        return [call for call in self._watch.calls if step_id in {None, call.step_id} and phase in {None, call.phase}]

    # for runs

    @property
    def server(self) -> EmbeddedServer:
        """The server of the moment. What it does is not part of this harness's promises."""
        return self._server

    @property
    def app(self) -> Ryusen:
        """The application that is deployed."""
        return self._app

    def run(self, run_id: str) -> HarnessRun:
        """A run by its id. Raises `HarnessError` if there is none."""
        if self._server.run(RunId(run_id)) is None:
            raise HarnessError(f"there is no run {run_id!r}")
        return HarnessRun(self, RunId(run_id))

    def now_ms(self) -> int:
        """The server's clock in epoch milliseconds."""
        return self._clock.now_ms()

    async def pass_next_wait(self, run_id: RunId) -> bool:
        """Let time pass up to what comes next; false if nothing does, however long one waits."""
        horizon_ms = self._clock.now_ms() + 2**52
        if await self._server.next_wake_ms(after_ms=self._clock.now_ms(), until_ms=horizon_ms) is None:
            return False
        await self._pass_to(await self._next_ms(horizon_ms))
        await self.settle()
        return self._server.run(run_id) is not None

    def _check_open(self) -> None:
        if not self._is_open:
            raise HarnessError("the harness is not open: async with Harness(app) as harness")

    def _raise_differences(self) -> None:
        if self._differences:
            told, self._differences = "\n".join(self._differences), []
            raise BodyDiffers(told)


def _acceptable(name: str, payload: bytes, metadata: Mapping[str, str] | None, key: str | None) -> bytes:
    """The payload of an event that the API would take; it stands before the engine, which does not ask again. Raises `Refused`."""
    submitted = {
        "name": name,
        "payload_base64": base64.b64encode(payload).decode(),
        "metadata": dict(metadata or {}),
        "idempotency_key": key,
    }
    try:
        accepted = submitted_payload(msgspec.convert(submitted, EventSubmission))
    except msgspec.ValidationError as refused:
        raise Refused("invalid", f"The event is not one that a server takes: {refused}.") from None
    if isinstance(accepted, Problem):
        raise Refused(accepted.code, accepted.detail)
    return accepted


async def at_every_crash(
    make: Callable[[], Harness], scenario: Callable[[Harness], Awaitable[None]], *, hows: Sequence[CrashPoint] = ("before", "after")
) -> int:
    """Run a scenario once for every commit it makes, with the server dying at that commit, before it and after it.

    The scenario asserts what must hold whatever happens; an error names the commit. Returns how many times it ran.
    """
    async with make() as harness:
        begun = harness.commits
        await scenario(harness)
        ended = harness.commits
    ran = 1
    for commit in range(begun + 1, ended + 1):
        for how in hows:
            async with make() as harness:
                harness.crash_at(commit, how)
                try:
                    await scenario(harness)
                except BaseException as error:
                    error.add_note(f"The server died {how} commit {commit} of {ended}.")
                    raise
            ran += 1
    return ran
