"""What people read promises no more than the engine keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READ_BY_PEOPLE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md"]


@pytest.mark.req("SEM-09", "SEM-19")
def test_nothing_calls_an_effect_exactly_once() -> None:
    promise = re.compile(r"exactly[- ]once", re.IGNORECASE)
    sources = [path for package in ROOT.glob("ryusen_*") for path in package.rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in [*READ_BY_PEOPLE, *sources] if promise.search(path.read_text())]
    assert not found


@pytest.mark.req("SEM-13", "SEM-19", "CMP-07", "CMP-09", "RTY-11", "SEM-12")
@pytest.mark.parametrize(
    "sentence",
    [
        "What a callback outside `step.run` does is not tracked",
        "A choice that must stay fixed belongs in the event or in a step's result",
        "No rollback across systems, no isolation from half-done work",
        "Compensators must bear being run twice",
        "which says nothing of what failed attempts did",
    ],
)
def test_the_limits_are_written_down(sentence: str) -> None:
    prose = " ".join((ROOT / "docs" / "semantics.md").read_text().split())
    assert sentence in prose


@pytest.mark.req("OPT-11")
def test_what_holds_code_and_history_together_is_written_down_and_nothing_pins_a_run() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "There are no versions and no pins" in readme
    assert "Ids of functions and steps are what keeps them together" in readme
    semantics = " ".join((ROOT / "docs" / "semantics.md").read_text().split())
    assert "A step id names one operation for the whole life of a run" in semantics
