"""What of a worker's answer can be recorded: values in canonical form, errors within the limits.

A value that is not portable or is too large is not a lost answer: the effect happened, so it becomes a failure that is not retried.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.clipping import clip_error, minimal_error
from ryusen_protocol.errors import SDK_INVALID_RESULT, ErrorRecord
from ryusen_protocol.limits import REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.values import InvalidValue, canonicalize
from ryusen_server.core.state import Run

ENTRY_OVERHEAD_BYTES = 512
"""What a history entry adds to an outcome: its step id and its envelope."""

NULL_VALUE = msgspec.Raw(b'{"type":"null"}')


def invalid_result(why: str) -> ErrorRecord:
    """The failure of a result that cannot be recorded."""
    return ErrorRecord(SDK_INVALID_RESULT, why, retryable=False)


def portable(value: msgspec.Raw) -> msgspec.Raw | ErrorRecord:
    """The canonical value, or the failure it becomes."""
    try:
        return msgspec.Raw(canonicalize(value))
    except InvalidValue as refused:
        return invalid_result(f"The result cannot be recorded: {refused}")


def replayable(run: Run, value: msgspec.Raw) -> msgspec.Raw | ErrorRecord:
    """A step's canonical result, or the failure it becomes, with the run's replay budget counted."""
    canonical = portable(value)
    if isinstance(canonical, ErrorRecord):
        return canonical
    size = len(bytes(canonical)) + ENTRY_OVERHEAD_BYTES
    if run.replay_bytes + size > REPLAY_BUDGET_BYTES_MAX - REPLAY_RESERVE_BYTES:
        return invalid_result(
            f"The result of {size - ENTRY_OVERHEAD_BYTES:,} bytes does not fit: a run remembers at most {REPLAY_BUDGET_BYTES_MAX:,} bytes "
            f"and {run.replay_bytes:,} are taken. Keep large data elsewhere and return a reference."
        )
    return canonical


def recordable(run: Run, error: ErrorRecord) -> ErrorRecord:
    """A step's failure within the error limits and what is left of the replay budget, visibly cut where it must be."""
    clipped = clip_error(error)
    size = len(msgspec.json.encode(clipped)) + ENTRY_OVERHEAD_BYTES
    if run.replay_bytes + size > REPLAY_BUDGET_BYTES_MAX - REPLAY_RESERVE_BYTES:
        return minimal_error(clipped)
    return clipped
