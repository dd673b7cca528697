"""Workers die, hang and come back: what was repeatable is repeated, what was an effect is Unknown or answered late, never run again."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.product import Product, W, eventually, product

SHORT_LEASE_MS = 1_200


def unknown(running: Product) -> list[Any]:
    return running.get(f"{W}/attempts?state=unknown")["items"]


def the_run(running: Product, event_id: str) -> Any:
    run_id = eventually(lambda: running.runs_of(event_id), "the run exists")[0]["run_id"]
    return running.get(f"{W}/runs/{run_id}")


@pytest.mark.req("ACC-78", "CON-04", "UNK-02", "ACC-79", "SDK-09")
def test_b13a_a_worker_killed_in_discovery_costs_nothing(tmp_path: Path) -> None:
    with product(tmp_path, lease_ms=SHORT_LEASE_MS) as running:
        first = running.start_worker()
        event_id = running.send("hang/body", 1)["event_id"]
        running.await_marker("in-body")
        first.kill()
        running.go_on()
        running.start_worker()
        run = running.ended(event_id)
        assert run["outcome"] == "succeeded"
        assert [attempt["attempt"] for step in run["steps"] for attempt in step["attempts"]] == [1]
        assert unknown(running) == []
        assert running.effect_names(1) == ["after"]


@pytest.mark.req("ACC-79", "UNK-01", "SEM-10")
@pytest.mark.parametrize(("event", "effects_then"), [("hang/before", ["first"]), ("hang/after", ["held"])])
def test_b13bc_a_worker_killed_in_a_callback_leaves_it_unknown_for_good(tmp_path: Path, event: str, effects_then: list[str]) -> None:
    with product(tmp_path, lease_ms=SHORT_LEASE_MS) as running:
        first = running.start_worker()
        event_id = running.send(event, 2)["event_id"]
        running.await_marker("in-callback")
        first.kill()
        running.go_on()
        running.start_worker()
        lost = eventually(lambda: unknown(running), "the attempt becomes Unknown")[0]
        run = the_run(running, event_id)
        assert (run["status"], run["attention"]) == ("running", "unknown")
        assert (lost["step_id"], lost["attempt"], lost["attempt_generation"]) == ("held", 1, 1)
        time.sleep(3 * SHORT_LEASE_MS / 1000)  # long enough for any retry that must not come
        after = the_run(running, event_id)
        assert [attempt["state"] for attempt in after["steps"][-1]["attempts"]] == ["unknown"]
        assert running.effect_names(2) == effects_then


@pytest.mark.req("UNK-03")
def test_a_worker_that_was_stopped_past_its_lease_settles_its_unknown_attempt_late(tmp_path: Path) -> None:
    with product(tmp_path, lease_ms=SHORT_LEASE_MS) as running:
        worker = running.start_worker()
        event_id = running.send("hang/after", 3)["event_id"]
        running.await_marker("in-callback")
        worker.send_signal(signal.SIGSTOP)
        eventually(lambda: unknown(running), "the attempt becomes Unknown")
        running.go_on()
        worker.send_signal(signal.SIGCONT)
        run = running.ended(event_id)
        assert run["outcome"] == "succeeded"
        kinds = [record["kind"] for record in running.history(run["run_id"])]
        assert kinds.index("attempt_unknown") < kinds.index("step_completed")
        assert running.effect_names(3) == ["held"]


@pytest.mark.req("CON-02", "CON-05", "ACC-80", "UNK-08")
def test_b16_a_result_that_finishes_while_the_server_is_away_is_delivered_and_accepted_once(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        event_id = running.send("hang/after", 4)["event_id"]
        running.await_marker("in-callback")
        running.kill_server()
        running.go_on()
        time.sleep(1)  # the callback returns into nothing
        running.start_server()
        run = running.ended(event_id)
        assert run["outcome"] == "succeeded"
        assert running.effect_names(4) == ["held"]
        kinds = [record["kind"] for record in running.history(run["run_id"])]
        assert kinds.count("attempt_authorized") == kinds.count("attempt_settled") == 1
        assert "attempt_unknown" not in kinds


@pytest.mark.req("STO-05", "UNK-01")
def test_b09_a_long_step_over_a_server_kill_is_not_dispatched_again(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        event_id = running.send("hang/before", 5)["event_id"]
        running.await_marker("in-callback")
        running.kill_server()
        running.start_server()
        eventually(lambda: any(item["connected"] for item in running.get(f"{W}/workers")["items"]), "the worker is back")
        running.go_on()
        assert running.ended(event_id)["outcome"] == "succeeded"
        assert running.effect_names(5) == ["first", "held"]


def test_b23_callbacks_that_block_do_not_look_like_a_lost_worker(tmp_path: Path) -> None:
    with product(tmp_path, lease_ms=SHORT_LEASE_MS) as running:
        running.start_worker()
        seconds = 2.5 * SHORT_LEASE_MS / 1000
        run = running.ended(running.send("busy", {"seconds": seconds})["event_id"])
        assert run["outcome"] == "succeeded"
        assert running.effect_names(seconds) == ["sync", "async"]
        assert "attempt_unknown" not in [record["kind"] for record in running.history(run["run_id"])]


@pytest.mark.req("ACC-81", "CON-06", "STO-03")
def test_a_worker_told_to_stop_finishes_what_it_holds_and_takes_nothing_new(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        old = running.start_worker()
        event_id = running.send("hang/before", 6)["event_id"]
        running.await_marker("in-callback")
        old.terminate()
        eventually(lambda: [item for item in running.get(f"{W}/workers")["items"] if item["draining"]], "the worker drains")
        queued = running.send("order/placed", {"order": 60, "fail": False})["event_id"]
        time.sleep(0.5)
        assert running.effect_names(60) == []
        running.go_on()
        old.wait(20)
        running.start_worker()
        assert running.ended(event_id)["outcome"] == "succeeded"
        assert running.ended(queued)["outcome"] == "succeeded"
        assert running.effect_names(6) == ["first", "held"]


@pytest.mark.req("STO-03")
def test_a_server_told_to_stop_waits_for_what_is_out_and_no_longer_than_its_bound(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        quick = running.send("busy", {"seconds": 0.3})["event_id"]
        stuck = running.send("hang/after", 7)["event_id"]
        running.await_marker("in-callback")
        began = time.monotonic()
        running.stop_server()
        assert time.monotonic() - began < 15
        running.go_on()
        running.start_server()
        assert running.ended(quick)["outcome"] == "succeeded"
        assert running.ended(stuck)["outcome"] == "succeeded"
        assert running.effect_names(0.3) == ["sync", "async"]
        assert running.effect_names(7) == ["held"]


@pytest.mark.req("REG-11", "MAN-21", "SEM-15")
def test_work_waits_for_a_worker_and_says_so(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        worker = running.start_worker()
        worker.terminate()
        worker.wait(20)
        accepted = running.send("order/placed", {"order": 8, "fail": False})
        assert accepted["matched"] == 1
        run = the_run(running, accepted["event_id"])
        assert (run["status"], run["attention"]) == ("running", "no_worker")
        running.kill_server()
        running.start_server()
        assert the_run(running, accepted["event_id"])["attention"] == "no_worker"
        running.start_worker()
        assert running.ended(accepted["event_id"])["outcome"] == "succeeded"


@pytest.mark.req("VAL-03")
def test_a_result_that_is_not_portable_is_one_failure_that_says_where(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        run = running.ended(running.send("unportable", 9)["event_id"])
        assert (run["outcome"], run["recovery"]) == ("failed", "fully_compensated")
        failure = run["steps"][1]["failure"]
        assert failure["category"] == "sdk.invalid_result"
        assert "$.nested[1]" in failure["message"]
        assert [attempt["attempt"] for attempt in run["steps"][1]["attempts"]] == [1]
        assert running.effect_names("-") == ["set", "undo ok"]
