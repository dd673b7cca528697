"""What holds for the tree as a whole, so that no reviewer has to look for it."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ryusen_protocol", "ryusen_server", "ryusen_sdk", "ryusen_conformance", "ryusen_testing", "ryusen_tui", "ryusen_cli")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def text_files() -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for path in tracked():
        try:
            found.append((path, path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def test_the_server_layers_of_the_contract_are_the_folders() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["id"] == "server")["layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    folders = {path.name for path in (ROOT / "ryusen_server").iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.stem for path in (ROOT / "ryusen_server").glob("*.py") if path.stem != "__init__"}
    assert named == folders | modules


def test_every_package_ships_its_types() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file(), package


def test_constraints_pin_exactly() -> None:
    for name in ("runtime.txt", "dev.txt"):
        for line in (ROOT / "constraints" / name).read_text().splitlines():
            if line and not line.startswith(("#", "-c ")):
                assert re.fullmatch(r"[A-Za-z0-9._-]+==[^ ;]+", line), f"{name}: {line}"


def pinned(*names: str) -> set[str]:
    lines = [line for name in names for line in (ROOT / "constraints" / name).read_text().splitlines()]
    return {canonical(line.split("==")[0]) for line in lines if "==" in line}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_whatever_running_needs_is_pinned() -> None:
    """Walks what is installed from what the project asks for: an unpinned package would be another one tomorrow."""
    asked = [Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]
    needed: set[str] = set()
    while asked:
        requirement = asked.pop()
        name = canonical(requirement.name)
        if name in needed or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        needed.add(name)
        asked += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    assert sorted(needed - pinned("runtime.txt")) == []


def test_whatever_the_tests_call_is_pinned() -> None:
    tools = [line for line in (ROOT / "constraints" / "tools.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert not {canonical(Requirement(tool).name) for tool in tools} - pinned("dev.txt", "runtime.txt")


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a package registry's host", r"\b(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b"),
        ("a path of somebody's machine", r"(?<![\w/])/(?:work|home|Users)/\w"),
    ],
)
def test_no_file_names(what: str, pattern: str) -> None:
    own = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in text_files()
        if path.resolve() != own
        for match in re.finditer(pattern, text)
    ]
    assert not found, f"{what}: {found}"


def test_there_is_no_module_without_a_docstring() -> None:
    import ast

    bare = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not bare


def test_importing_the_sdk_brings_neither_server_nor_cli() -> None:
    code = "import sys, ryusen_sdk; print([m for m in sys.modules if m.startswith(('ryusen_server', 'ryusen_cli', 'sanic', 'typer'))])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
