"""A real server, held to every case that a server is held to, by a fake worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from ryusen_conformance import fixtures, server_suite
from ryusen_conformance.report import Impossible
from ryusen_server.bootstrap import running_server


@pytest.mark.req("CNF-01", "CNF-10", "PRO-07", "PRO-12", "PRO-15", "PRO-16", "PRO-21", "PRO-22")
async def test_the_server_passes_every_case(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        results = [result async for result in server_suite.run(server.url)]
    assert [(result.case, result.why) for result in results if not result.passed] == []
    assert [result.case for result in results] == [case.name for case in fixtures.cases("server_sessions")]


async def test_what_is_no_server_is_told_as_that() -> None:
    for url, why in (("localhost", "no address of a server"), ("http://127.0.0.1:1", "no server answers: GET /v1/health")):
        with pytest.raises(Impossible, match=why):
            _ = [result async for result in server_suite.run(url, patience_s=2)]
