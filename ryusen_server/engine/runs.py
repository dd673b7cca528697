"""The runs in memory, and the one way to change them: decide, fold, submit, and perform the effects once they may leave.

Memory moves at once and commits follow in the same order. When a commit fails, every run it touched is dropped and loaded
again from what the store holds; a run in memory is a cache of its history and nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from ryusen_protocol.ids import AttemptId, EventId, RunId
from ryusen_protocol.invocation import HistoryBase
from ryusen_server.core.agenda import agenda, wake_at_ms
from ryusen_server.core.decide import Command, decide
from ryusen_server.core.decision import (
    Birth,
    Decision,
    EmittedEvent,
    Entropy,
    Moment,
    Obligation,
    Refusal,
    SendAttempt,
    SendDiscovery,
)
from ryusen_server.core.evolve import annotate, begin, encode_records, evolve, fold
from ryusen_server.core.invocation import Shared, attempt_frame, child_input, discovery_frame, event_input, held_after, run_head
from ryusen_server.core.projection import attempt_row, run_row, touched_attempts, wait_row
from ryusen_server.core.records import Record
from ryusen_server.core.rows import EventRow, RunRow, WaitRow
from ryusen_server.core.state import Attempt, Run
from ryusen_server.engine.waited import WaitedNames
from ryusen_server.engine.waiting import EndedRun, Waiters
from ryusen_server.ports.store import EventWrite, ObligationWrite, RunWrite, StorageUnavailable, Store, Unit, Write
from ryusen_server.ports.time import Clock

log = logging.getLogger(__name__)

Settled = Callable[[StorageUnavailable | None], None]
"""Told once whether what a decision rests on is durable."""


class LiveRun(msgspec.Struct, eq=False):
    """One run in memory. `row` is what the store shows of it, `head` what its invocations share."""

    run: Run
    encoded_input: bytes
    row: RunRow | None
    wait: WaitRow | None = None
    """The wait that the store holds of it."""
    head: bytes | None = None
    uncommitted: int = 0
    followers: list[Settled] = []
    """Told when nothing of the run is uncommitted any more."""
    dropped: bool = False
    deadline_armed: bool = False


class Outgoing(msgspec.Struct, frozen=True):
    """A frame an effect came to, for one worker session, and what its worker holds of the run's history once it has it."""

    effect: SendDiscovery | SendAttempt
    frame: bytes
    held: HistoryBase


class Performer(Protocol):
    """Who carries effects out: told when one is decided, when it may leave, and when it may not."""

    def decided(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> HistoryBase | None:
        """Returns what the worker holds of the run's history, for the invocation to build on."""
        ...

    def send(self, live: LiveRun, outgoing: Outgoing) -> None: ...

    def withdraw(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> None: ...

    def attempt_changed(self, run: Run, attempt: Attempt) -> None: ...

    def run_dropped(self, live: LiveRun) -> None: ...

    def run_ended(self, live: LiveRun) -> None: ...

    def run_born(self, live: LiveRun) -> None: ...

    def run_rests(self, live: LiveRun) -> None:
        """It has left the memory, and waits for an instant or for others."""
        ...


class Acceptor(Protocol):
    """Who accepts the events that runs emit: asked for the row when one is decided, told when it is submitted, and what became of it."""

    def accepted(self, run: Run, emitted: EmittedEvent, now_ms: int) -> EventWrite: ...

    def submitted(self, event: EventRow) -> None: ...

    def committed(self, event: EventRow, error: StorageUnavailable | None) -> None: ...


class Runs:
    """The cache of moving runs and the door through which they change."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        waiters: Waiters,
        waited: WaitedNames,
        early: bool,
        in_memory_max: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._waiters = waiters
        self._waited = waited
        self._early = early
        self._in_memory_max = in_memory_max
        self._live: dict[RunId, LiveRun] = {}
        self._parting: set[RunId] = set()
        """Runs that are being removed: nobody may begin with them again."""
        self._loading: dict[RunId, asyncio.Task[LiveRun | None]] = {}
        self._outdated: set[RunId] = set()
        """Runs that left the memory while they were being read, since they had begun anew after a failed commit: what was read may be from
        before that."""
        self._awaited: dict[RunId, int] = {}
        """Runs whose loaders have not been resumed yet: only what is in memory may be changed, so they stay there until then."""
        self._inputs: dict[EventId, bytes] = {}
        self._resting: dict[RunId, None] = {}
        """Runs in memory that wait for an instant or for others, the ones at rest for longest first."""
        self.performer: Performer
        self.acceptor: Acceptor
        self.owed: Callable[[Obligation, Run], None]
        """Told of each obligation once it is durable, with the run whose decision made it."""

    def get(self, run_id: RunId) -> LiveRun | None:
        """The run, if it is in memory."""
        return self._live.get(run_id)

    def __len__(self) -> int:
        return len(self._live)

    async def load(self, run_id: RunId) -> LiveRun | None:
        """The run, from the store if need be; none if there is no such run. Raises `StorageUnavailable`."""
        while (live := self._live.get(run_id)) is None:
            if run_id in self._parting:
                return None
            task = self._loading.get(run_id)
            if task is None:
                task = asyncio.create_task(self._read(run_id))
                self._loading[run_id] = task
            self._awaited[run_id] = self._awaited.get(run_id, 0) + 1
            try:
                loaded = await asyncio.shield(task)
            finally:
                self._awaited[run_id] -= 1
                if not self._awaited[run_id]:
                    del self._awaited[run_id]
            if loaded is None and run_id not in self._live:
                return None
        return live

    def part_with(self, run_ids: Sequence[RunId]) -> bool:
        """Forget ended runs that are about to be removed, until `parted`; false, with nothing changed, if one is in use."""
        for run_id in run_ids:
            live = self._live.get(run_id)
            if run_id in self._loading or run_id in self._awaited or (live is not None and not _is_idle(live)):
                return False
        for run_id in run_ids:
            self._live.pop(run_id, None)  # nobody reads it, as has just been seen
        self._parting.update(run_ids)
        return True

    def parted(self, run_ids: Sequence[RunId]) -> None:
        """They are removed, or stay after all."""
        self._parting.difference_update(run_ids)

    async def _read(self, run_id: RunId) -> LiveRun | None:
        try:
            live = await self._read_once(run_id)
            while run_id in self._outdated:
                self._outdated.discard(run_id)
                live = await self._read_once(run_id)
            if live is not None and run_id not in self._live:
                self._keep(live)
                self._rest(live)
            return self._live.get(run_id)
        finally:  # and no later: who asks for a run that has left again would be given this reading, for ever
            del self._loading[run_id]
            self._outdated.discard(run_id)

    async def _read_once(self, run_id: RunId) -> LiveRun | None:
        run = fold(await self._store.history(run_id))
        if run is None:
            return None
        encoded = self._inputs.get(run.event_id) if run.event_id is not None else None
        if encoded is None and run.event_id is not None:
            event = await self._store.event(run.event_id)
            if event is None:
                raise AssertionError(f"run {run_id} names an event the store does not hold")
            encoded = self.remember_input(event)
        if run.parent is not None:
            encoded = child_input(run)
        return LiveRun(run, encoded or b"null", run_row(run), wait_row(run))

    async def stop(self) -> None:
        """No more reads."""
        reads = list(self._loading.values())
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    def remember_input(self, event: EventRow) -> bytes:
        """The encoded input of an event's runs, kept while it is likely to be wanted again."""
        encoded = self._inputs.get(event.event_id)
        if encoded is None:
            encoded = event_input(event)
            self._inputs[event.event_id] = encoded
            while len(self._inputs) > INPUTS_KEPT_MAX:
                del self._inputs[next(iter(self._inputs))]
        return encoded

    def begin(self, run: Run, encoded_input: bytes) -> LiveRun:
        """Keep a run that has just been created; its first records are the caller's to submit."""
        live = LiveRun(run, encoded_input, None)
        self._keep(live)
        return live

    def _keep(self, live: LiveRun) -> None:
        self._live[live.run.run_id] = live
        if len(self._live) > self._in_memory_max:
            self._evict(live)

    def _evict(self, kept: LiveRun) -> None:
        for run_id, live in list(islice(self._live.items(), EVICTION_BATCH)):
            self._leave(run_id)
            if live is kept or run_id in self._awaited or not _is_idle(live) or self._is_due(live):
                self._live[run_id] = live  # goes to the end, so that the next look finds others
            elif run_id in self._resting:
                del self._resting[run_id]
                self.performer.run_rests(live)

    def _leave(self, run_id: RunId) -> None:
        del self._live[run_id]
        if run_id in self._loading:
            self._outdated.add(run_id)

    def _is_due(self, live: LiveRun) -> bool:
        """Whether a run that waited is about to move: out of memory it would be read again at once."""
        at_ms = wake_at_ms(live.run) if live.run.run_id in self._resting else None
        return at_ms is not None and at_ms <= self._clock.now_ms()

    def _rest(self, live: LiveRun) -> None:
        """Let a run that waits for an instant or for others go from memory when enough others have come to wait after it."""
        if live.uncommitted or live.dropped or agenda(live.run).need not in RESTING:
            return
        run_id = live.run.run_id
        self._resting.pop(run_id, None)
        self._resting[run_id] = None
        if len(self._resting) > RESTING_MAX:
            self._let_go(next(iter(self._resting)))

    def _let_go(self, run_id: RunId) -> None:
        live = self._live.get(run_id)
        stays = run_id in self._awaited or (live is not None and self._is_due(live))
        del self._resting[run_id]
        if stays:
            self._resting[run_id] = None
            return
        if live is not None and live.uncommitted == 0 and agenda(live.run).need in RESTING:
            self._leave(run_id)
            self.performer.run_rests(live)

    def apply(
        self,
        live: LiveRun,
        command: Command,
        *,
        rides: bool = False,
        then: Settled | None = None,
        beside: Callable[[Decision], Write] | None = None,
    ) -> Decision | Refusal:
        """Decide a command now. `then` is told when the decision, and all before it on this run, is durable or lost;
        not after a refusal. `beside` gives a write that commits with the decision, from the run as the decision leaves it.
        """
        now_ms = self._clock.now_ms()
        decision = decide(live.run, command, Moment(now_ms, self._entropy))
        if isinstance(decision, Refusal):
            return decision
        for note in decision.notes:
            annotate(live.run, note)
        touched = self._evolve(live, decision.records, now_ms) if decision.records else []
        outgoing = [self._outgoing(live, effect) for effect in decision.effects]
        if decision.records:
            self._submit(live, decision, touched, now_ms, None if beside is None else beside(decision), rides=rides)
        if outgoing:
            self._let_out(live, outgoing)
        if then is not None:
            self.when_durable(live, then)
        return decision

    def _evolve(self, live: LiveRun, records: list[Record], now_ms: int) -> list[AttemptId]:
        """Fold the records, and return the attempts they touch. A run that cannot follow its own decision is read again from the store."""
        run = live.run
        outcome_before = run.outcome
        try:
            evolve(run, records, now_ms, run.position)
        except Exception:
            self.drop(live)
            raise
        if run.outcome != outcome_before:
            live.head = None
        touched = touched_attempts(records)
        for attempt_id in touched:
            self.performer.attempt_changed(run, run.attempts[attempt_id])
        return touched

    def _outgoing(self, live: LiveRun, effect: SendDiscovery | SendAttempt) -> Outgoing:
        base = self.performer.decided(live, effect)
        return Outgoing(effect, self._frame(live, effect, base), held_after(live.run))

    def _frame(self, live: LiveRun, effect: SendDiscovery | SendAttempt, base: HistoryBase | None) -> bytes:
        if live.head is None:
            live.head = run_head(live.run)
        shared = Shared(live.head, live.encoded_input)
        if isinstance(effect, SendDiscovery):
            return discovery_frame(live.run, shared, effect.request_id, base)
        return attempt_frame(live.run, shared, effect.attempt_id, effect.request_id, base)

    def _let_out(self, live: LiveRun, outgoing: list[Outgoing]) -> None:
        waiting: list[Outgoing] = []
        for out in outgoing:
            if self._early and isinstance(out.effect, SendDiscovery):
                self.performer.send(live, out)
            else:
                waiting.append(out)
        if waiting:
            self.when_durable(live, lambda error: self._release(live, waiting, error))

    def _release(self, live: LiveRun, waiting: list[Outgoing], error: StorageUnavailable | None) -> None:
        for out in waiting:
            if error is None and _is_wanted(live.run, out.effect):
                self.performer.send(live, out)
            else:
                self.performer.withdraw(live, out.effect)

    def write(self, live: LiveRun, records: list[Record], touched: Sequence[AttemptId], now_ms: int, *, new: bool) -> RunWrite:
        """The store's view of a transaction that has just been folded into the run, and of the attempts it touched."""
        run = live.run
        row = run_row(run)
        changed = row != live.row
        unknown_moved = run.parent is not None and (row.attention == "unknown") != (
            live.row is not None and live.row.attention == "unknown"
        )
        live.row = row
        before, live.wait = live.wait, wait_row(run)
        return RunWrite(
            run_id=run.run_id,
            workspace=run.workspace,
            base_position=None if new else run.position,
            at_ms=now_ms,
            records=encode_records(records),
            new_run=new,
            run=row if changed else None,
            attempts=tuple([attempt_row(run, run.attempts[attempt_id]) for attempt_id in touched]),
            wait=live.wait if before is None else None,
            wait_over=before is not None and live.wait is None,
            unknown_moved=unknown_moved,
        )

    def _submit(  # noqa: C901  # a callback with one question for each of what may be beside the run
        self, live: LiveRun, decision: Decision, touched: Sequence[AttemptId], now_ms: int, beside: Write | None, *, rides: bool
    ) -> None:
        """Submit a decision on the run, and whatever commits with it, as one transaction."""
        self._resting.pop(live.run.run_id, None)
        live.uncommitted += 1  # first of all: a child that is born may push runs from memory, and this one is not as it is stored
        before = live.wait
        write = self.write(live, decision.records, touched, now_ms, new=False)
        writes: list[Write] = [write]
        child = None if decision.birth is None else self._bear(decision.birth, now_ms, writes)
        event = None if decision.emitted is None else self._emit(live.run, decision.emitted, now_ms, writes)
        writes += [ObligationWrite(obligation, live.run.workspace, live.run.application) for obligation in decision.obligations]
        if beside is not None:
            writes.append(beside)
        ended = live.run.status == "ended"
        if live.wait is not None and before is None:
            self._waited.begin((live.wait.workspace, live.wait.event_name))
        waited = live.wait or before

        def done(error: StorageUnavailable | None) -> None:
            if waited is not None and (write.wait_over if error is None else write.wait is not None):
                self._waited.end((waited.workspace, waited.event_name))
            self.committed(live, error, ended=ended)
            if child is not None:
                self.committed(child, error, ended=False)
            if event is not None:
                self.acceptor.committed(event, error)
            if error is None:
                for obligation in decision.obligations:
                    self.owed(obligation, live.run)

        position = self._store.submit(Unit(tuple(writes), rides=rides), done)
        live.run.position = first = position - len(writes) + 1
        if child is not None:
            child.run.position = first + 1
            self.performer.run_born(child)
        if event is not None:
            event = msgspec.structs.replace(event, position=first + 1)  # the callback means this one too
            self.acceptor.submitted(event)

    def _bear(self, birth: Birth, now_ms: int, writes: list[Write]) -> LiveRun:
        run = evolve(begin(birth.created, now_ms), birth.records, now_ms, 0)
        child = self.begin(run, child_input(run))
        child.uncommitted += 1
        writes.append(self.write(child, list(birth.records), (), now_ms, new=True))
        return child

    def _emit(self, run: Run, emitted: EmittedEvent, now_ms: int, writes: list[Write]) -> EventRow:
        accepted = self.acceptor.accepted(run, emitted, now_ms)
        writes.append(accepted)
        return accepted.event

    def committed(self, live: LiveRun, error: StorageUnavailable | None, *, ended: bool) -> None:
        """One transaction of the run is durable, or lost."""
        live.uncommitted -= 1
        if error is not None:
            self.drop(live)
        elif ended:
            run = live.run
            if live.row is None:
                raise AssertionError("a run that ended has a row")
            self._waiters.run_has_ended(run.run_id, EndedRun(live.row, run.result, run.failure))
        if live.uncommitted == 0:
            followers, live.followers = live.followers, []
            lost = StorageUnavailable("The change was rolled back.") if live.dropped and error is None else error
            for follower in followers:
                _tell(follower, lost)
            if ended and live.uncommitted == 0 and self._live.get(live.run.run_id) is live:
                self._leave(live.run.run_id)
                self.performer.run_ended(live)
            elif not ended:
                self._rest(live)

    def when_durable(self, live: LiveRun, follower: Settled) -> None:
        """Tell the follower once everything decided on the run so far is durable or lost."""
        if live.uncommitted == 0:
            follower(StorageUnavailable("The change was rolled back.") if live.dropped else None)
        else:
            live.followers.append(follower)

    def drop(self, live: LiveRun) -> None:
        """Forget a run whose memory is ahead of a store that failed."""
        if live.dropped:
            return
        live.dropped = True
        if self._live.get(live.run.run_id) is live:
            self._leave(live.run.run_id)
        self.performer.run_dropped(live)


def _tell(follower: Settled, error: StorageUnavailable | None) -> None:
    try:
        follower(error)
    except Exception:  # the followers behind it are owed their answer; the log says what is wrong here
        log.exception("what follows a commit failed")


INPUTS_KEPT_MAX = 256
"""Encoded event inputs kept beside the runs that hold theirs."""

EVICTION_BATCH = 64

RESTING: frozenset[str] = frozenset(("timer", "event", "child", "probe", "nothing"))
"""What a run may wait for without anything of it being out at a worker, or queued for one."""

RESTING_MAX = 1_000
"""Runs at rest that stay in memory, since most waits are short; the others are loaded again when their moment comes."""


def _is_wanted(run: Run, effect: SendDiscovery | SendAttempt) -> bool:
    """Whether what has waited for its commit is still to leave: a stop or another pass may have taken a pass's place meanwhile."""
    return isinstance(effect, SendAttempt) or (run.dispatch is not None and run.dispatch.request_id == effect.request_id)


def _is_idle(live: LiveRun) -> bool:
    attempt = live.run.current_attempt()
    out = live.run.dispatch is not None or (attempt is not None and attempt.state == "authorized")
    paced = live.run.discovery_repeats > 0  # known to the memory alone: read again it would go at once, and be refused at once, for ever
    return live.uncommitted == 0 and not out and not paced
