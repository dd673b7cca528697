"""Derives and mints identities, and digests what a retry is recognised by.

Pure: fresh ids are made from entropy the caller brings. Derived ids are a hash over a tuple whose parts are length-prefixed
and whose first part names the purpose, so that no two tuples, and no two kinds of id, read alike. An id is its prefix and 22
characters of base62: 128 bits, safe in URLs, file names and shells, one double-click to select. Nothing reads an id back.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ryusen_protocol.ids import Application, AttemptId, EventId, OperationId, RunId, StepId, TriggerId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ryusen_protocol.invocation import Phase
    from ryusen_protocol.scope import Scope

MintedPrefix: TypeAlias = Literal["ev", "rq", "ses", "wk"]
ENTROPY_BYTES: Final = 16
ID_CHARS: Final = 22
"""What follows the prefix: enough base62 digits for 128 bits."""

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_PAIR_BASE: Final = len(_PAIRS)


def run_id_for_event(event_id: EventId, application: Application, trigger_id: TriggerId) -> RunId:
    """The run a trigger binding starts for an event: the same one however often fan-out is repeated."""
    return RunId(derived("rn", "run/event", event_id, application, trigger_id))


def run_id_for_child(scope: Scope, parent_run_id: RunId, step_id: StepId) -> RunId:
    """The run a step invokes: the same one however often the declaration is repeated."""
    return RunId(derived("rn", "run/child", scope.workspace, scope.application, parent_run_id, step_id))


def operation_id(run_id: RunId, step_id: StepId, phase: Phase) -> OperationId:
    """What every attempt of one step and phase shares; fit to be an idempotency key elsewhere."""
    return OperationId(derived("op", "operation", run_id, step_id, phase))


def attempt_id(run_id: RunId, step_id: StepId, phase: Phase, attempt_generation: int) -> AttemptId:
    """One generation of an attempt."""
    return AttemptId(derived("at", "attempt", run_id, step_id, phase, str(attempt_generation)))


def emitted_event_id(scope: Scope, run_id: RunId, step_id: StepId) -> EventId:
    """The event a step emits: accepted once however often the declaration is repeated."""
    return EventId(derived("ev", "event/emitted", scope.workspace, scope.application, run_id, step_id))


def mint(prefix: MintedPrefix, entropy: bytes) -> str:
    """A fresh id from exactly 16 random bytes. Raises `ValueError` for any other number of bytes."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"a fresh id takes {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    return f"{prefix}_{base62(entropy)}"


def event_fingerprint(name: str, payload: bytes, metadata: Mapping[str, str]) -> str:
    """What makes two submissions the same: name, payload bytes and metadata, in whatever order. `sha256:` and lower-case hex."""
    digest = hashlib.sha256(framed("event/submission", name))
    digest.update(len(payload).to_bytes(8, "big"))
    digest.update(payload)
    digest.update(framed(*(part for pair in sorted(metadata.items()) for part in pair)))
    return f"sha256:{digest.hexdigest()}"


def derived(prefix: str, *parts: str) -> str:
    """An id that depends on every part and on nothing else. The first part names the purpose."""
    return f"{prefix}_{base62(hashlib.sha256(framed(*parts)).digest()[:ENTROPY_BYTES])}"


def framed(*parts: str) -> bytes:
    """The parts as bytes that no other tuple of parts gives: each is preceded by its length in characters."""
    return "".join([f"{len(part)}:{part}" for part in parts]).encode()


def base62(data: bytes) -> str:
    """16 bytes as 22 digits, leading zeros kept."""
    number = int.from_bytes(data, "big")
    pairs: list[str] = []
    for _ in range(ID_CHARS // 2):
        number, index = divmod(number, _PAIR_BASE)
        pairs.append(_PAIRS[index])
    pairs.reverse()
    return "".join(pairs)
