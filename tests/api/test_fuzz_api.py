"""Thousands of requests made up from the OpenAPI document: each answer is one that the document promises, none is a server's failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.api.fuzz_api import Campaign, live_a_little, resident_bytes, server_process

REQUESTS = 1_000
SHARES = 2
MEMORY_GROWTH_BYTES_MAX = 50 * 1024 * 1024


@pytest.mark.parametrize("share", range(SHARES))
def test_every_answer_is_one_that_the_document_promises(share: int, tmp_path: Path) -> None:
    with server_process(tmp_path) as (url, pid):
        asyncio.run(live_a_little(url))
        campaign = Campaign(url, seed=share)
        campaign.every_reading_route()
        before = resident_bytes(pid)
        campaign.run(REQUESTS, share=share, of=SHARES)
        after = resident_bytes(pid)
        assert campaign.sent >= REQUESTS
        assert {200, 400, 404} <= set(campaign.statuses)
        if before is not None and after is not None:
            assert after - before < MEMORY_GROWTH_BYTES_MAX
