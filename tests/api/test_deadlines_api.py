"""Deadlines over HTTP: whoever comes first at the instant, its timer, a worker or an operator, the run has timed out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.api_harness import W, api_server, eventually
from tests.api.operating import (
    COMPENSATED,
    FAIL,
    LATE_TICK_MS,
    RETRY,
    SUPPLY,
    Case,
    Desk,
    desk,
    end,
    publish_with_timeout,
    undone,
)
from tests.gateway.worker_peer import string

TIMEOUT_MS = 3_600_000
DONE = {"type": "completed", "result": string("done")}
EAGER_TICK_MS = 10
"""A server whose timers are processed at once when its clock is set."""

TIMERS = pytest.mark.parametrize("tick_ms", [EAGER_TICK_MS, LATE_TICK_MS], ids=["timer first", "timer delayed"])
INSTANTS = pytest.mark.parametrize("after_ms", [0, 60_000], ids=["at it", "after it"])


async def stop_clock(case: Case, after_ms: int, tick_ms: int) -> int:
    """Set the server's clock relative to the run's deadline, wait for the timer where it is not delayed, and return the deadline."""
    deadline = (await case.run())["deadline"]
    case.desk.clock.stopped_at_ms = deadline["at_ms"] + after_ms
    if tick_ms == EAGER_TICK_MS and after_ms >= 0:

        async def stopped() -> bool:
            return (await case.run())["stop"] is not None

        await eventually(stopped)
    return deadline["at_ms"]


async def timed_out(case: Case) -> dict[str, Any]:
    """The run at its end: it says why, and no forward work came after the stop."""
    run = await case.unwound()
    assert (run["outcome"], run["stop"]["reason"], run["result"]) == ("timed_out", "timed_out", None)
    kinds = await case.kinds()
    after = kinds[kinds.index("stop_requested") :]
    assert "discovery_queued" not in after
    assert [record["phase"] for record in (await case.records())[-len(after) :] if record["kind"] == "attempt_queued"] == [
        "compensation"
    ] * len(run["unwind"]["targets"])
    return run


def wake_of(at: Desk, case: Case) -> Any:
    """When the stored run is to be looked at again."""
    ((instant,),) = at.data.rows("SELECT wake_at_ms FROM runs WHERE run_id = ?", case.run_id)
    return instant


# completion


@pytest.mark.req("ACC-11", "DLN-10")
async def test_a_completion_just_before_the_deadline_counts_and_takes_the_timer_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=EAGER_TICK_MS) as at:
        await at.api.send()
        case = Case(at, await at.invoked())
        canary = await at.out("held", before=())
        at_ms = await stop_clock(case, -1, EAGER_TICK_MS)
        assert wake_of(at, case) is not None
        await at.peer.answer(case.invoke, DONE)
        run = await at.api.get(f"{W}/runs/{case.run_id}", wait_ms=5_000)
        assert end(run) == ("succeeded", "not_required", "succeeded")
        assert (run["deadline"]["at_ms"], run["ended_at_ms"]) == (at_ms, at_ms - 1)
        assert wake_of(at, case) is None
        at.clock.stopped_at_ms = at_ms + 60_000

        async def processed() -> bool:
            return (await canary.run())["stop"] is not None

        await eventually(processed)
        assert await case.run() == run


@TIMERS
@INSTANTS
@pytest.mark.req("ACC-12", "DLN-10")
async def test_a_completion_at_or_after_the_deadline_is_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick_ms: int, after_ms: int
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=tick_ms) as at:
        await at.api.send()
        await at.step("paid", **COMPENSATED)
        case = Case(at, await at.invoked())
        await stop_clock(case, after_ms, tick_ms)
        await at.peer.answer(case.invoke, DONE)
        run = await timed_out(case)
        assert (end(run), undone(run)) == (("timed_out", "fully_compensated", None), [("paid", "succeeded")])


@TIMERS
@INSTANTS
@pytest.mark.req("ACC-13", "DLN-10", "STOP-07")
async def test_a_late_success_of_an_authorized_step_settles_into_the_unwind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick_ms: int, after_ms: int
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=tick_ms) as at:
        case = await at.out()
        await stop_clock(case, after_ms, tick_ms)
        assert await at.succeed(case.invoke) == "accepted"
        run = await timed_out(case)
        assert (end(run), undone(run)) == (
            ("timed_out", "fully_compensated", None),
            [("held", "succeeded"), ("paid", "succeeded")],
        )


# operators


@TIMERS
@INSTANTS
@pytest.mark.parametrize(("command", "plan"), [(SUPPLY, ["held", "paid"]), (FAIL, ["paid"])], ids=["supply_success", "declare_failure"])
@pytest.mark.req("ACC-14", "ACC-15", "ACC-16", "OPR-17", "OPR-20", "OPR-21", "OPR-22")
async def test_a_command_at_or_after_the_deadline_settles_under_the_timeout_and_a_retry_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: dict[str, Any], plan: list[str], tick_ms: int, after_ms: int
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=tick_ms) as at:
        case = await at.lost()
        at_ms = await stop_clock(case, after_ms, tick_ms)
        assert ((await case.run())["stop"] is None) == (tick_ms == LATE_TICK_MS)
        attempt = await case.attempt()
        assert attempt["allowed_commands"] == ["supply_success", "declare_failure"]
        assert [(each["command"], each["code"]) for each in attempt["forbidden_commands"]] == [("authorize_retry", "deadline_elapsed")]
        await case.refused(RETRY, "deadline_elapsed")
        first = await case.applied(command)
        assert "successor" not in first
        assert first["transition"]["run"] == "compensating"
        run = await timed_out(case)
        assert run["stop"]["requested_at_ms"] == at_ms + after_ms
        assert [step_id for step_id, _ in undone(run)] == plan
        assert await case.attempts() == [(1, "succeeded" if command is SUPPLY else "failed")]
        await case.replayed(command, first)


@pytest.mark.req("ACC-17", "OPR-22")
async def test_a_retry_from_before_the_deadline_is_replayed_after_the_run_has_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=EAGER_TICK_MS) as at:
        case = await at.lost()
        first = await case.applied(RETRY)
        second = Case(at, await at.invoked())
        await stop_clock(case, 1, EAGER_TICK_MS)
        await case.replayed(RETRY, first)
        assert (await case.run())["status"] == "stopping"
        await second.lose()
        await second.refused(RETRY, "deadline_elapsed")
        assert await at.succeed(second.invoke) == "accepted"
        run = await case.unwound()
        assert (run["outcome"], undone(run)) == ("timed_out", [("held", "succeeded"), ("paid", "succeeded")])
        await case.replayed(RETRY, first)


@pytest.mark.req("OPR-18", "OPR-17")
async def test_a_committed_timeout_refuses_a_retry_even_when_the_clock_says_it_is_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=EAGER_TICK_MS) as at:
        case = await at.lost()
        at_ms = await stop_clock(case, 0, EAGER_TICK_MS)
        at.clock.stopped_at_ms = at_ms - 600_000
        await case.refused(RETRY, "deadline_elapsed")
        await case.applied(SUPPLY)
        assert (await case.unwound())["outcome"] == "timed_out"


@TIMERS
@pytest.mark.parametrize("command", [SUPPLY, FAIL], ids=["supply_success", "declare_failure"])
@pytest.mark.req("ACC-18", "OPR-19", "OPR-21")
async def test_a_cancel_that_was_first_keeps_its_reason_past_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: dict[str, Any], tick_ms: int
) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, tick_ms=tick_ms) as at:
        case = await at.lost()
        stop = (await case.cancel())["run"]["stop"]
        await stop_clock(case, 60_000, tick_ms)
        await case.refused(RETRY, "retry_forbidden")
        await case.applied(command)
        run = await case.unwound()
        assert (run["outcome"], run["stop"], run["recovery"]) == ("cancelled", stop, "fully_compensated")
        assert stop["reason"] == "cancelled"


@pytest.mark.req("STOP-14", "ACC-12")
async def test_a_cancel_past_the_deadline_records_the_timeout_it_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS) as at:
        case = await at.lost()
        await stop_clock(case, 0, LATE_TICK_MS)
        receipt = await case.cancel()
        assert receipt["run"]["stop"]["reason"] == "timed_out"
        with at.data.unchanged():
            assert (await case.cancel())["status"] == "replayed"
        await case.applied(SUPPLY)
        assert (await case.unwound())["outcome"] == "timed_out"


# policy


@pytest.mark.req("DLN-03", "DLN-04", "MAN-13")
async def test_a_timeout_above_the_servers_maximum_is_refused_and_never_cut(tmp_path: Path) -> None:
    async with api_server(tmp_path, max_run_timeout_ms=60_000) as api:
        heads = await api.get(f"{W}/routing")
        problem = await publish_with_timeout(api, 60_001, status=400)
        assert problem["code"] == "invalid"
        assert "60" in problem["detail"]
        assert await api.get(f"{W}/routing") == heads
        assert (await api.get(f"{W}/applications"))["items"] == []
        await publish_with_timeout(api, 60_000)
        receipt = await api.send()
        run = (await api.get(f"{W}/runs", event=receipt["event_id"]))["items"][0]
        assert run["deadline"] == {"at_ms": run["created_at_ms"] + 60_000, "source": "function"}
    (tmp_path / "free").mkdir()
    async with api_server(tmp_path / "free") as api:
        await publish_with_timeout(api, 2**53 - 1)
        assert (await api.get("/v1/server"))["max_run_timeout_ms"] is None
