"""The worked examples of the testing guide, run as they stand there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
EXAMPLES = [block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "\napp = Ryusen(" in block]


def example_tests(source: str) -> list[str]:
    return re.findall(r"^async def (test_\w+)", source, re.MULTILINE)


@pytest.mark.parametrize(("source", "name"), [(source, name) for source in EXAMPLES for name in example_tests(source)])
async def test_a_worked_example_holds(source: str, name: str) -> None:
    namespace: dict[str, object] = {"__name__": "example"}
    exec(compile(source, str(GUIDE), "exec"), namespace)
    test = namespace[name]
    assert inspect.iscoroutinefunction(test)
    await test()


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3
    assert sum(len(example_tests(source)) for source in EXAMPLES) == 5
