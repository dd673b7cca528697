"""Workflow files written by the test that runs them, and what tests ask of their runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.product import PATIENCE_S, Product, W, eventually

HEAD = """
import os, time
from pathlib import Path
from ryusen_sdk import Event, Failure, Retry, Ryusen, Step, StepFailed, Terminal, operation

app = Ryusen("outcomes")
FOLDER = Path(os.environ["ACCEPTANCE_FOLDER"])

def effect(name):
    now = operation()
    with (FOLDER / "effects").open("a") as log:
        log.write(f"- {name} {now.phase} {now.id} {now.attempt}\\n")

def do(name):
    effect(name)
    return name

def undo(name):
    effect("undo-" + name)

def give_up(name):
    effect(name)
    raise Terminal("no carrier takes it")

def hold(name):
    (FOLDER / "in-callback").touch()
    while not (FOLDER / "go-on").exists():
        time.sleep(0.01)
    return name

def hold_and_give_up(name):
    hold(name)
    give_up(name)

@app.function(on="go")
async def go(event: Event, step: Step):
"""


def flow(folder: Path, body: str, *, head: str = HEAD) -> Path:
    """A workflow file whose one function, started by `go`, has this body."""
    file = folder / "flow.py"
    file.write_text(head + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    return file


def effect_names(running: Product) -> list[str]:
    return running.effect_names("-")


def stop(worker: subprocess.Popen[bytes]) -> None:
    worker.terminate()
    worker.wait(PATIENCE_S)


def the_run(running: Product, event_id: str) -> Any:
    run_id = eventually(lambda: running.runs_of(event_id), "the run exists")[0]["run_id"]
    return running.get(f"{W}/runs/{run_id}")


def cancel(running: Product, run_id: str) -> Any:
    answer = running.client.post(f"{running.url}{W}/runs/{run_id}/cancel", json={})
    assert answer.status_code == 202, answer.text
    return answer.json()


def kinds(running: Product, run: Any) -> list[str]:
    return [record["kind"] for record in running.history(run["run_id"])]


def end(run: Any) -> tuple[str, str, str | None]:
    return run["outcome"], run["recovery"], run["recovery_reason"]
