"""Finds the one module with a `Ryusen` object in a folder, by reading source text. Imports nothing: that is the worker's part."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from ryusen_cli.dev.sources import PASSED_OVER
from ryusen_cli.exits import CliError, Exit, usage

_SOURCE_BYTES_MAX: Final = 2**20


def find_target(folder: Path) -> str:
    """The target of a folder, as `file.py` or `package/module.py`. Raises `CliError` unless there is exactly one."""
    found = candidates(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise CliError(
            f"no module with a Ryusen object stands in {folder}",
            exit_code=Exit.USAGE,
            hint="write an example with `ryusen init`, or name a target: ryusen dev path/file.py",
        )
    raise usage(f"several modules hold a Ryusen object: {', '.join(found)}", f"name the ones to run: ryusen dev {found[0]}")


def candidates(folder: Path) -> list[str]:
    """Modules in the folder, and in the packages directly below it, that make a `Ryusen` object at their top level."""
    files = sorted(folder.glob("*.py"))
    for package in sorted(folder.iterdir()):
        if package.is_dir() and (package / "__init__.py").is_file() and package.name not in PASSED_OVER and package.name != "tests":
            files += sorted(package.glob("*.py"))
    return [str(path.relative_to(folder)) for path in files if not path.name.startswith(("test_", "conftest")) and makes_registry(path)]


def makes_registry(path: Path) -> bool:
    """Whether a file's text assigns `Ryusen(…)` to a name at its top level. A file that does not parse counts by its text."""
    try:
        if path.stat().st_size > _SOURCE_BYTES_MAX:
            return False
        source = path.read_bytes()
    except OSError:
        return False
    if b"Ryusen(" not in source or b"ryusen_sdk" not in source:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return True
    return any(_is_registry(statement) for statement in tree.body)


def _is_registry(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(value=ast.Call(func=function)) | ast.AnnAssign(value=ast.Call(func=function)):
            return ast.unparse(function).rpartition(".")[2] == "Ryusen"
        case _:
            return False
