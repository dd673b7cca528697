"""What a discovery pass declares: one durable step (`protocol` 4).

`delay_ms`, `timeout_ms` and `deadline_ms` are decimal strings, exact in every language; every other time is an integer of
milliseconds below 2**53. Only a `run` step has a callback, so it alone takes a retry policy, an attempt timeout and a compensator. Another
kind keeps those members when a worker sends them, so that `declaration_checks` can refuse them by name.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import FunctionId, StepId
from ryusen_protocol.limits import Int53


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where in the user's source something stands. Diagnostic only."""

    file: str
    line: Int53
    name: str | None = None


class RetryPolicy(msgspec.Struct, frozen=True):
    """When a reported failure is tried again: `initial_ms * multiplier**n`, at most `maximum_ms`, spread by `jitter`.

    `max_attempts` counts reported failures; 1 means no retry. `jitter` is a fraction of the delay, 0 to 1.
    """

    max_attempts: Int53 = 4
    initial_ms: Int53 = 1_000
    multiplier: float = 2.0
    maximum_ms: Int53 = 60_000
    jitter: float = 0.1


DEFAULT_RETRY = RetryPolicy()


class CompensationPolicy(msgspec.Struct, frozen=True):
    """The retry policy and attempt timeout a compensator had when its step was declared."""

    retry: RetryPolicy = DEFAULT_RETRY
    attempt_timeout_ms: Int53 | None = None


class RunDeclaration(msgspec.Struct, frozen=True, tag_field="kind", tag="run"):
    """A `step.run`: one effect with an optional compensator. `has_compensation` is a historical fact and gates nothing."""

    step_id: StepId
    name: str | None = None
    location: Location | None = None
    has_compensation: bool = False
    retry: RetryPolicy = DEFAULT_RETRY
    attempt_timeout_ms: Int53 | None = None
    compensation: CompensationPolicy | None = None


class WithoutCallback(msgspec.Struct, frozen=True, kw_only=True):
    """What only a `run` step takes: unset in every valid declaration of another kind, and never written."""

    has_compensation: bool | msgspec.UnsetType = msgspec.UNSET
    retry: RetryPolicy | msgspec.UnsetType | None = msgspec.UNSET
    attempt_timeout_ms: Int53 | msgspec.UnsetType | None = msgspec.UNSET
    compensation: CompensationPolicy | msgspec.UnsetType | None = msgspec.UNSET


class TimerDeclaration(WithoutCallback, frozen=True, omit_defaults=True, tag_field="kind", tag="timer"):
    """A durable wait: exactly one of a relative delay (u64 ms) and an absolute instant (i64 epoch ms)."""

    step_id: StepId
    name: str | None = None
    location: Location | None = None
    delay_ms: str | None = None
    deadline_ms: str | None = None


class EventWaitDeclaration(WithoutCallback, frozen=True, tag_field="kind", tag="event_wait"):
    """A durable wait for the first event of that name whose metadata carries every pair of `correlation`."""

    step_id: StepId
    event_name: str
    correlation: dict[str, str]
    timeout_ms: str
    name: str | None = None
    location: Location | None = None


class ChildDeclaration(WithoutCallback, frozen=True, omit_defaults=True, tag_field="kind", tag="child"):
    """An invocation of another function of the same application as a run of its own."""

    step_id: StepId
    function: FunctionId
    input: msgspec.Raw
    timeout_ms: str | None = None
    name: str | None = None
    location: Location | None = None


class EmissionDeclaration(WithoutCallback, frozen=True, tag_field="kind", tag="emission"):
    """An event accepted on behalf of the run. `payload` is a portable bytes value."""

    step_id: StepId
    event_name: str
    payload: msgspec.Raw
    metadata: dict[str, str] = {}
    name: str | None = None
    location: Location | None = None


Declaration = RunDeclaration | TimerDeclaration | EventWaitDeclaration | ChildDeclaration | EmissionDeclaration
