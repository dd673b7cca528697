"""The harness for users' tests: the product's own engine and worker, on a clock the test moves."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ryusen_sdk import ConversionError, Event, Failure, Retry, Ryusen, Step, SyncStep, Terminal, operation
from ryusen_server.bootstrap.embedded import CrashPoint
from ryusen_testing import BodyDiffers, Harness, HarnessError, NoTrigger, Refused, RunIsStuck, StillRunning, at_every_crash


def shop() -> Ryusen:
    app = Ryusen("shop")

    async def charge(order: dict[str, int]) -> dict[str, int]:
        return {"charged": order["total"]}

    def refund(charged: dict[str, int]) -> None:
        assert charged["charged"]

    def reserve(order: dict[str, int]) -> str:
        return f"reserved for {order['total']}"

    def release(_: object) -> None: ...

    async def ship(_: object) -> str:
        return "shipped"

    @app.function(on="order/placed")
    async def fulfil(event: Event, step: Step) -> dict[str, object]:
        charged = await step.run("charge", charge, event.data, compensate=refund)
        await step.run("reserve", reserve, event.data, compensate=release)
        return {"charged": charged["charged"], "ship": await step.run("ship", ship, event.data)}

    return app


ORDER = {"total": 7}


@dataclass
class Placed:
    total: int


async def test_a_run_goes_to_its_end_with_real_callbacks() -> None:
    async with Harness(shop()) as harness:
        run = await harness.send("order/placed", ORDER)
        assert (run.status, run.outcome, run.recovery) == ("ended", "succeeded", "not_required")
        assert run.result == {"charged": 7, "ship": "shipped"}
        assert [(call.step_id, call.attempt, call.result) for call in harness.calls()] == [
            ("charge", 1, {"charged": 7}),
            ("reserve", 1, "reserved for 7"),
            ("ship", 1, "shipped"),
        ]
        assert list(run.steps) == ["charge", "reserve", "ship"]
        assert run.steps["charge"].result == {"charged": 7}
        assert run.waits_for == "nothing is left to do"


async def test_a_terminal_failure_undoes_what_was_done() -> None:
    async with Harness(shop()) as harness:
        harness.fail("ship", Terminal("no carrier"))
        run = await harness.send("order/placed", ORDER)
        assert (run.outcome, run.recovery) == ("failed", "fully_compensated")
        assert [(undone.step_id, undone.state) for undone in run.undone] == [("reserve", "succeeded"), ("charge", "succeeded")]
        assert run.failure is not None
        assert "no carrier" in run.failure.message
        assert [call.step_id for call in harness.calls(phase="compensation")] == ["reserve", "charge"]
        assert harness.calls("charge", phase="compensation")[0].args == ({"charged": 7},)


async def test_retries_pass_by_themselves_and_at_the_right_instants() -> None:
    async with Harness(shop()) as harness:
        began = harness.now
        harness.fail("charge", ConnectionError("down"), ConnectionError("still down"))
        run = await harness.send("order/placed", ORDER)
        assert run.outcome == "succeeded"
        assert [call.attempt for call in harness.calls("charge")] == [1, 2, 3]
        assert len({call.operation.id for call in harness.calls("charge")}) == 1
        assert (harness.now - began).total_seconds() == pytest.approx(3, abs=0.001), "one second, then two"


async def test_retries_wait_for_the_test_if_it_wants_them_to() -> None:
    async with Harness(shop(), passes_own_waits=False) as harness:
        harness.fail("charge", ConnectionError("down"))
        run = await harness.send("order/placed", ORDER)
        assert run.status == "running"
        await harness.advance("999ms")
        assert len(harness.calls("charge")) == 1
        await harness.advance("1ms")
        assert run.outcome == "succeeded"


async def test_a_stub_takes_the_place_of_a_callback_alone() -> None:
    async with Harness(shop()) as harness:
        harness.stub("charge", {"charged": 99})

        def reserve(order: dict[str, int]) -> str:
            return f"stub for {order['total']}"

        harness.stub("reserve", does=reserve)
        run = await harness.send("order/placed", ORDER)
        assert run.result == {"charged": 99, "ship": "shipped"}
        assert run.steps["reserve"].result == "stub for 7"
        assert [call.is_stubbed for call in harness.calls()] == [True, True, False]
        harness.unstub("charge")
        again = await harness.send("order/placed", ORDER)
        assert again.result == {"charged": 7, "ship": "shipped"}


async def test_failing_for_ever_uses_up_the_policy() -> None:
    async with Harness(shop()) as harness:
        harness.fail("reserve", ConnectionError("down"), for_ever=True)
        run = await harness.send("order/placed", ORDER)
        assert (run.outcome, run.recovery) == ("failed", "fully_compensated")
        assert len(harness.calls("reserve")) == 4
        assert [undone.step_id for undone in run.undone] == ["charge"]


def waiting() -> Ryusen:
    app = Ryusen("waits")

    @app.function(on="go", timeout="30d")
    async def waits(event: Event, step: Step) -> object:
        await step.sleep("cool", "24h")
        payload = await step.wait_for_event("approval", "approved", match={"id": "7"}, timeout="7d")
        child = await step.invoke("child", "helper", payload.data)
        sent = await step.send_event("tell", "told", {"child": child})
        return [child, sent]

    @app.function(id="helper")
    async def helper(event: Event, step: Step) -> object:
        async def double(number: int) -> int:
            return number * 2

        return await step.run("double", double, event.data["n"])

    @app.function(on="told")
    async def listener(event: Event, step: Step) -> object:
        return event.data

    return app


async def test_timers_events_children_and_emissions_on_a_virtual_clock() -> None:
    async with Harness(waiting()) as harness:
        run = await harness.send("go")
        assert run.waits_for == "step 'cool' sleeps for another 1d: let time pass with harness.advance(…)"
        await harness.advance("23h59m")
        assert run.steps["cool"].state == "pending"
        await harness.advance("1m")
        assert run.steps["cool"].state == "succeeded"
        assert "waits for the event 'approved'" in run.waits_for
        await harness.emit("approved", {"n": 1}, metadata={"id": "8"})
        await harness.settle()
        assert run.steps["approval"].state == "pending"
        await harness.emit("approved", {"n": 21}, metadata={"id": "7"})
        await harness.settle()
        assert run.outcome == "succeeded"
        assert run.child("child").function == "helper"
        assert run.child("child").result == 42
        result = cast("list[object]", run.result)
        assert result[0] == 42
        told = [one for one in await harness.runs() if one.function == "listener"]
        assert [one.result for one in told] == [{"child": 42}]


async def test_ended_lets_time_pass_and_says_what_time_does_not_bring() -> None:
    app = Ryusen("naps")

    @app.function(on="go")
    async def naps(event: Event, step: Step) -> str:
        for number in range(3):
            await step.sleep(f"nap-{number}", "1h")
        return "rested"

    @app.function(on="twice")
    async def twice(event: Event, step: Step) -> None:
        for _ in range(2):
            await step.run("same", int)

    async with Harness(app) as harness:
        began = harness.now
        run = await harness.send("go")
        assert (await run.ended()).result == "rested"
        assert (harness.now - began).total_seconds() == 3 * 3600
        stuck = await harness.send("twice")
        with pytest.raises(RunIsStuck, match="same"):
            await stuck.ended()


def family(*, timeout: str | None = None) -> Ryusen:
    app = Ryusen("family")

    @app.function()
    async def child(event: Event, step: Step) -> None:
        if event.data == "twice":
            await step.run("same", int)
            await step.run("same", int)
        await step.run("charge", int)

    @app.function(on="parent", timeout=timeout)
    async def parent(event: Event, step: Step) -> None:
        await step.invoke("child", child, event.data)

    return app


async def test_a_run_whose_child_needs_somebody_says_so_instead_of_waiting_for_ever() -> None:
    async with Harness(family()) as harness:
        blocked = await harness.send("parent", "twice")
        with pytest.raises(RunIsStuck, match=r"waits for the run it invoked.*; its definition is blocked: .*same"):
            await blocked.ended()
        harness.lose_result("charge")
        unknown = await harness.send("parent", "once")
        with pytest.raises(RunIsStuck, match=r"waits for the run it invoked.*; .*'charge' is Unknown"):
            await unknown.ended()


async def test_a_deadline_ends_the_wait_for_a_blocked_child() -> None:
    async with Harness(family(timeout="2h")) as harness:
        run = await (await harness.send("parent", "twice")).ended()
        assert (run.outcome, run.child("child").outcome) == ("timed_out", "timed_out")


async def test_an_event_has_the_payload_that_a_client_sends() -> None:
    app = Ryusen("shop")

    @app.function(on="order/placed")
    async def keep(event: Event, step: Step) -> bytes:
        return event.payload

    async with Harness(app) as harness:
        sent = [{"b": [1, "ä"], "a": None}, Placed(7), memoryview(b"\x00\xff")]
        payloads = [(await harness.send("order/placed", data)).result for data in sent]
        assert payloads == ['{"b":[1,"ä"],"a":null}'.encode(), b'{"total":7}', b"\x00\xff"]
        with pytest.raises(ConversionError, match="keys are strings"):
            await harness.send("order/placed", {1: "one"})


async def test_a_deadline_times_a_run_out() -> None:
    async with Harness(waiting()) as harness:
        run = await harness.send("go")
        await harness.advance("24h")
        await harness.advance("7d")
        assert run.outcome == "failed", "the wait timed out"
        assert run.failure is not None
        assert run.failure.category == "sdk.timeout"


async def test_a_lost_result_is_unknown_until_somebody_settles_it() -> None:
    for how, outcome in (("result", "succeeded"), ("retry", "succeeded"), ("failure", "failed")):
        async with Harness(shop()) as harness:
            harness.lose_result("charge")
            run = await harness.send("order/placed", ORDER)
            assert run.unknown == ["charge"]
            assert run.status == "running"
            assert "Unknown" in run.waits_for
            with pytest.raises(RunIsStuck, match=r"run\.resolve"):
                await run.ended()
            if how == "result":
                await run.resolve("charge", result={"charged": 7})
            elif how == "retry":
                await run.resolve("charge", retry=True)
            else:
                await run.resolve("charge", failure=Failure("declined", retryable=False))
            assert run.outcome == outcome
            assert len(harness.calls("charge", phase="forward")) == (2 if how == "retry" else 1)
            with pytest.raises(HarnessError, match="no Unknown attempt"):
                await run.resolve("charge", retry=True)


async def test_a_lost_compensation_halts_the_unwind() -> None:
    async with Harness(shop()) as harness:
        harness.fail("ship", Terminal("no"))
        harness.lose_result("reserve", phase="compensation")
        run = await harness.send("order/placed", ORDER)
        assert (run.status, run.unknown) == ("compensating", ["reserve"])
        await run.resolve("reserve", retry=True)
        assert run.recovery == "fully_compensated"


async def test_every_crash_leaves_the_same_end() -> None:
    async def scenario(harness: Harness) -> None:
        harness.fail("ship", Terminal("no carrier"))
        run = await harness.send("order/placed", ORDER, key="one")
        await run.ended()
        assert (run.outcome, run.recovery) == ("failed", "fully_compensated")
        for step_id in ("charge", "reserve", "ship"):
            assert len(harness.calls(step_id, phase="forward")) == 1, "no effect ran twice"

    assert await at_every_crash(lambda: Harness(shop()), scenario) > 10


async def test_a_crash_that_breaks_a_scenario_names_its_commit() -> None:
    lives = itertools.count()

    async def scenario(harness: Harness) -> None:
        await harness.send("order/placed", ORDER, key="one")
        assert next(lives) < 3, "the fourth life breaks"

    with pytest.raises(AssertionError, match="the fourth life breaks") as caught:
        await at_every_crash(lambda: Harness(shop()), scenario)
    (note,) = caught.value.__notes__
    assert note.startswith("The server died before commit ")


async def test_a_server_that_dies_by_hand_goes_on_where_it_was() -> None:
    async with Harness(waiting()) as harness:
        run = await harness.send("go")
        await harness.crash()
        await harness.advance("24h")
        assert "approved" in run.waits_for
        with pytest.raises(HarnessError, match="is past"):
            harness.crash_at(1)


async def test_new_code_takes_over_a_run_in_flight() -> None:
    old, new = Ryusen("live"), Ryusen("live")

    @old.function(on="go", id="f")
    async def before(event: Event, step: Step) -> str:
        await step.run("a", int)
        await step.sleep("nap", "1h")
        return "old"

    @new.function(on="go", id="f")
    async def after(event: Event, step: Step) -> str:
        await step.run("a", int)
        await step.sleep("nap", "1h")
        await step.run("b", int)
        return "new"

    async with Harness(old) as harness:
        run = await harness.send("go")
        await harness.deploy(new)
        await harness.advance("1h")
        assert run.result == "new"
        assert [call.step_id for call in harness.calls()] == ["a", "b"]
        with pytest.raises(HarnessError, match="one application"):
            await harness.deploy(shop())


async def test_a_body_that_depends_on_more_than_its_history_is_found_by_replaying_it() -> None:
    app = Ryusen("moody")
    counter = itertools.count()

    @app.function(on="go")
    async def moody(event: Event, step: Step) -> None:
        await step.run(f"step-{next(counter)}", int)

    async with Harness(app, always_replay=True) as harness:
        with pytest.raises(BodyDiffers, match=r"step-0.*step-1"):
            await harness.send("go")
    async with Harness(shop(), always_replay=True) as harness:
        run = await harness.send("order/placed", ORDER)
        assert run.outcome == "succeeded"
        assert len(harness.calls()) == 3, "callbacks are not run twice"


async def test_sync_functions_and_the_operation_id() -> None:
    app = Ryusen("sync")
    seen: list[str] = []

    @app.function(on="go")
    def work(event: Event, step: SyncStep) -> str:
        def effect() -> str:
            seen.append(operation().id)
            return threading.current_thread().name

        return step.run("a", effect)

    async with Harness(app) as harness:
        run = await harness.send("go")
        assert run.result != threading.current_thread().name
        assert seen == [harness.calls("a")[0].operation.id]


async def test_a_test_may_meet_a_callback_in_the_middle() -> None:
    app = Ryusen("meet")
    entered, may_end = asyncio.Event(), asyncio.Event()

    @app.function(on="go")
    async def work(event: Event, step: Step) -> str:
        async def slow() -> str:
            entered.set()
            await may_end.wait()
            return "done"

        return await step.run("slow", slow, compensate=lambda _: None)

    async with Harness(app, patience=0.2) as harness:
        event_id = await harness.emit("go")
        await entered.wait()
        (run,) = [run for run in await harness.runs() if run.state.event_id == event_id]
        with pytest.raises(StillRunning, match="the callback of step 'slow'"):
            await run.cancel()
        assert run.status == "stopping"
        may_end.set()
        await run.ended()
        assert (run.outcome, run.recovery) == ("cancelled", "fully_compensated")


async def test_a_refusal_has_its_code() -> None:
    async with Harness(shop()) as harness:
        run = await harness.send("order/placed", ORDER)
        with pytest.raises(Refused, match="not_cancellable") as refused:
            await run.cancel()
        assert refused.value.code == "not_cancellable"


async def test_a_dead_worker_is_replaced() -> None:
    async with Harness(waiting()) as harness:
        run = await harness.send("go")
        await harness.kill_worker()
        await harness.advance("24h")
        assert run.steps["cool"].state == "succeeded"


async def test_user_code_that_stops_the_process_says_so() -> None:
    app = Ryusen("exits")

    @app.function(on="go")
    async def exits(event: Event, step: Step) -> None:
        raise SystemExit(3)

    async with Harness(app) as harness:
        with pytest.raises(HarnessError, match=r"SystemExit\(3\)"):
            await harness.send("go")


async def test_mistakes_are_told() -> None:
    async with Harness(waiting()) as harness:
        with pytest.raises(NoTrigger, match="there are triggers for 'go', 'told'"):
            await harness.send("went")
        with pytest.raises(HarnessError, match="there is no run"):
            harness.run("rn_x")
        with pytest.raises(HarnessError, match="name the errors"):
            harness.fail("a")
        with pytest.raises(HarnessError, match="open already"):
            await harness.__aenter__()
    for use in (harness.emit("go"), harness.settle(), harness.advance("1h")):
        with pytest.raises(HarnessError, match="not open"):
            await use


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("", {}, "invalid"),
        (5, {}, "invalid"),
        ("go\ud800", {}, "invalid"),
        ("go", {"metadata": {"order": 7}}, "invalid"),
        ("go", {"metadata": {"order": "\ud800"}}, "invalid"),
        ("go", {"metadata": {str(number): "" for number in range(65)}}, "invalid"),
        ("go", {"key": ""}, "invalid"),
        ("go", {"data": b"x" * (2**20 + 1)}, "limit_exceeded"),
    ],
)
async def test_an_event_that_no_server_takes_is_refused_as_a_server_does(name: Any, options: dict[str, Any], code: str) -> None:
    async with Harness(waiting()) as harness:
        with pytest.raises(Refused) as refused:
            await harness.emit(name, **options)
        assert refused.value.code == code
        assert await harness.runs() == []


async def test_an_unknown_attempt_is_settled_in_one_way() -> None:
    async with Harness(waiting()) as harness:
        run = await harness.send("go")
        with pytest.raises(HarnessError, match="in one way"):
            await run.resolve("a", result=1, retry=True)


async def test_the_same_test_sees_the_same_instants_and_ids() -> None:
    async def life() -> tuple[str, datetime]:
        async with Harness(waiting(), start=datetime(2030, 1, 1, tzinfo=UTC)) as harness:
            run = await harness.send("go")
            await harness.advance("24h")
            return run.run_id, harness.now

    assert await life() == await life()


async def test_a_lifespan_is_entered_and_left() -> None:
    from contextlib import asynccontextmanager

    seen: list[str] = []

    @asynccontextmanager
    async def lifespan():
        seen.append("entered")
        yield
        seen.append("left")

    app = Ryusen("lives", lifespan=lifespan)

    @app.function(on="go")
    async def work(event: Event, step: Step) -> str:
        return seen[-1]

    async with Harness(app) as harness:
        assert (await harness.send("go")).result == "entered"
    assert seen == ["entered", "left"]


async def test_time_is_cheap() -> None:
    app = Ryusen("long")

    @app.function(on="go")
    async def naps(event: Event, step: Step) -> None:
        await step.run("roll", random.random, retry=Retry(max_attempts=1))
        await step.sleep("nap", "3650d")

    async with Harness(app) as harness:
        run = await harness.send("go")
        began = time.perf_counter()
        await harness.advance("3649d")
        assert run.status == "running"
        await harness.advance("1d")
        assert run.outcome == "succeeded"
        assert time.perf_counter() - began < 30, "ten years are jumped over, not ticked through"


@pytest.mark.parametrize(("how", "accepted"), [("before", 1), ("after", 2)])
async def test_a_commit_before_which_the_server_dies_is_lost_and_one_after_which_it_dies_is_not(how: CrashPoint, accepted: int) -> None:
    """Without a key an event that was accepted and never acknowledged is another one when it is sent again."""
    async with Harness(waiting()) as harness:
        harness.crash_at(harness.commits + 1, how)
        await harness.send("go")
        assert len(await harness.runs()) == accepted


async def test_code_that_is_gone_runs_nowhere_any_more() -> None:
    app, without = Ryusen("shop"), Ryusen("shop")

    @app.function(on="go")
    async def work(event: Event, step: Step) -> str:
        await step.sleep("nap", "1h")
        return "done"

    async with Harness(app) as harness:
        run = await harness.send("go")
        await harness.deploy(without)
        await harness.advance("2h")
        assert run.status == "running"
        assert "no worker that can run 'work'" in run.waits_for
        await harness.deploy(app)
        assert (await run.ended()).result == "done"
