"""Stores as tests open them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ryusen_server.ports.store import Store, Unit
from ryusen_server.store.sqlite import CommitHooks, NoHooks, SqliteConfig, SqliteStore


class Recorder(NoHooks):
    """Hooks that note each commit, and fail it or hold it on request."""

    def __init__(self) -> None:
        self.batches: list[list[Unit]] = []
        self.fault: Exception | None = None
        self.hold: Callable[[], object] | None = None

    def before_commit(self, units: Sequence[Unit], /) -> None:
        if self.hold is not None:
            self.hold()
        if self.fault is not None:
            raise self.fault

    def after_commit(self, units: Sequence[Unit], /) -> None:
        self.batches.append(list(units))


class Subject(NamedTuple):
    """A store under the contract, and how to make it fail and recover."""

    store: Store
    break_: Callable[[], None]
    mend: Callable[[], None]


def unexpected(reason: str) -> None:
    pytest.fail(f"fatal: {reason}")


@asynccontextmanager
async def opened(
    path: Path | None,
    *,
    config: SqliteConfig | None = None,
    hooks: CommitHooks | None = None,
    on_fatal: Callable[[str], None] = unexpected,
) -> AsyncGenerator[SqliteStore]:
    store = await SqliteStore.open(path, on_fatal=on_fatal, config=config, hooks=hooks)
    try:
        yield store
    finally:
        await store.close()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777
