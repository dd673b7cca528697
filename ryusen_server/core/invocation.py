"""Writes invocations from a run, by joining what is encoded already.

A run's head (scope, facts, input) is encoded once, and a completed step once, when it completes: an invocation copies bytes and
decodes nothing.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import AttemptId, RequestId
from ryusen_protocol.invocation import (
    ChildInput,
    CompensationTarget,
    DiscoveryTarget,
    EventInput,
    ForwardTarget,
    RunFacts,
    RunFailure,
    Target,
)
from ryusen_protocol.scope import Scope
from ryusen_protocol.values import encode as encode_value
from ryusen_server.core.rows import EventRow
from ryusen_server.core.state import Run

_encode = msgspec.json.Encoder().encode

_FRAMED = b'{"type":"invoke","protocol_version":1,"invocation":'
_OPEN = _FRAMED + b'{"type":"invocation","protocol_version":1,"request_id":'


def event_input(event: EventRow) -> bytes:
    """The input member of every run an event starts, encoded once for all of them."""
    return encode_input(
        EventInput(
            event_id=event.event_id,
            name=event.name,
            payload=msgspec.Raw(encode_value(event.payload)),
            metadata=event.metadata,
            received_at_ms=event.received_at_ms,
        )
    )


def encode_input(run_input: EventInput | ChildInput) -> bytes:
    """An input member as its exact bytes."""
    return _encode(run_input)


def run_head(run: Run, encoded_input: bytes) -> bytes:
    """What every invocation of a run has in common, as long as its outcome is open."""
    scope = _encode(Scope(run.workspace, run.application))
    return b"".join((b',"scope":', scope, b',"run":', _encode(_facts(run)), b',"input":', encoded_input))


def _facts(run: Run) -> RunFacts:
    failure = run.failure
    return RunFacts(
        run_id=run.run_id,
        function=run.function,
        created_at_ms=run.created_at_ms,
        deadline_at_ms=None if run.deadline is None else run.deadline.at_ms,
        failure=None if failure is None else RunFailure(failure.category, failure.message),
    )


def invocation_of(frame: bytes) -> bytes:
    """The invocation of a frame of `discovery_frame` or `attempt_frame`, as a document of its own."""
    return frame[len(_FRAMED) : -1]


def discovery_frame(run: Run, head: bytes, request_id: RequestId) -> bytes:
    """The frame that asks for the current pass."""
    if run.discovery_pass is None:
        raise AssertionError("a discovery is sent for a queued pass")
    return _frame(run, head, request_id, DiscoveryTarget(run.discovery_pass))


def attempt_frame(run: Run, head: bytes, attempt_id: AttemptId, request_id: RequestId) -> bytes:
    """The frame that asks for an authorized attempt. `head` is the run's, with its failure when it is being compensated."""
    attempt = run.attempts[attempt_id]
    if attempt.phase == "forward":
        target: Target = ForwardTarget(attempt.step_id, attempt.operation_id, attempt.attempt, attempt.attempt_generation)
        return _frame(run, head, request_id, target)
    result = run.steps[attempt.step_id].result
    if result is None:
        raise AssertionError("an unwind target has a recorded success")
    target = CompensationTarget(attempt.step_id, attempt.operation_id, attempt.attempt, attempt.attempt_generation, result)
    return _frame(run, head, request_id, target)


def _frame(run: Run, head: bytes, request_id: RequestId, target: Target) -> bytes:
    return b"".join(
        (
            _OPEN,
            _encode(request_id),
            head,
            b',"history":{"mode":"full","digest":"',
            run.history_digest.encode(),
            b'","steps":[',
            b",".join(run.history_entries),
            b']},"target":',
            _encode(target),
            b"}}",
        )
    )
