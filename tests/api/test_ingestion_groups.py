"""A thousand groups of submissions, many at a time: each comes to exactly what it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.ingestion_groups import KINDS, campaign


@pytest.mark.req("ING-02", "ING-04", "ING-05", "ACC-34", "ACC-35", "ACC-36")
async def test_every_group_comes_to_what_it_must(tmp_path: Path) -> None:
    done = await campaign(tmp_path, 1_000, seed=7)
    assert done.deviations == []
    assert set(done.kinds) == set(KINDS)
    assert sum(done.created.values()) > 1_000
