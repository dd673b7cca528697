"""Starts a real server and a real worker of a checkout, and reads what the kernel says of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent


class Product(NamedTuple):
    """A running server with one worker."""

    host: str
    port: int
    server_pid: int
    worker_pid: int
    ready_s: float
    commits: Path

    def resident_mb(self, pid: int) -> float:
        """Resident memory of a process, in MB of 10^6 bytes."""
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def commit_count(self) -> int:
        """How many transactions the server has committed so far."""
        os.kill(self.server_pid, signal.SIGUSR1)
        before = time.monotonic()
        while time.monotonic() - before < WAIT_S:
            with contextlib.suppress(FileNotFoundError, ValueError):
                count = int(self.commits.read_text())
                self.commits.unlink()
                return count
            time.sleep(0.01)
        raise RuntimeError("the server did not say how many commits it made")


WAIT_S = 20


def get(url: str) -> Any:
    """A JSON document."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def running(root: Path, *, functions: Path = HERE / "functions.py", db: Path | None = None) -> Generator[Product]:
    """The product of the checkout at `root`, on a new file unless one is given. Ends with both processes gone."""
    with tempfile.TemporaryDirectory(prefix="ryusen-bench-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        port_file, commits = Path(folder, "port"), Path(folder, "commits")
        began = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, str(HERE / "counted_server.py"), str(db or Path(folder, "bench.db")), str(port_file), str(commits)],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        try:
            port = _await_port(server, port_file)
            url = f"http://127.0.0.1:{port}"
            get(f"{url}/v1/health")
            ready_s = time.perf_counter() - began
            worker = subprocess.Popen(
                [sys.executable, "-m", "ryusen_cli", "worker", str(functions), "--url", url, "--capacity", "256"],
                env=environment,
                stderr=subprocess.DEVNULL,
            )
            try:
                _await_worker(url)
                yield Product("127.0.0.1", port, server.pid, worker.pid, ready_s, commits)
            finally:
                worker.terminate()
                worker.wait(WAIT_S)
        finally:
            server.terminate()
            server.wait(WAIT_S)


def _await_port(server: subprocess.Popen[bytes], port_file: Path) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(port_file.read_text())
        time.sleep(0.002)
    raise RuntimeError("the server did not start")


def _await_worker(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if get(f"{url}/v1/workspaces/default/workers")["items"]:
            return
        time.sleep(0.05)
    raise RuntimeError("the worker did not register")
