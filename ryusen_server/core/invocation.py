"""Writes invocations from a run, by joining what is encoded already.

A run's head (scope, facts, input) is encoded once, and a completed step once, when it completes: an invocation copies bytes and
decodes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ryusen_protocol.ids import AttemptId, RequestId
from ryusen_protocol.invocation import (
    ChildInput,
    CompensationTarget,
    DiscoveryTarget,
    EventInput,
    ForwardTarget,
    HistoryBase,
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


def child_input(run: Run) -> bytes:
    """The input member of a run that a parent invoked."""
    if run.parent is None or run.input is None:
        raise AssertionError("a child has a parent and an input")
    return encode_input(ChildInput(run.parent.run_id, run.parent.step_id, run.input))


def encode_input(run_input: EventInput | ChildInput) -> bytes:
    """An input member as its exact bytes."""
    return _encode(run_input)


def run_head(run: Run) -> bytes:
    """What every invocation of a run has in common, as long as its outcome is open."""
    scope = _encode(Scope(run.workspace, run.application))
    return b"".join((b',"scope":', scope, b',"run":', _encode(_facts(run))))


def held_after(run: Run) -> HistoryBase:
    """What a worker holds once it has been sent an invocation of the run as it stands."""
    return HistoryBase(len(run.history_entries), run.history_digest)


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


class Shared(NamedTuple):
    """What the invocations of one run have in common: its head, with its failure when it is being compensated, and its encoded input."""

    head: bytes
    encoded_input: bytes


def discovery_frame(run: Run, shared: Shared, request_id: RequestId, base: HistoryBase | None) -> bytes:
    """The frame that asks for the current pass. `base` is what its worker holds; none makes the invocation complete in itself."""
    if run.discovery_pass is None:
        raise AssertionError("a discovery is sent for a queued pass")
    return _frame(run, shared, request_id, DiscoveryTarget(run.discovery_pass), base)


def attempt_frame(run: Run, shared: Shared, attempt_id: AttemptId, request_id: RequestId, base: HistoryBase | None) -> bytes:
    """The frame that asks for an authorized attempt. `base` is as for `discovery_frame`."""
    return _frame(run, shared, request_id, _effect(run, attempt_id), base)


def _effect(run: Run, attempt_id: AttemptId) -> Target:
    attempt = run.attempts[attempt_id]
    if attempt.phase == "forward":
        return ForwardTarget(attempt.step_id, attempt.operation_id, attempt.attempt, attempt.attempt_generation)
    result = run.steps[attempt.step_id].result
    if result is None:
        raise AssertionError("an unwind target has a recorded success")
    return CompensationTarget(attempt.step_id, attempt.operation_id, attempt.attempt, attempt.attempt_generation, result)


def _frame(run: Run, shared: Shared, request_id: RequestId, target: Target, base: HistoryBase | None) -> bytes:
    digest = run.history_digest.encode()
    if base is None:
        opening = (b',"input":', shared.encoded_input, b',"history":{"mode":"full","digest":"', digest)
        entries = run.history_entries
    else:
        opening = (b',"history":{"mode":"delta","base":', _encode(base), b',"digest":"', digest)
        entries = run.history_entries[base.count :]
    return b"".join(
        (_OPEN, _encode(request_id), shared.head, *opening, b'","steps":[', b",".join(entries), b']},"target":', _encode(target), b"}}")
    )
