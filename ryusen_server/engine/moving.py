"""Keeps runs moving: applies commands, wakes runs, and goes on with them after a restart or a failed commit.

Owns that nothing which happened is forgotten because the store could not take it just then. Every run is resumed the same way, read off
its state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from ryusen_protocol.ids import RequestId, RunId
from ryusen_server.core.commands.request_stop import DeadlineReached
from ryusen_server.core.decide import Command
from ryusen_server.core.decision import Refusal
from ryusen_server.core.settlement import past_deadline
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.control import Control
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.families import Families
from ryusen_server.engine.fleet import Fleet, Flight, Instance
from ryusen_server.engine.leases import Leases
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.ports.store import StorageUnavailable
from ryusen_server.ports.time import Clock

log = logging.getLogger(__name__)

WAKERS_MAX = 16
"""Runs that are loaded side by side because their moments came."""


class Mover:
    """Moves runs, on the loop's thread."""

    def __init__(
        self,
        *,
        runs: Runs,
        fleet: Fleet,
        leases: Leases,
        dispatcher: Dispatcher,
        control: Control,
        clock: Clock,
        config: EngineConfig,
    ) -> None:
        self._runs = runs
        self._fleet = fleet
        self._leases = leases
        self._dispatcher = dispatcher
        self._control = control
        self._clock = clock
        self._config = config
        self.landed = asyncio.Event()
        """Set whenever a worker's slot becomes free."""
        self.owed: dict[RunId, list[Command]] = {}
        """Runs to be loaded again once the store answers, with the commands that were lost with their memory."""
        self.families: Families
        """Set once by the engine: what runs owe each other is taken up again after a fault too."""
        self._waking: dict[RunId, None] = {}
        """Runs to be loaded and looked at, in the order their moments came."""
        self._wakers = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self._retrying = False
        self._stopped = False

    async def stop(self) -> None:
        """No more tasks."""
        self._stopped = True
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def owe(self, run_id: RunId, *commands: Command) -> None:
        """Go on with a run, and with what was to become of it, once the store answers."""
        self.owed.setdefault(run_id, []).extend(commands)
        self.retry_soon()

    def retry_soon(self) -> None:
        """Take up again what the store could not take, in a moment."""
        if not self._retrying and not self._stopped:
            self._retrying = True
            self._clock.call_later(self._config.storage_retry_ms, lambda: self.spawn("recovery", self._retry()))

    async def _retry(self) -> None:
        self._retrying = False
        try:
            await self._control.retry_fan_outs()
            await self.families.retry()
            for run_id in list(self.owed):
                live = await self.resume_alone(run_id)
                for command in self.owed.pop(run_id, ()):
                    if live is not None:
                        self.move(live, command)
        except StorageUnavailable:
            self.retry_soon()

    def apply(self, live: LiveRun, command: Command) -> None:
        self._runs.apply(live, command)
        self._dispatcher.offer(live)

    def move(self, live: LiveRun, command: Command) -> None:
        """Apply what nobody would say again: when its commit fails, it is said again here."""
        run_id = live.run.run_id
        decision = self._runs.apply(live, command)
        if not isinstance(decision, Refusal) and decision.records:
            self._runs.when_durable(live, lambda error: None if error is None else self.owe(run_id, command))
        self._dispatcher.offer(live)

    def command(self, run_id: RunId, command: Command) -> None:
        live = self._runs.get(run_id)
        if live is not None:
            self.move(live, command)
        else:
            self.spawn("command", self._load_and_move(run_id, command))

    async def _load_and_move(self, run_id: RunId, command: Command) -> None:
        try:
            live = await self._runs.load(run_id)
        except StorageUnavailable:
            self.owe(run_id, command)
            raise
        if live is not None:
            self.move(live, command)

    def wake(self, run_id: RunId) -> None:
        """A run's moment has come, or a worker is free for it."""
        live = self._runs.get(run_id)
        if live is None:
            self._waking[run_id] = None
            if self._wakers < WAKERS_MAX:
                self._wakers += 1
                self.spawn("wake", self._wake_all())
            return
        try:
            self._look(live)
        except Exception:  # one run's defect must not keep the others from their timers
            log.exception("run %s could not be woken", run_id)

    async def _wake_all(self) -> None:
        """One of a few: however many moments come together, few runs are being loaded."""
        try:
            while self._waking:
                run_id = next(iter(self._waking))
                del self._waking[run_id]
                try:
                    await self._load_and_look(run_id)
                except StorageUnavailable as error:
                    log.warning("a wake of run %s waits for the database: %s", run_id, error.reason)
                except Exception:  # one run's defect must not keep the others from their moments
                    log.exception("run %s could not be woken", run_id)
        finally:
            self._wakers -= 1

    async def _load_and_look(self, run_id: RunId) -> None:
        try:
            await self.resume(run_id)
        except StorageUnavailable:
            self.owe(run_id)
            raise

    def _look(self, live: LiveRun) -> None:
        if past_deadline(live.run, self._clock.now_ms()):
            self._runs.apply(live, DeadlineReached())
        self._dispatcher.offer(live)

    async def resume_alone(self, run_id: RunId) -> LiveRun | None:
        """As `resume`; a defect of this run is told and keeps no other run from going on."""
        return await self._alone(run_id, self.resume(run_id))

    async def load_alone(self, run_id: RunId) -> LiveRun | None:
        """The run, if there is one; a defect of it is told, as above. Raises `StorageUnavailable`."""
        return await self._alone(run_id, self._runs.load(run_id))

    async def _alone(self, run_id: RunId, work: Awaitable[LiveRun | None]) -> LiveRun | None:
        try:
            return await work
        except StorageUnavailable:
            raise
        except Exception:
            log.exception("run %s could not be resumed", run_id)
            return None

    async def resume(self, run_id: RunId) -> LiveRun | None:
        """Load a run and go on with it as its state says: the one path of a restart, a failed commit and a wake-up."""
        live = await self._runs.load(run_id)
        if live is None:
            return None
        attempt = live.run.current_attempt()
        if (
            attempt is not None
            and attempt.state == "authorized"
            and attempt.request_id is not None
            and self._leases.get(attempt.request_id) is None
        ):
            in_contact = self._fleet.flight(attempt.request_id) is not None
            floor_ms = self._clock.now_ms() + self._config.reconnect_grace_ms
            self._leases.begin(live.run, attempt, floor_ms=floor_ms, in_contact=in_contact)
        self._look(live)
        return live

    def land(self, request_id: RequestId, instance: Instance) -> Flight | None:
        flight = self._fleet.flight(request_id)
        if flight is None or flight.instance is not instance:
            return None
        self.landed.set()
        return self._fleet.land(request_id)

    def give_back(self, request_id: RequestId) -> None:
        """Free the slot of something that will not be answered, and let what waits have it."""
        flight = self._fleet.land(request_id)
        if flight is not None:
            self.landed.set()
            # Not now: this may be in the middle of another decision.
            asyncio.get_running_loop().call_soon(self._dispatcher.pump, flight.instance)

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._guarded(what, work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before its first step has not begun its work

    async def _guarded(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except StorageUnavailable as error:
            log.warning("%s waits for the database: %s", what, error.reason)
            self.retry_soon()
        except Exception:
            log.exception("%s failed", what)
