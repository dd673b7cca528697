"""`python -m benchmarks.pending [--count N]`: what very many pending timers and waits cost everything else.

Measures a server with none, then with N (half timers, half waits with a correlation of their own), then the same file after a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.load import Client, one_by_one, percentile
from benchmarks.processes import HERE, Product, get, running
from benchmarks.waiting_functions import AT_ONCE

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 16
Figures = dict[str, float]


async def _take(product: Product) -> Figures:
    """What a run of three steps and an event that nobody waits for take, and the memory of the server."""
    took = await one_by_one(product.host, product.port, "bench/steps", '{"steps":3}', 200)
    return {
        "3-step run, p50 ms": percentile(took, 0.5) * 1000,
        "event under a name with waits, none of them met, p50 ms": await _event_ms(product, "none"),
        "server memory, MB": product.resident_mb(product.server_pid),
    }


async def _event_ms(product: Product, order: str) -> float:
    client = Client(product.host, product.port)
    took: list[float] = []
    for _ in range(100):
        body = json.dumps({"name": "bench/approved", "data": {}, "metadata": {"order": order}}).encode()
        began = time.perf_counter()
        await client.request("POST", "/v1/workspaces/default/events?wait_ms=10000", body)
        took.append(time.perf_counter() - began)
    await client.close()
    return statistics.median(took) * 1000


async def _match_ms(product: Product, orders: range) -> float:
    """From sending an event to the end of its expansion, which has settled the waits it meets: those that one earlier event began."""
    client = Client(product.host, product.port)
    took: list[float] = []
    for order in orders:
        body = json.dumps({"name": "bench/approved", "data": {}, "metadata": {"order": str(order)}}).encode()
        began = time.perf_counter()
        await client.request("POST", "/v1/workspaces/default/events?wait_ms=10000", body)
        took.append(time.perf_counter() - began)
    await client.close()
    return statistics.median(took) * 1000


async def _pend(product: Product, count: int) -> float:
    """Begin the waiting runs and return how many begin to wait a second."""
    began = time.perf_counter()
    orders = iter(range(count // AT_ONCE))

    async def work() -> None:
        client = Client(product.host, product.port)
        for order in orders:
            await client.request("POST", "/v1/workspaces/default/events", f'{{"name":"bench/pending","data":{{"order":{order}}}}}'.encode())
        await client.close()

    await asyncio.gather(*(work() for _ in range(WIDTH)))
    url = f"http://{product.host}:{product.port}/v1/workspaces/default/workers"
    while True:  # at rest when no worker has had anything for a while
        quiet = 0
        for _ in range(4):
            await asyncio.sleep(0.25)
            workers = await asyncio.to_thread(get, url)
            quiet += all(worker["in_flight"] == 0 for worker in workers["items"])
        if quiet == 4:
            return count / (time.perf_counter() - began)


def measure(count: int) -> list[tuple[str, Figures]]:
    """The three columns."""
    functions = HERE / "waiting_functions.py"
    with tempfile.TemporaryDirectory(prefix="ryusen-pending-") as folder:
        db = Path(folder, "pending.db")
        with running(ROOT, functions=functions, db=db) as product:
            none = asyncio.run(_take(product))
            rate = asyncio.run(_pend(product, count))
            some = asyncio.run(_take(product))
            some["runs that begin to wait, a second"] = rate
            some["event that 25 waits meet, p50 ms"] = asyncio.run(_match_ms(product, range(20)))
        with running(ROOT, functions=functions, db=db) as product:
            again = asyncio.run(_take(product))
            again["start to first answer, ms"] = product.ready_s * 1000
            again["event that 25 waits meet, p50 ms"] = asyncio.run(_match_ms(product, range(20, 40)))
    return [("none", none), (f"{count:,}", some), ("after a restart", again)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pending", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many pending timers and waits")
    columns = measure(parser.parse_args().count)
    names = list(dict.fromkeys(name for _, figures in columns for name in figures))
    width = max(map(len, names))
    print(f"{'':<{width}}" + "".join(f"  {title:>16}" for title, _ in columns))
    for name in names:
        cells = (f"{figures[name]:>16.1f}" if name in figures else f"{'':>16}" for _, figures in columns)
        print(f"{name:<{width}}  " + "  ".join(cells))


if __name__ == "__main__":
    main()
