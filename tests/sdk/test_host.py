"""Function bodies, sync and async, run by the real host: its pool, a real loop, real callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from typing_extensions import TypedDict

from ryusen_sdk import (
    Compensate,
    ConversionError,
    Event,
    Failure,
    MisuseError,
    Operation,
    Retry,
    Ryusen,
    Step,
    StepFailed,
    SyncStep,
    Terminal,
    operation,
    run_logger,
)
from ryusen_sdk.host import Stopped
from tests.sdk.hosted import answer, outcome
from tests.sdk.peer import NULL, JsonDict, compensation, discovery, done, failed, forward, number, text


async def charge(order: int) -> str:
    await asyncio.sleep(0)
    return f"ch_{order}"


def sync_charge(order: int) -> str:
    return f"ch_{order}"


class Teller:
    def charge(self, order: int) -> str:
        return f"ch_{order}"

    async def acharge(self, order: int) -> str:
        return f"ch_{order}"

    async def __call__(self, order: int) -> str:
        return f"ch_{order}"


CALLBACKS = {
    "async": charge,
    "sync": sync_charge,
    "bound": Teller().charge,
    "async bound": Teller().acharge,
    "async object": Teller(),
    "partial": functools.partial(sync_charge),
    "async partial": functools.partial(charge),
    "lambda": lambda order: sync_charge(order),  # noqa: PLW0108 - a lambda is the case
    "lambda around async": lambda order: charge(order),  # noqa: PLW0108 - a lambda is the case
}


@pytest.mark.req("SDK-03", "PRO-13")
@pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS.keys())
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_every_mix_of_sync_and_async(kind: str, callback: Any) -> None:
    async def async_body(event: Event, step: Step) -> Any:
        return await step.run("charge", callback, 7)

    def sync_body(event: Event, step: SyncStep) -> Any:
        return step.run("charge", callback, 7)

    body = async_body if kind == "async" else sync_body
    assert (await outcome(body, forward("charge")))["result"] == text("ch_7")


@pytest.mark.req("PRO-09", "PRO-10", "SDK-06")
async def test_discovery_declares_and_runs_nothing() -> None:
    called: list[str] = []

    async def body(event: Event, step: Step) -> None:
        await step.run("a", lambda: called.append("a"), compensate=print, retry=2, timeout="30s")
        called.append("beyond")

    declared = await outcome(body, discovery())
    assert called == []
    assert declared["type"] == "declared"
    declaration = declared["declaration"]
    assert declaration["name"] == "a"
    assert declaration["has_compensation"] is True
    assert declaration["retry"]["max_attempts"] == 2
    assert declaration["attempt_timeout_ms"] == 30_000
    assert declaration["location"] == {"file": __file__, "line": body.__code__.co_firstlineno + 1, "name": "body"}
    assert declaration["compensation"]["retry"] == {
        "max_attempts": 4,
        "initial_ms": 1000,
        "multiplier": 2.0,
        "maximum_ms": 60_000,
        "jitter": 0.1,
    }


async def test_a_compensator_travels_with_its_own_policy() -> None:
    undo = Compensate(print, retry=Retry(max_attempts=9, initial="200ms"), timeout=5)

    def body(event: Event, step: SyncStep) -> None:
        step.run("a", sync_charge, 1, compensate=undo)

    policy = (await outcome(body, discovery()))["declaration"]["compensation"]
    assert policy["retry"]["max_attempts"] == 9
    assert policy["retry"]["initial_ms"] == 200
    assert policy["attempt_timeout_ms"] == 5_000


@pytest.mark.req("RTY-04", "PRO-08", "VAL-11")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_recorded_failure_is_raised_at_its_call(kind: str) -> None:
    called: list[int] = []
    seen: list[StepFailed] = []

    async def async_body(event: Event, step: Step) -> str:
        try:
            await step.run("a", called.append, 1)
        except StepFailed as error:
            seen.append(error)
        return await step.run("b", charge, 1)

    def sync_body(event: Event, step: SyncStep) -> str:
        try:
            step.run("a", called.append, 1)
        except StepFailed as error:
            seen.append(error)
        return step.run("b", charge, 1)

    history = failed(
        "a", "shop.CardDeclined", "no funds", details={"code": number(51)}, cause={"category": "X", "message": "y", "retryable": True}
    )
    declared = await outcome(async_body if kind == "async" else sync_body, discovery(history))
    assert declared["declaration"]["step_id"] == "b"
    assert called == []
    (error,) = seen
    assert (error.step_id, error.category, error.message, error.retryable) == ("a", "shop.CardDeclined", "no funds", False)
    assert error.details == {"code": 51}
    assert error.cause is not None
    assert error.cause.category == "X"


@pytest.mark.req("VAL-11")
async def test_an_escaping_step_failure_keeps_its_record() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 1)

    uncaught = await outcome(body, discovery(failed("a", "shop.CardDeclined", "no funds", details={"code": number(51)})))
    assert uncaught["type"] == "uncaught"
    assert uncaught["failure"]["category"] == "shop.CardDeclined"
    assert uncaught["failure"]["message"] == "no funds"
    assert uncaught["failure"]["details"] == {"code": number(51)}


@pytest.mark.req("RTY-08")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_failed_callback_is_never_an_uncaught_failure(kind: str) -> None:
    def decline() -> None:
        raise ValueError("no funds")

    async def async_body(event: Event, step: Step) -> None:
        await step.run("a", decline)

    def sync_body(event: Event, step: SyncStep) -> None:
        step.run("a", decline)

    result = await outcome(async_body if kind == "async" else sync_body, forward("a", attempt=2))
    assert result["type"] == "callback_failed"
    assert (result["attempt"], result["attempt_generation"]) == (2, 2)
    assert result["failure"]["category"] == "ValueError"
    assert result["failure"]["retryable"] is True
    assert "decline" in result["failure"]["stack"]
    assert "ryusen_sdk" not in result["failure"]["stack"]


@pytest.mark.req("SDK-07", "PRO-23")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_body_that_swallows_the_stop_cannot_replace_the_boundary(kind: str) -> None:
    async def async_body(event: Event, step: Step) -> str:
        for step_id in ("a", "a", "b"):
            with contextlib.suppress(BaseException):
                await step.run(step_id, charge, 1)
        return "swallowed"

    def sync_body(event: Event, step: SyncStep) -> str:
        for step_id in ("a", "a", "b"):
            with contextlib.suppress(BaseException):
                step.run(step_id, charge, 1)
        return "swallowed"

    body = async_body if kind == "async" else sync_body
    declared = await outcome(body, discovery())
    assert declared["declaration"]["step_id"] == "a"
    assert (await outcome(body, forward("a")))["result"] == text("ch_1")


@pytest.mark.req("SDK-08")
async def test_the_stop_passes_except_exception_and_runs_finally() -> None:
    trail: list[str] = []

    async def body(event: Event, step: Step) -> None:
        try:
            await step.run("a", charge, 1)
        except Exception:
            trail.append("caught")
        finally:
            trail.append("finally")

    assert (await outcome(body, discovery()))["type"] == "declared"
    assert trail == ["finally"]


async def test_each_stop_is_a_fresh_exception() -> None:
    stops: list[BaseException] = []

    def body(event: Event, step: SyncStep) -> None:
        for step_id in ("a", "b", "c"):
            try:
                step.run(step_id, charge, 1)
            except BaseException as stop:
                stops.append(stop)

    await outcome(body, discovery())
    assert len({id(stop) for stop in stops}) == 3


@pytest.mark.req("BLK-01")
async def test_a_loop_with_one_id_is_blocked_with_both_places() -> None:
    called: list[int] = []

    async def body(event: Event, step: Step) -> None:
        for number_ in range(3):
            await step.run("x", called.append, number_)

    blocked = await outcome(body, discovery(done("x", NULL)))
    assert blocked["type"] == "definition_blocked"
    assert blocked["reason"] == "duplicate_step_id"
    assert blocked["first"]["line"] == blocked["duplicate"]["line"] == body.__code__.co_firstlineno + 2
    assert called == []


@pytest.mark.req("BLK-03")
async def test_a_blocker_tells_the_names_of_both_calls_and_no_name_that_is_none() -> None:
    def body(*names: Any) -> Any:
        async def twice(event: Event, step: Step) -> None:
            for name in names:
                await step.run("x", charge, 1, name=name)

        return twice

    blocked = await outcome(body("first of two", "second of two"), discovery(done("x", NULL)))
    assert [blocked[place]["name"] for place in ("first", "duplicate")] == ["first of two", "second of two"]
    blocked = await outcome(body(None, 7), discovery(done("x", NULL)))
    assert [blocked[place]["name"] for place in ("first", "duplicate")] == ["twice", "twice"]


async def test_one_id_in_two_exclusive_branches_is_fine() -> None:
    async def body(event: Event, step: Step) -> str:
        if event.data["id"] == 7:
            return await step.run("x", charge, 1)
        return await step.run("x", charge, 2)

    assert (await outcome(body, discovery(done("x", text("A")))))["type"] == "completed"


@pytest.mark.req("SDK-05")
async def test_a_sibling_task_does_not_disturb_the_callback_that_runs() -> None:
    started = asyncio.Event()
    release = asyncio.Event()
    called: list[str] = []

    async def slow() -> str:
        started.set()
        await release.wait()
        return "slow"

    async def other() -> None:
        called.append("other")

    async def body(event: Event, step: Step) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(step.run("a", slow))
            await started.wait()
            group.create_task(step.run("b", other))
            await asyncio.sleep(0)
            release.set()

    assert (await outcome(body, forward("a")))["result"] == text("slow")
    assert called == []


async def test_gathered_steps_are_declared_one_at_a_time() -> None:
    async def body(event: Event, step: Step) -> list[str]:
        return list(await asyncio.gather(step.run("a", charge, 1), step.run("b", charge, 2)))

    assert (await outcome(body, discovery()))["declaration"]["step_id"] == "a"
    assert (await outcome(body, discovery(done("a", text("A")))))["declaration"]["step_id"] == "b"
    ended = await outcome(body, discovery(done("a", text("A")), done("b", text("B"))))
    assert ended["result"] == {"type": "array", "value": [text("A"), text("B")]}


@pytest.mark.parametrize("target", [discovery(), forward("a"), forward("b")])
async def test_a_step_in_a_task_that_the_pass_leaves_behind_is_no_error_that_nobody_saw(
    target: JsonDict, caplog: pytest.LogCaptureFixture
) -> None:
    async def branch(step: Step) -> None:
        await step.run("b", charge, 2)

    async def body(event: Event, step: Step) -> None:
        left = [asyncio.create_task(step.run("a", charge, 1)), asyncio.create_task(branch(step))]
        await asyncio.sleep(0)
        await step.sleep("c", "1s")
        await asyncio.gather(*left)

    await outcome(body, target)
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert [record.message for record in caplog.records] == []


async def test_gathered_branches_run_one_after_the_other_and_give_their_results_in_order() -> None:
    """A replayed step does not suspend, so the first branch gets to its end before the second one begins."""

    async def branch(step: Step, name: str) -> str:
        await step.run(f"{name}1", charge, 1)
        await step.sleep(f"{name}2", "1s")
        return name

    async def body(event: Event, step: Step) -> list[str]:
        return list(await asyncio.gather(branch(step, "a"), branch(step, "b")))

    history: list[JsonDict] = []
    order: list[str] = []
    while (given := await outcome(body, discovery(*history)))["type"] == "declared":
        step_id = given["declaration"]["step_id"]
        order.append(step_id)
        history.append(done(step_id, NULL, given["declaration"]["kind"]))
    assert order == ["a1", "a2", "b1", "b2"]
    assert given["result"] == {"type": "array", "value": [text("a"), text("b")]}


async def test_a_gather_that_returns_exceptions_cannot_swallow_the_end_of_a_pass() -> None:
    async def body(event: Event, step: Step) -> int:
        return len(await asyncio.gather(step.run("a", charge, 1), step.run("b", charge, 2), return_exceptions=True))

    assert (await outcome(body, discovery()))["declaration"]["step_id"] == "a"
    assert (await outcome(body, discovery(failed("a"))))["declaration"]["step_id"] == "b"
    assert (await outcome(body, discovery(failed("a"), done("b", NULL))))["result"] == number(2)


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_gathered_step_that_fails_keeps_none_beside_it_from_running_or_from_being_undone(grouped: bool) -> None:
    async def undo(_: object) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "undone"

    async def body(event: Event, step: Step) -> None:
        calls = [step.run("a", charge, 1), step.run("b", charge, 2, compensate=undo)]
        if not grouped:
            await asyncio.gather(*calls)
            return
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)

    assert (await outcome(body, discovery(failed("a"))))["declaration"]["step_id"] == "b"
    history = (failed("a"), done("b", text("ch")))
    assert (await outcome(body, discovery(*history)))["type"] == "uncaught"
    assert (await outcome(body, compensation("b", *history, result=text("ch"))))["result"] == text("undone")


@pytest.mark.req("PRO-19")
async def test_the_operation_is_the_servers() -> None:
    seen: list[Operation] = []

    def sync_callback() -> None:
        seen.append(operation())

    async def async_callback() -> None:
        await asyncio.sleep(0)
        seen.append(operation())

    for callback in (sync_callback, async_callback):

        async def body(event: Event, step: Step, callback: Any = callback) -> None:
            await step.run("a", callback)

        def sync_body(event: Event, step: SyncStep, callback: Any = callback) -> None:
            step.run("a", callback)

        for each in (body, sync_body):
            await outcome(each, forward("a", attempt=3))
    assert seen == [Operation("op_a", "a", "forward", 3, 3, "rn_1")] * 4


async def test_the_operation_is_unknown_outside_callbacks() -> None:
    with pytest.raises(MisuseError, match="inside a callback"):
        operation()

    async def body(event: Event, step: Step) -> None:
        operation()

    assert (await outcome(body, discovery()))["failure"]["category"] == "ryusen_sdk.MisuseError"


@pytest.mark.req("CMP-05")
@pytest.mark.parametrize(
    ("compensator", "args"),
    [
        (lambda result: ("short", result), "short"),
        (lambda result, order: ("full", result, order), "full"),
        (lambda *everything: ("all", *everything), "all"),
        (lambda result, order=None: ("default", result, order), "default"),
    ],
)
async def test_a_compensator_is_called_by_its_signature(compensator: Callable[..., object], args: str) -> None:
    calls: list[tuple[object, ...]] = []

    def undo(*given: object) -> None:
        calls.append(compensator(*given))  # type: ignore[arg-type]

    functools.update_wrapper(undo, compensator)

    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 7, compensate=undo)

    await outcome(body, compensation("a", done("a", text("ch")), result=text("ch")))
    assert calls == [("short", "ch") if args == "short" else (args, "ch", 7)]


async def test_a_compensator_that_fits_nothing_is_a_clear_failure() -> None:
    def undo(a: object, b: object, c: object, d: object) -> None: ...

    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 7, compensate=undo)  # type: ignore[arg-type]

    result = await outcome(body, compensation("a", done("a", text("ch")), result=text("ch")))
    assert result["type"] == "callback_failed"
    assert "neither (result) nor (result, *args)" in result["failure"]["message"]


@pytest.mark.req("VAL-03")
async def test_an_unportable_result_names_the_path_and_is_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    def bad() -> object:
        return {"items": [1, {"price": {1, 2}}]}

    async def body(event: Event, step: Step) -> object:
        await step.run("a", bad, compensate=lambda _: bad())
        return bad()

    ran = await outcome(body, forward("a"))
    assert ran["type"] == "callback_failed"
    assert ran["failure"]["category"] == "sdk.invalid_result"
    assert ran["failure"]["retryable"] is False
    assert "$.items[1].price" in ran["failure"]["message"]
    ended = await outcome(body, discovery(done("a", NULL)))
    assert (ended["type"], ended["failure"]["category"]) == ("uncaught", "sdk.invalid_result")
    undone = await outcome(body, compensation("a", done("a", NULL)))
    assert (undone["type"], undone["result"]) == ("succeeded", NULL)
    assert "recorded as null" in caplog.text


async def test_a_result_over_the_limit_is_refused_before_it_is_sent() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", lambda: b"x" * (17 * 1024 * 1024))

    ran = await outcome(body, forward("a"))
    assert ran["failure"]["category"] == "sdk.invalid_result"


@dataclass
class Haunted:
    id: int

    def __getattribute__(self, name: str) -> Any:
        if name == "id":
            raise LookupError("the id is gone")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_result_whose_conversion_raises_is_not_run_again_whatever_the_body_catches(kind: str) -> None:
    """The effect has happened: nothing that follows may look as if it had not begun."""

    async def body(event: Event, step: Step) -> str:
        try:
            await step.run("a", lambda: Haunted(1), returns=Haunted)
        except Exception:
            return "caught"
        return "done"

    def sync_body(event: Event, step: SyncStep) -> str:
        try:
            step.run("a", lambda: Haunted(1), returns=Haunted)
        except Exception:
            return "caught"
        return "done"

    ran = await outcome(body if kind == "async" else sync_body, forward("a"))
    assert (ran["type"], ran["failure"]["category"], ran["failure"]["retryable"]) == ("callback_failed", "sdk.invalid_result", False)
    assert "the id is gone" in ran["failure"]["message"]


async def test_a_conversion_error_of_the_callback_itself_is_a_failure_like_any_other() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", lambda: event.data)

    ran = await outcome(body, forward("a", data=b"{broken"))
    assert ran["type"] == "callback_failed"
    assert (ran["failure"]["category"], ran["failure"]["retryable"]) == ("ryusen_sdk.ConversionError", True)


class Plain(BaseException):
    """A BaseException of the user's own."""


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError("c"), GeneratorExit("g"), Plain("p"), StopIteration("s"), StopAsyncIteration("s")]
)
@pytest.mark.parametrize("callback_kind", ["async", "sync"])
@pytest.mark.parametrize("body_kind", ["async", "sync"])
async def test_a_base_exception_from_a_callback_is_a_failure(error: BaseException, callback_kind: str, body_kind: str) -> None:
    def throw() -> None:
        raise error

    async def athrow() -> None:
        raise error

    callback: Any = throw if callback_kind == "sync" else athrow

    async def body(event: Event, step: Step) -> None:
        await step.run("a", callback)

    def sync_body(event: Event, step: SyncStep) -> None:
        step.run("a", callback)

    result = await outcome(body if body_kind == "async" else sync_body, forward("a"))
    assert result["type"] == "callback_failed"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("callback_kind", ["async", "sync"])
@pytest.mark.parametrize("body_kind", ["async", "sync"])
async def test_an_exit_from_a_callback_is_no_outcome(error: BaseException, callback_kind: str, body_kind: str) -> None:
    def throw() -> None:
        raise error

    async def athrow() -> None:
        raise error

    callback: Any = throw if callback_kind == "sync" else athrow
    app = Ryusen("shop")

    @app.function(id="fulfil")
    async def body(event: Event, step: Step) -> None:
        await step.run("a", callback)

    @app.function(id="sync")
    def sync_body(event: Event, step: SyncStep) -> None:
        step.run("a", callback)

    given = await answer(app, forward("a", function="fulfil" if body_kind == "async" else "sync"))
    assert isinstance(given, Stopped)
    assert given.error is error


async def test_an_async_callback_over_its_timeout_reports_once_it_has_unwound() -> None:
    trail: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            trail.append("unwound")

    async def body(event: Event, step: Step) -> None:
        await step.run("a", slow, timeout="10ms")

    def sync_body(event: Event, step: SyncStep) -> None:
        step.run("a", slow, timeout="10ms")

    for each in (body, sync_body):
        result = await outcome(each, forward("a"))
        assert trail.pop() == "unwound"
        assert result["type"] == "callback_failed"
        assert result["failure"]["category"] == "sdk.attempt_timeout"
        assert result["failure"]["retryable"] is True


async def test_a_timeout_that_the_callback_turns_into_an_error_is_still_a_timeout() -> None:
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("cleanup failed") from None

    async def body(event: Event, step: Step) -> None:
        await step.run("a", slow, timeout="10ms")

    failure = (await outcome(body, forward("a")))["failure"]
    assert failure["category"] == "sdk.attempt_timeout"
    assert failure["cause"]["category"] == "ValueError"


async def test_a_sync_callback_over_its_timeout_gives_its_real_result() -> None:
    gate = threading.Event()

    def slow() -> str:
        gate.wait(0.05)
        return "late"

    async def body(event: Event, step: Step) -> None:
        await step.run("a", slow, timeout="1ms")

    assert (await outcome(body, forward("a")))["result"] == text("late")


async def test_a_body_that_gives_up_waiting_for_a_thread_still_gets_its_result() -> None:
    gate = threading.Event()

    def slow() -> str:
        gate.wait(0.05)
        return "late"

    async def body(event: Event, step: Step) -> None:
        async with asyncio.timeout(0.005):
            await step.run("a", slow)

    assert (await outcome(body, forward("a")))["result"] == text("late")


@pytest.mark.parametrize("way", ["timeout", "group", "wait_for"])
async def test_a_body_that_gives_up_waiting_for_a_coroutine_still_gets_its_result(way: str) -> None:
    cancelled: list[bool] = []

    async def slow() -> str:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "late"

    async def fail() -> None:
        await asyncio.sleep(0.005)
        raise LookupError("beside")

    async def body(event: Event, step: Step) -> None:
        if way == "timeout":
            async with asyncio.timeout(0.005):
                await step.run("a", slow)
        elif way == "wait_for":
            await asyncio.wait_for(step.run("a", slow), 0.005)
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(step.run("a", slow))
                group.create_task(fail())

    assert (await outcome(body, forward("a")))["result"] == text("late")
    assert cancelled == []


async def test_a_missing_await_is_told() -> None:
    async def body(event: Event, step: Step) -> str:
        step.run("a", charge, 1)  # type: ignore[unused-coroutine]  # ty: ignore
        return "done"

    failure = (await outcome(body, discovery()))["failure"]
    assert failure["category"] == "ryusen_sdk.MisuseError"
    assert "never awaited" in failure["message"]
    assert f"{__file__}:{body.__code__.co_firstlineno + 1}" in failure["message"]


@pytest.mark.req("SDK-04")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda step: step.run("a", charge(1)), "not the call"),
        (lambda step: step.run("a", "charge"), "something to call"),
        (lambda step: step.run(charge, 1), "step id is non-empty text"),
        (lambda step: step.run("", charge, 1), "step id is non-empty text"),
        (lambda step: step.run("é" * 200, charge, 1), "an id has at most 256"),
        (lambda step: step.run("a", charge, 1, retry="often"), "retry="),
        (lambda step: step.run("a", charge, 1, retry=True), "retry="),
        (lambda step: step.run("a", charge, 1, retry=0), "at least 1"),
        (lambda step: step.run("a", charge, 1, timeout="soon"), "not a duration"),
        (lambda step: step.run("a", charge, 1, timeout=0), "longer than nothing"),
        (lambda step: step.run("a", charge, 1, compensate="undo"), "compensate="),
    ],
)
async def test_misuse_is_told_early(call: Callable[[Any], Any], message: str) -> None:
    def body(event: Event, step: SyncStep) -> None:
        call(step)

    failure = (await outcome(body, discovery()))["failure"]
    assert failure["category"] == "ryusen_sdk.MisuseError"
    assert message in failure["message"]


async def test_a_step_inside_a_callback_is_refused() -> None:
    async def body(event: Event, step: Step) -> None:
        async def nested() -> None:
            await step.run("b", charge, 1)

        await step.run("a", nested)

    failure = (await outcome(body, forward("a")))["failure"]
    assert "inside a callback" in failure["message"]


async def test_a_sync_step_used_from_another_thread_is_refused() -> None:
    def body(event: Event, step: SyncStep) -> str:
        told: list[str] = []

        def use() -> None:
            try:
                step.run("a", charge, 1)
            except MisuseError as error:
                told.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return told[0]

    assert "another thread" in (await outcome(body, discovery()))["result"]["value"]


async def test_a_sync_function_that_returns_a_coroutine_is_told() -> None:
    async def inner() -> int:
        return 1

    coroutines: list[Any] = []

    def body(event: Event, step: SyncStep) -> object:
        coroutines.append(inner())
        return coroutines[0]

    failure = (await outcome(body, discovery()))["failure"]
    coroutines[0].close()
    assert failure["category"] == "sdk.invalid_result"
    assert "async def" in failure["message"]


# Typed data.


@dataclass
class Order:
    id: int
    note: str | None = None


class Receipt(TypedDict):
    id: int
    at: datetime


@pytest.mark.req("VAL-02")
async def test_typed_results_are_stored_plain_and_given_back_typed() -> None:
    undone: list[object] = []

    async def place() -> Order:
        return Order(7)

    async def body(event: Event, step: Step) -> str:
        order = await step.run("a", place, returns=Order, compensate=undone.append)
        return f"{type(order).__name__} {order.id}"

    stored = (await outcome(body, forward("a")))["result"]
    assert stored == {"type": "object", "value": {"id": number(7), "note": NULL}}
    assert (await outcome(body, discovery(done("a", stored))))["result"] == text("Order 7")
    await outcome(body, compensation("a", done("a", stored), result=stored))
    assert undone == [Order(7)]


async def test_a_typed_dict_keeps_its_instants() -> None:
    async def body(event: Event, step: Step) -> bool:
        receipt = await step.run("a", lambda: Receipt(id=1, at=datetime(2024, 1, 1, tzinfo=UTC)), returns=Receipt)
        return receipt["at"] == datetime(2024, 1, 1, tzinfo=UTC)

    stored = (await outcome(body, forward("a")))["result"]
    assert stored["value"]["at"]["type"] == "instant"
    assert (await outcome(body, discovery(done("a", stored))))["result"] == {"type": "bool", "value": True}


async def test_a_record_that_no_longer_fits_the_type_is_an_ordinary_error() -> None:
    async def body(event: Event, step: Step) -> str:
        try:
            await step.run("a", lambda: Order(1), returns=Order)
        except ConversionError as error:
            return str(error)
        return "fits"

    told = (await outcome(body, discovery(done("a", {"type": "object", "value": {"id": text("x")}}))))["result"]["value"]
    assert "Order" in told
    assert "$.id" in told


@pytest.mark.req("VAL-03")
@pytest.mark.parametrize(
    ("given", "path"), [({"id": "7"}, "$.id"), ({"id": 7, "colour": "red"}, "$.colour"), (Order(7, note=object()), "$.note")]
)  # type: ignore[arg-type]
async def test_a_result_that_would_not_come_back_as_its_type_is_one_failure(given: object, path: str) -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", lambda: given, returns=Order)

    failure = (await outcome(body, forward("a")))["failure"]
    assert (failure["category"], failure["retryable"]) == ("sdk.invalid_result", False)
    assert path in failure["message"]
    assert "Order" in failure["message"]


class Opaque: ...


async def test_a_type_that_no_value_has_fails_before_its_step_runs() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", lambda: 1, returns=Opaque)

    assert "is no type for values" in (await outcome(body, discovery()))["failure"]["message"]


async def test_the_event_as_data_bytes_and_type() -> None:
    async def body(event: Event[Order], step: Step) -> object:
        assert event.data == Order(7)
        return [event.payload, event.id, event.name, dict(event.metadata), event.received_at, event.run_id]

    result = (await outcome(body, discovery()))["result"]["value"]
    assert result[0]["type"] == "bytes"
    assert result[1:4] == [text("ev_1"), text("order/placed"), {"type": "object", "value": {"k": text("v")}}]
    assert result[4] == {"type": "instant", "value": {"nanos": 500_000_000, "seconds": "1"}}


@pytest.mark.req("VAL-06", "VAL-07", "VAL-08")
@pytest.mark.parametrize("payload", [b"{broken", b"\xff\xfe", b"NaN", b"[Infinity]", b"1e999", b""])
async def test_a_payload_that_is_no_json_is_an_error_and_its_bytes_stay(payload: bytes) -> None:
    async def body(event: Event, step: Step) -> bytes:
        with pytest.raises(ConversionError, match=r"event\.payload"):
            _ = event.data
        return event.payload

    result = (await outcome(body, discovery(data=payload)))["result"]
    import base64

    assert base64.b64decode(result["value"]) == payload


async def test_an_unknown_function_and_a_delta_are_rejected_before_start() -> None:
    app = Ryusen("shop")
    given = await answer(app, forward("a", function="gone", attempt=2))
    assert isinstance(given, bytes)
    assert json.loads(given)["outcome"] == {
        "type": "rejected_before_start",
        "reason": "unsupported_target",
        "attempt": 2,
        "attempt_generation": 2,
    }

    @app.function(id="fulfil")
    async def body(event: Event, step: Step) -> None: ...

    document = discovery()
    document["history"] = {"mode": "delta", "digest": "sha256:0", "base": {"count": 1, "digest": "sha256:1"}, "steps": []}
    del document["input"]
    given = await answer(app, document)
    assert isinstance(given, bytes)
    assert json.loads(given)["outcome"]["reason"] == "history_missing"


async def test_failure_and_terminal_choose_the_record() -> None:
    async def body(event: Event, step: Step) -> None:
        def fail() -> None:
            raise Failure("no funds", category="card.declined", retryable=True, details={"code": 51})

        def stop() -> None:
            raise Terminal("gone")

        await step.run("a", fail)
        await step.run("b", stop)

    failure = (await outcome(body, forward("a")))["failure"]
    assert (failure["category"], failure["retryable"], failure["details"]) == ("card.declined", True, {"code": number(51)})
    failure = (await outcome(body, forward("b", done("a", NULL))))["failure"]
    assert (failure["category"], failure["retryable"]) == ("ryusen_sdk.Terminal", False)


async def test_run_logger_is_silent_while_replaying(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = run_logger("shop.test")

    async def body(event: Event, step: Step) -> None:
        log.info("before a")
        await step.run("a", charge, 1)
        log.info("between")
        await step.run("b", charge, 1)

    def logged() -> list[str]:
        told = [record.message for record in caplog.records if record.name == "shop.test"]
        caplog.clear()
        return told

    await outcome(body, discovery())
    assert logged() == ["before a"]
    await outcome(body, forward("a"))
    assert logged() == []
    await outcome(body, discovery(done("a", text("A"))))
    assert logged() == ["between"]
    log.info("outside")
    assert logged() == ["outside"]


async def test_a_callback_that_a_task_beside_the_body_runs_counts_even_if_the_body_has_returned() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.02)
        return "slow"

    async def body(event: Event, step: Step) -> str:
        task = asyncio.create_task(step.run("a", slow))
        await asyncio.sleep(0)
        assert not task.done()
        return "returned"

    assert (await outcome(body, forward("a")))["result"] == text("slow")


@pytest.mark.parametrize("name", ["\ud800", 5, "x" * 300])
async def test_a_bad_display_name_is_told(name: Any) -> None:
    def body(event: Event, step: SyncStep) -> None:
        step.run("a", charge, 1, name=name)

    assert "name=" in (await outcome(body, discovery()))["failure"]["message"]


async def test_a_display_name_of_any_language_is_kept() -> None:
    def body(event: Event, step: SyncStep) -> None:
        step.run("zahlung-ü", charge, 1, name="支払い 🎉")

    declaration = (await outcome(body, discovery()))["declaration"]
    assert (declaration["step_id"], declaration["name"]) == ("zahlung-ü", "支払い 🎉")


async def test_a_step_id_that_is_no_text_never_hides_a_target() -> None:
    def body(event: Event, step: SyncStep) -> None:
        step.run("\ud800", charge, 1)

    assert (await outcome(body, forward("a")))["reason"] == "not_met"


async def test_a_full_history_is_never_answered_as_missing() -> None:
    app = Ryusen("shop")

    @app.function(id="fulfil")
    async def body(event: Event, step: Step) -> str:
        return event.run_id

    document = discovery()
    del document["input"]
    given = await answer(app, document)
    assert isinstance(given, bytes)
    assert json.loads(given)["outcome"] == {"type": "completed", "result": text("rn_1")}


async def test_an_unportable_result_of_a_body_that_never_reached_its_target_is_not_the_target_s() -> None:
    async def body(_event: Event[Any], _step: Step) -> object:
        return object()

    for document in (forward("a"), compensation("a", done("a", NULL), result=NULL)):
        given = await outcome(body, document)
        assert (given["type"], given["reason"]) == ("target_not_found", "not_met")
