"""The connections for reads: each serves one task at a time and sees committed state only. Refuses to write.

A task may be cancelled at any await. Its connection then finishes or interrupts what runs, rolls back, and only then serves another.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiosqlite

from ryusen_server.ports.store import StorageUnavailable
from ryusen_server.store.sqlite.config import SqliteConfig
from ryusen_server.store.sqlite.connection import reader_pragmas, uri
from ryusen_server.store.sqlite.faults import unavailable
from ryusen_server.store.sqlite.sql import Parameters

Rows = list[tuple[Any, ...]]
Read = Callable[[str, Parameters], Awaitable[Rows]]


class Readers:
    """A pool of read connections."""

    def __init__(self, path: Path, config: SqliteConfig, connections: list[aiosqlite.Connection]) -> None:
        self._path = path
        self._config = config
        self._size = len(connections)
        self._free: asyncio.LifoQueue[aiosqlite.Connection] = asyncio.LifoQueue()
        for connection in connections:
            self._free.put_nowait(connection)
        self._repairs: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def open(cls, path: Path, config: SqliteConfig) -> Self:
        """Raises `sqlite3.Error`."""
        connections: list[aiosqlite.Connection] = []
        try:
            for _ in range(config.readers):
                connection = await aiosqlite.connect(
                    uri(path), uri=True, isolation_level=None, timeout=config.busy_timeout_ms / 1000, cached_statements=256
                )
                connections.append(connection)
                for pragma in reader_pragmas():
                    await connection.execute_fetchall(pragma)
        except BaseException:
            for connection in connections:
                await connection.close()
            raise
        return cls(path, config, connections)

    async def close(self) -> None:
        """Wait for the reads that run, then close. Later reads raise `StorageUnavailable`."""
        self._closed = True
        for _ in range(self._size):
            connection = await self._free.get()
            await connection.close()

    async def rows(self, statement: str, parameters: Parameters = ()) -> Rows:
        """All rows of one statement. Raises `StorageUnavailable`."""
        async with self._lease() as connection:
            return _plain(await connection.execute_fetchall(statement, parameters))

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Read]:
        """Several statements over one state of the store. Raises `StorageUnavailable`."""
        async with self._lease() as connection:

            async def read(statement: str, parameters: Parameters = ()) -> Rows:
                return _plain(await connection.execute_fetchall(statement, parameters))

            await connection.execute_fetchall("BEGIN")
            yield read
            await connection.execute_fetchall("ROLLBACK")

    @asynccontextmanager
    async def _lease(self) -> AsyncGenerator[aiosqlite.Connection]:
        if self._closed:
            raise StorageUnavailable(f"The database {self._path} is closed: the server is stopping")
        connection = await self._free.get()
        try:
            yield connection
        except BaseException as error:
            repair = asyncio.create_task(self._repair(connection))
            self._repairs.add(repair)
            repair.add_done_callback(self._repairs.discard)
            if isinstance(error, sqlite3.Error):
                raise unavailable(error, self._path, busy_timeout_ms=self._config.busy_timeout_ms) from error
            raise
        else:
            self._free.put_nowait(connection)

    async def _repair(self, connection: aiosqlite.Connection) -> None:
        try:
            await connection.interrupt()
            await connection.rollback()
        except sqlite3.Error:
            return  # nothing is lost with a read; if the connection is beyond use, its next read says so
        finally:
            self._free.put_nowait(connection)


def _plain(rows: Iterable[Any]) -> Rows:
    # Without a row factory the driver gives tuples, whatever its annotation says.
    return list(rows)
