"""`python -m benchmarks [--against CHECKOUT] [--rounds N] [--quick]`: measures, and prints figures and ratios.

With `--against` another checkout is measured in turn with this one, A B A B …, and every figure is also given as the ratio of the two:
what lasts when the machine's speed drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.load import accept, in_flight, one_by_one, percentile
from benchmarks.processes import Product, running

ROOT = Path(__file__).resolve().parents[1]
STEPS = (1, 10, 100, 500)

Figures = dict[str, float]


def commit_ms() -> float:
    """The median of a one-row commit in a file of its own, as the server makes it: what a disk allows at best."""
    with tempfile.TemporaryDirectory(prefix="ryusen-bench-") as folder:
        connection = sqlite3.connect(Path(folder, "one.db"), isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE t (v)")
        took: list[float] = []
        for index in range(300):
            began = time.perf_counter()
            connection.execute("INSERT INTO t VALUES (?)", (index,))
            took.append(time.perf_counter() - began)
        connection.close()
    return statistics.median(took) * 1000


def measure(root: Path, *, quick: bool) -> Figures:
    """Every figure of one checkout, on new processes and a new file."""
    scale = 5 if quick else 1
    figures: Figures = {"one commit, ms": commit_ms()}
    with running(root) as product:
        figures["server start to first answer, ms"] = product.ready_s * 1000
        figures["server memory idle, MB"] = product.resident_mb(product.server_pid)
        figures |= asyncio.run(_latencies(product, scale))
        figures |= asyncio.run(_throughput(product, scale))
        figures["server memory after, MB"] = product.resident_mb(product.server_pid)
        figures["worker memory after, MB"] = product.resident_mb(product.worker_pid)
    return figures


async def _latencies(product: Product, scale: int) -> Figures:
    figures: Figures = {}
    for name, event, data, count in (("3-step run", "bench/steps", '{"steps":3}', 200), ("saga of 3", "bench/saga", "{}", 200)):
        before = await asyncio.to_thread(product.commit_count)
        took = await one_by_one(product.host, product.port, event, data, count // scale)
        commits = await asyncio.to_thread(product.commit_count) - before
        figures[f"{name}, p50 ms"] = percentile(took, 0.5) * 1000
        figures[f"{name}, p99 ms"] = percentile(took, 0.99) * 1000
        figures[f"{name}, commits a run"] = commits / (count // scale + min(10, count // scale))
    for steps in STEPS:
        count = max(3, 300 // steps // scale)
        took = await one_by_one(product.host, product.port, "bench/steps", f'{{"steps":{steps}}}', count)
        figures[f"per step of {steps}, ms"] = statistics.median(took) * 1000 / steps
    return figures


async def _throughput(product: Product, scale: int) -> Figures:
    count = 4000 // scale
    before = await asyncio.to_thread(product.commit_count)
    rate = await in_flight(product.host, product.port, "bench/steps", '{"steps":3}', count=count, width=200)
    commits = await asyncio.to_thread(product.commit_count) - before
    events = await accept(product.host, product.port, count=count, width=200)
    one = await accept(product.host, product.port, count=count // 10, width=1)
    return {
        "200 in flight, runs/s": rate,
        "200 in flight, steps/s": rate * 3,
        "200 in flight, commits a step": commits / ((count + 200) * 3),
        "events accepted, 200 at once, /s": events,
        "events accepted, one at a time, /s": one,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout to measure in turn with this one")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured; medians are printed")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, for a first look")
    chosen = parser.parse_args()
    measured: dict[Path, list[Figures]] = {ROOT: []}
    if chosen.against is not None:
        measured[chosen.against.resolve()] = []
    for _ in range(chosen.rounds):
        for root, rounds in measured.items():
            rounds.append(measure(root, quick=chosen.quick))
    _print(measured[ROOT], measured.get(chosen.against.resolve()) if chosen.against is not None else None)


def _print(ours: list[Figures], theirs: list[Figures] | None) -> None:
    median: Callable[[list[Figures], str], float] = lambda rounds, name: statistics.median(figures[name] for figures in rounds)  # noqa: E731
    width = max(len(name) for name in ours[0])
    for name in ours[0]:
        line = f"{name:<{width}}  {median(ours, name):>10.2f}"
        if theirs is not None:
            ratios = [mine[name] / other[name] for mine, other in zip(ours, theirs, strict=True)]
            line += f"  {median(theirs, name):>10.2f}  ratio {statistics.median(ratios):.2f}"
        print(line)
    commit = median(ours, "one commit, ms")
    print(f"{'a step alone (of 100), in one-row commits':<{width}}  {median(ours, 'per step of 100, ms') / commit:>10.2f}")


if __name__ == "__main__":
    main()
