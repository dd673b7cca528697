"""Code that changes under runs in flight, with real processes: what was accepted stays, what is live decides the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flows import effect_names, end, flow, kinds, stop, the_run
from tests.acceptance.product import Product, W, eventually, product


def states(run: Any) -> list[tuple[str, str]]:
    return [(step["step_id"], step["state"]) for step in run["steps"]]


def targets(run: Any) -> list[tuple[str, str, str | None]]:
    return [(target["step_id"], target["state"], target["reason"]) for target in run["unwind"]["targets"]]


def blocked(running: Product, event_id: str) -> Any:
    return eventually(lambda: (run := the_run(running, event_id))["status"] == "definition_blocked" and run, "the run is blocked")


# steps and compensators that come and go


@pytest.mark.req("ACC-24", "OPT-05", "OPT-06", "CMP-03")
@pytest.mark.parametrize("pending", ["retrying", "queued"])
def test_a_pending_step_and_a_compensator_that_were_removed_leave_a_partial_run_and_no_blocked_one(tmp_path: Path, pending: str) -> None:
    before = """
def fail():
    effect("b")
    raise ConnectionError("hung up")

await step.run("a", do, "a", compensate=undo)
await step.run("z", do, "z", compensate=undo)
await step.run("b", fail, retry=Retry(initial="800ms", maximum="800ms", max_attempts=50))
"""
    after = """
await step.run("a", do, "a")
await step.run("new", do, "new", compensate=undo)
await step.run("c", give_up, "c")
"""
    with product(tmp_path) as running:
        worker = running.start_worker("--release", "r1", target=flow(tmp_path, before))
        event_id = running.send("go", None)["event_id"]
        eventually(lambda: "b" in effect_names(running), "the step fails once")
        if pending == "queued":
            stop(worker)
            eventually(lambda: the_run(running, event_id)["attention"] == "no_worker", "its next attempt waits for a worker")
        running.start_worker("--release", "r2", target=flow(tmp_path, after))
        run = running.ended(event_id)
        assert end(run) == ("failed", "partially_compensated", None)
        assert states(run) == [("a", "succeeded"), ("z", "succeeded"), ("b", "obsolete"), ("new", "succeeded"), ("c", "failed")]
        assert targets(run) == [("new", "succeeded", None), ("z", "skipped", "not_met"), ("a", "skipped", "no_compensator")]
        assert run["steps"][0]["result"]["value"] == "a", "the result of what is done stays"
        assert [name for name in effect_names(running) if name != "b"] == ["a", "z", "new", "c", "undo-new"]
        assert {"run_blocked", "attempt_unknown"}.isdisjoint(kinds(running, run))


@pytest.mark.req("ACC-26", "ACC-27", "OPT-07", "CMP-15")
def test_a_compensator_that_was_added_before_its_target_runs_and_after_a_skip_reopens_nothing(tmp_path: Path) -> None:
    slow = """
def slow_undo(name):
    (FOLDER / "in-undo").touch()
    while not (FOLDER / "go-on").exists():
        time.sleep(0.01)
    undo(name)

"""
    last = '\nawait step.run("d", give_up, "d")'
    plain = {name: f'await step.run("{name}", do, "{name}")' for name in "abc"}
    undoing = {name: f'await step.run("{name}", do, "{name}", compensate=undo)' for name in "abc"}
    held = 'await step.run("b", do, "b", compensate=slow_undo)'
    with product(tmp_path) as running:
        running.start_worker("--release", "r1", target=flow(tmp_path, slow + "\n".join((plain["a"], held, plain["c"])) + last))
        event_id = running.send("go", None)["event_id"]
        running.await_marker("in-undo")
        assert [state for _, state, _ in targets(the_run(running, event_id))] == ["skipped", "pending", "pending"]
        running.start_worker("--release", "r2", target=flow(tmp_path, slow + "\n".join((undoing["a"], held, undoing["c"])) + last))
        running.go_on()
        run = running.ended(event_id)
        assert targets(run) == [("c", "skipped", "no_compensator"), ("b", "succeeded", None), ("a", "succeeded", None)]
        assert end(run) == ("failed", "partially_compensated", None)
        assert effect_names(running) == ["a", "b", "c", "d", "undo-b", "undo-a"]
        running.start_worker("--release", "r3", target=flow(tmp_path, slow + "\n".join(undoing.values()) + last))
        assert running.ended(running.send("go", None)["event_id"])["recovery"] == "fully_compensated"
        assert running.get(f"{W}/runs/{run['run_id']}") == run, "what has ended is not taken up again"


# one id twice

FIRST, SECOND = 'one = await step.run("each", do, "one", compensate=undo)', 'two = await step.run("each", do, "two")'
KEPT, OTHER = "one = None", 'two = await step.run("other", do, "two")'
RENAMED = 'one = await step.run("renamed", do, "new", compensate=undo)'
FIXES = {
    "the duplicate is removed": ((FIRST, "two = None"), ["one"], ["one", None], ["each"]),
    "the original is renamed": ((RENAMED, SECOND), ["one", "new"], ["new", "one"], ["each", "renamed"]),
    "both are renamed": ((RENAMED, OTHER), ["one", "new", "two"], ["new", "two"], ["each", "renamed", "other"]),
}


@pytest.mark.req("ACC-28", "ACC-30", "ACC-31", "BLK-01", "BLK-02", "BLK-04", "BLK-06", "BLK-07", "BLK-08")
@pytest.mark.parametrize("fix", FIXES)
def test_a_repeated_id_blocks_before_its_callback_and_each_way_to_mend_it_goes_on_from_there(tmp_path: Path, fix: str) -> None:
    mended, effects, values, steps = FIXES[fix]
    with product(tmp_path) as running:
        running.start_worker("--release", "r1", target=flow(tmp_path, f"{FIRST}\n{SECOND}\nreturn [one, two]"))
        event_id = running.send("go", None)["event_id"]
        run = blocked(running, event_id)
        assert (run["blocker"]["reason"], run["blocker"]["step_id"]) == ("duplicate_step_id", "each")
        assert effect_names(running) == ["one"], "the second callback never runs"
        running.start_worker("--release", "r2", target=flow(tmp_path, "\n".join(mended) + "\nreturn [one, two]"))
        run = running.ended(event_id)
        assert end(run) == ("succeeded", "not_required", "succeeded")
        assert [item.get("value") for item in run["result"]["value"]] == values
        assert effect_names(running) == effects
        assert states(run) == [(step_id, "succeeded") for step_id in steps]
        assert "compensation_started" not in kinds(running, run)


@pytest.mark.req("ACC-31", "OPT-06")
def test_a_result_whose_step_was_renamed_stays_in_the_unwind(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker("--release", "r1", target=flow(tmp_path, f"{FIRST}\n{SECOND}"))
        event_id = running.send("go", None)["event_id"]
        blocked(running, event_id)
        then = 'raise Terminal("no carrier takes it")'
        running.start_worker("--release", "r2", target=flow(tmp_path, f"{RENAMED}\n{OTHER}\n{then}"))
        run = running.ended(event_id)
        assert targets(run) == [("other", "skipped", "no_compensator"), ("renamed", "succeeded", None), ("each", "skipped", "not_met")]
        assert effect_names(running) == ["one", "new", "two", "undo-new"]


@pytest.mark.req("BLK-05", "BLK-01", "BLK-02", "BLK-03")
def test_b51_a_loop_over_one_id_is_blocked_at_its_second_turn_and_exclusive_branches_share_one_result(tmp_path: Path) -> None:
    branches = """
def flip():
    (FOLDER / "flipped").touch()
    return do("first-branch")

if event.data == "loop":
    for index in range(3):
        await step.run("turn", do, f"turn-{index}", compensate=undo)
elif (FOLDER / "flipped").exists():
    return await step.run("x", do, "second-branch")
else:
    return await step.run("x", flip)
"""
    with product(tmp_path) as running:
        file = flow(tmp_path, branches)
        running.start_worker(target=file)
        run = running.ended(running.send("go", "branch")["event_id"])
        assert (run["outcome"], run["result"]["value"]) == ("succeeded", "first-branch")
        assert effect_names(running) == ["first-branch"], "the other branch has the same step, which is done"
        run = blocked(running, running.send("go", "loop")["event_id"])
        line = next(number for number, text in enumerate(file.read_text().splitlines(), start=1) if '"turn"' in text)
        assert (run["blocker"]["first"]["line"], run["blocker"]["duplicate"]["line"]) == (line, line)
        assert f"flow.py:{line}" in run["blocker"]["message"]
        assert effect_names(running) == ["first-branch", "turn-0"]
        assert (run["outcome"], run["unwind"]["targets"]) == (None, [])


# releases side by side


@pytest.mark.req("OPT-08", "OPT-02", "OPT-09", "OPT-01")
def test_two_releases_both_run_work_while_both_have_room_and_the_newer_alone_once_the_older_drains(tmp_path: Path) -> None:
    older = 'await step.run("held", hold, "held")\nreturn "older"'
    newer = 'await step.run("held", hold, "held")\nawait step.run("extra", do, "extra")\nreturn "newer"'
    with product(tmp_path) as running:
        first = running.start_worker("--release", "r1", "--capacity", "1", target=flow(tmp_path, older))
        running.start_worker("--release", "r2", "--capacity", "1", target=flow(tmp_path, newer))
        events = [running.send("go", number)["event_id"] for number in range(4)]

        def held() -> set[str]:
            items = running.get(f"{W}/attempts?state=authorized")["items"]
            return {attempt["worker"]["release_id"] for attempt in items if attempt["step_id"] == "held"}

        eventually(lambda: held() == {"r1", "r2"}, "each release runs a callback")
        first.terminate()
        eventually(lambda: [item for item in running.get(f"{W}/workers")["items"] if item["draining"]], "the older one drains")
        running.go_on()
        runs = [running.ended(event_id) for event_id in events]
        assert [run["result"]["value"] for run in runs] == ["newer"] * 4, "no run belongs to a release"
        by = [[attempt["worker"]["release_id"] for attempt in step["attempts"]] for run in runs for step in run["steps"]]
        assert sorted(by) == [["r1"]] + [["r2"]] * 7
