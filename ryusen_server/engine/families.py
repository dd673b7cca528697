"""Carries out what one run owes another: a child's end completes its parent's step, a parent's stop stops its child.

Owns that each obligation, durable with the decision that caused it, is carried out, and that its row goes in the very unit that does so.
Doing it twice does nothing the second time, so whatever a fault interrupts is done again, and a restart begins with what it finds.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Protocol, assert_never

from ryusen_protocol.ids import RunId
from ryusen_server.core.children import end_of
from ryusen_server.core.commands.request_stop import ParentStopped
from ryusen_server.core.commands.settle_child import ChildEnded
from ryusen_server.core.decision import Obligation, Refusal, SettleParent, StopChild
from ryusen_server.core.evolve import fold
from ryusen_server.core.state import Run
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.ports.store import DischargeWrite, StorageUnavailable, Store, Unit, obligation_key

log = logging.getLogger(__name__)

PAGE = 256
_DEFECT = "what is owed between run %s and its parent could not be carried out"


class Tasks(Protocol):
    """Who runs what takes time, and calls `Families.retry` once the store answers again."""

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None: ...

    def retry_soon(self) -> None: ...


class Families:
    """Parents and children, on the loop's thread."""

    def __init__(self, *, store: Store, runs: Runs, dispatcher: Dispatcher) -> None:
        self._store = store
        self._runs = runs
        self._dispatcher = dispatcher
        self._again: dict[tuple[RunId, str], Obligation] = {}
        """What a fault kept from being carried out."""
        self._unread = False
        """A fault kept from reading all that is owed."""
        self.tasks: Tasks

    async def load(self) -> None:
        """Carry out what a server before this one left. Raises `StorageUnavailable`; then `retry` begins with it again."""
        self._unread = True
        after: Obligation | None = None
        while page := await self._store.obligations(after=after, limit=PAGE):
            for obligation in page:
                await self._carry_out_alone(obligation)
            after = page[-1]
        self._unread = False

    def owed(self, obligation: Obligation, cause: Run) -> None:
        """An obligation is durable. `cause` is the run whose decision made it, as that decision left it."""
        command = ChildEnded(end_of(cause)) if isinstance(obligation, SettleParent) else _stop(obligation)
        live = self._runs.get(_debtor(obligation))
        if live is not None:
            self._move(live, obligation, command)
        else:
            self.tasks.spawn("obligation", self._load_and_move(obligation, command))

    async def retry(self) -> None:
        """Take up again what a fault interrupted. Raises `StorageUnavailable`, with the rest kept for later."""
        if self._unread:
            await self.load()
        for key, obligation in list(self._again.items()):
            try:
                await self._carry_out(obligation)
            except StorageUnavailable:
                raise
            except Exception:  # kept in the store, for a start to find
                log.exception(_DEFECT, obligation.child_run_id)
            if self._again.get(key) is obligation:
                del self._again[key]

    async def _carry_out_alone(self, obligation: Obligation) -> None:
        try:
            await self._carry_out(obligation)
        except StorageUnavailable:
            self._later(obligation)
        except Exception:  # one run's defect must not keep the others from going on
            log.exception(_DEFECT, obligation.child_run_id)

    async def _carry_out(self, obligation: Obligation) -> None:
        command = await self._ended(obligation) if isinstance(obligation, SettleParent) else _stop(obligation)
        live = await self._runs.load(_debtor(obligation))
        if live is None:
            raise AssertionError(f"{_debtor(obligation)} owes something and is not there")
        self._move(live, obligation, command)

    async def _load_and_move(self, obligation: Obligation, command: ChildEnded | ParentStopped) -> None:
        try:
            live = await self._runs.load(_debtor(obligation))
        except StorageUnavailable:
            self._later(obligation)
            raise
        if live is None:
            raise AssertionError(f"{_debtor(obligation)} owes something and is not there")
        self._move(live, obligation, command)

    async def _ended(self, obligation: SettleParent) -> ChildEnded:
        child = fold(await self._store.history(obligation.child_run_id))
        if child is None:
            raise AssertionError("a child whose end is owed to its parent is stored")
        return ChildEnded(end_of(child))

    def _move(self, live: LiveRun, obligation: Obligation, command: ChildEnded | ParentStopped) -> None:
        discharge = DischargeWrite(obligation)

        def done(error: StorageUnavailable | None) -> None:
            if error is not None:
                self._later(obligation)

        decision = self._runs.apply(live, command, beside=lambda _: discharge)
        if isinstance(decision, Refusal):
            raise AssertionError("what one run owes another is never refused")
        if decision.records:
            self._runs.when_durable(live, done)
        else:
            self._store.submit(Unit((discharge,), rides=True), done)
        self._dispatcher.offer(live)

    def _later(self, obligation: Obligation) -> None:
        self._again[obligation_key(obligation)] = obligation
        self.tasks.retry_soon()

    def __len__(self) -> int:
        return len(self._again)


def _debtor(obligation: Obligation) -> RunId:
    """The run that is to be moved."""
    match obligation:
        case SettleParent():
            return obligation.parent_run_id
        case StopChild():
            return obligation.child_run_id
        case _:
            assert_never(obligation)


def _stop(obligation: StopChild) -> ParentStopped:
    return ParentStopped(obligation.parent_run_id, obligation.reason)
