"""Runs that are stopped, by people or by their deadline, with real processes that are killed meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flows import HEAD, cancel, effect_names, end, flow, kinds, stop, the_run
from tests.acceptance.product import Product, W, eventually, product


def with_timeout(folder: Path, timeout: str, body: str) -> Path:
    return flow(folder, body, head=HEAD.replace('on="go"', f'on="go", timeout="{timeout}"'))


# the deadline


@pytest.mark.req("ACC-09", "ACC-10", "DLN-09", "STOP-03")
def test_a_deadline_outlives_the_crash_right_after_fan_out_and_ends_a_run_that_never_began(tmp_path: Path) -> None:
    file = with_timeout(tmp_path, "1200ms", 'await step.run("timed", do, "timed")')
    calm = '\n\n@app.function(on="calm")\nasync def calm(event: Event, step: Step):\n    await step.run("a", do, "a")\n'
    file.write_text(file.read_text() + calm)
    with product(tmp_path, plain=True) as running:
        stop(running.start_worker(target=file))
        for late in (False, True):
            running.kill_at("run_created", "after")
            accepted = running.try_send("go", None, key=f"{late}")
            running.await_server_killed()
            if late:
                time.sleep(1.5)
            running.start_server()
            event_id = (accepted or running.send("go", None, key=f"{late}"))["event_id"]
            run = running.ended(event_id)
            assert end(run) == ("timed_out", "not_required", "empty_unwind")
            assert run["deadline"] == {"at_ms": run["created_at_ms"] + 1_200, "source": "function"}, "the instant is that of the fan-out"
            assert run["ended_at_ms"] >= run["deadline"]["at_ms"]
            assert (run["stop"]["reason"], run["steps"]) == ("timed_out", [])
            assert not {"step_declared", "attempt_queued"} & set(kinds(running, run))
        running.start_worker(target=file)
        assert running.ended(running.send("calm", None)["event_id"])["outcome"] == "succeeded"
        assert effect_names(running) == ["a"], "the worker ran the third run, and nothing of the others"


@pytest.mark.req("ACC-13", "ACC-18", "DLN-07", "DLN-08", "DLN-10", "STOP-07", "SEM-18")
@pytest.mark.parametrize("by", ["cancel", "deadline"])
def test_b41_a_stop_undoes_everything_however_late_and_keeps_its_reason(tmp_path: Path, by: str) -> None:
    body = """
def slow_undo(name):
    time.sleep(0.75)
    effect("undo-" + name)

await step.run("a", do, "a", compensate=slow_undo)
await step.run("b", do, "b", compensate=slow_undo)
await step.run("c", hold, "c", compensate=slow_undo)
await step.run("d", do, "d")
"""
    with product(tmp_path) as running:
        running.start_worker(target=with_timeout(tmp_path, "2s", body))
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-callback")
        run_id = the_run(running, event_id)["run_id"]
        if by == "cancel":
            assert cancel(running, run_id)["run"]["stop"]["reason"] == "cancelled"
        eventually(lambda: the_run(running, event_id)["status"] == "stopping", "the run is stopped")
        running.go_on()
        run = running.ended(event_id)
        outcome = "cancelled" if by == "cancel" else "timed_out"
        assert end(run) == (outcome, "fully_compensated", None)
        assert run["stop"]["reason"] == outcome
        assert run["ended_at_ms"] > run["deadline"]["at_ms"], "the unwind went on past the deadline"
        assert effect_names(running) == ["a", "b", "undo-c", "undo-b", "undo-a"]
        assert [step["state"] for step in run["steps"]] == ["succeeded"] * 3


# cancel


@pytest.mark.req("STOP-02", "STOP-08", "STOP-06", "STOP-01", "STOP-14")
def test_b34_b37_after_a_cancel_nothing_is_tried_again_whether_it_waited_or_was_out(tmp_path: Path) -> None:
    body = """
def fail_late(name):
    hold(name)
    effect(name)
    raise ConnectionError("hung up")

def fail():
    effect("fails")
    raise ConnectionError("hung up")

await step.run("a", do, "a", compensate=undo)
if event.data == "waits":
    await step.run("b", fail, retry=Retry(initial="5s"))
else:
    await step.run("c", fail_late, "c", retry=Retry(initial="10ms"))
"""
    with product(tmp_path) as running:
        worker = running.start_worker(target=flow(tmp_path, body))
        waits = running.send("go", "waits")["event_id"]
        eventually(lambda: [part for part in the_run(running, waits)["steps"] if len(part["attempts"]) == 2], "a retry is queued")
        assert cancel(running, the_run(running, waits)["run_id"])["run"]["status"] == "compensating", "it waits for nothing"
        run = running.ended(waits)
        assert end(run) == ("cancelled", "fully_compensated", None)
        assert [attempt["state"] for attempt in run["steps"][1]["attempts"]] == ["failed", "fenced"]
        assert effect_names(running) == ["a", "fails", "undo-a"]

        out = running.send("go", "out")["event_id"]
        running.await_marker("in-callback")
        run_id = the_run(running, out)["run_id"]
        first = cancel(running, run_id)
        stopped = running.history(run_id)
        assert (first["status"], first["run"]["status"]) == ("applied", "stopping")
        assert cancel(running, run_id)["status"] == "replayed"
        assert running.history(run_id) == stopped
        running.go_on()
        run = running.ended(out)
        assert end(run) == ("cancelled", "fully_compensated", None)
        assert [attempt["state"] for attempt in run["steps"][1]["attempts"]] == ["failed"]
        assert effect_names(running)[3:] == ["a", "c", "undo-a"]
        assert worker.poll() is None, "the worker lives"
        time.sleep(0.3)
        assert "fails" not in effect_names(running)[3:]


# the transaction that makes the plan


@pytest.mark.req("ACC-74", "ACC-75", "ACC-76", "CMP-18", "SEM-17")
def test_a_kill_around_the_plan_leaves_no_run_compensating_without_work(tmp_path: Path) -> None:
    body = """
if event.data == "skipped":
    await step.run("a", do, "a")
    await step.run("b", do, "b")
raise Terminal("no carrier takes it")
"""
    with product(tmp_path, plain=True) as running:
        running.start_worker(target=flow(tmp_path, body))
        for what, moment in (("empty", "before"), ("empty", "after"), ("skipped", "before"), ("skipped", "after")):
            run = failed_through_a_kill(running, what, moment)
            if what == "empty":
                assert end(run) == ("failed", "not_required", "empty_unwind")
                assert "compensation_started" not in kinds(running, run)
            else:
                assert end(run) == ("failed", "partially_compensated", None)
                assert [target["state"] for target in run["unwind"]["targets"]] == ["skipped", "skipped"]
        assert effect_names(running) == ["a", "b"] * 2
        assert running.get(f"{W}/runs?status=compensating")["items"] == []


def failed_through_a_kill(running: Product, what: str, moment: str) -> Any:
    running.kill_at("outcome_failed", moment)
    accepted = running.try_send("go", what, key=f"{what} {moment}")
    running.await_server_killed()
    running.start_server()
    return running.ended((accepted or running.send("go", what, key=f"{what} {moment}"))["event_id"])
