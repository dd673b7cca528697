"""What the server counts: the text's format, and that the figures are those of what happened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ryusen_server.api.exposition import Family, Sample, exposition, histogram
from tests.api.api_harness import ApiHarness, W, api_server
from tests.api.following import following
from tests.gateway.worker_peer import worker_peer

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? (\+Inf|-?[0-9.e+-]+)')


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        await harness.publish()
        yield harness


async def metrics(api: ApiHarness) -> dict[str, float]:
    """Every sample by its name with labels. Each family is announced before its samples, once."""
    answer = await api.client.get("/v1/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples: dict[str, float] = {}
    announced: list[str] = []
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            announced.append(line.split()[2])
        elif not line.startswith("# HELP "):
            assert LINE.fullmatch(line), line
            assert line.startswith(announced[-1])
            name, _, value = line.rpartition(" ")
            assert name not in samples
            samples[name] = float(value)
    assert len(announced) == len(set(announced))
    return samples


async def test_figures_are_those_of_what_happened(api: ApiHarness) -> None:
    assert (await metrics(api))['ryusen_workers{transport="connected",state="connected"}'] == 0, "nobody there is told, not left out"
    async with worker_peer(api.server.url, capacity=7) as peer:
        playing = asyncio.create_task(peer.play(["charge", "ship"]))
        for _ in range(3):
            await api.send(wait_ms=5000)
        playing.cancel()
        found = await metrics(api)
        assert found['ryusen_workers{transport="connected",state="connected"}'] == 1
        assert found["ryusen_worker_capacity"] == 7
    await api.send()
    await api.client.get("/v1/no/such/route")
    await api.client.get(f"{W}/runs/none")
    async with following(api) as reader:
        await reader.next("heartbeat")
        found = await metrics(api)
    assert found['ryusen_runs{status="ended"}'] == 3
    assert found['ryusen_runs{status="running"}'] == found["ryusen_queue_depth"] == 1
    assert found['ryusen_runs_ended_total{outcome="succeeded"}'] == 3
    assert found['ryusen_attempts_settled_total{state="succeeded"}'] == 6
    assert found['ryusen_attempts{state="authorized"}'] == found["ryusen_attempts_unknown"] == 0
    assert found["ryusen_events"] == 4
    assert found["ryusen_stream_readers"] == 1
    assert found['ryusen_http_requests_total{method="POST",route="/v1/workspaces/{workspace}/events",status="201"}'] == 4
    assert found['ryusen_http_requests_total{method="GET",route="/v1/workspaces/{workspace}/runs/{run_id}",status="404"}'] == 1
    assert found['ryusen_http_requests_total{method="GET",route="none",status="404"}'] == 1
    assert found['ryusen_http_requests_open{route="/v1/workspaces/{workspace}/stream"}'] == 1
    commits = found["ryusen_commit_seconds_count"]
    assert commits == found["ryusen_commit_units_count"] > 4
    assert found['ryusen_commit_seconds_bucket{le="+Inf"}'] == commits
    assert found["ryusen_commit_units_sum"] >= commits
    assert found["ryusen_store_bytes"] > 4096
    assert found["process_resident_memory_bytes"] > 10_000_000


async def test_labels_are_bounded_whatever_is_asked(api: ApiHarness) -> None:
    for number in range(50):
        await api.client.get(f"/{number}")
        await api.client.get(f"/v1/workspaces/w{number}/runs")
        await api.send(f"name/{number}")
        await api.raw(f"X{number} / HTTP/1.1\r\nhost: {api.authority}\r\n\r\n".encode())
    found = await metrics(api)
    assert sum(name.startswith("ryusen_http_requests_total") for name in found) < 8
    assert len(found) < 150


def test_names_and_texts_are_escaped() -> None:
    family = Family("m", "gauge", "one\ntwo \\", [Sample(1.5, {"a": 'x"y\\\n'})])
    assert exposition([family]) == b'# HELP m one\\ntwo \\\\\n# TYPE m gauge\nm{a="x\\"y\\\\\\n"} 1.5\n'


def test_buckets_add_up() -> None:
    family = histogram("h", "s", (1, 2), (3, 0, 4), 20.0)
    assert exposition([family]).splitlines()[2:] == [
        b'h_bucket{le="1"} 3', b'h_bucket{le="2"} 3', b'h_bucket{le="+Inf"} 7', b"h_sum 20", b"h_count 7",
    ]  # fmt: skip
