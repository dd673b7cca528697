"""A small share of the campaign that `make fuzz` runs."""

from __future__ import annotations

import pytest

from tests.protocol.fuzz_codec import READERS, campaign, seeds


@pytest.mark.req("PRO-22", "VAL-12")
def test_damaged_documents_are_read_or_refused_and_nothing_else() -> None:
    told, _ = campaign(6_000, seed=2)
    assert told["unknown members ignored"] > 100
    assert told["unknown variant named"] > 100
    for reader in READERS:
        assert told[f"{reader} took"] + told[f"{reader} refused"] > 50


def test_every_reader_has_seeds() -> None:
    assert {seed.reader for seed in seeds()} == READERS.keys() - {"json"}
