"""A developer who saves again and again while a step runs and runs are queued: nothing sticks, nothing is lost, nothing happens twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tests.acceptance.product import W, eventually
from tests.acceptance.test_dev import dev

CODE = """
import time
from pathlib import Path
from ryusen_sdk import Event, Ryusen, Step, operation

app = Ryusen("burst")
HERE = Path(__file__).parent
EDIT = NUMBER


@app.function(on="go")
async def go(event: Event, step: Step) -> int:
    return await step.run("work", work, event.data)


def work(slow: bool) -> int:
    with (HERE / "effects").open("a") as log:
        log.write(operation().id + "\\n")
    if slow:
        (HERE / "began").touch()
        while not (HERE / "go-on").exists():
            time.sleep(0.02)
    return EDIT
"""
SAVES = 20
QUEUED = 10


def save(file: Path, number: int) -> None:
    """As editors do: in place, or under another name that then takes its place."""
    text = CODE.replace("NUMBER", str(number))
    if number % 2:
        file.write_text(text)
    else:
        draft = file.with_name(f".{file.name}.tmp")
        draft.write_text(text)
        draft.replace(file)


def test_twenty_saves_during_a_step_with_runs_queued_leave_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    save(file, 0)
    with dev(tmp_path, "flow.py", "--capacity", "1") as running:
        running.await_ready()
        product = running.product
        slow = product.send("go", True)["event_id"]
        eventually((tmp_path / "began").exists, "the step begins")
        queued = [product.send("go", False)["event_id"] for _ in range(QUEUED)]
        for number in range(1, SAVES + 1):
            save(file, number)
        runs = [product.ended(event_id) for event_id in queued]
        assert {run["outcome"] for run in runs} == {"succeeded"}, "queued work goes on with the new code while the old step runs"
        eventually(lambda: product.ended(product.send("go", False)["event_id"])["result"]["value"] == str(SAVES), "the last save is live")
        (release,) = set(running.releases())
        running.await_line(re.escape(f"new code is live ({release})"))
        assert not product.runs_of(slow)[0]["outcome"]

        product.go_on()
        run = product.ended(slow)
        assert (run["outcome"], run["result"]["value"]) == ("succeeded", "0"), "the step finished where it began"
        running.await_line(rf"has finished; live is {re.escape(release)}$")
        everything = product.get(f"{W}/runs?limit=500")["items"]
        records = [record["kind"] for one in everything for record in product.history(one["run_id"])]
        assert Counter(records)["attempt_unknown"] == 0
        assert {one["status"] for one in everything} == {"ended"}
        effects = (tmp_path / "effects").read_text().splitlines()
        assert len(effects) == len(set(effects)) == len(everything), "one effect a run"
        assert product.get(f"{W}/attempts?state=unknown")["items"] == []

        def left() -> list[Any] | None:
            connected = [one for one in product.get(f"{W}/workers")["items"] if one["connected"]]
            return connected if len(connected) == 1 else None

        (worker,) = eventually(left, "one worker is left")
        assert worker["release_id"] == release
        assert running.stop() == 130
