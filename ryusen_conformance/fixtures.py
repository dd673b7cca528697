"""The fixtures as data: the index and the cases it names.

Owns where they lie: inside the installed package, or beside it in a source tree. Judges nothing.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

JsonDict = dict[str, Any]

_HERE: Final = Path(__file__).resolve().parent


class Case(NamedTuple):
    """One case of one area: its entry in the index and its own document."""

    name: str
    area: str
    file: str
    exercises: str
    topics: tuple[str, ...]
    document: JsonDict


class FixturesMissing(Exception):
    """There are no fixtures: an installation that lost part of itself."""


def folder() -> Path:
    """Where the fixtures lie. Raises `FixturesMissing`."""
    for candidate in (_HERE / "fixtures", _HERE.parent / "fixtures"):
        if (candidate / "index.json").is_file():
            return candidate
    raise FixturesMissing(f"no fixtures beside {_HERE}; install the package again")


@cache
def index() -> JsonDict:
    """`index.json`: versions, topics and the list of cases."""
    return _read("index.json")


def cases(area: str) -> list[Case]:
    """The cases of one area, in the order of the index."""
    return [
        Case(entry["name"], area, entry["file"], entry["exercises"], tuple(entry.get("topics", ())), _file(entry["file"])[entry["name"]])
        for entry in index()["cases"]
        if entry["area"] == area
    ]


@cache
def _file(name: str) -> JsonDict:
    return _read(name)


def _read(name: str) -> JsonDict:
    return json.loads((folder() / name).read_text("utf-8"))
