"""`python -m benchmarks.dashboard [--runs N]`: what the dashboard costs in a real terminal, with that many runs in the store.

First paint, memory and processor time while nothing happens, and how long a key takes while fifty changes a second come in; then what
`ryusen --help` and a `ryusen dev` that becomes ready take. Everything is started once before it is measured, so that what is measured
is no compiling; processor seconds are told beside the others, since a busy machine lengthens those less.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from benchmarks.load import in_flight, one_by_one, percentile
from benchmarks.processes import Product, running

ROOT = Path(__file__).resolve().parents[1]
IDLE_S = 60.0
STARTS = 5
KEYS = 60
SIZE = (40, 120)
_BOOT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ryusen_cli.main import run; run()"


def environment() -> dict[str, str]:
    """As a person has it, whose Python keeps what it compiled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RYUSEN_", "PYTHON"))}
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", "PYTHONPYCACHEPREFIX": _COMPILED.name}


_COMPILED = tempfile.TemporaryDirectory(prefix="ryusen-compiled-")


class Terminal:
    """The dashboard in a terminal, and when it last wrote there."""

    def __init__(self, url: str) -> None:
        self._fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        self.started = time.perf_counter()
        command = [sys.executable, "-P", "-c", _BOOT, "tui", "--url", url]
        self.process = subprocess.Popen(command, env=environment(), stdin=child, stdout=child, stderr=child, start_new_session=True)
        os.close(child)
        self.received = bytearray()
        self.wrote = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._fd, 65_536):
                with self.wrote:
                    self.received += piece
                    self.wrote.notify_all()
        except OSError:
            return

    def until(self, wanted: bytes, since: int = 0) -> float:
        """Seconds from the start until that was written."""
        with self.wrote:
            if not self.wrote.wait_for(lambda: wanted in self.received[since:], 60):
                raise RuntimeError(f"the dashboard never wrote {wanted!r}")
        return time.perf_counter() - self.started

    def key_s(self, key: str, wanted: bytes) -> float:
        """Seconds from a key until the mark of the moved row is written."""
        since = len(self.received)
        began = time.perf_counter()
        os.write(self._fd, key.encode())
        with self.wrote:
            self.wrote.wait_for(lambda: wanted in self.received[since:], 10)
        return time.perf_counter() - began

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Resident memory, in MB of 10^6 bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(10)


def measure(product: Product, runs: int) -> dict[str, float]:
    """Every figure, after that many runs."""
    asyncio.run(in_flight(product.host, product.port, "bench/steps", '{"steps":1}', count=runs, width=100))
    url = f"http://{product.host}:{product.port}"
    figures = starts(url)
    terminal = Terminal(url)
    try:
        terminal.until(b"Succeeded")
        time.sleep(3)
        figures["memory, MB"] = terminal.resident_mb()
        before, began = terminal.cpu_s(), time.perf_counter()
        time.sleep(IDLE_S)
        figures["processor while idle, %"] = 100 * (terminal.cpu_s() - before) / (time.perf_counter() - began)
        stop = threading.Event()
        sender = threading.Thread(target=_send, args=(product, stop))
        sender.start()
        before, began = terminal.cpu_s(), time.perf_counter()
        took: list[float] = []
        for number in range(KEYS):
            took.append(terminal.key_s("j" if number % 20 < 10 else "k", "▸".encode()))
            time.sleep(0.1)
        figures["processor under changes, %"] = 100 * (terminal.cpu_s() - before) / (time.perf_counter() - began)
        stop.set()
        sender.join()
        figures["key to screen, p50 ms"] = statistics.median(took) * 1000
        figures["key to screen, p95 ms"] = percentile(took, 0.95) * 1000
        figures["memory after, MB"] = terminal.resident_mb()
    finally:
        terminal.close()
    return figures


def starts(url: str) -> dict[str, float]:
    """How a dashboard begins."""
    found: dict[str, list[float]] = {}
    for number in range(1 + STARTS):
        terminal = Terminal(url)
        try:
            painted = terminal.until(b"Runs")
            painted_cpu = terminal.cpu_s()
            listed = terminal.until(b"Succeeded")
        finally:
            terminal.close()
        if number:
            found.setdefault("first paint, ms", []).append(painted * 1000)
            found.setdefault("processor until the first paint, ms", []).append(painted_cpu * 1000)
            found.setdefault("runs on the screen, ms", []).append(listed * 1000)
    return {name: statistics.median(values) for name, values in found.items()}


def commands() -> dict[str, float]:
    """How long a person waits for `--help`, and for a `dev` without anything before it."""
    found: dict[str, list[float]] = {}
    command = [sys.executable, "-P", "-c", _BOOT]
    for number in range(1 + STARTS):
        began, before = time.perf_counter(), os.times()
        subprocess.run([*command, "--help"], env=environment(), check=True, stdout=subprocess.DEVNULL)
        helped, after = time.perf_counter(), os.times()
        ready = _dev_ready_s(command)
        if number:
            found.setdefault("--help, ms", []).append((helped - began) * 1000)
            used = after.children_user + after.children_system - before.children_user - before.children_system
            found.setdefault("processor for --help, ms", []).append(used * 1000)
            found.setdefault("dev ready, ms", []).append(ready * 1000)
    return {name: statistics.median(values) for name, values in found.items()}


def _dev_ready_s(command: list[str]) -> float:
    """Seconds until a server answers and a worker of it has registered."""
    with tempfile.TemporaryDirectory(prefix="ryusen-bench-") as folder:
        target = Path(folder) / "functions.py"
        target.write_text((ROOT / "benchmarks" / "functions.py").read_text())
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, "dev", str(target), "--port", "0", "--no-tui"], cwd=folder, env=environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == "ready":
                    return time.perf_counter() - began
            raise RuntimeError("dev never became ready")
        finally:
            process.terminate()
            process.communicate(timeout=20)


def _send(product: Product, stop: threading.Event) -> None:
    """About fifty changes a second: two runs, each of an event and five transactions, five times a second."""
    while not stop.is_set():
        asyncio.run(one_by_one(product.host, product.port, "bench/steps", '{"steps":1}', 1))
        stop.wait(0.2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="how many runs there are before the dashboard starts")
    chosen = parser.parse_args()
    with running(ROOT) as product:
        figures = measure(product, chosen.runs)
    for name, figure in {**figures, **commands()}.items():
        print(f"{name:<40}{figure:>10.1f}")


if __name__ == "__main__":
    main()
