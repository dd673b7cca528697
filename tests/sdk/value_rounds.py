"""Generated Python values, to the wire and back, in the time zone that TZ names: `python -m tests.sdk.value_rounds --count 100000`.

Prints one line: how many came back with their types, and a digest over all canonical bytes, which no time zone may change.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from ryusen_sdk import BlobRef
from ryusen_sdk.convert import from_wire, to_wire

EDGES: list[Any] = [0, 1, -1, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
FLOATS: list[Any] = [0.0, -0.0, 1.0, -1.0, 5e-324, 1.7976931348623157e308, 1e21, 1e-7, 0.1, 2.0**53, 4.35, 333333333.33333329]
TEXTS: list[Any] = ["", "a", "\x00", "é", "e\u0301", "😀", "\u2028", '"\\', "\uffff", "\U0010ffff", "ключ", "true", "1", "-0", "NaN"]
SPANS: list[Any] = [timedelta(0), timedelta.min, timedelta.max, timedelta.resolution, -timedelta.resolution, timedelta(hours=25)]
ZONES = [
    UTC,
    timezone(timedelta(hours=5, minutes=45)),
    timezone(-timedelta(hours=9, minutes=30)),
    ZoneInfo("Europe/Berlin"),
    ZoneInfo("Asia/Tokyo"),
]
FIRST, LAST = datetime(1, 1, 3), datetime(9999, 12, 29)  # noqa: DTZ001 - a zone is given below; a day and more from the ends in any of them
NESTED_MOST = 6


def leaf(chance: random.Random) -> Any:
    match chance.randrange(12):
        case 0:
            return chance.choice(EDGES) if chance.random() < 0.3 else chance.randint(-(2**63), 2**64 - 1)
        case 1:
            return chance.randint(-1000, 1000)
        case 2:
            return chance.choice(FLOATS) if chance.random() < 0.3 else finite(chance)
        case 3 | 4:
            return text(chance)
        case 5:
            return chance.randbytes(chance.randrange(40))
        case 6 | 7:
            return moment(chance)
        case 8:
            return chance.choice(SPANS) if chance.random() < 0.3 else timedelta(microseconds=chance.randint(-(10**17), 10**17))
        case 9:
            return chance.choice([True, False, None])
        case 10:
            return BlobRef(text(chance), chance.randint(0, 2**64 - 1), chance.randbytes(32).hex(), "text/plain")
        case _:
            return chance.choice([[], {}, "", b"", None])


def finite(chance: random.Random) -> float:
    """Any double but the non-finite, every bit pattern alike."""
    while True:
        (value,) = struct.unpack("<d", chance.randbytes(8))
        if math.isfinite(value):
            return value


def text(chance: random.Random) -> str:
    if chance.random() < 0.4:
        return chance.choice(TEXTS)
    planes = [(0x20, 0x7E), (0xA0, 0x24F), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0xE000, 0xFFFD)]
    low, high = chance.choice(planes)
    return "".join(chr(chance.randint(low, high)) for _ in range(chance.randrange(12)))


def moment(chance: random.Random) -> datetime:
    if chance.random() < 0.05:
        return chance.choice([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    span = (LAST - FIRST) // timedelta(microseconds=1)
    local = FIRST + timedelta(microseconds=chance.randrange(span))
    if chance.random() < 0.2:
        local = datetime(2024, 10, 27, 2, 30, 0, chance.randrange(10**6))  # noqa: DTZ001 - an hour that comes twice in Berlin
    return local.replace(tzinfo=chance.choice(ZONES), fold=chance.randrange(2))


def value(chance: random.Random, depth: int = 0) -> Any:
    if depth < NESTED_MOST and chance.random() < (0.6 if depth == 0 else 0.25):
        size = chance.randrange(5)
        if chance.random() < 0.5:
            return [value(chance, depth + 1) for _ in range(size)]
        return {text(chance): value(chance, depth + 1) for _ in range(size)}
    return leaf(chance)


def same(left: Any, right: Any) -> bool:
    """Equal in type as well as in value, minus zero and what zone an instant was told in included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, datetime):
        return left - right == timedelta(0) and left.astimezone(UTC) == right and right.tzinfo is UTC
    return left == right


def rounds(count: int, seed: int) -> str:
    """The digest over the canonical bytes of `count` values. Raises `AssertionError` for one that came back as another."""
    chance = random.Random(seed)
    digest = hashlib.sha256()
    for index in range(count):
        given = value(chance)
        wire = to_wire(given)
        back = from_wire(wire)
        assert same(given, back), f"value {index} of seed {seed}: {given!r} came back as {back!r}"
        assert bytes(to_wire(back)) == bytes(wire), f"value {index} of seed {seed} has two forms"
        digest.update(wire)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(options.count, "values came back with their types;", rounds(options.count, options.seed))


if __name__ == "__main__":
    main()
