"""The product was built as one thin path, and every stage of it has tests that stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

STAGES = {
    "protocol fixture": "PRO-02",
    "one transaction of the store": "STO-06",
    "manifest activation": "MAN-05",
    "an event to its run": "ING-07",
    "shared dispatch": "REG-11",
    "connected worker": "CON-01",
    "one forward step": "SEM-08",
    "replay": "SDK-06",
    "retries": "RTY-01",
    "compensation": "CMP-01",
    "HTTP mode": "HTT-01",
    "telemetry of workers": "UI-05",
    "timeline on the page": "UI-04",
    "restart": "ACC-95",
}


@pytest.mark.req("CNF-11")
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_of_the_thin_path_is_shown(stage: str) -> None:
    mark = re.compile(rf'"{STAGES[stage]}"')
    shown = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__).resolve() and mark.search(path.read_text())]
    assert shown, f"no test is marked with {STAGES[stage]}, which shows the stage {stage!r}"
