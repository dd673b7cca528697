"""Workers, releases and functions as readers page through them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.scope import Scope
from ryusen_server.ports.worker import Exchange, ExchangeEnd
from tests.api.api_harness import W, api_server


class _Unused:
    def invoke(self, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        raise AssertionError("nothing is asked of it")


@pytest.mark.req("API-08")
async def test_an_endpoint_that_serves_several_applications_is_a_worker_of_each_on_every_page(tmp_path: Path) -> None:
    applications = [f"app-{number}" for number in range(8)]
    async with api_server(tmp_path, memory=True) as api:
        for name in applications:
            api.server.engine.attach_endpoint(Scope(Workspace("default"), Application(name)), "http://127.0.0.1:9/x", _Unused(), 4)
        found: list[str] = []
        query: dict[str, Any] = {}
        while True:
            page = await api.get(f"{W}/workers", limit=1, **query)
            found += [worker["application"] for worker in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
    assert found == applications


async def test_a_list_of_the_longest_and_worst_names_can_be_paged_to_its_end(tmp_path: Path) -> None:
    async with api_server(tmp_path, memory=True) as api:
        functions = [{"id": "\x01" * 255 + letter} for letter in "abc"]
        manifest = {"protocol_version": 1, "expected_parent": None, "functions": functions, "triggers": [], "contents": ""}
        await api.post(f"{W}/applications/{'%01' * 256}/manifests", manifest, 201)
        found: list[str] = []
        query: dict[str, Any] = {}
        while True:
            page = await api.get(f"{W}/functions", limit=1, **query)
            found += [function["function"] for function in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
    assert found == [function["id"] for function in functions]
