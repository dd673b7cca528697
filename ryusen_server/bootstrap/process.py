"""A server as a process of its own: its loop, its signals, its log, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from ryusen_server.bootstrap import logs
from ryusen_server.bootstrap.server import Server
from ryusen_server.bootstrap.settings import Ready, ServerSettings

_log = logging.getLogger(__name__)

_FILES: Final = 16_384
_SWITCH_INTERVAL_S: Final = 0.0005
"""The writer's thread hands its results back to the loop's thread: the default of 5 ms would be most of a step's time."""


def run(settings: ServerSettings, *, on_ready: Callable[[Ready], None] | None) -> int:
    """See `ryusen_server.bootstrap.serve`."""
    logs.configure(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _allow_many_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(Server(settings), on_ready))


def _allow_many_files() -> None:
    """Each connection is a file, and the limit a shell starts with is meant for programs that hold few."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # a platform it does not support
        return None
    return uvloop.new_event_loop


async def _serve(server: Server, on_ready: Callable[[Ready], None] | None) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    hurry = asyncio.Event()
    with _signals(ended, hurry):
        await server.start()
        if server.settings.credentials is not None:  # else a terminal that is closed ends the server, as it always does
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload_credentials)
        gc.freeze()
        gc.enable()
        _told_ready(server.ready, on_ready)
        await asyncio.wait((ended, server.fatal), return_when=asyncio.FIRST_COMPLETED)
        if server.fatal.done():
            _die(server.fatal.result())
        number = ended.result()
        _log.info("stopping on %s; a second signal stops at once", signal.Signals(number).name)
        stopping = asyncio.ensure_future(server.stop(hurry=hurry))
        await asyncio.wait((stopping, server.fatal), return_when=asyncio.FIRST_COMPLETED)
        if server.fatal.done():
            _die(server.fatal.result())
        stopping.result()
    _log.info("stopped")
    return number


def _told_ready(ready: Ready, on_ready: Callable[[Ready], None] | None) -> None:
    for warning in ready.warnings:
        _log.warning("%s", warning)
    _log.info("ready at %s, database %s", " ".join(ready.addresses), ready.database)
    if on_ready is not None:
        on_ready(ready)


@contextlib.contextmanager
def _signals(ended: asyncio.Future[int], hurry: asyncio.Event):
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def received(number: int) -> None:
        if ended.done():
            hurry.set()
        else:
            ended.set_result(number)

    for number in numbers:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _die(reason: str) -> None:
    """The disk did not confirm a write: nothing in this process may write again, not even on its way out."""
    print(f"ryusen: {reason}", file=sys.stderr, flush=True)  # noqa: T201 - the last line, past any logging set-up
    os._exit(1)
