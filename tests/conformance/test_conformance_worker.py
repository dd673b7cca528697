"""The Python SDK as a connected worker, held from an installed wheel to every case that a worker of any language is held to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from ryusen_conformance import executions, fixtures, worker_suite
from ryusen_conformance.report import Impossible, Result

ROOT = Path(__file__).parents[2]


def installed(folder: Path) -> Path:
    """The contents of a freshly built wheel."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(build, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.mark.req(
    "CNF-01", "CNF-02", "CNF-03", "CNF-04", "CNF-10", "PRO-01", "PRO-06", "PRO-07", "PRO-08", "PRO-12", "PRO-13", "PRO-14", "PRO-16",
    "PRO-19", "PRO-21", "PRO-22", "PRO-23", "SDK-06", "SDK-07", "VAL-02", "VAL-11", "ACC-25", "ACC-32",
)  # fmt: skip
def test_the_python_worker_passes_every_case_from_an_installed_wheel(tmp_path: Path) -> None:
    home = installed(tmp_path)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RYUSEN_")}
    worker = [sys.executable, "-m", "ryusen_cli", "worker", "ryusen_conformance.registry"]
    command = [sys.executable, "-m", "ryusen_cli", "conformance", "worker", "--json", "--", *worker]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**clean, "PYTHONPATH": str(home)}, capture_output=True, text=True, timeout=180, check=False
    )
    told = json.loads(ran.stdout)
    assert [result for result in told["results"] if not result["passed"]] == []
    assert (ran.returncode, told["failed"], told["passed"]) == (0, 0, len(told["results"]))
    counted = Counter(result["suite"] for result in told["results"])
    carried = home / "ryusen_conformance" / "fixtures"
    assert {path.relative_to(carried) for path in carried.rglob("*.*")} == {
        path.relative_to(ROOT / "fixtures") for path in (ROOT / "fixtures").rglob("*.*")
    }
    assert counted[executions.SUITE] == len(fixtures.cases("executions"))
    assert counted[worker_suite.SUITE] == len(fixtures.cases("worker_sessions"))
    assert counted[executions.VALUES_SUITE] > 100


async def run(command: list[str]) -> list[Result]:
    return [result async for result in worker_suite.run(command, patience_s=2)]


async def test_what_is_no_worker_is_told_as_that() -> None:
    with pytest.raises(Impossible, match="no-such-program cannot be started"):
        await run(["no-such-program"])
    with pytest.raises(Impossible, match=r"no worker registered: no worker connected within 2 s\. It printed:\nnothing here"):
        await run([sys.executable, "-c", "print('nothing here')"])
