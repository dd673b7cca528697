"""The Python SDK as a connected worker, held to every case that a worker of any language is held to."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from ryusen_conformance import executions, fixtures, worker_suite
from ryusen_conformance.report import Impossible, Result

PYTHON_WORKER = [sys.executable, "-m", "ryusen_cli", "worker", "ryusen_conformance.registry"]


@pytest.mark.req(
    "CNF-01", "CNF-02", "CNF-03", "CNF-04", "CNF-10", "PRO-01", "PRO-06", "PRO-07", "PRO-08", "PRO-12", "PRO-13", "PRO-14", "PRO-16",
    "PRO-19", "PRO-21", "PRO-22", "PRO-23", "SDK-06", "SDK-07", "VAL-02", "VAL-11",
)  # fmt: skip
async def test_the_python_worker_passes_every_case() -> None:
    results = [result async for result in worker_suite.run(PYTHON_WORKER)]
    assert [(result.suite, result.case, result.why) for result in results if not result.passed] == []
    ran = Counter(result.suite for result in results)
    assert ran[executions.SUITE] == len(fixtures.cases("executions"))
    assert ran[worker_suite.SUITE] == len(fixtures.cases("worker_sessions"))
    assert ran[executions.VALUES_SUITE] > 100


async def run(command: list[str]) -> list[Result]:
    return [result async for result in worker_suite.run(command, patience_s=2)]


async def test_what_is_no_worker_is_told_as_that() -> None:
    with pytest.raises(Impossible, match="no-such-program cannot be started"):
        await run(["no-such-program"])
    with pytest.raises(Impossible, match=r"no worker registered: no worker connected within 2 s\. It printed:\nnothing here"):
        await run([sys.executable, "-c", "print('nothing here')"])
