"""What a supervised process runs: `server` or `worker`, then the descriptors of its two pipes.

Both import what they run before they are told what to do: a worker that stands by then has only the user's code left to import, and a
server that was started ahead of its order only the database left to open.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import assert_never

from ryusen_cli.dev.lifeline import Lifeline
from ryusen_cli.dev.messages import RunServer, RunWorker


def main(arguments: list[str]) -> int:
    """Runs the child of these arguments. Returns its exit code."""
    gc.disable()  # what imports make stays
    role, control_fd, facts_fd = arguments
    lifeline = Lifeline(int(control_fd), int(facts_fd))
    if role == "worker":
        import ryusen_cli.worker_process as _warm

        _warm.preload()
        gc.enable()
    else:
        importlib.import_module("ryusen_server.bootstrap.process")  # which switches the collector on once it is ready
    order = lifeline.await_order()
    if order is None:
        return 0
    lifeline.guard()
    match order:
        case RunServer():
            from ryusen_cli.server_process import run_server

            return run_server(order, lifeline.tell)
        case RunWorker(url=url):
            from ryusen_cli.worker_process import run_worker

            return run_worker(order, lifeline.tell, lifeline.await_server if url is None else lambda: url)
        case _:
            assert_never(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
