"""Commands that follow and wait, over a server that is killed and comes back."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.acceptance.flows import flow
from tests.acceptance.product import W, eventually, product
from tests.cli.processes import PATIENCE_S, Running


@pytest.mark.req("API-06")
def test_who_follows_or_waits_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    body = """
await step.run("first", do, "first")
await step.run("held", hold, "held")
return "done"
"""
    with product(tmp_path) as running:
        at = ("--url", running.url)
        follower = Running(tmp_path, "runs", "tail", "--after", "0", "--json", *at)
        running.start_worker(target=flow(tmp_path, body))
        sender = Running(tmp_path, "send", "go", "--wait", "--timeout", "60s", "--json", *at)
        running.await_marker("in-callback")
        (run,) = eventually(lambda: running.get(f"{W}/runs")["items"], "the run is there")
        teller = Running(tmp_path, "runs", "tail", run["run_id"], "--json", *at)
        waiter = Running(tmp_path, "runs", "wait", run["run_id"], "--timeout", "60s", "--json", *at)
        teller.until("attempt_authorized")
        for route in ("/runs/{run_id}", "/events"):
            held = f'requests_open{{route="/v1/workspaces/{{workspace}}{route}"}} 1'
            eventually(lambda held=held: held in running.client.get(f"{running.url}/v1/metrics").text, f"somebody waits at {route}")
        before = running.get(f"{W}/runs/{run['run_id']}/history")["items"]

        running.kill_server()
        teller.until("the server is away")
        running.start_server()
        running.go_on()

        assert json.loads(waiter.until('"run_id"'))["outcome"] == "succeeded"
        assert [each["outcome"] for each in json.loads(sender.until('"event_id"'))["runs"]] == ["succeeded"]
        teller.until("run_ended")
        follower.until("run_ended")
        assert [one.process.wait(PATIENCE_S) for one in (waiter, sender, teller)] == [0, 0, 0]
        assert follower.end(signal.SIGINT) == 130

        history = running.get(f"{W}/runs/{run['run_id']}/history")["items"]
        assert history[: len(before)] == before
        told = [json.loads(line) for line in teller.lines if line.startswith("{")]
        assert told == history
        followed = [json.loads(line) for line in follower.lines if line.startswith("{")]
        positions = [change["position"] for change in followed]
        assert positions == sorted(set(positions))
        of_run = [change["position"] for change in followed if any(one.get("run_id") == run["run_id"] for one in change["records"])]
        assert of_run == [entry["position"] for entry in history]
