"""A failing network between server and workers, over each transport: what is ambiguous is Unknown, what never began goes out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.network.campaign import Campaign, Transport

CASES = 75


@pytest.mark.req("HTT-05", "HTT-08", "CON-04", "CON-05")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("transport", ["http", "connected"])
async def test_whatever_the_network_does_no_effect_is_guessed_at(tmp_path: Path, transport: Transport, seed: int) -> None:
    report = await Campaign(transport, CASES, seed).run(tmp_path)
    assert report.cases >= CASES
    assert {"succeeded", "queued again", "unknown"} >= set(report.fates) - {"retry_authorized"}
    assert report.fates["queued again"] > 0
    assert report.fates["unknown"] > 0
