"""Settle an event wait: an event matches, or its timeout has come.

| the run | what comes | effect |
|---|---|---|
| `running`, this wait pending, its deadline reached | either | stop `timed_out`; the wait dropped; settlement gate |
| `running`, this wait pending | an event accepted after the registration and before the timeout instant, however late it is processed | step complete with the event's payload, or `sdk.invalid_result` where the record cannot carry it; discovery |
| same | an event accepted before the registration, or at or after the timeout instant | nothing: it never matches |
| same | the timeout, before its instant: the clock went back | nothing, it stays armed |
| same | the timeout, at its instant or later | step complete with failure `sdk.timeout`; discovery |
| anything else: it has settled, or a stop, which ends `running`, dropped it | either | nothing |

Whoever reports a timeout has first looked for a matching event accepted before it whose fan-out is still under way, and whoever reports an
event brings the earliest accepted one.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.errors import SDK_TIMEOUT, ErrorRecord
from ryusen_protocol.ids import StepId
from ryusen_protocol.values import InvalidValue, encode
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.outcomes import invalid_result, recordable, replayable
from ryusen_server.core.results import complete, drop_if_late
from ryusen_server.core.state import Run, Step


class EventMatched(msgspec.Struct, frozen=True):
    """An event of the wait's name whose metadata holds the wait's correlation.

    The positions are those of the commits that accepted the event and registered the wait.
    """

    step_id: StepId
    payload: bytes
    accepted_at_ms: int
    accepted_position: int
    registered_position: int


class WaitTimedOut(msgspec.Struct, frozen=True):
    """The timeout of this step's wait is due, says whoever watches the clock, and no event is before it."""

    step_id: StepId


def decide(run: Run, command: EventMatched | WaitTimedOut, moment: Moment) -> Decision:
    """See the table above."""
    decision = Decision()
    step = run.pending_step()
    if step is None or step.step_id != command.step_id or step.kind != "event_wait" or step.due_at_ms is None:
        return decision
    if drop_if_late(decision, run, moment):
        return decision
    if isinstance(command, WaitTimedOut):
        if moment.now_ms >= step.due_at_ms:
            complete(decision, run, step, recordable(run, _timeout(step)), moment)
    elif command.accepted_position > command.registered_position and command.accepted_at_ms < step.due_at_ms:
        complete(decision, run, step, _received(run, command.payload), moment)
    return decision


def _received(run: Run, payload: bytes) -> msgspec.Raw | ErrorRecord:
    try:
        value = msgspec.Raw(encode(payload))
    except InvalidValue as refused:
        return invalid_result(f"The event's payload cannot be recorded: {refused}")
    return replayable(run, value)


def _timeout(step: Step) -> ErrorRecord:
    name = step.declaration.event_name if isinstance(step.declaration, EventWaitDeclaration) else ""
    return ErrorRecord(SDK_TIMEOUT, f"No matching event {name!r} was accepted before the timeout of this wait.", retryable=False)
