"""The options of a step: retries, timeouts, compensators with policies of their own.

Owns their checks and their wire form. Everything wrong is a `MisuseError` that names the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from ryusen_protocol.declarations import RetryPolicy
from ryusen_protocol.durations import InvalidDuration, to_ms
from ryusen_protocol.ids import StepId
from ryusen_protocol.limits import ATTEMPTS_MAX, ID_BYTES_MAX, MANIFEST_TIMEOUT_MS_MAX, MULTIPLIER_MAX
from ryusen_sdk.errors import MisuseError

Span = str | float | timedelta
"""A duration: `"200ms"`, `"1.5s"`, `"2h30m"`, a timedelta, or a number of seconds."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When a reported failure is tried again. `max_attempts` counts reported failures: 1 means no retry.

    The delay starts at `initial`, grows by `multiplier` up to `maximum`, and is spread by `jitter`, a fraction of it (0 to 1).
    """

    max_attempts: int = 4
    initial: Span = "1s"
    multiplier: float = 2.0
    maximum: Span = "1m"
    jitter: float = 0.1
    policy: RetryPolicy = field(init=False, repr=False, compare=False)
    """The same as the wire tells it."""

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= ATTEMPTS_MAX:
            why = f"a whole number of at least 1, which means no retry, and at most {ATTEMPTS_MAX:,}"
            raise MisuseError(f"Retry(max_attempts={self.max_attempts!r:.60}): {why}")
        if not _is_between(self.multiplier, 1, MULTIPLIER_MAX):
            raise MisuseError(f"Retry(multiplier={self.multiplier!r:.60}): a number from 1 to {MULTIPLIER_MAX:,}")
        if not _is_between(self.jitter, 0, 1):
            raise MisuseError(f"Retry(jitter={self.jitter!r:.60}): a fraction from 0 to 1")
        policy = RetryPolicy(
            max_attempts=self.max_attempts,
            initial_ms=delay_ms("Retry(initial=…)", self.initial),
            multiplier=float(self.multiplier),
            maximum_ms=delay_ms("Retry(maximum=…)", self.maximum),
            jitter=float(self.jitter),
        )
        object.__setattr__(self, "policy", policy)


@dataclass(frozen=True, slots=True)
class Compensate:
    """A compensator with options of its own: `compensate=Compensate(refund_card, retry=10, timeout="5s")`."""

    function: Callable[..., object]
    retry: Retry | int | None = None
    timeout: Span | None = None

    def __post_init__(self) -> None:
        if not callable(cast("object", self.function)):
            raise MisuseError(f"Compensate(…) takes the compensator to call, not {shown(self.function)}")


def retry_policy(what: str, retry: Retry | int | None) -> RetryPolicy:
    """The wire form of `retry=`. Raises `MisuseError`."""
    if retry is None:
        return _DEFAULT.policy
    if isinstance(retry, Retry):
        return retry.policy
    if type(retry) is int:
        try:
            return Retry(max_attempts=retry).policy
        except MisuseError as refused:
            raise MisuseError(f"{what}: {refused}") from None
    raise MisuseError(f"{what}: retry= is a Retry or a number of attempts, not {shown(retry)}")


def timeout_ms(what: str, timeout: Span | None) -> int | None:
    """The whole milliseconds of a timeout, at least 1. Raises `MisuseError`."""
    if timeout is None:
        return None
    ms = delay_ms(f"the timeout of {what}", timeout)
    if ms < 1:
        raise MisuseError(f"the timeout of {what} is {timeout!r}; it must be longer than nothing")
    return ms


def delay_ms(what: str, delay: Span) -> int:
    """The whole milliseconds of a span, rounded up. Raises `MisuseError`."""
    try:
        ms = to_ms(delay)
    except InvalidDuration as refused:
        raise MisuseError(f"{what}: {refused}") from None
    if ms > MANIFEST_TIMEOUT_MS_MAX:
        raise MisuseError(f"{what} is {delay!r}, longer than {MANIFEST_TIMEOUT_MS_MAX} ms")
    return ms


def span_ms(what: str, span: Span) -> str:
    """A durable wait as the wire tells it: whole milliseconds as a decimal, 0 for what is due at once. Raises `MisuseError`."""
    try:
        return str(to_ms(span))
    except InvalidDuration as refused:
        raise MisuseError(f"{what}: {refused}") from None


def instant_ms(what: str, when: datetime) -> str:
    """An instant as the wire tells it: epoch milliseconds as a decimal, rounded up so that nothing wakes early. Raises `MisuseError`."""
    if not isinstance(cast("object", when), datetime):
        raise MisuseError(f"{what} is a datetime with a time zone, not {shown(when)}")
    if when.utcoffset() is None:
        raise MisuseError(f"{what} is {when.isoformat()}, which names no instant without a time zone; write datetime.now(UTC) + …")
    return str(-((_EPOCH - when) // _MILLISECOND))


def pairs(what: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Text to text, as metadata and a wait's `match` have it. Raises `MisuseError`."""
    if given is None:
        return {}
    if not isinstance(cast("object", given), Mapping):
        raise MisuseError(f"{what} is a mapping of text to text, not {shown(given)}")
    for name, value in given.items():
        if not isinstance(cast("object", name), str) or not isinstance(cast("object", value), str):
            raise MisuseError(f"{what} maps text to text, and {shown(name)} to {shown(value)} is something else; write str(…)")
    return {str(name): str(value) for name, value in given.items()}


def checked_step_id(step_id: str) -> StepId:
    """The id of a step about to be declared. Raises `MisuseError`."""
    try:
        size = len(step_id.encode())
    except UnicodeEncodeError:
        raise MisuseError(f"the step id {step_id!r} is not valid Unicode") from None
    if size > ID_BYTES_MAX or "\x00" in step_id:
        raise MisuseError(f"the step id {step_id[:80]!r} has {size} bytes; an id has at most {ID_BYTES_MAX} and no NUL")
    return StepId(step_id)


def shown(value: object) -> str:
    """A short spelling for a message."""
    return f"{value!r:.60} ({type(value).__name__})"


def _is_between(value: object, least: int, most: int) -> bool:
    return type(value) in {int, float} and least <= cast("float", value) <= most


def checked_name(step_id: str, name: object) -> str:
    """The display name of a step: its id unless given. Raises `MisuseError`."""
    if name is None:
        return step_id
    if not isinstance(name, str) or len(name) > ID_BYTES_MAX or len(name.encode("utf-8", "ignore")) < len(name):
        raise MisuseError(f"step {step_id!r}: name= is text of at most {ID_BYTES_MAX} characters, not {shown(name)}")
    return str(name)


_DEFAULT: Final = Retry()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
