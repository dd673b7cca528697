"""`ryusen dev` as a developer uses it: one command, save, send, and the code that is saved is the code that runs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.product import PATIENCE_S, ROOT, Product, W, eventually

CODE = """
import os, time
from pathlib import Path
from ryusen_sdk import Event, Ryusen, Step, Retry

app = Ryusen("reloaded")
HERE = Path(__file__).parent

@app.function(on="go")
async def go(event: Event, step: Step) -> str:
    first = await step.run("first", work, retry=Retry(max_attempts=50, initial="100ms", multiplier=1))
    return first

def work() -> str:
    WORK
"""


def code(work: str) -> str:
    return CODE.replace("WORK", work)


class Dev:
    """A running `ryusen dev`, and every line it has printed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ryusen_cli", "dev", *arguments, "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.product = Product(folder)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def await_line(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """The first line that matches, of those printed after so many."""

        def probe() -> re.Match[str] | None:
            found = next((match for line in self.lines[after:] if (match := re.search(pattern, line))), None)
            if found is None and self.process.poll() is not None:
                raise AssertionError("\n".join(self.lines))
            return found

        return eventually(probe, f"a line like {pattern!r} in:\n" + "\n".join(self.lines))

    def await_ready(self) -> None:
        self.await_line(r"^ready$")
        self.product.url = self.await_line(r"^listening +(http://127\.0\.0\.1:\d+)$")[1]

    def releases(self) -> list[str]:
        return [item["release_id"] for item in self.product.get(f"{W}/workers")["items"] if item["connected"] and not item["draining"]]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextmanager
def dev(folder: Path, *arguments: str) -> Iterator[Dev]:
    running = Dev(folder, *arguments)
    try:
        yield running
    finally:
        running.product.client.close()
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(PATIENCE_S)
        running.reader.join(PATIENCE_S)
        assert running.process.stdout is not None
        running.process.stdout.close()


@pytest.mark.req("CLI-01", "CLI-02", "CLI-04", "CLI-05", "CLI-06", "SDK-10", "STO-01", "SEC-06", "ACC-01", "SEM-04", "SEM-06")
def test_one_command_reaches_ready_and_its_next_step_works(tmp_path: Path) -> None:
    with dev(tmp_path, str(ROOT / "examples" / "orders" / "orders.py")) as running:
        running.await_ready()
        printed = "\n".join(running.lines)
        assert f"database    {tmp_path / '.ryusen' / 'ryusen.db'}" in printed
        assert re.search(r"routing +rg_", printed)
        assert re.search(r"manifest +shop: mg_", printed)
        assert re.search(r"workers +1 connected", printed)
        assert re.search(r"function +shop/fulfil-order on order/placed", printed)
        assert re.search(r"capacity \d+", printed)
        assert "no HTTP endpoints" in printed
        assert (tmp_path / ".ryusen" / "ryusen.db").stat().st_mode & 0o777 == 0o600
        command = shlex.split(running.await_line(r"^next step +(ryusen send .*)$")[1])
        sent = subprocess.run(
            [sys.executable, "-m", "ryusen_cli", *command[1:]], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert sent.returncode == 0, sent.stdout + sent.stderr
        accepted = running.product.send("order/placed", {"order": 8, "fail": True})
        run = running.product.ended(accepted["event_id"])
        assert (run["outcome"], run["recovery"]) == ("failed", "fully_compensated")
        assert running.stop() == 130


@pytest.mark.req("SEM-02", "OPT-01")
def test_a_saved_callback_is_what_the_next_attempt_runs(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(code('raise RuntimeError("not yet")'))
    with dev(tmp_path, "flow.py") as running:
        running.await_ready()
        event_id = running.product.send("go", None)["event_id"]
        eventually(
            lambda: any(
                "attempt_settled" in record["kind"]
                for run in running.product.runs_of(event_id)
                for record in running.product.history(run["run_id"])
            ),
            "the first attempt fails",
        )
        file.write_text(code('return "mended"'))
        run = running.product.ended(event_id)
        assert run["outcome"] == "succeeded"
        assert run["result"] == {"type": "string", "value": "mended"}
        workers = [attempt["worker"]["release_id"] for attempt in run["steps"][0]["attempts"] if attempt["worker"]]
        assert len(set(workers)) == 2


@pytest.mark.req("CON-06")
def test_a_reload_during_a_step_makes_nothing_unknown(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    slow = '(HERE / "began").touch(); time.sleep(3); (HERE / "log").open("a").write("slow\\n"); return "old"'
    file.write_text(code(slow))
    with dev(tmp_path, "flow.py") as running:
        running.await_ready()
        before = running.releases()
        event_id = running.product.send("go", None)["event_id"]
        eventually((tmp_path / "began").exists, "the step begins")
        for index in range(5):
            file.write_text(code(slow.replace('"old"', f'"new {index}"')))
            time.sleep(0.05)
        eventually(lambda: running.releases() and running.releases() != before, "the new worker takes over")
        run = running.product.ended(event_id)
        assert run["outcome"] == "succeeded"
        assert run["result"] == {"type": "string", "value": "old"}
        assert (tmp_path / "log").read_text() == "slow\n"
        assert "attempt_unknown" not in [record["kind"] for record in running.product.history(run["run_id"])]
        eventually(lambda: len([w for w in running.product.get(f"{W}/workers")["items"] if w["connected"]]) == 1, "the old worker ends")
        assert running.product.ended(running.product.send("go", None)["event_id"])["result"]["value"] == "new 4"


@pytest.mark.req("CLI-07")
def test_a_syntax_error_is_shown_and_keeps_the_last_good_worker(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(code('return "good"'))
    with dev(tmp_path, "flow.py") as running:
        running.await_ready()
        good = running.releases()
        printed = len(running.lines)
        file.write_text(code('return "broken'))
        running.await_line(r"flow\.py:\d+", after=printed)
        assert running.releases() == good
        assert running.product.ended(running.product.send("go", None)["event_id"])["result"]["value"] == "good"
        file.write_text(code('return "better"'))
        eventually(lambda: running.releases() and running.releases() != good, "the mended code takes over")
        assert running.product.ended(running.product.send("go", None)["event_id"])["result"]["value"] == "better"


def test_nothing_of_it_survives_a_kill(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(code('return "x"'))
    with dev(tmp_path, "flow.py") as running:
        running.await_ready()
        children = subprocess.run(["pgrep", "-P", str(running.process.pid)], capture_output=True, text=True, check=False).stdout.split()
        assert children
        running.process.kill()
        running.process.wait(PATIENCE_S)
        eventually(
            lambda: (
                not any(
                    Path(f"/proc/{child}/status").exists() and "Z (zombie)" not in Path(f"/proc/{child}/status").read_text()
                    for child in children
                )
            ),
            "the children end",
        )


@pytest.mark.req("MAN-15", "MAN-16")
def test_events_outlive_dev_and_its_server(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(code('return "x"'))
    with dev(tmp_path, "flow.py") as running:
        running.await_ready()
        first: Any = running.product.send("go", None)
        running.product.ended(first["event_id"])
        routing = running.product.get(f"{W}/routing?limit=50")["items"]
        assert running.stop() == 130
    with dev(tmp_path, "flow.py") as running:
        running.await_ready()
        assert [event["event_id"] for event in running.product.get(f"{W}/events")["items"]] == [first["event_id"]]
        assert running.product.get(f"{W}/routing?limit=50")["items"] == routing
        assert running.product.ended(first["event_id"])["outcome"] == "succeeded"
