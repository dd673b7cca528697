"""Timers, event waits, children and emissions over real processes: the server dies in each, and in what one run owes another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flows import cancel
from tests.acceptance.product import Product, W, eventually, product

WORKFLOWS = """
import os, time
from pathlib import Path
from ryusen_sdk import Event, Ryusen, Step, operation

app = Ryusen("kinds")
FOLDER = Path(os.environ["ACCEPTANCE_FOLDER"])

def effect(order, name):
    now = operation()
    with (FOLDER / "effects").open("a") as log:
        log.write(f"{order} {name} {now.phase} {now.id} {now.attempt}\\n")
    return name

def hold(order, name):
    effect(order, name)
    while not (FOLDER / "go-on").exists():
        time.sleep(0.01)
    return name

@app.function()
async def pack(event: Event, step: Step):
    order = event.data["order"]
    boxed = await step.run("box", effect, order, "box")
    if event.data["hold"]:
        await step.run("seal", hold, order, "seal", compensate=lambda _: effect(order, "unseal"))
    return boxed

@app.function(on="kinds/asked")
async def answers(event: Event, step: Step):
    await step.sleep("think", "150ms")
    await step.send_event("answer", "kinds/answered", {"yes": event.data["order"]}, {"order": str(event.data["order"])})

@app.function(on="kinds/placed")
async def placed(event: Event, step: Step):
    order, held = event.data["order"], event.data["hold"]
    await step.run("charge", effect, order, "charge", compensate=lambda _: effect(order, "refund"))
    await step.sleep("cool", "250ms")
    boxed = await step.invoke("pack", pack, {"order": order, "hold": held})
    await step.send_event("ask", "kinds/asked", {"order": order})
    answer = await step.wait_for_event("ok", "kinds/answered", {"order": str(order)}, timeout="1h")
    return [boxed, answer.data["yes"]]
"""

BOUNDARIES = (
    ("timer_armed", "after"),
    ("child_invoked", "after"),
    ("obligation_incurred", "after"),
    ("obligation_discharged", "before"),
    ("wait_registered", "after"),
    ("event_accepted", "after"),
)


def run_of(running: Product, event_id: str) -> Any:
    return running.get(f"{W}/runs/{eventually(lambda: running.runs_of(event_id), 'the run exists')[0]['run_id']}")


@pytest.mark.req("TMR-06", "EVW-05", "INV-04", "EMT-06", "EMT-09", "STO-02")
def test_a_run_of_every_kind_ends_the_same_though_the_server_dies_in_it(tmp_path: Path) -> None:
    file = tmp_path / "kinds.py"
    file.write_text(WORKFLOWS)
    with product(tmp_path, plain=True) as running:
        running.start_worker(target=file)
        for order, (boundary, moment) in enumerate(BOUNDARIES):
            accepted = running.send("kinds/placed", {"order": order, "hold": False}, key=f"order-{order}")
            running.kill_at(boundary, moment)
            running.await_server_killed()
            running.start_server()
            run = running.ended(accepted["event_id"])
            assert run["outcome"] == "succeeded", run
            assert [step["kind"] for step in run["steps"]] == ["run", "timer", "child", "emission", "event_wait"]
            assert [item["value"] for item in run["result"]["value"]] == ["box", str(order)]
            assert running.effect_names(order) == ["charge", "box"], (boundary, moment)
            assert [child["outcome"] for child in run["children"]] == ["succeeded"]
        eventually(lambda: not running.get(f"{W}/runs?status=running")["items"], "everything ends")
        assert len(running.get(f"{W}/events?limit=100")["items"]) == 3 * len(BOUNDARIES)
        assert len(running.get(f"{W}/runs?limit=100")["items"]) == 3 * len(BOUNDARIES)


@pytest.mark.req("INV-04")
def test_parents_end_after_their_children_when_everything_is_cancelled_behind_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "kinds.py"
    file.write_text(WORKFLOWS)
    with product(tmp_path) as running:
        running.start_worker(target=file)
        events = [running.send("kinds/placed", {"order": order, "hold": True})["event_id"] for order in range(4)]
        eventually(lambda: sum(running.effect_names(order).count("seal") for order in range(4)) == 4, "every child is in its callback")
        running.kill_server()
        running.start_server()
        runs = [run_of(running, event_id) for event_id in events]
        children = [run["steps"][-1]["child_run_id"] for run in runs]
        for run in runs:
            cancel(running, run["run_id"])
        eventually(lambda: len(running.get(f"{W}/runs?status=stopping")["items"]) == 8, "the stop goes down to the children")
        running.go_on()
        for order, (event_id, child_run_id) in enumerate(zip(events, children, strict=True)):
            parent, child = running.ended(event_id), running.get(f"{W}/runs/{child_run_id}")
            assert (parent["outcome"], parent["recovery"]) == ("cancelled", "fully_compensated")
            assert (child["outcome"], child["recovery"]) == ("cancelled", "partially_compensated"), "a box has no compensator"
            assert child["ended_at_ms"] <= parent["ended_at_ms"]
            assert running.effect_names(order) == ["charge", "box", "seal", "unseal", "refund"]
