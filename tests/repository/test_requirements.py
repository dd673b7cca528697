"""`docs/requirements.md` and the tests hold each other to account: every id there is shown by a test, every marked id stands there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^- \*\*([A-Z]{2,4}-\d{2,3})\*\* (\S.*)$")


def listed() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "docs" / "requirements.md").read_text().splitlines():
        if line.startswith("- **"):
            match = LINE.match(line)
            assert match, f"not `- **ID** words`: {line}"
            assert match[1] not in found, f"{match[1]} stands twice"
            found[match[1]] = match[2]
    return found


def _marks(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: a requirement is a plain string"
                assert isinstance(argument.value, str)
                yield argument.value, node.lineno


def shown() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for requirement, line in _marks(ast.parse(path.read_text())):
            found.setdefault(requirement, f"{path.relative_to(ROOT)}:{line}")
    return found


def test_every_listed_requirement_is_shown_by_a_test() -> None:
    missing = sorted(listed().keys() - shown().keys())
    assert not missing, f"docs/requirements.md lists what no test is marked with: {missing}"


def test_every_marked_requirement_is_listed() -> None:
    marked = shown()
    unknown = {requirement: marked[requirement] for requirement in sorted(marked.keys() - listed().keys())}
    assert not unknown, f"tests are marked with what docs/requirements.md does not list: {unknown}"
