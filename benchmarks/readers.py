"""`python -m benchmarks.readers [--ended N] [--live N]`: how long readers wait on a full database, whatever they ask and whatever the page.

A server and a worker make one run of each kind; the file is then filled with copies of their rows under other ids, and a server is started
over it. Prints the start-up and, for each question, the median and the longest answer over its first pages.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.load import Client
from benchmarks.processes import HERE, get

W = "/v1/workspaces/default"
ASKED = 15
PAGES_BEHIND = 30
CHUNK = 2_000
RUN_FILTERS = (
    "", "status=running", "status=ended", "status=definition_blocked", "outcome=succeeded", "outcome=failed", "outcome=cancelled",
    "recovery=fully_compensated", "recovery=not_required", "recovery=compensation_failed", "function=steps", "function=saga",
    "application=bench", "application=none", "attention=unknown", "attention=no_worker", "q=rn_", "q=rn_1", "q=st", "q=saga", "q=none",
    "status=ended&outcome=failed&function=saga", "status=running&function=steps",
)  # fmt: skip
ATTEMPT_STATES = ("", "queued", "authorized", "unknown", "succeeded", "failed", "fenced", "skipped")
OTHERS = ("/v1/server", f"{W}/workers", f"{W}/functions", f"{W}/releases", f"{W}/applications", f"{W}/routing")


class Server:
    """`ryusen serve` over a file."""

    url: str

    def __init__(self, db: Path) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "ryusen_cli", "serve", "--db", str(db), "--port", "0"]
        self.process = subprocess.Popen(command, cwd=HERE.parent, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = [word.rstrip(",") for word in line.split() if word.startswith("http://127")]
            if found:
                self.url = found[0]
                break
        else:
            raise RuntimeError("the server did not start")
        get(f"{self.url}/v1/health")
        self.ready_s = time.perf_counter() - began

    @property
    def address(self) -> tuple[str, int]:
        parts = urllib.parse.urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


def make_templates(db: Path) -> None:
    """One run that succeeded, one that was undone, and one that waits for a worker."""
    server = Server(db)
    command = [sys.executable, "-m", "ryusen_cli", "worker", str(HERE / "functions.py"), "--url", server.url]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not get(f"{server.url}{W}/workers")["items"]:
            time.sleep(0.05)
        for body in (b'{"name":"bench/steps","data":{"steps":3}}', b'{"name":"bench/saga","data":{}}'):
            post(f"{server.url}{W}/events?wait_ms=20000", body)
    finally:
        worker.terminate()
        worker.wait(30)
    post(f"{server.url}{W}/events", b'{"name":"bench/steps","data":{"steps":3}}')
    server.stop()


def post(url: str, body: bytes) -> None:
    """Send a JSON document."""
    urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}), timeout=30).close()


class Copies:
    """Writes copies of a run's rows under new ids."""

    def __init__(self, connection: sqlite3.Connection, ended: int, live: int) -> None:
        self._connection = connection
        self._chance = random.Random(7)
        self._position = connection.execute("SELECT max(position) FROM history").fetchone()[0] + 1
        runs = {row["status"] + (row["outcome"] or ""): row for row in self._rows("runs")}
        self._kinds = [(runs["endedsucceeded"], ended * 9 // 10), (runs["endedfailed"], ended // 10), (runs["running"], live)]

    def _rows(self, table: str, where: str = "1", *parameters: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(f"SELECT * FROM {table} WHERE {where}", parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def write(self) -> None:
        """All of them, in one transaction; the indexes are made after the rows, which is a good deal quicker."""
        indexes = self._connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall()
        for name, _ in indexes:
            self._connection.execute(f"DROP INDEX {name}")
        for template, count in self._kinds:
            family = [
                ("events", self._rows("events", "event_id = ?", template["event_id"])),
                ("runs", [template]),
                ("attempts", self._rows("attempts", "run_id = ?", template["run_id"])),
                ("history", self._rows("history", "run_id = ?", template["run_id"])),
            ]
            olds = [template["run_id"], template["event_id"], *(row["attempt_id"] for row in family[2][1])]
            for begin in range(0, count, CHUNK):
                copies = [(number, self._news(len(olds))) for number in range(begin, min(begin + CHUNK, count))]
                for table, rows in family:
                    for row in rows:
                        self._copy(table, row, olds, copies)
        for _, statement in indexes:
            self._connection.execute(statement)
        self._connection.commit()

    def _news(self, count: int) -> list[str]:
        """Ids in the place of a run's, its event's and its attempts'."""
        prefixes = ("rn", "ev", *("at" for _ in range(count - 2)))
        return [f"{prefix}_{self._chance.getrandbits(104):026x}"[:25] for prefix in prefixes]

    def _copy(self, table: str, row: dict[str, Any], olds: list[str], copies: list[tuple[int, list[str]]]) -> None:
        names = [name for name in row if not name.startswith("shown")]
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"
        live = table == "runs" and row["status"] != "ended"
        written: list[tuple[Any, ...]] = []
        for number, news in copies:
            swaps = dict(zip(olds, news, strict=True))
            changed = [self._changed(name, row[name], swaps, number) for name in names]
            if live and number % 100 == 0:
                changed[names.index("attention")] = "unknown"
            written.append(tuple(changed))
        self._connection.executemany(statement, written)

    def _changed(self, name: str, value: Any, swaps: dict[str, str], number: int) -> Any:
        if name == "position":
            self._position += 1
            return self._position
        if isinstance(value, bytes):
            for old, new in swaps.items():
                value = value.replace(old.encode(), new.encode())
            return value
        if isinstance(value, int) and value > 1_000_000_000_000:
            return value - number * 1_000
        return swaps.get(value, value) if isinstance(value, str) else value


async def ask(server: Server) -> list[tuple[str, list[float]]]:
    """Each question with the seconds its answers took."""
    client = Client(*server.address)
    first = await client.request("GET", f"{W}/runs?status=ended&limit=1")
    run = first["items"][0]
    detail = [
        f"{W}/runs/{run['run_id']}",
        f"{W}/runs/{run['run_id']}/history",
        f"{W}/events/{run['event_id']}",
        f"{W}/runs?event={run['event_id']}",
    ]
    lists = [
        *(f"{W}/runs?{query}" for query in RUN_FILTERS),
        *(f"{W}/attempts?state={s}" if s else f"{W}/attempts?" for s in ATTEMPT_STATES),
    ]
    lists += [f"{W}/events?", f"{W}/events?name=bench/saga"]
    found = [(path, [await timed(client, path) for _ in range(ASKED)]) for path in [*detail, *OTHERS]]
    for path in lists:
        took: list[float] = []
        target = path
        for page in range(PAGES_BEHIND):
            began = time.perf_counter()
            answer = await client.request("GET", target)
            took.append(time.perf_counter() - began)
            if answer["next_cursor"] is None:
                if page:
                    break
                continue
            target = f"{path}&cursor={answer['next_cursor']}"
        found.append((path, took))
    await client.close()
    return found


async def timed(client: Client, path: str) -> float:
    """Seconds of one answer."""
    began = time.perf_counter()
    await client.request("GET", path)
    return time.perf_counter() - began


def main() -> None:
    """Fill, start, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=__doc__)
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--live", type=int, default=10_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ryusen-bench-") as folder:
        db = Path(folder, "full.db")
        make_templates(db)
        connection = sqlite3.connect(db)
        Copies(connection, chosen.ended, chosen.live).write()
        connection.close()
        print(f"{chosen.ended} ended and {chosen.live} live runs, {db.stat().st_size / 1e6:.0f} MB")
        server = Server(db)
        print(f"{'start to first answer':<70} {server.ready_s * 1000:>9.0f} ms")
        try:
            for name, took in asyncio.run(ask(server)):
                print(f"{name.removeprefix(W):<70} {statistics.median(took) * 1000:>9.1f} ms, longest {max(took) * 1000:.1f}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
