"""Failures of every shape, with a real worker: one flag decides about retries, limits cut what is too large, and the run moves on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ryusen_protocol.limits import ERROR_BYTES_MAX, ERROR_DETAILS_BYTES_MAX, ERROR_MESSAGE_BYTES_MAX
from tests.acceptance.flows import effect_names, end, flow, kinds
from tests.acceptance.product import product


@pytest.mark.req("RTY-09", "RTY-04")
def test_b28_b29_one_flag_decides_about_retries_and_a_huge_failure_is_cut_visibly(tmp_path: Path) -> None:
    body = """
def terminal(message):
    effect("terminal")
    raise Terminal(message)

def huge():
    effect("huge")
    raise Terminal("x" * 10_000_000)

def deep():
    effect("deep")
    details = {}
    for _ in range(200):
        details = {"inner": details}
    raise Terminal("deep", details=details)

def tall(frames):
    if frames:
        tall(frames - 1)
    effect("tall")
    raise Terminal("tall")

def high():
    import sys
    sys.setrecursionlimit(10_000)
    tall(5_000)

caught = []
for index, message in enumerate(["", None, "m" * 1_000_000, "💥é"]):
    try:
        await step.run(f"terminal-{index}", terminal, message)
    except StepFailed as failed:
        caught.append(len(failed.message))
for name, callback in (("huge", huge), ("deep", deep), ("tall", high)):
    try:
        await step.run(name, callback)
    except StepFailed as failed:
        caught.append(failed.category)
return len(caught)
"""
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, body))
        run = running.ended(running.send("go", None)["event_id"])
        assert (end(run), run["result"]["value"]) == (("succeeded", "not_required", "succeeded"), "7")
        assert [len(step["attempts"]) for step in run["steps"]] == [1] * 7
        assert {step["state"] for step in run["steps"]} == {"failed"}
        messages = [step["failure"]["message"] for step in run["steps"]]
        assert (messages[0], messages[1], messages[3]) == ("", "", "💥é")
        for step in run["steps"]:
            failure = step["failure"]
            assert len(failure["message"].encode()) <= ERROR_MESSAGE_BYTES_MAX
            assert len(str(failure.get("details", {})).encode()) <= 2 * ERROR_DETAILS_BYTES_MAX
            assert len(str(failure).encode()) <= 2 * ERROR_BYTES_MAX
        for message in (messages[2], messages[4]):
            assert message.startswith(("m" * 1_000, "x" * 1_000))
            assert message.rstrip("mx"), "it shows that it was cut"
        assert effect_names(running).count("terminal") == 4


@pytest.mark.req("RTY-01", "RTY-03", "RTY-07", "SEM-17")
@pytest.mark.parametrize("compensated", [False, True])
def test_b31_a_step_of_one_attempt_fails_once_and_for_good(tmp_path: Path, compensated: bool) -> None:
    body = """
def fail():
    effect("b")
    raise ConnectionError("hung up")

if event.data:
    await step.run("a", do, "a", compensate=undo)
await step.run("b", fail, retry=1, compensate=undo)
"""
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, body))
        run = running.ended(running.send("go", compensated)["event_id"])
        assert end(run) == (("failed", "fully_compensated", None) if compensated else ("failed", "not_required", "empty_unwind"))
        assert run["failure"]["message"] == "hung up"
        assert [attempt["state"] for attempt in run["steps"][-1]["attempts"]] == ["failed"]
        assert effect_names(running) == (["a", "b", "undo-a"] if compensated else ["b"])
        recorded = kinds(running, run)
        assert recorded.index("step_completed") < recorded.index("outcome_decided")
        assert recorded.count("outcome_decided") == 1


@pytest.mark.req("CMP-04", "CMP-01", "RTY-01")
def test_b40_the_unwind_goes_in_reverse_order_of_completion_without_the_step_that_failed(tmp_path: Path) -> None:
    body = """
def second():
    if operation().attempt < 3:
        raise ConnectionError("hung up")
    return do("2")

await step.run("1", do, "1", compensate=undo)
await step.run("2", second, retry=Retry(initial="10ms"), compensate=undo)
await step.run("3", do, "3", compensate=undo)
await step.run("4", give_up, "4", compensate=undo)
"""
    with product(tmp_path) as running:
        running.start_worker(target=flow(tmp_path, body))
        run = running.ended(running.send("go", None)["event_id"])
        assert end(run) == ("failed", "fully_compensated", None)
        assert [target["step_id"] for target in run["unwind"]["targets"]] == ["3", "2", "1"]
        assert effect_names(running) == ["1", "2", "3", "4", "undo-3", "undo-2", "undo-1"]
