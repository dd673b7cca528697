"""An effect that is out when its run is stopped is settled from either side, the worker's or the operator's, and by one of them only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.operating import FAIL, RETRY, SUPPLY, Case, Desk, desk, end, undone
from tests.gateway.worker_peer import string


@pytest.fixture
async def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Desk]:
    async with desk(tmp_path, monkeypatch) as opened:
        yield opened


# settlement after a cancel, from both sides


async def by_operator(case: Case, *, success: bool) -> None:
    await case.applied(SUPPLY if success else FAIL)


async def by_worker(case: Case, *, success: bool) -> None:
    assert await (case.desk.succeed(case.invoke) if success else case.desk.fail(case.invoke)) == "accepted"


@pytest.mark.req("ACC-59", "ACC-60", "ACC-61", "ACC-62", "ACC-63", "ACC-64", "ACC-65", "ACC-67", "ACC-68", "STO-07", "OPR-24", "OPR-16")
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("settle", [by_operator, by_worker])
async def test_a_cancelled_run_waits_for_its_effect_and_takes_its_outcome_from_either_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settle: Callable[..., Any], success: bool, reopened: bool
) -> None:
    async with desk(tmp_path, monkeypatch) as at:
        case = await at.lost(before=())
        receipt = await case.cancel()
        assert (receipt["status"], receipt["run"]["status"], receipt["run"]["outcome"]) == ("applied", "stopping", None)
        with at.data.unchanged():
            again = await case.cancel()
            assert (again["status"], again["run"]["stop"]) == ("replayed", receipt["run"]["stop"])
        await case.refused(RETRY, "retry_forbidden")
        before = await case.run()
        if not reopened:
            await settled_after_a_cancel(case, settle, success=success)
            return
    async with desk(tmp_path, monkeypatch) as at:
        case.desk = at
        assert await case.run() == before
        assert before["stop"]["reason"] == "cancelled"
        assert [attempt["state"] for attempt in before["steps"][0]["attempts"]] == ["unknown"]
        await case.refused(RETRY, "retry_forbidden")
        await settled_after_a_cancel(case, settle, success=success)


async def settled_after_a_cancel(case: Case, settle: Callable[..., Any], *, success: bool) -> None:
    await settle(case, success=success)
    run = await case.unwound()
    assert end(run) == ("cancelled", "fully_compensated", None) if success else ("cancelled", "not_required", "empty_unwind")
    assert undone(run) == ([("held", "succeeded")] if success else [])
    assert len(run["steps"][0]["attempts"]) == 1, "no forward retry, though its policy had more"
    assert (await case.kinds()).count("discovery_queued") <= 1
    stored = (await case.run())["position"]
    assert await case.desk.succeed(case.invoke, "after the winner") == "stale"
    settled = await case.run()
    assert {**settled, "position": stored} == run, "it is kept as a diagnostic and changes nothing"
    await case.refused(SUPPLY, "stale")


@pytest.mark.req("ACC-66", "ACC-67", "UNK-03", "UNK-08")
async def test_a_late_result_and_a_command_at_once_have_one_winner(at: Desk) -> None:
    for index in range(8):
        case = await at.lost(f"held-{index}", before=())
        key = f"S3cr3t-{index}"
        late, (status, document) = await asyncio.gather(at.succeed(case.invoke, "late"), later(case, key, index % 2 == 0))
        taken = {("accepted", 409): "late", ("stale", 200): "supplied"}[late, status]
        if status == 409:
            assert document["refusal"]["code"] == "stale"
        run = await case.run()
        assert run["steps"][0]["result"] == string(taken)
        assert (await case.kinds()).count("step_completed") == 1
        await at.invoked()


async def later(case: Case, key: str, yields: bool) -> tuple[int, dict[str, Any]]:
    if yields:
        await asyncio.sleep(0.002)
    return await case.resolve(SUPPLY, key)


@pytest.mark.req("ACC-66", "ACC-67")
@pytest.mark.parametrize("late_first", [True, False])
async def test_whichever_of_a_late_result_and_a_command_is_first_wins(at: Desk, late_first: bool) -> None:
    case = await at.lost(before=())
    if late_first:
        assert await at.succeed(case.invoke, "late") == "accepted"
        await case.refused(SUPPLY, "stale")
    else:
        await case.applied(SUPPLY)
        assert await at.succeed(case.invoke, "late") == "stale"
    assert (await case.run())["steps"][0]["result"] == string("late" if late_first else "supplied")
