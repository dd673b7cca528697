"""What CI runs, in which order."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.mark.req("CNF-05")
def test_conformance_comes_before_everything_else_that_runs_an_sdk() -> None:
    planned = subprocess.run(["make", "-n", "check"], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    first, second = (line for line in planned.splitlines() if "-m pytest" in line)
    assert first.endswith(" tests/protocol tests/conformance")
    assert second.endswith(" --ignore=tests/protocol --ignore=tests/conformance")
