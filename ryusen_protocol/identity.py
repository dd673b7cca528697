"""Derives and mints identities, and digests what a retry is recognised by.

Pure: fresh ids are made from entropy the caller brings. Derived ids are a hash over a tuple whose parts are length-prefixed
and whose first part names the purpose, so that no two tuples, and no two kinds of id, read alike. An id is its prefix and 22
letters and digits, one for each byte of hash or entropy: two ids meet as rarely as two 130-bit numbers do, and one double-click
selects an id. Nothing reads an id back.
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
ID_CHARS: Final = 22
"""What follows the prefix."""
ENTROPY_BYTES: Final = ID_CHARS

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_OF_BYTE: Final = "".join(_DIGITS[byte % len(_DIGITS)] for byte in range(256)).encode()
"""For `bytes.translate`. Eight of the digits stand for five bytes each and the others for four, which costs a twentieth of a bit."""


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
    """A fresh id from exactly `ENTROPY_BYTES` random bytes. Raises `ValueError` for any other number of bytes."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"a fresh id takes {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    return f"{prefix}_{letters(entropy)}"


def event_fingerprint(name: str, payload: bytes, metadata: Mapping[str, str]) -> str:
    """What makes two submissions the same: name, payload bytes and metadata, in whatever order. `sha256:` and lower-case hex."""
    digest = hashlib.sha256(framed("event/submission", name))
    digest.update(len(payload).to_bytes(8, "big"))
    digest.update(payload)
    digest.update(framed(*(part for pair in sorted(metadata.items()) for part in pair)))
    return f"sha256:{digest.hexdigest()}"


def derived(prefix: str, *parts: str) -> str:
    """An id that depends on every part and on nothing else. The first part names the purpose."""
    return f"{prefix}_{letters(hashlib.sha256(framed(*parts)).digest()[:ID_CHARS])}"


def framed(*parts: str) -> bytes:
    """The parts as bytes that no other tuple of parts gives: each is preceded by its length in characters."""
    return "".join([f"{len(part)}:{part}" for part in parts]).encode()


def letters(data: bytes) -> str:
    """One letter or digit for each byte."""
    return data.translate(_OF_BYTE).decode("ascii")
