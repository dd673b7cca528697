"""The server is killed with SIGKILL at every named write boundary, before the commit and between the commit and what it lets out.

Whatever the boundary: no acknowledged event is lost, no run doubled or stranded, and since the worker lives through it all, every effect
happens exactly as often as without the kills.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.product import Product, eventually, product

FORWARD = ["charge", "reserve", "reserve", "ship"]
UNWOUND = [*FORWARD, "release", "refund"]

OF_A_FAILING_RUN = (
    "event_accepted",
    "fan_out_advanced",
    "run_created",
    "step_declared",
    "attempt_authorized",
    "step_succeeded",
    "attempt_failed",
    "step_failed",
    "compensation_started",
    "target_settled",
    "run_ended",
)
OF_A_SUCCEEDING_RUN = ("outcome_succeeded",)


def send_until_accepted(running: Product, order: int, *, fail: bool) -> Any:
    """What a careful client does: the same event under the same key, until it is acknowledged."""

    def attempt() -> Any | None:
        if running.server is not None and running.server.poll() is not None:
            running.await_server_killed()
            running.start_server()
        return running.try_send("order/placed", {"order": order, "fail": fail}, key=f"order-{order}")

    return eventually(attempt, "the event is acknowledged")


def send_through_a_kill(running: Product, order: int, boundary: str, moment: str, *, fail: bool) -> str:
    """Send the order with the server dying at the boundary, and return the event's id with the next server running."""
    starts = running.starts
    running.kill_at(boundary, moment)
    accepted = send_until_accepted(running, order, fail=fail)
    if running.starts == starts:
        running.await_server_killed()
        running.start_server()
    return accepted["event_id"]


def check_end(running: Product, event_id: str, order: int, *, fail: bool) -> None:
    run = running.ended(event_id)
    assert (run["outcome"], run["recovery"]) == (("failed", "fully_compensated") if fail else ("succeeded", "not_required"))
    assert running.effect_names(order) == (UNWOUND if fail else FORWARD)
    assert [target["step_id"] for target in run["unwind"]["targets"]] == (["reserve", "charge"] if fail else [])
    assert running.get("/v1/workspaces/default/attempts?state=unknown")["items"] == []
    records = running.history(run["run_id"])
    assert [record["kind"] for record in records].count("run_created") == 1
    settled = [record["attempt_id"] for record in records if record["kind"] == "attempt_settled"]
    assert len(settled) == len(set(settled))
    operations = {operation_id for _, _, operation_id, _ in running.effects(order)}
    assert len(operations) == (5 if fail else 3)


@pytest.mark.req("ACC-02", "ACC-03", "ACC-04", "ACC-05", "ACC-06", "ACC-07", "STO-02", "STO-04", "STO-06", "ING-03", "ING-11", "SEM-08")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("boundary", [*OF_A_FAILING_RUN, *OF_A_SUCCEEDING_RUN])
def test_a_kill_at_a_boundary_loses_and_doubles_nothing(tmp_path: Path, boundary: str, moment: str) -> None:
    fail = boundary not in OF_A_SUCCEEDING_RUN
    with product(tmp_path, plain=True) as running:
        running.start_worker()
        events: list[str] = []
        for order in (1, 2, 3):
            events.append(send_through_a_kill(running, order, boundary, moment, fail=fail))
            check_end(running, events[-1], order, fail=fail)
        for order, event_id in zip((1, 2, 3), events, strict=True):
            check_end(running, event_id, order, fail=fail)
        assert len(running.get("/v1/workspaces/default/runs?limit=50")["items"]) == 3
        assert len(running.get("/v1/workspaces/default/events?limit=50")["items"]) == 3


@pytest.mark.req("STO-02", "STO-05", "PRO-11")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "boundary", ["event_accepted", "step_declared", "step_succeeded", "compensation_started", "target_settled", "run_ended"]
)
def test_the_same_with_merged_commits_and_early_discovery(tmp_path: Path, boundary: str, moment: str) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        event_id = send_through_a_kill(running, 1, boundary, moment, fail=True)
        check_end(running, event_id, 1, fail=True)


@pytest.mark.req("MAN-05", "REG-04")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("boundary", ["manifest_activated", "release_seen"])
def test_a_kill_while_a_worker_starts_is_got_over_by_itself(tmp_path: Path, boundary: str, moment: str) -> None:
    with product(tmp_path, plain=True) as running:
        running.kill_at(boundary, moment)
        starting = Product(tmp_path)
        starting.url = running.url
        try:
            starting.start_worker_without_waiting("--release", "r1")
            running.await_server_killed()
            running.start_server()
            eventually(
                lambda: any(item["connected"] for item in running.get("/v1/workspaces/default/workers")["items"]), "the worker registers"
            )
            head = running.get("/v1/workspaces/default/routing?limit=10")["items"]
            assert [item["active"] for item in head].count(True) == 1
            assert running.get("/v1/workspaces/default/applications")["items"][0]["routing_generation"] == head[0]["routing_generation"]
            assert [item["release_id"] for item in running.get("/v1/workspaces/default/releases")["items"]] == ["r1"]
            accepted = running.send("order/placed", {"order": 9, "fail": False})
            check_end(running, accepted["event_id"], 9, fail=False)
        finally:
            starting.close()
