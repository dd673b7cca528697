"""A parent run and the runs it invokes: how a child begins, and what its end means to the parent's step.

A child is an ordinary run. Its identity follows from the parent and the step, so that repeating the declaration names the same one. It is
bounded by the tightest of these, the first named of equal ones:

| source | instant |
|---|---|
| `function` | acceptance plus the timeout its function declares in the active manifest |
| `policy` | acceptance plus the deployment's default, where the function declares none |
| `invoke` | acceptance plus the timeout of the invocation |
| `parent` | the parent's own deadline |

| the child ended as | the parent's step completes with |
|---|---|
| `succeeded` | its result |
| `failed` | failure `sdk.child_failed`; details `child_run_id` and `error`, the child's failure as its cause |
| `cancelled` | failure `sdk.child_cancelled`; detail `child_run_id` |
| `timed_out` | failure `sdk.timeout`; detail `child_run_id` |
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from ryusen_protocol.declaration_checks import child_input, timeout_of
from ryusen_protocol.declarations import ChildDeclaration
from ryusen_protocol.errors import SDK_CHILD_CANCELLED, SDK_CHILD_FAILED, SDK_TIMEOUT, ErrorRecord
from ryusen_protocol.identity import run_id_for_child
from ryusen_protocol.ids import ManifestGeneration, RoutingGeneration, RunId
from ryusen_protocol.scope import Scope
from ryusen_protocol.values import encode
from ryusen_server.core.commands import create_run
from ryusen_server.core.decision import Birth
from ryusen_server.core.records import Deadline, DeadlineSource, Outcome, ParentRef
from ryusen_server.core.routing import INSTANT_MS_MAX
from ryusen_server.core.state import Run


class ChildTarget(msgspec.Struct, frozen=True):
    """A function of the application's active manifest that a step invokes, with what bounds its runs."""

    manifest_generation: ManifestGeneration
    routing_generation: RoutingGeneration
    function_timeout_ms: int | None
    policy_timeout_ms: int | None


class ChildEnd(msgspec.Struct, frozen=True):
    """How a child ended. `result` is there for a success, `failure` for a run that failed."""

    child_run_id: RunId
    outcome: Outcome
    result: msgspec.Raw | None
    failure: ErrorRecord | None


def depth_of(run: Run) -> int:
    """How many runs stand above this one."""
    return 0 if run.parent is None else run.parent.depth


def birth(parent: Run, declaration: ChildDeclaration, target: ChildTarget, now_ms: int) -> Birth:
    """The child that a valid declaration asks for."""
    command = create_run.CreateRun(
        run_id=run_id_for_child(Scope(parent.workspace, parent.application), parent.run_id, declaration.step_id),
        workspace=parent.workspace,
        application=parent.application,
        function=declaration.function,
        event_id=None,
        trigger_id=None,
        manifest_generation=target.manifest_generation,
        routing_generation=target.routing_generation,
        deadline=_deadline(parent, timeout_of(declaration), target, now_ms),
        parent=ParentRef(parent.run_id, declaration.step_id, depth_of(parent) + 1),
        input=child_input(declaration),
    )
    created, records = create_run.decide(command)
    return Birth(created, tuple(records))


def _deadline(parent: Run, invoke_ms: int | None, target: ChildTarget, now_ms: int) -> Deadline | None:
    policy_ms = target.policy_timeout_ms if target.function_timeout_ms is None else None
    timeouts: tuple[tuple[DeadlineSource, int | None], ...] = (
        ("function", target.function_timeout_ms),
        ("policy", policy_ms),
        ("invoke", invoke_ms),
    )
    bounds = [Deadline(min(now_ms + ms, INSTANT_MS_MAX), source) for source, ms in timeouts if ms is not None]
    if parent.deadline is not None:
        bounds.append(Deadline(parent.deadline.at_ms, "parent"))
    return min(bounds, key=lambda bound: bound.at_ms, default=None)  # the first of equal ones


def end_of(child: Run) -> ChildEnd:
    """How an ended run ended. Raises `AssertionError` for one that has not."""
    if child.status != "ended" or child.outcome is None:
        raise AssertionError(f"{child.run_id} is {child.status}, not ended")
    return ChildEnd(child.run_id, child.outcome, child.result, child.failure)


def failure_of(end: ChildEnd, function: str) -> ErrorRecord:
    """The failure a parent's step completes with, for a child that did not succeed."""
    details = {"child_run_id": msgspec.Raw(encode(end.child_run_id))}
    called = f"The child run {end.child_run_id} of {function!r}"
    match end.outcome:
        case "failed":
            failure = end.failure
            if failure is None:
                raise AssertionError("a failed run has a failure")
            told = {"category": failure.category, "message": failure.message, "retryable": failure.retryable}
            details["error"] = msgspec.Raw(encode({**told}))
            message = f"{called} failed: {failure.category}: {failure.message}"
            return ErrorRecord(SDK_CHILD_FAILED, message, retryable=False, details=details, cause=failure)
        case "cancelled":
            return ErrorRecord(SDK_CHILD_CANCELLED, f"{called} was cancelled.", retryable=False, details=details)
        case "timed_out":
            return ErrorRecord(SDK_TIMEOUT, f"{called} passed its deadline.", retryable=False, details=details)
        case "succeeded":
            raise AssertionError("a child that succeeded has no failure")
        case _:
            assert_never(end.outcome)
