"""The world outside the server, which alone knows what really happened: every callback that began and how it ended.

What befalls a callback is drawn from the seed by what it is (run, step, phase, generation), never by when it comes, so that one change of
timing does not change every effect behind it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from ryusen_protocol.ids import RequestId, RunId, StepId
from ryusen_protocol.scope import Scope
from ryusen_sdk.convert import from_wire, to_wire
from ryusen_sdk.errors import Terminal
from ryusen_sdk.latch import Pass
from ryusen_sdk.operation import current_operation, current_pass
from ryusen_server.core.records import AttemptSettled
from tests.simulation.auditing import Auditor, RunAudit
from tests.simulation.scheduling import Process, current_process

Key = tuple[str, str, str, int]
"""Run, step, phase, generation."""


class Plan(msgspec.Struct, frozen=True):
    """How one callback goes. `death`: its worker is killed in it, or after it and before it can tell."""

    ends: str
    takes_ms: int
    death: str | None


class Effect(msgspec.Struct):
    """One callback that began."""

    key: Key
    operation_id: str
    request_id: RequestId
    began_at_ms: int
    worker: str
    process: Process
    value: object = None
    ended: str | None = None
    """`ok`, `retryable`, `terminal`, `unportable`, `cancelled`; none while it runs, or for ever when its process died in it."""


class Code(Protocol):
    """A worker, as its callbacks know it."""

    name: str
    process: Process
    scope: Scope

    def kill(self, why: str) -> None: ...


_CHANCES = {
    "good": (("ok", 90), ("retryable", 6), ("terminal", 3), ("unportable", 1)),
    "mixed": (("ok", 72), ("retryable", 15), ("terminal", 10), ("unportable", 3)),
    "bad": (("ok", 45), ("retryable", 30), ("terminal", 20), ("unportable", 5)),
}


class Outside:
    """Performs callbacks and keeps what they did."""

    def __init__(
        self,
        seed: int,
        temper: str,
        auditor: Auditor,
        workers: Mapping[Process, Code],
        now_ms: Callable[[], int],
        trace: Callable[[str], None],
    ) -> None:
        self.effects: dict[Key, Effect] = {}
        self.by_request: dict[RequestId, Effect] = {}
        self.calm = False
        self._seed = seed
        self._chances = _CHANCES[temper]
        self._auditor = auditor
        self._workers = workers
        self._now_ms = now_ms
        self._trace = trace
        self._disproved: set[RequestId] = set()
        """Requests that the server holds to have never begun."""
        self._asked = 0
        auditor.settled.append(self._settled)
        auditor.requeued.append(self._requeued)

    def plan(self, key: Key) -> Plan:
        """What befalls this callback."""
        chance = random.Random(f"{self._seed}/{'/'.join(map(str, key))}")
        ends = chance.choices([word for word, _ in self._chances], [weight for _, weight in self._chances])[0]
        takes_ms = chance.choice((0, 0, 0, 0, 5, 50, 400, 400, 3_000, 25_000))
        if chance.random() < 0.02:
            takes_ms = 120_000
        death = chance.choice(("in", "after")) if chance.random() < 0.03 else None
        return Plan(ends, min(takes_ms, 50), None) if self.calm else Plan(ends, takes_ms, death)

    async def perform(self, step_id: str, given: object) -> object:
        """A callback of user code, from its first line on, in the worker whose turn it is."""
        process = current_process()
        assert process is not None
        worker = self._workers[process]
        operation = current_operation.get()
        running = current_pass.get()
        assert operation is not None
        assert isinstance(running, Pass)
        request_id = running.invocation.request_id
        key = (operation.run_id, operation.step_id, operation.phase, operation.attempt_generation)
        assert operation.step_id == step_id, f"the callback of {step_id} runs as {operation.step_id}"
        effect = Effect(key, operation.id, request_id, self._now_ms(), worker.name, worker.process)
        self._began(worker, effect, given)
        plan = self.plan(key)
        if plan.death == "in":
            worker.kill("in a callback")
            await asyncio.Event().wait()
        try:
            if plan.takes_ms:
                await asyncio.sleep(plan.takes_ms / 1000)
        except asyncio.CancelledError:
            self._ended(effect, "cancelled")
            raise
        effect.value = [step_id, operation.phase, operation.attempt_generation]
        self._ended(effect, plan.ends)
        if plan.death == "after":
            worker.kill("after a callback")
            await asyncio.Event().wait()
        match plan.ends:
            case "retryable":
                raise ConnectionError(f"{step_id} did not get through")
            case "terminal":
                raise Terminal(f"{step_id} cannot be", category="outside.refused")
            case "unportable":
                return object()
            case _:
                return effect.value

    def ambient(self) -> bool:
        """Something that a body should not depend on, and may."""
        if self.calm:
            return True
        self._asked += 1
        return random.Random(f"{self._seed}/ambient/{self._asked}").random() < 0.6

    def _began(self, worker: Code, effect: Effect, given: object) -> None:
        run_id, step_id, phase, generation = effect.key
        self._trace(f"{run_id[-6:]} callback {phase} {step_id} #{generation} begins at {worker.name}")
        before = self.effects.get(effect.key)
        assert before is None, (
            f"invariant 9: {effect.key} began twice, first at {before and before.began_at_ms} at {before and before.worker}"
        )
        assert effect.request_id not in self._disproved, f"invariant 22: {effect.key} began after it was proven never to begin"
        audit = self._auditor.runs.get(RunId(run_id))
        assert audit is not None, f"invariant 7: {effect.key} began before its run was durable"
        run = audit.shadow
        assert (run.workspace, run.application) == (worker.scope.workspace, worker.scope.application), "invariant 27: work crosses scopes"
        attempt = run.attempts.get(run.requests.get(effect.request_id, ""))  # type: ignore[call-overload]
        assert attempt is not None, f"invariant 7: {effect.key} began before its authorization was durable"
        assert (attempt.step_id, attempt.phase, attempt.attempt_generation) == (step_id, phase, generation)
        assert attempt.operation_id == effect.operation_id, f"invariant 5: {effect.key} under another operation id"
        step = run.steps[StepId(step_id)]
        if phase == "forward":
            # An operator may say what became of an invocation that is still on its way.
            once = step.state != "succeeded" or attempt.settled_by_operator is not None
            assert once, f"invariant 8: {effect.key} began after its success was accepted"
        else:
            assert step.result is not None, f"invariant 15: {step_id} is undone and never succeeded"
            assert given == from_wire(step.result), f"{step_id} is undone with another result than its own"
        self._alone(effect)
        self.effects[effect.key] = effect
        self.by_request[effect.request_id] = effect

    def _alone(self, effect: Effect) -> None:
        """At most one callback of a run at a time: whatever another worker still does must have been settled by somebody."""
        run_id = effect.key[0]
        shadow = self._auditor.runs[RunId(run_id)].shadow
        for other in self.effects.values():
            if other.key[0] == run_id and other.ended is None and other.process.alive:
                attempt = shadow.attempts[shadow.requests[other.request_id]]
                assert attempt.settled_at_ms is not None, f"invariants 12, 14: {effect.key} began while {other.key} runs"

    def _ended(self, effect: Effect, word: str) -> None:
        effect.ended = word
        run_id, step_id, phase, generation = effect.key
        self._trace(f"{run_id[-6:]} callback {phase} {step_id} #{generation} ends: {word}")

    # what the server holds to be true, against what is

    def _settled(self, audit: RunAudit, record: AttemptSettled, at_ms: int) -> None:
        attempt = audit.shadow.attempts[record.attempt_id]
        key = (audit.shadow.run_id, attempt.step_id, attempt.phase, attempt.attempt_generation)
        effect = self.effects.get(key)
        happened = None if effect is None else effect.ended
        answered = record.answer_digest is not None
        match record.state:
            case "succeeded" if answered:
                real = ("ok",) if attempt.phase == "forward" else ("ok", "unportable")
                assert happened in real, f"{key} succeeded, and what happened is {happened}"
                if attempt.phase == "forward":
                    result = audit.shadow.steps[attempt.step_id].result
                    assert effect is not None
                    assert result is not None
                    assert bytes(result) == bytes(to_wire(effect.value)), f"{key} is recorded with another result"
            case "failed" if answered:
                assert happened in {"retryable", "terminal", "unportable", "cancelled"} or attempt.phase == "compensation", (
                    f"{key} failed, and what happened is {happened}"
                )
            case "obsolete" | "skipped":
                assert effect is None, f"{key} was not found, and its callback began"
            case "fenced":
                assert effect is None, f"{key} was fenced, and its callback began"
                if attempt.request_id is not None:
                    self._disproved.add(attempt.request_id)
            case _:
                pass
        del at_ms

    def _requeued(self, audit: RunAudit, request_id: RequestId) -> None:
        assert request_id not in self.by_request, f"invariant 22: {request_id} of {audit.shadow.run_id} never began, and it did"
        self._disproved.add(request_id)
