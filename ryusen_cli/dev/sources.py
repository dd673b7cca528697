"""The source files of a target: which folders they stand in, whether they compile, and a digest that names their state.

Reads files. Owns what counts as a source and what is passed over; imports nothing of the user's.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})
"""Folders that hold no source of the user's own, beside every hidden one."""
_DIGEST_CHARACTERS: Final = 12


def source_folder(target: str, folder: Path) -> Path:
    """Where the sources of `package.module`, `package.module:name` or `path/file.py` stand.

    A package is watched from its top, a single module or file from its folder.
    """
    place, _, _ = target.partition(":") if not target.endswith(".py") else (target, "", "")
    path = place_of_file(place)
    if path is not None:
        return (folder / path).resolve().parent
    top = place.partition(".")[0]
    package = folder / top
    is_package = (package.is_dir() and "." in place) or (package / "__init__.py").is_file()
    return package.resolve() if is_package else folder.resolve()


def place_of_file(target: str) -> Path | None:
    """The file of a target that is written as one."""
    place = target.rpartition(":")[0] if ".py:" in target else target
    return Path(place) if place.endswith(".py") else None


def is_source(path: Path, root: Path) -> bool:
    """Whether a file below `root` is Python source of the user's own."""
    if path.suffix != ".py" or path.name.startswith("."):
        return False
    try:
        inner = path.relative_to(root)
    except ValueError:
        return False
    return not any(part in PASSED_OVER or part.startswith(".") for part in inner.parts[:-1])


def walk(root: Path) -> Iterator[Path]:
    """Every source below `root`, in one order everywhere."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in PASSED_OVER and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("."):
                yield Path(folder) / name


class Sources:
    """The watched folders of one target. Remembers what it read, so that a save costs only the files it touched."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = _outermost(folders)
        self._read: dict[Path, tuple[tuple[int, int, int], bytes]] = {}
        self._compiled: dict[Path, bytes] = {}

    def add(self, files: Iterable[Path]) -> bool:
        """Watch the folders of these files too. Returns whether any was new."""
        wider = _outermost([*self.folders, *(file.resolve().parent for file in files)])
        if wider == self.folders:
            return False
        self.folders = wider
        return True

    def digest(self) -> str:
        """A short name for the present contents of all sources. Touching a file without changing it changes nothing."""
        total = hashlib.sha256()
        for folder in self.folders:
            for path in walk(folder):
                content = self._content_digest(path)
                if content is not None:
                    name = os.fsencode(path.relative_to(folder))
                    total.update(name + b"\0" + content)
        return total.hexdigest()[:_DIGEST_CHARACTERS]

    def first_error(self) -> str | None:
        """What keeps a changed source from compiling, as `file:line: message`. Sources that compiled before are not read again."""
        for folder in self.folders:
            for path in walk(folder):
                digest = self._content_digest(path)
                if digest is None or self._compiled.get(path) == digest:
                    continue
                error = compile_error(path)
                if error is not None:
                    return error
                self._compiled[path] = digest
        return None

    def trust(self) -> None:
        """Take the sources as they are for compiled; the first import is what checks them."""
        for folder in self.folders:
            for path in walk(folder):
                digest = self._content_digest(path)
                if digest is not None:
                    self._compiled[path] = digest

    def _content_digest(self, path: Path) -> bytes | None:
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            known = self._read.get(path)
            if known is None or known[0] != stamp:
                known = (stamp, hashlib.sha256(path.read_bytes()).digest())
                self._read[path] = known
        except OSError:
            return None  # gone between listing and reading: the next event tells
        return known[1]


def compile_error(path: Path) -> str | None:
    """What keeps a file from compiling, as `file:line: message`."""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{path}:{error.lineno or 1}: {type(error).__name__}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{path}:1: {type(error).__name__}: {error}"
    except OSError:
        return None
    return None


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """The folders without those that stand inside another."""
    kept: list[Path] = []
    for folder in sorted({folder.resolve() for folder in folders}, key=lambda one: len(one.parts)):
        if not any(folder.is_relative_to(outer) for outer in kept):
            kept.append(folder)
    return sorted(kept)
