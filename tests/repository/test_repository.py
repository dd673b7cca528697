"""What holds for the tree as a whole, so that no reviewer has to look for it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ryusen_protocol", "ryusen_server", "ryusen_sdk", "ryusen_cli")


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


def test_every_runtime_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {line.split("==")[0].lower().replace("-", "_") for line in (ROOT / "constraints" / "runtime.txt").read_text().splitlines()}
    for dependency in project["dependencies"]:
        name = re.split(r"[ >=<;\[]", dependency)[0].lower().replace("-", "_")
        assert name in pinned, name


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
