"""Recorded values are read once, and every reader owns what it gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from ryusen_protocol.values import BlobRef
from ryusen_sdk.convert import to_wire
from ryusen_sdk.errors import ConversionError
from ryusen_sdk.recall import TEXT_BYTES_MAX, Recall

RICH = {
    "list": [1, {"deep": [b"\x00", None]}, []],
    "text": "é",
    "float": -0.0,
    "when": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "took": timedelta(microseconds=-1),
    "blob": BlobRef("s3://b/k", 1, "0" * 64, "text/plain"),
    "yes": True,
}


def test_a_body_that_changes_what_it_was_given_changes_nothing_for_the_next_pass() -> None:
    recall = Recall()
    recorded = to_wire(RICH)
    for _ in range(3):
        given = recall.value(recorded)
        assert given == RICH
        assert str(given["float"]) == "-0.0"
        assert type(given["yes"]) is bool
        given["list"][1]["deep"].append("mine")
        given["list"][2].append("mine")
        given.clear()


def test_what_is_kept_is_bounded_and_long_texts_are_not_kept() -> None:
    recall = Recall(bytes_max=1_000)
    for number in range(200):
        assert recall.value(to_wire({"n": number})) == {"n": number}
        assert recall.kept_bytes <= 1_000
    assert recall.kept_bytes > 500
    before = recall.kept_bytes
    long = "x" * TEXT_BYTES_MAX
    assert recall.value(to_wire(long)) == long
    assert recall.kept_bytes == before


def test_a_text_that_cannot_be_read_is_refused_each_time() -> None:
    recall = Recall()
    for _ in range(2):
        with pytest.raises(ConversionError):
            recall.value(msgspec.Raw(b'{"type":"i64","value":"01"}'))
    assert recall.kept_bytes == 0


def test_threads_may_ask_at_once() -> None:
    recall = Recall(bytes_max=2_000)
    recorded = [to_wire([number, {"n": number}]) for number in range(100)]

    def read(number: int) -> object:
        return recall.value(recorded[number % 100])

    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(read, range(2_000)))
    assert values == [[number % 100, {"n": number % 100}] for number in range(2_000)]
    assert recall.kept_bytes <= 2_000
