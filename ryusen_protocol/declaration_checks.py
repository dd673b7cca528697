"""What of a declaration a type cannot express: domains of numbers, members a kind does not take, names, sizes.

Pure, and the same for whoever writes declarations and whoever reads them. Refuses to know any run: what a declaration contradicts of a
run's record is the server's to say.
"""

from __future__ import annotations

import re
from typing import Final, assert_never

import msgspec

from ryusen_protocol.declarations import (
    ChildDeclaration,
    Declaration,
    EmissionDeclaration,
    EventWaitDeclaration,
    RetryPolicy,
    RunDeclaration,
    TimerDeclaration,
    WithoutCallback,
)
from ryusen_protocol.limits import (
    ATTEMPTS_MAX,
    DURATION_MS_MAX,
    METADATA_BYTES_MAX,
    METADATA_PAIRS_MAX,
    MIB,
    MULTIPLIER_MAX,
    PAYLOAD_BYTES_MAX,
)
from ryusen_protocol.submission import identifier_problem, utf8_size
from ryusen_protocol.values import I64_MAX, I64_MIN, InvalidValue, decode, encode

_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_DECIMAL_CHARACTERS_MAX: Final = 20


class InvalidDeclaration(ValueError):
    """Not a declaration of its kind. The message says what is wrong, as the end of a sentence that names the step."""


def check_declaration(declaration: Declaration) -> None:
    """Raise `InvalidDeclaration` for the first thing wrong with it."""
    problem = identifier_problem("step id", declaration.step_id, "$.outcome.declaration.step_id")
    if problem is not None:
        raise InvalidDeclaration(problem.detail)
    match declaration:
        case RunDeclaration():
            _check_policies(declaration)
            return
        case TimerDeclaration():
            _check_timer(declaration)
        case EventWaitDeclaration():
            _check_name("event name", declaration.event_name)
            _check_pairs("correlation", declaration.correlation)
            timeout_of(declaration)
        case ChildDeclaration():
            _check_name("function", declaration.function)
            child_input(declaration)
            timeout_of(declaration)
        case EmissionDeclaration():
            _check_name("event name", declaration.event_name)
            _check_pairs("metadata", declaration.metadata)
            emitted_payload(declaration)
        case _:
            assert_never(declaration)
    _check_run_members(declaration)


def timer_delay_ms(declaration: TimerDeclaration) -> int | None:
    """The relative delay, 0 to 2**64 - 1 ms; none for an absolute timer. Raises `InvalidDeclaration`."""
    return None if declaration.delay_ms is None else _number("delay_ms", declaration.delay_ms, 0, DURATION_MS_MAX)


def timer_deadline_ms(declaration: TimerDeclaration) -> int | None:
    """The absolute instant, any i64 of epoch ms; none for a relative timer. Raises `InvalidDeclaration`."""
    return None if declaration.deadline_ms is None else _number("deadline_ms", declaration.deadline_ms, I64_MIN, I64_MAX)


def timeout_of(declaration: EventWaitDeclaration | ChildDeclaration) -> int | None:
    """The timeout, 0 to 2**64 - 1 ms; a child may have none. Raises `InvalidDeclaration`."""
    return None if declaration.timeout_ms is None else _number("timeout_ms", declaration.timeout_ms, 0, DURATION_MS_MAX)


def emitted_payload(declaration: EmissionDeclaration) -> bytes:
    """The exact bytes an emission sends. Raises `InvalidDeclaration` for any value but bytes, or beyond the payload limit."""
    try:
        payload = decode(declaration.payload)
    except InvalidValue as refused:
        raise InvalidDeclaration(f"its payload is not a portable bytes value: {refused}") from None
    if not isinstance(payload, bytes):
        raise InvalidDeclaration("its payload is a portable value of another kind than bytes.")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidDeclaration(f"its payload of {len(payload):,} bytes is over the limit of {PAYLOAD_BYTES_MAX // MIB} MiB.")
    return payload


def child_input(declaration: ChildDeclaration) -> msgspec.Raw:
    """The child's input in canonical form. Raises `InvalidDeclaration` unless it is a portable value within the limit of an input.

    The limit is that of an event's payload: of the bytes, where the input is bytes, and of the canonical text of any other value.
    """
    try:
        value = decode(declaration.input)
        canonical = encode(value)
    except InvalidValue as refused:
        raise InvalidDeclaration(f"its input is not a portable value: {refused}") from None
    size = len(value) if isinstance(value, bytes) else len(canonical)
    if size > PAYLOAD_BYTES_MAX:
        raise InvalidDeclaration(f"its input of {size:,} bytes is over the limit of {PAYLOAD_BYTES_MAX // MIB} MiB.")
    return msgspec.Raw(canonical)


def _number(name: str, text: str, least: int, most: int) -> int:
    if len(text) <= _DECIMAL_CHARACTERS_MAX and _DECIMAL.fullmatch(text):
        number = int(text)
        if least <= number <= most:
            return number
    raise InvalidDeclaration(f"its {name} is {text[:64]!r}; it must be a decimal string from {least} to {most} without leading zeros.")


def _check_timer(declaration: TimerDeclaration) -> None:
    if (timer_delay_ms(declaration) is None) == (timer_deadline_ms(declaration) is None):
        raise InvalidDeclaration("a timer has exactly one of delay_ms and deadline_ms.")


def _check_name(what: str, text: str) -> None:
    problem = identifier_problem(what, text, "$.outcome.declaration")
    if problem is not None:
        raise InvalidDeclaration(problem.detail)


def _check_pairs(what: str, pairs: dict[str, str]) -> None:
    if len(pairs) > METADATA_PAIRS_MAX:
        raise InvalidDeclaration(f"its {what} has {len(pairs)} pairs; at most {METADATA_PAIRS_MAX} are allowed.")
    for pair in pairs.items():
        for part in pair:
            size = utf8_size(part)
            if size is None:
                raise InvalidDeclaration(f"its {what} is not valid Unicode: it holds half of a surrogate pair.")
            if size > METADATA_BYTES_MAX:
                raise InvalidDeclaration(f"its {what} has a key or value of {size:,} bytes; at most {METADATA_BYTES_MAX:,} are allowed.")


def _check_run_members(declaration: WithoutCallback) -> None:
    kind = declaration.__struct_config__.tag
    if declaration.has_compensation is True or declaration.compensation:
        raise InvalidDeclaration(f"a step of the kind `{kind}` has no compensator; only a `run` step is undone.")
    if declaration.attempt_timeout_ms not in (None, msgspec.UNSET):
        raise InvalidDeclaration(f"a step of the kind `{kind}` has no attempt timeout; only a `run` step has a callback.")
    retry = declaration.retry
    if not isinstance(retry, RetryPolicy):
        return
    if not isinstance(declaration, EmissionDeclaration):
        raise InvalidDeclaration(f"a step of the kind `{kind}` has no retry policy; only a `run` step has a callback.")
    if retry.max_attempts != 1:
        raise InvalidDeclaration(f"an emission is accepted once: its max_attempts is {retry.max_attempts}, and only 1 is possible.")


def _check_policies(declaration: RunDeclaration) -> None:
    policies = [("retry", declaration.retry, declaration.attempt_timeout_ms)]
    if declaration.compensation is not None:
        policies.append(("compensation", declaration.compensation.retry, declaration.compensation.attempt_timeout_ms))
    for name, retry, timeout_ms in policies:
        problem = _retry_problem(retry)
        if problem is not None:
            raise InvalidDeclaration(f"its {name} policy has {problem}.")
        if timeout_ms is not None and not 0 <= timeout_ms < 2**53:
            raise InvalidDeclaration(f"its {name} attempt timeout is {timeout_ms} ms; it must be 0 to 2**53 - 1.")


def _retry_problem(retry: RetryPolicy) -> str | None:
    if not 1 <= retry.max_attempts <= ATTEMPTS_MAX:
        return f"max_attempts {retry.max_attempts}; it must be 1 to {ATTEMPTS_MAX:,}"
    if not 0 <= retry.initial_ms < 2**53 or not 0 <= retry.maximum_ms < 2**53:
        return "a delay outside 0 to 2**53 - 1 ms"
    if not 1 <= retry.multiplier <= MULTIPLIER_MAX:
        return f"multiplier {retry.multiplier}; it must be 1 to {MULTIPLIER_MAX:,}"
    if not 0 <= retry.jitter <= 1:
        return f"jitter {retry.jitter}; it must be 0 to 1"
    return None
