"""Brings work and workers together.

Holds what can run now, by (scope, function), as run ids only; what is due later waits in a heap when it is due soon, and in the store's
wake index when it is not. Timers and timeouts that are due are settled from here, without a worker. What each run needs is read off the run
when its turn comes, so an entry that is out of date does no harm; a run that has ended takes its entries along.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable

from ryusen_protocol.ids import FunctionId, RunId
from ryusen_protocol.scope import Scope
from ryusen_server.core.agenda import Agenda, agenda, wake_at_ms
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.settle_timer import TimerDue
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.pacing import PACE_MAX_MS
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.fleet import Fleet, Instance
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.ports.time import Clock, Handle

HORIZON_MS = 60_000
"""What is due later than this is left to the store's wake index."""

_NEVER_MS = 2**63 - 1

STALE_MAX = 1_000
"""Entries of ended runs that the heap of instants carries before it is swept."""

Key = tuple[Scope, FunctionId]


class Dispatcher:
    """`wake` is called with the id of a run whose moment has come and that is not in memory."""

    def __init__(self, *, runs: Runs, fleet: Fleet, clock: Clock, config: EngineConfig, wake: Callable[[RunId], None]) -> None:
        self._runs = runs
        self._fleet = fleet
        self._clock = clock
        self._config = config
        self._wake = wake
        self._ready: dict[Key, OrderedDict[RunId, None]] = {}
        self._queued: dict[RunId, Key] = {}
        self._paced: dict[Key, set[RunId]] = {}
        self._hurried: set[RunId] = set()
        """Of those that wait for a worker, the ones whose pace a registration has ended."""
        self._turn = 0
        self._timers: list[tuple[int, RunId]] = []
        self._armed_for: dict[RunId, set[int]] = {}
        """The instants a run still has a use for; an entry of the heap that is not named here is stale."""
        self._stale = 0
        self._armed: tuple[int, Handle] | None = None
        self._left = self._left_before = _NEVER_MS
        """The earliest instants left to the wake index since its last walk began, and between the two walks before."""
        self.leasing = True
        self.time_out: Callable[[LiveRun], None]
        """Called with a run whose pending wait has reached its timeout. Set once by the engine."""

    def offer(self, live: LiveRun) -> None:
        """Find a worker for what the run needs next, or remember that it waits."""
        run = live.run
        if live.dropped:
            return
        if run.deadline is not None and not live.deadline_armed and run.status in ("running", "definition_blocked"):
            live.deadline_armed = True
            self._push(run.run_id, run.deadline.at_ms)
        need = agenda(run)
        if need.need in ("nothing", "answer", "child"):
            return
        key = (Scope(run.workspace, run.application), run.function)
        early = self._is_early(need)
        if need.due_at_ms > self._clock.now_ms() and not early:
            self.schedule(run.run_id, need.due_at_ms)
            if need.paced:
                self._paced.setdefault(key, set()).add(run.run_id)
            return
        if need.need in ("probe", "timer", "event"):
            self._alone(live, need)
            return
        instance = None
        if self.leasing and key not in self._ready:
            instance = self._fleet.choose(*key)
        if instance is None:
            self._enqueue(key, run.run_id)
            return
        self._start(live, need, instance, hurry=early)

    def _alone(self, live: LiveRun, need: Agenda) -> None:
        """What is due and takes no worker."""
        if need.need == "event":
            self.time_out(live)
            return
        step = live.run.pending_step()
        self._runs.apply(live, Rediscover("probe") if step is None else TimerDue(step.step_id))
        self.offer(live)

    def _is_early(self, need: Agenda) -> bool:
        """Whether a pace is over before its instant: none is that long, so the clock has gone back under it."""
        return need.paced and need.due_at_ms > self._clock.now_ms() + PACE_MAX_MS

    def _enqueue(self, key: Key, run_id: RunId) -> None:
        if run_id not in self._queued:
            self._queued[run_id] = key
            self._ready.setdefault(key, OrderedDict())[run_id] = None

    def forget(self, live: LiveRun) -> None:
        """The run has ended: it waits for no worker and no instant any more."""
        run_id = live.run.run_id
        self._disarm(run_id)
        self._forget_pace(live)
        self._hurried.discard(run_id)
        self.dequeue(run_id)

    def dequeue(self, run_id: RunId) -> None:
        """The run waits for no worker until it is offered again."""
        key = self._queued.pop(run_id, None)
        if key is not None:
            queue = self._ready[key]
            del queue[run_id]
            if not queue:
                del self._ready[key]

    def rest(self, live: LiveRun) -> None:
        """The run has left the memory and waits: of its instants, only one that is near is kept here."""
        self._disarm(live.run.run_id)
        at_ms = wake_at_ms(live.run)
        if at_ms is not None:
            self.schedule(live.run.run_id, at_ms)

    def _disarm(self, run_id: RunId) -> None:
        self._stale += len(self._armed_for.pop(run_id, ()))
        if self._stale > STALE_MAX and self._stale * 2 > len(self._timers):
            self._timers = [entry for entry in set(self._timers) if self._is_armed(*entry)]
            heapq.heapify(self._timers)
            self._stale = 0

    def _is_armed(self, at_ms: int, run_id: RunId) -> bool:
        return at_ms in self._armed_for.get(run_id, ())

    def _start(self, live: LiveRun, need: Agenda, instance: Instance, *, hurry: bool) -> None:
        if need.paced:
            self._forget_pace(live)
        if need.need == "discovery":
            run = live.run
            preferred = self._fleet.preferred_release(Scope(run.workspace, run.application), run.function)
            self._runs.apply(live, StartDiscovery(instance.ref, preferred, hurry=hurry))
        else:
            self._runs.apply(live, AuthorizeAttempt(instance.ref, self._config.lease_ms, hurry=hurry))
        if agenda(live.run).need in ("discovery", "attempt"):
            self.offer(live)  # a reached deadline began an unwind instead

    def pump(self, instance: Instance) -> None:
        """The worker has room: give it what waits for its functions."""
        if not self._ready or not self.leasing:
            return
        functions = instance.frame.functions
        self._turn += 1  # so that a function with a long queue does not starve the ones behind it
        for index in range(len(functions)):
            key = (instance.scope, functions[(self._turn + index) % len(functions)])
            if key in self._ready:
                self._serve(key)

    def _serve(self, key: Key) -> None:
        queue = self._ready[key]
        while queue:
            instance = self._fleet.choose(*key)
            if instance is None:
                return
            run_id, _ = queue.popitem(last=False)
            del self._queued[run_id]
            if not queue:
                self._ready.pop(key, None)
            live = self._runs.get(run_id)
            if live is None:
                self._wake(run_id)
                continue
            need = agenda(live.run)
            hurry = (need.paced and run_id in self._hurried) or self._is_early(need)
            self._hurried.discard(run_id)
            if need.need in ("discovery", "attempt") and (hurry or need.due_at_ms <= self._clock.now_ms()):
                self._start(live, need, instance, hurry=hurry)
            else:
                self.offer(live)

    def hurry(self, scope: Scope, functions: Iterable[FunctionId]) -> None:
        """A worker registered: what was paced for its functions goes as soon as somebody has room."""
        for function in functions:
            self._hurry((scope, function))

    def clock_jumped(self) -> None:
        """Every pace is over: its instant means nothing any more. What nobody has room for waits for a worker instead."""
        for key in list(self._paced):
            self._hurry(key)
            if self.leasing:
                self._serve(key)

    def _hurry(self, key: Key) -> None:
        for run_id in sorted(self._paced.pop(key, ())):
            self._hurried.add(run_id)
            self._enqueue(key, run_id)

    def schedule(self, run_id: RunId, at_ms: int) -> None:
        """Look at the run again at an instant; beyond the horizon it is left to the wake index."""
        if at_ms > self._clock.now_ms() + HORIZON_MS:
            self._left = min(self._left, at_ms)
        else:
            self._push(run_id, at_ms)

    def left_to_index_ms(self) -> int:
        """The earliest instant that the walk of the wake index which now begins has to meet, however far the last one was.

        If the clock goes back and forth between two walks, what is left to the index meanwhile may stand before what was met. One
        that was left before the last walk counts once more, since it may have become durable behind it.
        """
        earliest = min(self._left, self._left_before)
        self._left, self._left_before = _NEVER_MS, self._left
        return earliest

    def _push(self, run_id: RunId, at_ms: int) -> None:
        armed = self._armed_for.setdefault(run_id, set())
        if at_ms in armed:
            return
        armed.add(at_ms)
        heapq.heappush(self._timers, (at_ms, run_id))
        if self._armed is None or at_ms < self._armed[0]:
            self._arm()

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed[1].cancel()
            self._armed = None
        if self._timers:
            at_ms = self._timers[0][0]
            delay_ms = min(max(0, at_ms - self._clock.now_ms()), HORIZON_MS)
            self._armed = (at_ms, self._clock.call_later(delay_ms, self.fire))

    def fire(self) -> None:
        """Look at every run whose instant has come. Harmless at any time, so a clock that jumps is caught by the engine's tick."""
        now_ms = self._clock.now_ms()
        if self._armed is not None:
            self._armed[1].cancel()
            self._armed = None
        due: list[RunId] = []
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, run_id = heapq.heappop(self._timers)
            if not self._is_armed(at_ms, run_id):
                self._stale -= 1
                continue
            armed = self._armed_for[run_id]
            armed.discard(at_ms)
            if not armed:
                del self._armed_for[run_id]
            due.append(run_id)
        for run_id in dict.fromkeys(due):
            self._wake(run_id)
        self._arm()

    def _forget_pace(self, live: LiveRun) -> None:
        key = (Scope(live.run.workspace, live.run.application), live.run.function)
        waiting = self._paced.get(key)
        if waiting is not None:
            waiting.discard(live.run.run_id)
            if not waiting:
                del self._paced[key]

    def stop(self) -> None:
        """No more timers."""
        self.leasing = False
        if self._armed is not None:
            self._armed[1].cancel()
            self._armed = None
        self._timers.clear()
        self._armed_for.clear()

    @property
    def waiting(self) -> int:
        """How many runs wait for a worker."""
        return len(self._queued)
