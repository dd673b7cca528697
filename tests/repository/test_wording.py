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
