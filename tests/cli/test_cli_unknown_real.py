"""A worker dies in the middle of effects, and an operator settles each by hand: a real server, real workers, the commands as typed."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cli.processes import PATIENCE_S, asked, running
from tests.cli.told import Done, ryusen

T = TypeVar("T")

APP = """
import time
from pathlib import Path
from ryusen_sdk import Ryusen, operation

app = Ryusen("shop")

@app.function(on="order/placed")
async def fulfil(event, step):
    return {"charge": await step.run("charge", charge, event.data, compensate=refund)}

@app.function(on="order/hurried", timeout="2s")
async def hurried(event, step):
    return {"charge": await step.run("charge", charge, event.data, compensate=refund)}

def charge(order):
    with Path("effects").open("a") as file:
        file.write(f"charge {order} {operation().id}\\n")
    while not Path("go").exists():
        time.sleep(0.01)
    return {"order": order}

def refund(charge):
    with Path("effects").open("a") as file:
        file.write(f"refund {charge['order']} {operation().id}\\n")
"""


def eventually(probe: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := probe()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def effects(folder: Path) -> list[list[str]]:
    file = folder / "effects"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def contents(folder: Path) -> list[str]:
    """Everything the database holds."""
    with sqlite3.connect(folder / ".ryusen" / "ryusen.db") as database:
        return list(database.iterdump())


@pytest.mark.req("OPR-01", "OPR-09", "OPR-10", "OPR-16", "OPR-22", "OPR-23", "UNK-09")
def test_effects_of_a_killed_worker_are_settled_in_every_way(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    names = ("happened", "failed", "again", "cancelled", "late")
    with running(tmp_path, "serve", "--port", "0", "--lease", "1s", "--reconnect-grace", "1s", "--json") as server:
        url = server.ready()["addresses"][0]

        def command(*arguments: str) -> Done:
            return ryusen(*arguments, "--url", url)

        def resolve(name: str, *arguments: str) -> Done:
            return command("unknown", "resolve", lost[name]["attempt_id"], "--generation", "1", "--yes", "--json", *arguments)

        def show(name: str) -> Any:
            return asked("runs", "show", runs[name], "--url", url)

        def wait(name: str) -> Any:
            return json.loads(command("runs", "wait", runs[name], "--timeout", "60s", "--json").stdout)

        runs: dict[str, str] = {}
        with running(tmp_path, "worker", "app.py", "--url", url) as first:
            first.until("registered")
            for name in names:
                event = "order/hurried" if name == "late" else "order/placed"
                sent = asked("send", event, "-d", json.dumps(name), "--url", url)
                runs[name] = eventually(lambda sent=sent: asked("events", "show", sent["event_id"], "--url", url)["matches"][0]["run_id"])
            eventually(lambda: len(effects(tmp_path)) == len(names))
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
        listed = eventually(lambda: len(found := asked("unknown", "ls", "--url", url)["items"]) == len(names) and found)
        by_run = {one["run_id"]: one for one in listed}
        lost = {name: by_run[run_id] for name, run_id in runs.items()}
        (tmp_path / "go").touch()
        with running(tmp_path, "worker", "app.py", "--url", url) as second:
            second.until("registered")

            shown = command("unknown", "show", lost["again"]["attempt_id"]).stdout.decode()
            typed = f"ryusen unknown resolve {lost['again']['attempt_id']} --generation 1 --retry --url {url}"
            assert typed in shown
            assert lost["again"]["operation_id"] in shown
            assert "contact    away; last at" in shown

            # Refusals: another generation, a run that is cancelled, a run whose deadline is over. Nothing of it is stored.
            assert command("runs", "cancel", runs["cancelled"]).returncode == 0
            eventually(lambda: (show("late")["stop"] or {}).get("reason") == "timed_out")
            before = contents(tmp_path)
            stale = command(
                "unknown", "resolve", lost["happened"]["attempt_id"], "--generation", "7", "--result", "1", "--yes", "--json"
            )  # fmt: skip
            refused = {"stale": stale, "retry_forbidden": resolve("cancelled", "--retry"), "deadline_elapsed": resolve("late", "--retry")}
            for code, done in refused.items():
                assert (done.returncode, json.loads(done.stdout)["code"]) == (5, code)
            assert contents(tmp_path) == before
            late = asked("attempts", "show", lost["late"]["attempt_id"], "--url", url)
            assert [one["code"] for one in late["forbidden_commands"]] == ["deadline_elapsed"]

            # It happened.
            first_time = resolve("happened", "--result", '{"order": "by hand"}', "--key", "k1")
            again = resolve("happened", "--result", '{"order": "by hand"}', "--key", "k1")
            assert json.loads(first_time.stdout)["status"] == "applied"
            assert json.loads(again.stdout) == {**json.loads(first_time.stdout), "status": "replayed"}
            happened = wait("happened")
            assert happened["outcome"] == "succeeded"
            assert happened["result"]["value"]["charge"]["value"]["order"]["value"] == "by hand"
            # It failed.
            assert resolve("failed", "--fail", "card.refused:no money").returncode == 0
            failed = wait("failed")
            assert (failed["outcome"], failed["failure"]["category"]) == ("failed", "card.refused")
            # Once more.
            successor = json.loads(resolve("again", "--retry").stdout)["successor"]
            assert (successor["attempt"], successor["attempt_generation"]) == (2, 2)
            assert wait("again")["outcome"] == "succeeded"
            # Stopped runs take what happened and undo it, or take that it did not.
            assert resolve("cancelled", "--result", '{"order": "cancelled"}').returncode == 0
            assert resolve("late", "--fail", "card.refused:no money").returncode == 0
            ends = [(run["outcome"], run["recovery"]) for run in (wait("cancelled"), wait("late"))]
            assert ends == [("cancelled", "fully_compensated"), ("timed_out", "not_required")]
            assert asked("unknown", "ls", "--url", url)["items"] == []
    seen = effects(tmp_path)
    assert sorted(effect[:2] for effect in seen) == sorted([["charge", name] for name in (*names, "again")] + [["refund", "cancelled"]])
    assert len({operation for _, name, operation in seen if name == "again"}) == 1
