"""Runs one connected worker in this process, and says how it fares.

Owns what a worker process needs around the SDK: the target, signals, exit code. Nothing of the user's is imported before `run_worker`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ryusen_cli.dev import messages
from ryusen_cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ryusen_sdk.app import Ryusen
    from ryusen_sdk.status import WorkerStatus

_WARM: Final = ("asyncio", "ryusen_sdk", "ryusen_sdk.worker", "ryusen_sdk.target", "ryusen_sdk.publish")


def preload() -> None:
    """Import what every worker needs, so that a worker standing by has only the user's code left."""
    for name in _WARM:
        importlib.import_module(name)


def run_worker(order: messages.RunWorker, tell: Callable[[messages.Fact], None], server_url: Callable[[], str]) -> int:
    """Serve the target until a signal or the server's word ends it. Returns the exit code.

    `server_url` may block until the server is there; the target is imported before it is asked.
    """
    from ryusen_sdk.errors import RequestRefused, RyusenError, TargetError, WorkerError
    from ryusen_sdk.target import load_target

    try:
        app = load_target(order.target)
    except TargetError as error:
        tell(messages.Failed(str(error), at_import=True, leads_nowhere=not error.at_import))
        return int(Exit.ERROR)
    if order.workspace is not None and order.workspace != app.workspace:
        said = f"{order.target} belongs to workspace {app.workspace!r}, not {order.workspace!r}"
        tell(messages.Failed(said, hint=f'write Ryusen("{app.application}", workspace="{order.workspace}"), or leave --workspace out'))
        return int(Exit.USAGE)
    tell(messages.Imported(app.application, app.workspace, project_files(), _example(app)))
    try:
        return _serve(app, order, server_url(), lambda change: _pass_on(change, tell))
    except (WorkerError, RequestRefused) as refused:
        tell(messages.Failed(str(refused)))
        return int(Exit.REFUSED)
    except RyusenError as error:
        tell(messages.Failed(str(error)))
        return int(Exit.ERROR)


def _serve(app: Ryusen, order: messages.RunWorker, url: str, on_status: Callable[[WorkerStatus], None]) -> int:
    import asyncio
    import gc

    from ryusen_sdk.worker import Worker

    worker = Worker(
        app,
        url=url,
        token=order.token,
        capacity=order.capacity,
        release=order.release,
        publish=order.publish,
        on_status=on_status,
    )
    received = 0

    def drain(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        if received:
            os._exit(128 + number)
        received = number
        worker.drain()

    # Not a loop's handler: this one works while a coroutine of the user blocks the loop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain)
    gc.freeze()  # what is imported stays; no collection has to look at it again
    asyncio.run(worker.serve())
    return 128 + received if received else int(Exit.OK)


def _pass_on(change: WorkerStatus, tell: Callable[[messages.Fact], None]) -> None:
    from ryusen_sdk import status

    match change:
        case status.Connected(_, functions, capacity):
            tell(messages.Registered(list(functions), capacity))
        case status.Disconnected(reason, retry_in_ms):
            tell(messages.Away(reason, retry_in_ms))
        case status.Rejected() | status.Noted():
            tell(messages.Noted(status.describe(change), is_trouble=True))
        case status.Published(_, is_new) if is_new:
            tell(messages.Noted(status.describe(change)))
        case status.DrainStarted(executing, unacknowledged) if executing or unacknowledged:
            tell(messages.Noted(status.describe(change)))
        case _:
            pass


def project_files() -> list[str]:
    """Files of imported modules that stand in the current folder and belong to no environment: what a reload has to watch."""
    folder = Path.cwd().resolve()
    installed = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")})
    files: set[str] = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(installed) and Path(file).is_relative_to(folder):
            files.add(file)
    own = [Path(package).parent for package in (_file("ryusen_cli"), _file("ryusen_sdk"), _file("ryusen_protocol")) if package]
    return sorted(file for file in files if not any(Path(file).is_relative_to(package) for package in own))


def _example(app: Ryusen) -> str | None:
    """The first `ryusen send …` line in the docstring of the module the application stands in: how its author starts it."""
    for module in list(sys.modules.values()):
        if any(value is app for value in list(vars(module).values())):
            for line in (module.__doc__ or "").splitlines():
                if line.strip().startswith("ryusen send "):
                    return line.strip()
    return None


def _file(package: str) -> str | None:
    module = sys.modules.get(package)
    return None if module is None else module.__file__
