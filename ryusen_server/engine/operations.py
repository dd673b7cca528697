"""What people do to runs: cancel them, have blocked ones looked at again, and settle what is Unknown.

Owns that an acknowledgement leaves only when it is durable, and that an idempotency key means one command for ever. What each command
comes to is the core's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ryusen_protocol import operator, problems
from ryusen_protocol.api import StepState, TargetState
from ryusen_protocol.ids import RunId, Workspace
from ryusen_protocol.operator import Acknowledgement, RefusalEnvelope, ResolveCommand, Successor, Transition
from ryusen_protocol.problems import Problem
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt
from ryusen_server.core.decision import Decision, Refusal
from ryusen_server.core.records import AttemptQueued
from ryusen_server.core.rows import OperatorCommandRow
from ryusen_server.core.state import Run
from ryusen_server.engine.dispatcher import Dispatcher
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.engine.views import StoppedRun
from ryusen_server.ports.store import OperatorWrite, StorageUnavailable, Store, Write
from ryusen_server.ports.time import Clock


class Operations:
    """Every call raises `StorageUnavailable` when nothing could be made durable; nothing has changed then."""

    def __init__(self, *, store: Store, runs: Runs, dispatcher: Dispatcher, clock: Clock) -> None:
        self._store = store
        self._runs = runs
        self._dispatcher = dispatcher
        self._clock = clock
        self._keys: dict[tuple[Workspace, str], asyncio.Future[None]] = {}

    async def cancel_or_rediscover(self, workspace: Workspace, run_id: RunId, command: Cancel | Rediscover) -> StoppedRun | Problem:
        """Obey, or say why not."""
        live = await self._runs.load(run_id)
        if live is None or live.run.workspace != workspace:
            return problems.not_found("run", run_id)
        decision, durable = self._apply(live, command)
        if isinstance(decision, Refusal):
            await durable
            if decision.code == "not_cancellable":
                return problems.not_cancellable(live.run.outcome)
            return problems.problem("not_blocked", decision.message)
        row = live.row
        self._dispatcher.offer(live)
        await durable
        if row is None:
            raise AssertionError("a loaded run has a row")
        return StoppedRun(row, decision.replayed)

    async def resolve(self, workspace: Workspace, command: ResolveCommand, *, by: str) -> bytes | RefusalEnvelope:
        """Settle an Unknown attempt, once for each key. The bytes are the encoded acknowledgement."""
        slot = (workspace, command.idempotency_key)
        while (earlier := self._keys.get(slot)) is not None:
            await asyncio.wait([earlier])
        self._keys[slot] = asyncio.get_running_loop().create_future()
        try:
            known = await self._store.operator_command(workspace, command.idempotency_key)
            if known is not None:
                return _again(known, command)
            return await self._resolve(workspace, command, by)
        finally:
            self._keys.pop(slot).set_result(None)

    async def _resolve(self, workspace: Workspace, command: ResolveCommand, by: str) -> bytes | RefusalEnvelope:
        row = await self._store.attempt(command.attempt_id)
        live = None if row is None or row.workspace != workspace else await self._runs.load(row.run_id)
        if live is None:
            return operator.refuse("stale", "The workspace has no such attempt. Read the attempts that are Unknown, and name one of them.")
        acknowledged: list[bytes] = []

        def beside(decision: Decision) -> Write:
            acknowledged.append(operator.encode_acknowledgement(_acknowledgement(live.run, command, decision)))
            return OperatorWrite(
                OperatorCommandRow(
                    workspace=workspace,
                    key=command.idempotency_key,
                    fingerprint=operator.fingerprint(command),
                    attempt_id=command.attempt_id,
                    applied_at_ms=self._clock.now_ms(),
                    acknowledgement=acknowledged[0],
                )
            )

        resolution = ResolveAttempt(command.attempt_id, command.attempt_generation, command.command, by)
        decision, durable = self._apply(live, resolution, beside=beside)
        if isinstance(decision, Refusal):
            await durable
            return _refusal(decision)
        self._dispatcher.offer(live)
        await durable
        return acknowledged[0]

    def _apply(
        self, live: LiveRun, command: Cancel | Rediscover | ResolveAttempt, *, beside: Callable[[Decision], Write] | None = None
    ) -> tuple[Decision | Refusal, asyncio.Future[None]]:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: StorageUnavailable | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        decision = self._runs.apply(live, command, then=settle, beside=beside)
        if isinstance(decision, Refusal):
            self._runs.when_durable(live, settle)  # what it is refused for may be rolled back yet
        return decision, durable


def _again(known: OperatorCommandRow, command: ResolveCommand) -> bytes | RefusalEnvelope:
    if known.fingerprint != operator.fingerprint(command):
        return operator.refuse(
            "idempotency_key_reused",
            "This idempotency key was used for another command. Nothing was changed. Send the same command to get its answer again, "
            "or use a new key for a new one.",
        )
    return operator.replayed(known.acknowledgement)


def _refusal(refusal: Refusal) -> RefusalEnvelope:
    match refusal.code:
        case "stale" | "retry_forbidden" | "deadline_elapsed" | "limit_exceeded":
            return operator.refuse(refusal.code, refusal.message)
        case _:
            raise AssertionError(f"a resolution is not refused as {refusal.code}")


def _acknowledgement(run: Run, command: ResolveCommand, decision: Decision) -> Acknowledgement:
    attempt = run.attempts[command.attempt_id]
    retried = attempt.state == "retry_authorized"
    successor = next((record for record in decision.records if isinstance(record, AttemptQueued) and retried), None)
    step: StepState | TargetState = run.steps[attempt.step_id].state
    if attempt.phase == "compensation":
        step = next(target.state for target in run.unwind if target.step_id == attempt.step_id)
    return Acknowledgement(
        status="applied",
        attempt_id=command.attempt_id,
        attempt_generation=command.attempt_generation,
        transition=Transition(attempt=attempt.state, step=step, run=run.status),
        successor=msgspec.UNSET
        if successor is None
        else Successor(
            attempt_generation=successor.attempt_generation,
            work_id=successor.attempt_id,
            attempt_id=successor.attempt_id,
            attempt=successor.attempt,
        ),
    )
