"""How runs end, with real processes: stopped, failed, undone, skipped, blocked, mended, and always by the code that is live."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from ryusen_protocol.canonical import jcs
from ryusen_protocol.frames import CONNECT_PATH, SUBPROTOCOL
from tests.acceptance.flows import HEAD, cancel, effect_names, end, flow, kinds, stop, the_run
from tests.acceptance.product import PATIENCE_S, ROOT, Product, W, eventually, product

FIXTURES = ROOT / "fixtures"

# stopped


@pytest.mark.req("ACC-08", "STOP-03")
def test_a_run_that_is_cancelled_before_its_first_discovery_never_runs_a_line(tmp_path: Path) -> None:
    file = flow(tmp_path, '(FOLDER / "in-body").touch()\nawait step.run("a", do, "a")')
    with product(tmp_path) as running:
        stop(running.start_worker(target=file))
        run = the_run(running, running.send("go", None)["event_id"])
        assert (run["status"], run["attention"]) == ("running", "no_worker")
        cancelled = cancel(running, run["run_id"])["run"]
        assert end(cancelled) == ("cancelled", "not_required", "empty_unwind")
        running.start_worker(target=file)
        assert not (tmp_path / "in-body").exists()
        assert running.ended(running.send("go", None)["event_id"])["outcome"] == "succeeded"
        assert effect_names(running) == ["a"], "the worker ran the second run and nothing of the first"
        assert running.get(f"{W}/runs/{run['run_id']}")["steps"] == []
        assert not {"discovery_started", "step_declared", "attempt_queued"} & set(kinds(running, run))


@pytest.mark.req("STOP-01", "STOP-10", "STOP-07", "STO-07", "UNK-10")
def test_a_cancel_says_that_it_waits_for_the_callback_and_outlives_a_kill(tmp_path: Path) -> None:
    file = flow(tmp_path, 'await step.run("a", hold, "a", compensate=undo)\nawait step.run("b", do, "b")')
    with product(tmp_path) as running:
        running.start_worker(target=file)
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-callback")
        answer = cancel(running, the_run(running, event_id)["run_id"])
        assert (answer["status"], answer["run"]["status"], answer["run"]["outcome"]) == ("applied", "stopping", None)
        assert "stopped" not in json.dumps(answer)
        running.kill_server()
        running.start_server()
        run = the_run(running, event_id)
        assert (run["status"], run["stop"]) == ("stopping", answer["run"]["stop"])
        assert [attempt["state"] for attempt in run["steps"][0]["attempts"]] == ["authorized"], "the callback is not claimed to have ended"
        eventually(lambda: any(item["connected"] for item in running.get(f"{W}/workers")["items"]), "the worker is back")
        running.go_on()
        assert end(running.ended(event_id)) == ("cancelled", "fully_compensated", None)
        assert effect_names(running) == ["undo-a"]


# failed


@pytest.mark.req("ACC-74", "SEM-17", "CMP-09")
def test_a_failure_before_any_step_completes_has_nothing_to_undo(tmp_path: Path) -> None:
    file = flow(tmp_path, 'await step.run("a", give_up, "a", compensate=undo)')
    with product(tmp_path) as running:
        running.start_worker(target=file)
        run = running.ended(running.send("go", None)["event_id"])
        assert end(run) == ("failed", "not_required", "empty_unwind")
        assert run["failure"]["message"] == "no carrier takes it"
        assert [step["state"] for step in run["steps"]] == ["failed"]
        assert run["unwind"]["targets"] == []
        assert effect_names(running) == ["a"]
        assert "compensation_started" not in kinds(running, run)


@pytest.mark.req("ACC-75", "CMP-10", "CMP-01", "CMP-03")
def test_a_plan_of_skips_alone_ends_partially_compensated(tmp_path: Path) -> None:
    file = flow(tmp_path, 'await step.run("a", do, "a")\nawait step.run("b", do, "b")\nawait step.run("c", give_up, "c")')
    with product(tmp_path) as running:
        running.start_worker(target=file)
        run = running.ended(running.send("go", None)["event_id"])
        assert end(run) == ("failed", "partially_compensated", None)
        targets = [(target["step_id"], target["state"], target["reason"]) for target in run["unwind"]["targets"]]
        assert targets == [("b", "skipped", "no_compensator"), ("a", "skipped", "no_compensator")]
        assert effect_names(running) == ["a", "b", "c"]


@pytest.mark.req("RTY-06", "SEM-14", "RTY-04")
def test_a_handled_failure_stays_visible_in_a_run_that_succeeds(tmp_path: Path) -> None:
    body = """
await step.run("paid", do, "paid", compensate=undo)
try:
    await step.run("courier", give_up, "courier")
except StepFailed as failed:
    return await step.run("post", do, f"post-since-{failed.category}")
"""
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, body))
        run = running.ended(running.send("go", None)["event_id"])
        assert end(run) == ("succeeded", "not_required", "succeeded")
        assert [(step["step_id"], step["state"]) for step in run["steps"]] == [
            ("paid", "succeeded"),
            ("courier", "failed"),
            ("post", "succeeded"),
        ]
        courier = run["steps"][1]
        assert courier["failure"]["message"] == courier["attempts"][0]["error"]["message"] == "no carrier takes it"
        assert run["result"]["value"] == f"post-since-{courier['failure']['category']}"
        assert run["unwind"]["targets"] == []
        assert [name.split("-")[0] for name in effect_names(running)] == ["paid", "courier", "post"], "its replay runs no callback"


@pytest.mark.req("SEM-05", "RTY-01", "UNK-09", "RTY-11", "SEM-09")
def test_a_step_of_an_id_and_a_callback_retries_and_compensates(tmp_path: Path) -> None:
    body = """
def twice():
    do("a")
    if operation().attempt < 2:
        raise ConnectionError("hung up")
    return "kept"

def undone(result):
    effect(f"undo-{result}")
    if operation().attempt < 2:
        raise ConnectionError("hung up again")

await step.run("a", twice, compensate=undone)
raise Terminal("after a")
"""
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, body))
        run = running.ended(running.send("go", None)["event_id"])
        assert end(run) == ("failed", "fully_compensated", None)
        forward, back = run["steps"][0]["attempts"], run["unwind"]["targets"][0]["attempts"]
        assert [(attempt["attempt"], attempt["state"]) for attempt in forward] == [(1, "failed"), (2, "succeeded")]
        assert [(attempt["attempt"], attempt["state"]) for attempt in back] == [(1, "failed"), (2, "succeeded")]
        assert (forward[0]["error"]["message"], back[0]["error"]["message"]) == ("hung up", "hung up again")
        assert forward[0]["error"]["category"] == "ConnectionError"
        assert len({attempt["operation_id"] for attempt in forward}) == len({attempt["operation_id"] for attempt in back}) == 1
        assert forward[0]["operation_id"] != back[0]["operation_id"]
        assert forward[1]["authorized_at_ms"] - forward[0]["settled_at_ms"] >= 900, "the default backoff"
        assert running.effects("-") == [
            ("a", "forward", forward[0]["operation_id"], 1),
            ("a", "forward", forward[0]["operation_id"], 2),
            ("undo-kept", "compensation", back[0]["operation_id"], 1),
            ("undo-kept", "compensation", back[0]["operation_id"], 2),
        ]


# live code


class Changed:
    """A run whose steps a and b are complete under release r1 while its third is out, and whose code is then another release's."""

    THEN = '\nawait step.run("c", hold_and_give_up, "c")'

    def __init__(self, running: Product, before: str, after: str) -> None:
        folder = running.folder
        running.start_worker("--release", "r1", target=flow(folder, before + self.THEN))
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-callback")
        running.start_worker("--release", "r2", target=flow(folder, after + self.THEN))
        running.go_on()
        self.run = running.ended(event_id)

    def releases(self) -> tuple[set[str], set[str]]:
        """Of the forward attempts, and of the compensations."""
        forward = {attempt["worker"]["release_id"] for step in self.run["steps"] for attempt in step["attempts"]}
        back = {attempt["worker"]["release_id"] for target in self.run["unwind"]["targets"] for attempt in target["attempts"]}
        return forward, back


A, A_UNDO = 'await step.run("a", do, "a")', 'await step.run("a", do, "a", compensate=undo)'
B, B_UNDO = 'await step.run("b", do, "b")', 'await step.run("b", do, "b", compensate=undo)'


@pytest.mark.req("CMP-02", "CMP-14", "OPT-04", "OPT-01", "OPT-02", "SEM-02", "SDK-09")
def test_a_compensator_that_was_added_since_runs(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        changed = Changed(running, f"{A}\n{B_UNDO}", f"{A_UNDO}\n{B_UNDO}")
        assert end(changed.run) == ("failed", "fully_compensated", None)
        assert [step["has_compensation"] for step in changed.run["steps"]] == [False, True, False], "as it was declared"
        assert effect_names(running) == ["a", "b", "c", "undo-b", "undo-a"]
        assert changed.releases() == ({"r1"}, {"r2"}), "a release is a fact of an attempt"
        (listed,) = running.get(f"{W}/runs")["items"]
        assert not [name for name in (*changed.run, *listed) if "release" in name or "build" in name], "and none of a run"
        with closing(sqlite3.connect(tmp_path / "ryusen.db")) as database:
            columns = [name for _, name, *_ in database.execute("PRAGMA table_info(runs)")]
        assert not [name for name in columns if "release" in name or "instance" in name or "session" in name]


@pytest.mark.req("CMP-03", "CMP-14", "CMP-08")
def test_a_compensator_that_was_removed_since_is_skipped(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        changed = Changed(running, f"{A_UNDO}\n{B_UNDO}", f"{A_UNDO}\n{B}")
        assert end(changed.run) == ("failed", "partially_compensated", None)
        targets = [(target["step_id"], target["state"], target["reason"]) for target in changed.run["unwind"]["targets"]]
        assert targets == [("b", "skipped", "no_compensator"), ("a", "succeeded", None)]
        assert effect_names(running) == ["a", "b", "c", "undo-a"]


@pytest.mark.req("CMP-17", "CMP-04", "CMP-16")
def test_the_order_of_the_unwind_is_that_of_the_history_whatever_order_the_code_has_now(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        changed = Changed(running, f"{A_UNDO}\n{B_UNDO}", f"{B_UNDO}\n{A_UNDO}")
        assert end(changed.run) == ("failed", "fully_compensated", None)
        assert effect_names(running) == ["a", "b", "c", "undo-b", "undo-a"]


@pytest.mark.req("SEM-11", "SEM-08")
def test_a_body_that_finds_the_world_changed_keeps_what_was_accepted_and_meets_new_ids(tmp_path: Path) -> None:
    body = """
def switch():
    do("morning")
    (FOLDER / "evening").touch()

if (FOLDER / "evening").exists():
    await step.run("evening", do, "evening", compensate=undo)
    raise Terminal("too late")
await step.run("morning", switch)
"""
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, body))
        run = running.ended(running.send("go", None)["event_id"])
        assert [(step["step_id"], step["state"]) for step in run["steps"]] == [("morning", "succeeded"), ("evening", "succeeded")]
        assert effect_names(running) == ["morning", "evening", "undo-evening"]
        targets = [(target["step_id"], target["state"], target["reason"]) for target in run["unwind"]["targets"]]
        assert targets == [("evening", "succeeded", None), ("morning", "skipped", "not_met")]
        assert end(run) == ("failed", "partially_compensated", None)


# blocked


@pytest.mark.req("BLK-01", "BLK-02", "BLK-03", "BLK-04", "BLK-06", "BLK-08", "SEM-08", "ACC-28", "ACC-29")
def test_a_repeated_id_blocks_with_both_places_and_a_new_release_goes_on_from_there(tmp_path: Path) -> None:
    first = 'kept = await step.run("first", do, "first", compensate=undo)\none = await step.run("each", do, "one")\n'
    broken = first + 'two = await step.run("each", do, "two")\nreturn [kept, one, two]'
    with product(tmp_path) as running:
        file = flow(tmp_path, broken)
        running.start_worker("--release", "r1", target=file)
        event_id = running.send("go", None)["event_id"]
        eventually(lambda: running.get(f"{W}/runs?status=definition_blocked")["items"], "the run is blocked")
        run = the_run(running, event_id)
        assert (run["status"], run["attention"], run["outcome"], run["recovery"]) == ("definition_blocked", "blocked", None, None)
        lines = [number for number, line in enumerate(file.read_text().splitlines(), start=1) if '"each"' in line]
        blocker = run["blocker"]
        assert (blocker["reason"], blocker["step_id"], blocker["release_id"]) == ("duplicate_step_id", "each", "r1")
        assert [blocker["first"]["line"], blocker["duplicate"]["line"]] == lines
        assert {Path(blocker[place]["file"]).name for place in ("first", "duplicate")} == {"flow.py"}
        assert all(f"flow.py:{line}" in blocker["message"] for line in lines)
        assert effect_names(running) == ["first", "one"]
        accepted = [step["result"] for step in run["steps"]]

        running.start_worker("--release", "r2", target=flow(tmp_path, broken.replace('"each", do, "two"', '"other", do, "two"')))
        run = running.ended(event_id)
        assert end(run) == ("succeeded", "not_required", "succeeded")
        assert [step["step_id"] for step in run["steps"]] == ["first", "each", "other"]
        assert [step["result"] for step in run["steps"]][:2] == accepted
        assert [item["value"] for item in run["result"]["value"]] == ["first", "one", "two"]
        assert effect_names(running) == ["first", "one", "two"], "nothing ran a second time and nothing was undone"


# deadlines


def skewed(seconds: int) -> str:
    """A workflow file whose process has another idea of the time."""
    return HEAD.replace("import os, time\n", f"import os, time\nreal = time.time\ntime.time = lambda: real() + {seconds}\n")


@pytest.mark.req("DLN-06", "DLN-05")
@pytest.mark.parametrize("seconds", [-(10**9), 10**9])
def test_the_clock_of_a_worker_neither_cuts_a_run_short_nor_lets_it_go_on(tmp_path: Path, seconds: int) -> None:
    def with_timeout(timeout: str) -> Path:
        head = skewed(seconds).replace('on="go"', f'on="go", timeout="{timeout}"')
        body = 'await step.run("a", do, "a")\nif event.data:\n    await step.run("b", hold, "b")'
        return flow(tmp_path, body, head=head)

    with product(tmp_path) as running:
        worker = running.start_worker(target=with_timeout("1h"))
        run = running.ended(running.send("go", False)["event_id"])
        assert run["outcome"] == "succeeded"
        assert run["deadline"] == {"at_ms": run["created_at_ms"] + 3_600_000, "source": "function"}
        assert abs(run["created_at_ms"] / 1000 - time.time()) < PATIENCE_S
        stop(worker)

        running.start_worker(target=with_timeout("1.5s"))
        event_id = running.send("go", True)["event_id"]
        running.await_marker("in-callback")
        eventually(lambda: the_run(running, event_id)["status"] == "stopping", "the deadline stops the run")
        running.go_on()
        run = running.ended(event_id)
        assert (run["outcome"], run["stop"]["reason"], run["deadline"]["source"]) == ("timed_out", "timed_out", "function")
        assert 0 <= run["stop"]["requested_at_ms"] - run["deadline"]["at_ms"] < 10_000


@pytest.mark.req("DLN-05", "DLN-01")
def test_a_deadline_of_the_server_is_told_as_such_and_a_functions_own_goes_first(tmp_path: Path) -> None:
    file = flow(tmp_path, "pass")
    own = '\n\n@app.function(on="own", timeout="2h")\nasync def own(event: Event, step: Step):\n    pass\n'
    file.write_text(file.read_text() + own)
    command = [sys.executable, "-m", "ryusen_cli", "serve", "--port", "0", "--default-run-timeout", "3h", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = Product(tmp_path)
    running.server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    try:
        assert running.server.stdout is not None
        with running.server.stdout as told:
            running.url = json.loads(told.readline())["addresses"][0]
            running.start_worker(target=file)
            by_policy, by_function = (
                running.ended(running.send("go", None)["event_id"]),
                running.ended(running.send("own", None)["event_id"]),
            )
        assert by_policy["deadline"] == {"at_ms": by_policy["created_at_ms"] + 3 * 3_600_000, "source": "policy"}
        assert by_function["deadline"] == {"at_ms": by_function["created_at_ms"] + 2 * 3_600_000, "source": "function"}
    finally:
        running.server.send_signal(signal.SIGTERM)
        running.server.wait(PATIENCE_S)
        running.server = None
        running.close()


# applications, generations, releases


@pytest.mark.req("MAN-20", "MAN-18", "MAN-04", "MAN-02", "REG-06", "SEC-07", "ACC-37")
def test_equal_names_of_two_applications_never_meet_and_generations_never_change(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        for application in ("north", "south"):
            folder = tmp_path / application
            folder.mkdir()
            head = HEAD.replace('Ryusen("outcomes")', f'Ryusen("{application}")')
            body = f'await step.run("a", do, "{application}", compensate=undo)\nraise Terminal("{application}")'
            running.start_worker("--release", "r1", target=flow(folder, body, head=head))
        event_id = running.send("go", None)["event_id"]
        eventually(lambda: [run["status"] for run in running.runs_of(event_id)] == ["ended"] * 2, "both runs end")
        runs = [running.get(f"{W}/runs/{run['run_id']}") for run in running.runs_of(event_id)]
        assert {run["function"] for run in runs} == {"go"}
        assert {run["application"]: run["failure"]["message"] for run in runs} == {"north": "north", "south": "south"}
        workers = {item["instance_id"]: item["application"] for item in running.get(f"{W}/workers")["items"]}
        for run in runs:
            attempts = [attempt for part in (*run["steps"], *run["unwind"]["targets"]) for attempt in part["attempts"]]
            assert {workers[attempt["worker"]["instance_id"]] for attempt in attempts} == {run["application"]}
        assert len({operation_id for _, _, operation_id, _ in running.effects("-")}) == 4
        assert len({run["manifest_generation"] for run in runs}) == 2
        assert len({run["run_id"] for run in runs}) == 2
        releases = running.get(f"{W}/releases")["items"]
        assert sorted((item["application"], item["release_id"]) for item in releases) == [("north", "r1"), ("south", "r1")]

        listed = running.get(f"{W}/routing?limit=50")["items"]
        assert [item["active"] for item in listed] == [True, False, False]
        for younger, older in itertools.pairwise(listed):
            assert younger["expected_parent"] == older["routing_generation"]
            assert younger["activated_position"] > older["activated_position"]
        for item in listed:
            assert item["workspace"] == "default"
            assert item["content_digest"] == "sha256:" + hashlib.sha256(jcs(item["applications"])).hexdigest()
        assert listed[0]["applications"] == {run["application"]: run["manifest_generation"] for run in runs}

        def generations() -> set[tuple[Any, ...]]:
            with closing(sqlite3.connect(tmp_path / "ryusen.db")) as database:
                return {*database.execute("SELECT * FROM manifests"), *database.execute("SELECT * FROM routing")}

        before = generations()
        body = f'await step.run("a", do, "{application}")'
        running.start_worker(target=flow(folder, body, head=head.replace('on="go"', 'on="gone"')))
        after = generations()
        assert before < after
        assert len(after) == len(before) + 2
        assert len(running.get(f"{W}/releases")["items"]) == 2, "a worker without a release id makes none"
        assert [item["release_id"] for item in running.get(f"{W}/workers")["items"]].count(None) == 1


@pytest.mark.req("PRO-21")
def test_a_worker_is_told_which_of_its_capabilities_hold(tmp_path: Path) -> None:
    fixtures = json.loads((FIXTURES / "frames" / "accepted.json").read_text())
    frame = fixtures["register-unknown-capability"]["document"]
    assert frame["capabilities"]
    with product(tmp_path) as running, connect(running.url.replace("http", "ws") + CONNECT_PATH, subprotocols=[SUBPROTOCOL]) as socket:  # type: ignore[list-item]
        socket.send(json.dumps(frame))
        answer = json.loads(socket.recv(PATIENCE_S))
        assert answer["type"] == "registered"
        assert not {name for name in answer["capabilities"] if name not in frame["capabilities"]}
        assert "telepathy" not in answer["capabilities"]
        assert running.get(f"{W}/workers")["items"][0]["capabilities"] == frame["capabilities"]
