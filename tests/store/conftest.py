"""Stores to test, over files of the test's own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ryusen_server.ports.store import Store
from ryusen_server.store.memory import MemoryStore
from ryusen_server.store.sqlite import SqliteStore
from tests.store.harness import Recorder, Subject, opened


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ryusen.db"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def sqlite_store(db: Path, recorder: Recorder) -> AsyncIterator[SqliteStore]:
    async with opened(db, hooks=recorder) as store:
        yield store


@pytest.fixture(params=["sqlite", "memory"])
async def subject(request: pytest.FixtureRequest, db: Path, recorder: Recorder) -> AsyncIterator[Subject]:
    if request.param == "memory":
        memory = MemoryStore()

        def set_fault(reason: str | None) -> None:
            memory.fault = reason

        yield Subject(memory, lambda: set_fault("out of order"), lambda: set_fault(None))
        return
    async with opened(db, hooks=recorder) as store:

        def set_error(error: Exception | None) -> None:
            recorder.fault = error

        yield Subject(store, lambda: set_error(sqlite3.OperationalError("out of order")), lambda: set_error(None))


@pytest.fixture
def store(subject: Subject) -> Store:
    return subject.store
