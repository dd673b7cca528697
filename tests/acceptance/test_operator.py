"""An operator settles what nobody can know, with real processes: workers that hang or die, and a server killed while it is told."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.flows import effect_names, end, flow, the_run
from tests.acceptance.product import Product, W, eventually, product

LEASE_MS = 1_200

ATTEMPTS = """
def held():
    attempt = operation().attempt
    effect("held")
    (FOLDER / f"in-{attempt}").touch()
    while not (FOLDER / f"go-on-{attempt}").exists():
        time.sleep(0.01)
    return attempt

"""


def unknown(running: Product) -> Any:
    """The one attempt that is Unknown, once there is one."""
    (attempt,) = eventually(lambda: running.get(f"{W}/attempts?state=unknown")["items"], "an attempt becomes Unknown")
    return attempt


def resolve(running: Product, attempt: Any, command: object, key: str) -> httpx.Response:
    document = {
        "version": 1,
        "attempt_id": attempt["attempt_id"],
        "attempt_generation": attempt["attempt_generation"],
        "idempotency_key": key,
        "command": command,
    }
    return running.client.post(f"{running.url}{W}/attempts/{attempt['attempt_id']}/resolve", json=document)


def resolved(running: Product, attempt: Any, command: object, key: str = "k") -> Any:
    answer = resolve(running, attempt, command, key)
    assert answer.status_code == 200, answer.text
    return answer.json()


def generations(run: Any) -> list[tuple[int, str]]:
    return [(attempt["attempt_generation"], attempt["state"]) for attempt in run["steps"][-1]["attempts"]]


@pytest.mark.req("ACC-40", "ACC-41", "UNK-05", "UNK-06", "UNK-07", "UNK-09", "OPR-22")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_retry_whose_commit_kills_the_server_is_made_once_and_its_successor_alone_counts(tmp_path: Path, moment: str) -> None:
    with product(tmp_path, lease_ms=LEASE_MS) as running:
        worker = running.start_worker(target=flow(tmp_path, ATTEMPTS + 'return await step.run("held", held)'))
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-1")
        worker.send_signal(signal.SIGSTOP)
        attempt = unknown(running)
        running.kill_at("operator_command", moment)
        with pytest.raises(httpx.TransportError):
            resolve(running, attempt, {"authorize_retry": {}}, "k")
        running.await_server_killed()
        running.start_server()
        both = [(1, "retry_authorized"), (2, "queued")]
        assert generations(the_run(running, event_id)) == (both if moment == "after" else [(1, "unknown")])
        answer = resolved(running, attempt, {"authorize_retry": {}})
        assert answer["status"] == ("replayed" if moment == "after" else "applied")
        assert answer["successor"]["attempt_generation"] == 2
        assert generations(the_run(running, event_id)) == both

        (tmp_path / "go-on-1").touch()
        worker.send_signal(signal.SIGCONT)
        running.await_marker("in-2")
        run = the_run(running, event_id)
        late = eventually(
            lambda: [record for record in running.history(run["run_id"]) if record["kind"] == "submission_stale"],
            "the late result of the first generation comes in",
        )
        assert [record["attempt_id"] for record in late] == [attempt["attempt_id"]]
        assert the_run(running, event_id)["steps"][-1]["state"] == "pending"
        (tmp_path / "go-on-2").touch()
        run = running.ended(event_id)
        assert run["result"]["value"] == "2"
        assert generations(run) == [(1, "retry_authorized"), (2, "succeeded")]
        effects = running.effects("-")
        assert [number for *_, number in effects] == [1, 2]
        assert len({operation_id for _, _, operation_id, _ in effects}) == 1
        assert resolved(running, attempt, {"authorize_retry": {}}) == {**answer, "status": "replayed"}


@pytest.mark.req("UNK-07", "UNK-10", "OPR-15")
def test_b33_a_callback_that_outlives_its_timeout_can_only_leave_a_diagnostic_once_it_is_tried_again(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, ATTEMPTS + 'return await step.run("held", held, timeout="200ms")'))
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-1")
        attempt = unknown(running)
        (tmp_path / "go-on-2").touch()
        assert resolved(running, attempt, {"authorize_retry": {}})["status"] == "applied"
        run = running.ended(event_id)
        assert (run["outcome"], run["result"]["value"]) == ("succeeded", "2")
        assert generations(run) == [(1, "retry_authorized"), (2, "succeeded")]
        (tmp_path / "go-on-1").touch()
        eventually(
            lambda: "submission_stale" in [record["kind"] for record in running.history(run["run_id"])], "the callback returns after all"
        )
        after = running.get(f"{W}/runs/{run['run_id']}")
        assert {**after, "position": 0} == {**run, "position": 0}


@pytest.mark.req("OPT-10", "UNK-01", "SEM-09")
def test_b14_a_callback_that_takes_its_process_along_dies_once_and_others_go_on(tmp_path: Path) -> None:
    body = """
def deadly():
    effect("deadly")
    if operation().attempt == 1:
        os._exit(1)

await step.run("first", do, "first")
if event.data:
    await step.run("deadly", deadly)
"""
    file = flow(tmp_path, body)
    with product(tmp_path, lease_ms=LEASE_MS) as running:
        first = running.start_worker("--release", "r1", target=file)
        event_id = running.send("go", True)["event_id"]
        first.wait(20)
        assert first.returncode == 1
        running.start_worker("--release", "r2", target=file)
        attempt = unknown(running)
        assert attempt["worker"]["release_id"] == "r1"
        assert running.ended(running.send("go", False)["event_id"])["outcome"] == "succeeded"
        time.sleep(2 * LEASE_MS / 1000)  # long enough for any retry that must not come
        assert effect_names(running).count("deadly") == 1
        resolved(running, attempt, {"authorize_retry": {}})
        run = running.ended(event_id)
        assert (run["outcome"], generations(run)) == ("succeeded", [(1, "retry_authorized"), (2, "succeeded")])
        assert effect_names(running).count("deadly") == 2
        assert [each["worker"]["release_id"] for each in run["steps"][-1]["attempts"]] == ["r1", "r2"], "by the code that is live"


@pytest.mark.req("CMP-11", "CMP-12", "OPR-15", "OPR-23")
def test_a_compensation_that_is_lost_halts_the_unwind_until_somebody_says_what_became_of_it(tmp_path: Path) -> None:
    body = """
def refund(name):
    effect("undo-" + name)
    (FOLDER / "in-undo").touch()
    if not (FOLDER / "go-on").exists():
        time.sleep(60)

await step.run("a", do, "a", compensate=undo)
await step.run("b", do, "b", compensate=refund)
await step.run("c", give_up, "c")
"""
    file = flow(tmp_path, body)
    with product(tmp_path, lease_ms=LEASE_MS) as running:
        first = running.start_worker(target=file)
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-undo")
        first.kill()
        running.go_on()
        running.start_worker(target=file)
        attempt = unknown(running)
        assert (attempt["phase"], attempt["step_id"]) == ("compensation", "b")
        assert attempt["allowed_commands"] == ["supply_success", "declare_failure", "authorize_retry"]
        time.sleep(LEASE_MS / 1000)
        run = the_run(running, event_id)
        assert (run["status"], run["attention"]) == ("compensating", "unknown")
        assert [(target["step_id"], target["state"]) for target in run["unwind"]["targets"]] == [("b", "pending"), ("a", "pending")]
        assert effect_names(running) == ["a", "b", "c", "undo-b"]
        answer = resolved(running, attempt, {"supply_success": {"result": {"type": "null"}}})
        assert answer["transition"] == {"attempt": "succeeded", "step": "succeeded", "run": "compensating"}
        assert end(running.ended(event_id)) == ("failed", "fully_compensated", None)
        assert effect_names(running) == ["a", "b", "c", "undo-b", "undo-a"]
