"""The connected worker: one process that serves one application.

Owns what a process has once: the lifespan, signals, the pool, the facts it registers with. Coroutines of users run on the loop that
calls `serve`; the connection has a thread of its own (`line`), so that no user code, blocking or busy, can hold up a heartbeat.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import secrets
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Final

from ryusen_protocol.frames import Software
from ryusen_protocol.ids import InstanceId, ReleaseId
from ryusen_sdk import status
from ryusen_sdk.connection import websocket_url
from ryusen_sdk.errors import MisuseError
from ryusen_sdk.host import Host
from ryusen_sdk.line import Line, Server, Timings
from ryusen_sdk.session import Session, WorkerFacts
from ryusen_sdk.standing import THREADS_MAX, Standing
from ryusen_sdk.status import OnStatus, WorkerStatus
from ryusen_sdk.threads import ThreadPool

if TYPE_CHECKING:
    from types import FrameType

    from ryusen_sdk.app import Ryusen

__all__ = ["OnStatus", "Timings", "Worker", "run"]

_log: Final = logging.getLogger("ryusen.worker")


class Worker:
    """One worker process's connection to a server. Use it once."""

    def __init__(
        self,
        app: Ryusen,
        *,
        url: str,
        token: str | None = None,
        capacity: int = 32,
        release: str | None = None,
        publish: bool = True,
        on_status: OnStatus | None = None,
        timings: Timings | None = None,
    ) -> None:
        if type(capacity) is not int or capacity < 1:
            raise MisuseError(f"capacity={capacity!r}: the number of invocations at a time, at least 1")
        self._app = app
        self._capacity = capacity
        self._release = None if release is None else ReleaseId(release)
        self._server = Server(url, websocket_url(url), token, publish)
        self._on_status = on_status or _log_status
        self._timings = timings or Timings()
        self._instance_id = InstanceId(f"wi_{secrets.token_hex(16)}")
        self._line: Line | None = None
        self._wants_drain = False

    async def serve(self) -> None:
        """Serves until drained. Raises `RegistrationRejected`, `WorkerReplaced` or `RequestRefused` when the server says stop.

        SystemExit or KeyboardInterrupt from user code drains the rest and is then raised here. Cancelling it stops at once.
        """
        manifest = self._app.manifest()
        pool = ThreadPool(self._capacity + THREADS_MAX)
        host = Host(self._app.registry, asyncio.get_running_loop(), pool, standing=Standing())
        host.check()
        facts = WorkerFacts(
            scope=self._app.scope,
            instance_id=self._instance_id,
            release_id=self._release,
            manifest_digest=manifest.digest,
            functions=[function.id for function in manifest.functions],
            capacity=self._capacity,
            sdk=Software("ryusen-python", _sdk_version()),
            runtime=Software(platform.python_implementation().lower(), platform.python_version()),
        )
        async with self._app.lifespan():
            line = Line(self._server, Session(facts), manifest, host, self._on_status, self._timings)
            self._line = line
            if self._wants_drain:
                line.drain()
            line.start()
            try:
                await asyncio.wrap_future(line.ended)
            except asyncio.CancelledError:
                raise
            except BaseException:
                await host.end_standing()
                raise
            else:
                await host.end_standing()
            finally:
                line.stop()
                host.abandon()
                pool.close()

    def drain(self) -> None:
        """Takes no new work, finishes, awaits every acknowledgement, ends. From any thread or signal handler; again does nothing."""
        self._wants_drain = True
        if self._line is not None:
            self._line.drain()


def run(
    app: Ryusen,
    *,
    url: str,
    token: str | None = None,
    capacity: int = 32,
    release: str | None = None,
    publish: bool = True,
    on_status: OnStatus | None = None,
) -> None:
    """`Ryusen.run_worker`: serves on a loop of this thread, with signal handlers if it is the main one."""
    worker = Worker(app, url=url, token=token, capacity=capacity, release=release, publish=publish, on_status=on_status or _print_status)
    app.load()
    gc.freeze()  # what is imported stays; no collection has to look at it again
    with _signals(worker):
        asyncio.run(worker.serve())


@contextmanager
def _signals(worker: Worker) -> Generator[None]:
    """The first SIGTERM or Ctrl+C drains, the second ends the process at once.

    `signal.signal` rather than a loop's handler: it works while a coroutine blocks the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_draining = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_draining
        if is_draining:
            os._exit(128 + number)
        is_draining = True
        worker.drain()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_status(change: WorkerStatus) -> None:
    sys.stderr.write(f"ryusen: {status.describe(change)}\n")
    sys.stderr.flush()


def _log_status(change: WorkerStatus) -> None:
    is_trouble = isinstance(change, status.Disconnected | status.Rejected | status.Noted)
    _log.log(logging.WARNING if is_trouble else logging.INFO, "%s", status.describe(change))


def _sdk_version() -> str:
    try:
        return metadata.version("ryusen")
    except metadata.PackageNotFoundError:
        return "0+source"
