"""`HarnessRun`: one run as a test sees and moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import RunId, StepId
from ryusen_protocol.operator import AuthorizeRetry, Command, DeclareFailure, RefusalEnvelope, ResolveCommand, SupplySuccess
from ryusen_protocol.problems import Problem
from ryusen_sdk.convert import to_wire
from ryusen_sdk.errors import Failure, record_of
from ryusen_server.core.state import Run
from ryusen_testing.errors import HarnessError, Refused, RunIsStuck
from ryusen_testing.states import StepState, UndoneStep, result_of, step_states, undone_steps, unknown_attempts, waits_for

if TYPE_CHECKING:
    from ryusen_testing.harness import Harness

WAITS_PASSED_MAX: Final = 10_000
"""Waits that are passed over before a run counts as going round in circles."""


class HarnessRun:
    """One run. Everything it tells is what the server has committed at that moment."""

    def __init__(self, harness: Harness, run_id: RunId) -> None:
        self._harness = harness
        self.run_id: str = run_id
        self._id = run_id
        self._commands = 0

    @property
    def state(self) -> Run:
        """The server's own record of it; what is in there is no part of this harness's promises."""
        run = self._harness.server.run(self._id)
        if run is None:
            raise HarnessError(f"the run {self.run_id} was never committed")
        return run

    @property
    def function(self) -> str:
        """The id of its function."""
        return self.state.function

    @property
    def status(self) -> str:
        """`running`, `definition_blocked`, `stopping`, `compensating` or `ended`."""
        return self.state.status

    @property
    def outcome(self) -> str | None:
        """Why execution ended: `succeeded`, `failed`, `cancelled`, `timed_out`; none as long as it has not."""
        return self.state.outcome

    @property
    def recovery(self) -> str | None:
        """`not_required`, `fully_compensated`, `partially_compensated`, `compensation_failed`; none until the run has ended."""
        return self.state.recovery

    @property
    def result(self) -> object:
        """What the function returned, as plain values."""
        return result_of(self.state)

    @property
    def failure(self) -> ErrorRecord | None:
        """What failed it: `category`, `message`, `retryable`, `details`, `cause`."""
        return self.state.failure

    @property
    def steps(self) -> dict[str, StepState]:
        """Its steps by id, in the order they were declared."""
        return step_states(self.state)

    @property
    def undone(self) -> list[UndoneStep]:
        """The unwind in its order."""
        return undone_steps(self.state)

    @property
    def unknown(self) -> list[str]:
        """The steps whose attempt is Unknown."""
        return [attempt.step_id for attempt in unknown_attempts(self.state)]

    @property
    def waits_for(self) -> str:
        """What moves it next, in words."""
        return waits_for(self.state, self._harness.now_ms())

    def child(self, step_id: str) -> HarnessRun:
        """The run that this step invoked."""
        step = self.state.steps.get(StepId(step_id))
        if step is None or step.child_run_id is None:
            raise HarnessError(f"step {step_id!r} invoked no run; the steps are {', '.join(self.steps) or 'none yet'}")
        return HarnessRun(self._harness, step.child_run_id)

    async def ended(self) -> HarnessRun:
        """Let time pass until the run has ended; this run. Raises `RunIsStuck` where time alone does not bring it about."""
        await self._harness.settle()
        for _ in range(WAITS_PASSED_MAX):
            if self.status == "ended":
                return self
            waiting = self._waiting()
            if self._needs_somebody() or not await self._harness.pass_next_wait(self._id):
                raise RunIsStuck(f"{self!r} does not end: {waiting}")
        raise RunIsStuck(f"{self!r} has not ended after {WAITS_PASSED_MAX:,} waits: {self._waiting()}")

    def _needs_somebody(self) -> bool:
        """Whether it, or the run at the end of those it waits for, is Unknown, or blocked with no deadline to end that."""
        awaited = self._awaited()
        last = awaited[-1]
        if unknown_attempts(last):
            return True
        return last.blocker is not None and all(run.deadline is None or run.stop is not None for run in awaited)

    def _awaited(self) -> list[Run]:
        """The run, the run it invoked and waits for, and so on down."""
        found = [self.state]
        while (step := found[-1].pending_step()) is not None and step.child_run_id is not None:
            found.append(HarnessRun(self._harness, step.child_run_id).state)
        return found

    def _waiting(self) -> str:
        return "; ".join(waits_for(run, self._harness.now_ms()) for run in self._awaited())

    async def cancel(self) -> None:
        """Ask it to stop; what is authorized is waited for, what is done is undone. Raises `Refused`."""
        state = self.state
        answer = await self._harness.server.engine.cancel(state.workspace, self._id, by="test")
        if isinstance(answer, Problem):
            raise Refused(answer.code, answer.detail)
        await self._harness.settle()

    async def resolve(
        self,
        step_id: str,
        *,
        result: object = None,
        failure: Failure | None = None,
        retry: bool = False,
    ) -> None:
        """Settle an Unknown attempt as an operator does: its `result`, a `failure`, or leave to `retry` it. Raises `Refused`."""
        if [retry, failure is not None, result is not None].count(True) > 1:
            raise HarnessError(f"step {step_id!r} is settled in one way: by its result, a failure, or a retry")
        state = self.state
        attempt = next((attempt for attempt in unknown_attempts(state) if attempt.step_id == step_id), None)
        if attempt is None:
            raise HarnessError(f"step {step_id!r} has no Unknown attempt; Unknown are: {', '.join(self.unknown) or 'none'}")
        self._commands += 1
        command = ResolveCommand(
            attempt_id=attempt.attempt_id,
            attempt_generation=attempt.attempt_generation,
            idempotency_key=f"{attempt.attempt_id}-{attempt.attempt_generation}-{self._commands}",
            command=_command(result, failure, retry=retry),
        )
        answer = await self._harness.server.engine.resolve(state.workspace, command, by="test")
        if isinstance(answer, RefusalEnvelope):
            raise Refused(answer.refusal.code, answer.refusal.message)
        await self._harness.settle()

    def __repr__(self) -> str:
        state = self.state
        facts = ", ".join(fact for fact in (state.status, state.outcome, state.recovery) if fact is not None)
        steps = ", ".join(f"{step.step_id} {step.state}" for step in state.steps.values())
        return f"<run {self.run_id} of {state.function!r}: {facts}; steps: {steps or 'none'}>"


def _command(result: object, failure: Failure | None, *, retry: bool) -> Command:
    if retry:
        return AuthorizeRetry()
    if failure is not None:
        return DeclareFailure(record_of(failure))
    return SupplySuccess(to_wire(result))
