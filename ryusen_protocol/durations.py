"""Human durations and the whole milliseconds that alone cross the wire.

Owns the spelling (`"200ms"`, `"1.5s"`, `"2h30m"`, `"1d"`, numbers of seconds, `timedelta`) and the rounding: a positive span rounds
up, so a wait never ends early; zero stays zero; a negative one is due at once.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from ryusen_protocol.limits import DURATION_MS_MAX

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_UNITS_MS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
_AMOUNT: Final = r"[0-9]+(?:\.[0-9]+)?"
_FORM: Final = re.compile("(-)?" + "".join(f"(?:({_AMOUNT}){unit})?" for unit in _UNITS_MS), re.ASCII)
"""Each unit at most once, the largest first. `m` before `ms` is safe: the match backtracks."""
_TEXT_CHARACTERS_MAX: Final = 64
_ACCEPTED: Final = 'write "200ms", "1.5s", "2h30m", "1d", a number of seconds, or a timedelta'


class InvalidDuration(ValueError):
    """Not a duration, or one beyond 2**64 - 1 milliseconds. The message names the forms that are taken."""


def to_ms(value: str | float | timedelta) -> int:
    """Whole milliseconds, 0 to 2**64 - 1. Numbers are seconds. Raises `InvalidDuration`."""
    exact_ms = _exact_ms(value)
    if exact_ms <= 0:
        return 0
    whole_ms = math.ceil(exact_ms)
    if whole_ms > DURATION_MS_MAX:
        raise InvalidDuration(f"{_shown(value)} is longer than {DURATION_MS_MAX} ms, the longest duration")
    return whole_ms


def format_ms(ms: int) -> str:
    """A span for people, two units at most: `310ms`, `1.8s`, `2m`, `2m5s`, `2h30m`, `1d4h`. Rounded to what is shown."""
    if ms < 0:
        return "-" + format_ms(-ms)
    if ms < SECOND_MS:
        return f"{ms}ms"
    tenths = _rounded(ms, 100)
    if tenths < 600:
        return f"{tenths // 10}s" if tenths % 10 == 0 else f"{tenths / 10:.1f}s"
    seconds = _rounded(ms, SECOND_MS)
    if seconds < 3_600:
        return _two(seconds, 60, "m", "s")
    minutes = _rounded(ms, MINUTE_MS)
    if minutes < 1_440:
        return _two(minutes, 60, "h", "m")
    return _two(_rounded(ms, HOUR_MS), 24, "d", "h")


def _exact_ms(value: object) -> Fraction:
    match value:
        case bool():
            pass
        case str():
            return _parse(value)
        case int():
            return Fraction(int(value) * SECOND_MS)
        case float() if math.isfinite(value):
            # The shortest decimal is what was written: 0.1 is 100 ms, not the 100.000000000000005 that the double holds.
            return Fraction(float.__repr__(value)) * SECOND_MS
        case timedelta():
            return Fraction(value // timedelta(microseconds=1), 1_000)
        case _:
            pass
    raise InvalidDuration(f"{_shown(value)} is not a duration; {_ACCEPTED}")


def _parse(text: str) -> Fraction:
    form = _FORM.fullmatch(text) if len(text) <= _TEXT_CHARACTERS_MAX else None
    if form is None or not any(form.groups()[1:]):
        raise InvalidDuration(f"{_shown(text)} is not a duration; {_ACCEPTED}")
    sign, *amounts = form.groups()
    total = sum((Fraction(amount) * unit for amount, unit in zip(amounts, _UNITS_MS.values(), strict=True) if amount), Fraction())
    return -total if sign else total


def _rounded(ms: int, unit_ms: int) -> int:
    return (ms + unit_ms // 2) // unit_ms


def _two(count: int, size: int, large: str, small: str) -> str:
    whole, rest = divmod(count, size)
    return f"{whole}{large}{rest}{small}" if rest else f"{whole}{large}"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return ascii(value) if len(value) <= _TEXT_CHARACTERS_MAX else ascii(value[:_TEXT_CHARACTERS_MAX]) + "…"
    if isinstance(value, bool | float | timedelta):
        return str(value)
    if isinstance(value, int):
        return f"a number of {value.bit_length()} bits"
    return f"a {type(value).__name__}"
