"""What a worker answers to one invocation (`protocol` 4)."""

from __future__ import annotations

from typing import Literal

import msgspec

from ryusen_protocol.declarations import Declaration, Location
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import RequestId, RunId, StepId
from ryusen_protocol.limits import Int53

MissingReason = Literal["no_compensator", "not_met", "hidden"]
RejectionReason = Literal["unsupported_target", "busy", "draining", "history_missing"]
BlockReason = Literal["duplicate_step_id", "declaration_conflict", "unknown_function", "replay_budget", "invalid_declaration"]


class Declared(msgspec.Struct, frozen=True, tag_field="type", tag="declared"):
    """Discovery: the body reached a step without an accepted outcome."""

    declaration: Declaration


class Completed(msgspec.Struct, frozen=True, tag_field="type", tag="completed"):
    """Discovery: the function returned this portable value."""

    result: msgspec.Raw


class Uncaught(msgspec.Struct, frozen=True, tag_field="type", tag="uncaught"):
    """Discovery: a failure escaped the function."""

    failure: ErrorRecord


class DefinitionBlocked(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="definition_blocked"):
    """Discovery: the current code contradicts itself, for instance one step id met twice in one pass."""

    reason: BlockReason
    step_id: StepId
    first: Location | None = None
    duplicate: Location | None = None


class Succeeded(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="succeeded"):
    """Effect: the callback returned this portable value."""

    result: msgspec.Raw
    attempt: Int53 | None = None
    attempt_generation: Int53 | None = None


class CallbackFailed(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="callback_failed"):
    """Effect: the callback raised."""

    failure: ErrorRecord
    attempt: Int53 | None = None
    attempt_generation: Int53 | None = None


class TargetNotFound(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="target_not_found"):
    """Effect: the current code does not reach the target, or has no compensator for it. No callback ran."""

    reason: MissingReason
    hidden_by: StepId | None = None
    attempt: Int53 | None = None
    attempt_generation: Int53 | None = None


class RejectedBeforeStart(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="rejected_before_start"):
    """Any target: no callback was invoked. An effect names its attempt and generation."""

    reason: RejectionReason
    attempt: Int53 | None = None
    attempt_generation: Int53 | None = None


DiscoveryOutcome = Declared | Completed | Uncaught | DefinitionBlocked
EffectOutcome = Succeeded | CallbackFailed | TargetNotFound
OutcomeBody = Declared | Completed | Uncaught | DefinitionBlocked | Succeeded | CallbackFailed | TargetNotFound | RejectedBeforeStart


class LogLine(msgspec.Struct, frozen=True):
    """One line a callback printed or logged.

    `level` is the logging level's name in lower case, `stdout` or `stderr`; `cut` marks where lines are missing.
    """

    at_ms: Int53
    level: str
    text: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="outcome"):
    """The one answer to an invocation, correlated by `request_id`, not by the session it travels on.

    `logs` is what the callback printed and logged, at most 64 KiB; lines that `log` frames told already may stand in it again.
    """

    protocol_version: Int53
    request_id: RequestId
    run_id: RunId
    outcome: OutcomeBody
    logs: list[LogLine] = []


class OutcomeWithoutLogs(msgspec.Struct, frozen=True, tag_field="type", tag="outcome"):
    """An outcome read without its `logs`: lines that cannot be read cost nobody an answer."""

    protocol_version: Int53
    request_id: RequestId
    run_id: RunId
    outcome: OutcomeBody
