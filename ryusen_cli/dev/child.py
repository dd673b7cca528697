"""What a supervised process runs: `server` or `worker`, then the descriptors of its two pipes.

A worker imports the SDK before it is told what to do, so that one which stands by has only the user's code left to import.
"""

from __future__ import annotations

import sys
from typing import assert_never

from ryusen_cli.dev.lifeline import Lifeline
from ryusen_cli.dev.messages import RunServer, RunWorker


def main(arguments: list[str]) -> int:
    """Runs the child of these arguments. Returns its exit code."""
    role, control_fd, facts_fd = arguments
    lifeline = Lifeline(int(control_fd), int(facts_fd))
    if role == "worker":
        import ryusen_cli.worker_process as _warm

        _warm.preload()
    order = lifeline.await_order()
    if order is None:
        return 0
    lifeline.guard()
    match order:
        case RunServer():
            from ryusen_cli.server_process import run_server

            return run_server(order, lifeline.tell)
        case RunWorker():
            from ryusen_cli.worker_process import run_worker

            return run_worker(order, lifeline.tell)
        case _:
            assert_never(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
