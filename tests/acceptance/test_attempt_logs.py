"""What callbacks print, from a real worker's streams to whoever reads the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.product import HERE, ROOT, Product, W, eventually
from tests.acceptance.test_transports import served

TALKING = HERE / "talking.py"


def told(running: Product, run_id: str) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(step, phase, lines) of each attempt that printed."""
    items = running.get(f"{W}/runs/{run_id}/logs")["items"]
    return [(item["step_id"], item["phase"], [(line["level"], line["text"]) for line in item["lines"]]) for item in items]


def shown(running: Product, *arguments: str) -> str:
    command = [sys.executable, "-m", "ryusen_cli", *arguments, "--url", running.url]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return done.stdout


TALK = ("talk", "forward", [("stdout", "charging"), ("warning", "slow card [/]\x1b[31m"), ("stderr", "bad news")])


@pytest.mark.parametrize("transport", ["connected", "asgi"])
def test_lines_are_kept_by_attempt_and_shown_with_the_run(tmp_path: Path, transport: str) -> None:
    with served(tmp_path, transport, TALKING) as running:
        run = running.ended(running.send("talk/now", "go")["event_id"])
        assert run["outcome"] == "failed"
        expected = [TALK, ("refuse", "forward", [("stdout", "no carrier")]), ("talk", "compensation", [("stdout", "untalked")])]
        eventually(lambda: told(running, run["run_id"]) == expected, "every attempt's lines are kept")
        text = shown(running, "runs", "show", run["run_id"])
        assert "refuse, attempt 1" in text
        assert "talk, undoing, attempt 1" in text
        assert "slow card [/]" in text
        assert "\x1b" not in text
        document: dict[str, Any] = json.loads(shown(running, "runs", "show", run["run_id"], "--json"))
        assert [item["step_id"] for item in document["logs"]] == ["talk", "refuse", "talk"]
        first = running.get(f"{W}/runs/{run['run_id']}/logs?limit=1")
        rest = running.get(f"{W}/runs/{run['run_id']}/logs?cursor={first['next_cursor']}")
        assert [item["step_id"] for item in first["items"] + rest["items"]] == ["talk", "refuse", "talk"]
        (one,) = running.get(f"{W}/runs/{run['run_id']}/logs?attempt={first['items'][0]['attempt_id']}")["items"]
        assert one == first["items"][0]
        assert running.client.get(f"{running.url}{W}/runs/rn_none/logs").status_code == 404
        assert "charging" in (running.folder / "worker.log").read_text(), "its own output stays what it was"


def test_a_callback_that_runs_is_heard_while_it_does_and_when_it_never_answers(tmp_path: Path) -> None:
    with served(tmp_path, "connected", TALKING) as running:
        event_id = running.send("talk/now", "wait")["event_id"]
        running.await_marker("working")
        (run,) = running.runs_of(event_id)
        working = ("work", "forward", [("stdout", "working")])
        eventually(lambda: told(running, run["run_id"]) == [TALK, working], "lines of a callback that still runs")
        running.kill_server()
        running.start_server()
        assert told(running, run["run_id"]) == [TALK, working], "what somebody has read is in the file"
        running.go_on()
        running.ended(event_id)
        worked = ("work", "forward", [("stdout", "working"), ("stdout", "worked")])
        eventually(lambda: told(running, run["run_id"]) == [TALK, worked], "the outcome tells the rest once, over a restart")


def test_the_last_words_of_a_worker_that_died_are_there_for_whoever_settles_its_attempt(tmp_path: Path) -> None:
    with served(tmp_path, "connected", TALKING) as running:
        event_id = running.send("talk/now", "wait")["event_id"]
        running.await_marker("working")
        (run,) = running.runs_of(event_id)
        eventually(lambda: len(told(running, run["run_id"])) == 2, "lines of a callback that still runs")
        running.workers[0].kill()
        (attempt,) = eventually(lambda: running.get(f"{W}/attempts?state=unknown")["items"], "the attempt is Unknown")
        assert "working" in shown(running, "unknown", "show", attempt["attempt_id"])
        assert told(running, run["run_id"])[1] == ("work", "forward", [("stdout", "working")])
