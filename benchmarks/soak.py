"""`python -m benchmarks.soak [--minutes M] [--rate R]`: a server under steady load with readers that come and go.

Sends events of 5 KB at a rate, with a worker that runs them and readers of the change stream that join and leave. Prints, from after the
first tenth on, how memory, descriptors and the write-ahead log went, with the slope of memory in MB an hour and in bytes an event; and the
slope over the second half, by when the database's page caches are full.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.load import Client
from benchmarks.processes import HERE
from benchmarks.readers import Server

W = "/v1/workspaces/default"
PAYLOAD = {"text": "x" * 5_000}
READERS = 8
SAMPLE_S = 5.0
TELL_EVERY = 120
"""Samples between two lines that tell how far it is."""


def facts(pid: int, db: Path) -> tuple[float, int, float]:
    """Resident memory in MB, open descriptors, and the size of the write-ahead log in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    wal = Path(f"{db}-wal")
    return rss / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), wal.stat().st_size / 1e6 if wal.exists() else 0.0


async def send(url: str, rate: float, until: float) -> int:
    """Events at the rate; how many were accepted."""
    host, port = url.removeprefix("http://").split(":")
    client = Client(host, int(port))
    body = json.dumps({"name": "bench/steps", "data": {"steps": 1, **PAYLOAD}}).encode()
    sent, began = 0, time.monotonic()
    while time.monotonic() < until:
        behind = began + sent / rate - time.monotonic()
        if behind > 0:
            await asyncio.sleep(behind)
        await client.request("POST", f"{W}/events", body)
        sent += 1
    await client.close()
    return sent


async def read(url: str, until: float, number: int) -> None:
    """A reader that follows the stream for a few seconds, leaves without a word, and comes again."""
    host, port = url.removeprefix("http://").split(":")
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {W}/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        leave = min(until, time.monotonic() + 3 + number)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while time.monotonic() < leave:
                await asyncio.wait_for(reader.read(65_536), max(0.01, leave - time.monotonic()))
        writer.close()


def slope(samples: list[tuple[float, float]]) -> float:
    """The least-squares slope of some (x, y)."""
    n = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / n, sum(y for _, y in samples) / n
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


async def soak(server: Server, db: Path, minutes: float, rate: float) -> None:
    """Load it, and print what came of it."""
    began = time.monotonic()
    until = began + minutes * 60
    sending = asyncio.create_task(send(server.url, rate, until))
    readers = [asyncio.create_task(read(server.url, until, number)) for number in range(READERS)]
    samples: list[tuple[float, float, int, float]] = []
    while time.monotonic() < until:
        await asyncio.sleep(SAMPLE_S)
        samples.append((time.monotonic() - began, *facts(server.process.pid, db)))
        if len(samples) % TELL_EVERY == 0:
            print(f"after {samples[-1][0] / 60:.0f} minutes {samples[-1][1]:.1f} MB", file=sys.stderr, flush=True)
    sent = await sending
    await asyncio.gather(*readers)
    warm = samples[len(samples) // 10 :]
    size_mb = (await asyncio.to_thread(db.stat)).st_size / 1e6
    per_s = slope([(at, rss) for at, rss, _, _ in warm])
    print(f"{sent} events of 5 KB in {minutes:g} minutes, {sent / (minutes * 60):.0f} a second, {READERS} readers that join and leave")
    first_mb, last_mb, an_event = warm[0][1], warm[-1][1], per_s * 1e6 * minutes * 60 / sent
    print(f"memory       {first_mb:.1f} MB to {last_mb:.1f} MB, slope {per_s * 3600:.2f} MB an hour, {an_event:.0f} bytes an event")
    late_per_s = slope([(at, rss) for at, rss, _, _ in samples[len(samples) // 2 :]])
    print(f"second half  {samples[len(samples) // 2][1]:.1f} MB to {last_mb:.1f} MB, slope {late_per_s * 3600:.2f} MB an hour")
    print(f"descriptors  {min(fds for _, _, fds, _ in warm)} to {max(fds for _, _, fds, _ in warm)}")
    print(f"log          at most {max(wal for *_, wal in warm):.1f} MB, database {size_mb:.0f} MB")


def main() -> None:
    """One server, one worker, and the load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=20.0, help="events a second")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ryusen-soak-") as folder:
        db = Path(folder, "soak.db")
        server = Server(db)
        command = [sys.executable, "-m", "ryusen_cli", "worker", str(HERE / "functions.py"), "--url", server.url]
        worker = subprocess.Popen(command, cwd=HERE.parent, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            time.sleep(2)
            asyncio.run(soak(server, db, chosen.minutes, chosen.rate))
        finally:
            worker.terminate()
            worker.wait()
            server.stop()


if __name__ == "__main__":
    main()
