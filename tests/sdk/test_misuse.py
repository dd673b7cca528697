"""Ways to hold steps wrongly, each told with the step, the place and what to write instead."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from ryusen_protocol.codec import decode_outcome
from ryusen_protocol.declaration_checks import check_declaration
from ryusen_protocol.outcome import Declared
from ryusen_sdk import Compensate, DefinitionError, DuplicateFunction, Event, MisuseError, Retry, Ryusen, Step, SyncStep
from tests.sdk.hosted import answer, outcome, outcome_of
from tests.sdk.peer import NULL, JsonDict, compensation, discovery, done, forward, text


async def charge(order: int) -> dict[str, int]:
    return {"order": order}


def told(given: JsonDict) -> str:
    """The message of the misuse that ended the function."""
    assert given["type"] == "uncaught", given
    assert given["failure"]["category"] == "ryusen_sdk.MisuseError", given
    return given["failure"]["message"]


def line(body: Any, offset: int) -> str:
    return f"{__file__}:{body.__code__.co_firstlineno + offset}"


# Steps that nobody awaits.


async def test_a_step_that_is_thrown_away_is_told_at_the_next_step() -> None:
    beyond: list[str] = []

    async def body(event: Event, step: Step) -> None:
        step.run("a", charge, 1)  # type: ignore[unused-coroutine]
        await step.run("b", charge, 2)
        beyond.append("b")

    message = told(await outcome(body, discovery()))
    assert "step 'a' was called but never awaited" in message
    assert line(body, 1) in message
    assert beyond == []


async def test_many_thrown_away_calls_are_told_whatever_memory_they_share() -> None:
    """A later call may stand where an earlier one stood: what is told must not depend on addresses."""

    async def body(event: Event, step: Step) -> str:
        for number in range(50):
            step.sleep(f"s{number}", 1)  # type: ignore[unused-coroutine]
        return "done"

    assert "step 's0'" in told(await outcome(body, discovery()))


@pytest.mark.parametrize("target", ["forward", "compensation"])
async def test_a_thrown_away_step_keeps_no_authorized_callback_from_running(target: str) -> None:
    async def body(event: Event, step: Step) -> None:
        step.run("a", charge, 1)  # type: ignore[unused-coroutine]
        await step.run("b", lambda: "ran", compensate=lambda _: "ran")

    document = forward("b") if target == "forward" else compensation("b", done("b", NULL))
    assert (await outcome(body, document))["result"] == text("ran")


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda call: call["order"], id="subscript"),
        pytest.param(lambda call: call.order, id="attribute"),
        pytest.param(lambda call: call + 1, id="operator"),
        pytest.param(list, id="iteration"),
    ],
)
async def test_a_step_used_as_its_result_is_told(use: Any) -> None:
    async def body(event: Event, step: Step) -> None:
        call = step.run("a", charge, 1)
        use(call)

    given = await outcome(body, discovery())
    assert "step 'a' was called but never awaited" in told(given)
    assert given["failure"]["cause"]["category"] in {"TypeError", "AttributeError"}


async def test_a_step_given_to_another_as_its_argument_is_told() -> None:
    async def body(event: Event, step: Step) -> None:
        call: Any = step.run("a", charge, 1)
        await step.run("b", charge, call)

    assert "step 'b': argument 1 is <call of step 'a'>, not awaited" in told(await outcome(body, discovery()))


async def test_a_step_that_is_awaited_twice_is_told() -> None:
    async def body(event: Event, step: Step) -> None:
        call = step.run("a", charge, 1)
        await call
        await call

    assert "step 'a' is awaited twice" in told(await outcome(body, discovery(done("a", NULL))))


async def test_a_type_error_of_its_own_stays_what_it_is() -> None:
    async def body(event: Event, step: Step) -> None:
        call = step.run("a", charge, 1)
        await call
        _ = len(5)  # type: ignore[arg-type]

    given = await outcome(body, discovery(done("a", NULL)))
    assert given["failure"]["category"] == "TypeError"


async def test_a_call_that_a_cancelled_group_never_started_is_no_misuse() -> None:
    async def body(event: Event, step: Step) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(step.run("a", charge, 1))
                raise LookupError("out of stock")
        except ExceptionGroup:
            return "handled"

    assert (await outcome(body, discovery()))["result"] == text("handled")


# Steps of elsewhere.


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_step_outside_a_run_is_told(kind: str) -> None:
    kept: list[Any] = []

    async def body(event: Event, step: Step) -> None:
        kept.append(step)

    def sync_body(event: Event, step: SyncStep) -> None:
        kept.append(step)

    await outcome(body if kind == "async" else sync_body, discovery())

    async def use() -> None:
        await kept[0].run("a", charge, 1)

    with pytest.raises(MisuseError, match=r"step 'a' is called (outside a run|from another thread)"):
        await use()


async def test_a_step_of_another_run_is_told() -> None:
    kept: list[Step] = []

    async def body(event: Event, step: Step) -> None:
        kept.append(step)
        await kept[0].run("a", charge, 1)

    assert (await outcome(body, discovery()))["type"] == "declared"
    assert "the step of another run" in told(await outcome(body, discovery()))


async def test_a_step_after_the_function_has_returned_is_told_where_it_is_called() -> None:
    raised: list[str] = []
    returned, called = asyncio.Event(), asyncio.Event()

    async def late(step: Step) -> None:
        await returned.wait()
        try:
            await step.run("a", charge, 1)
        except MisuseError as error:
            raised.append(str(error))
        called.set()

    tasks: list[asyncio.Task[None]] = []

    async def body(event: Event, step: Step) -> str:
        tasks.append(asyncio.create_task(late(step)))
        return "returned"

    assert (await outcome(body, discovery()))["result"] == text("returned")
    returned.set()
    await called.wait()
    assert "after its function has ended" in raised[0]


async def test_a_task_beside_a_body_that_stopped_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    reached = asyncio.Event()

    async def beside(step: Step) -> None:
        await asyncio.sleep(0.01)
        try:
            await step.run("b", charge, 1)
        finally:
            reached.set()

    async def body(event: Event, step: Step) -> None:
        await asyncio.gather(step.run("a", charge, 1), beside(step))

    caplog.set_level(logging.WARNING)
    assert (await outcome(body, discovery()))["declaration"]["step_id"] == "a"
    await reached.wait()
    await asyncio.sleep(0)
    assert caplog.records == []


async def test_a_step_in_a_thread_of_its_own_is_told() -> None:
    def use(step: Step, noted: list[str]) -> None:
        async def inner() -> None:
            await step.run("a", charge, 1)

        try:
            asyncio.run(inner())
        except MisuseError as error:
            noted.append(str(error))

    async def body(event: Event, step: Step) -> str:
        noted: list[str] = []
        thread = threading.Thread(target=use, args=(step, noted))
        thread.start()
        await asyncio.to_thread(thread.join)
        return noted[0]

    assert "outside a run" in (await outcome(body, discovery()))["result"]["value"]


async def test_a_step_called_in_a_callback_is_told_instead_of_waiting_for_itself() -> None:
    def in_sync(event: Event, step: SyncStep) -> None:
        def callback() -> Any:
            return step.run("inner", charge, 1)

        step.run("a", callback)

    async def in_async(event: Event, step: Step) -> None:
        async def callback() -> Any:
            return await step.run("inner", charge, 1)

        await step.run("a", callback)

    for body in (in_sync, in_async):
        given = await outcome(body, forward("a"))
        assert given["type"] == "callback_failed"
        assert given["failure"]["category"] == "ryusen_sdk.MisuseError"
        assert "step 'inner' is called" in given["failure"]["message"]
        assert "steps belong to the function body" in given["failure"]["message"]


# Definitions.


@pytest.mark.req("SDK-01")
def test_two_functions_with_one_id_name_both_places() -> None:
    app = Ryusen("shop")

    @app.function(id="ship")
    async def first(event: Event, step: Step) -> None: ...

    async def second(event: Event, step: Step) -> None: ...

    with pytest.raises(DuplicateFunction) as refused:
        app.function(id="ship")(second)
    assert line(first, 0) in str(refused.value)
    assert line(second, 0) in str(refused.value)


@pytest.mark.parametrize("function", ["refund", None, {"undo": 1}])
def test_a_compensator_that_cannot_be_called_is_told_where_it_is_made(function: Any) -> None:
    with pytest.raises(MisuseError, match="the compensator to call"):
        Compensate(function)


async def test_an_async_function_behind_a_sync_wrapper_is_told() -> None:
    async def inner(event: Event, step: Any) -> None: ...

    def wrapper(event: Event, step: SyncStep) -> Any:
        return inner(event, step)

    given = await outcome(wrapper, discovery())
    assert given["failure"]["category"] == "sdk.invalid_result"
    assert "async def" in given["failure"]["message"]


async def test_an_async_step_awaited_in_a_sync_functions_hands_is_told() -> None:
    """A sync function gets sync steps; what they give is the result and no coroutine."""
    app = Ryusen("shop")

    @app.function(id="fulfil")
    def body(event: Event, step: Any) -> Any:
        return asyncio.run(step.run("a", charge, 1))

    given = await outcome_of(app, discovery(done("a", NULL)))
    assert given["failure"]["category"] in {"ValueError", "TypeError"}
    assert "coroutine was expected" in given["failure"]["message"]


# Options, told before anything has happened.


async def charge_any(*orders: int) -> int:
    return len(orders)


def undo_nothing() -> None: ...


def undo_one(result: object) -> None: ...


def undo_one_and_perhaps(result: object, order: int = 1) -> None: ...


def undo_any(result: object, *rest: object) -> None: ...


def undo_two(result: object, order: int) -> None: ...


def undo_named(*, result: object) -> None: ...


@pytest.mark.parametrize(
    ("undo", "args", "why"),
    [
        pytest.param(undo_nothing, (7,), r"takes neither \(result\) nor \(result, \*args\) with 1 arguments", id="too few"),
        pytest.param(undo_two, (), r"takes neither .* with 0 arguments: \(result: 'object', order: 'int'\)", id="too many"),
        pytest.param(Compensate(undo_named), (7,), "takes neither", id="keyword only"),
    ],
)
async def test_a_compensator_that_cannot_take_the_result_is_told_before_the_effect(undo: Any, args: tuple[int, ...], why: str) -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge_any, *args, compensate=undo)

    message = told(await outcome(body, discovery()))
    assert re.search(f"the compensator of step 'a' {why}", message), message


@pytest.mark.parametrize("undo", [undo_one, undo_one_and_perhaps, undo_any, undo_two, print, Compensate(undo_two)])
async def test_a_compensator_that_can_take_the_result_is_declared(undo: Any) -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 7, compensate=undo)

    assert (await outcome(body, discovery()))["declaration"]["has_compensation"] is True


async def test_a_call_of_a_compensator_is_told_and_closed() -> None:
    async def refund(_: object) -> None: ...

    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 7, compensate=refund(7))  # type: ignore[arg-type]

    assert "give the compensator (compensate=refund), not the call" in told(await outcome(body, discovery()))


@pytest.mark.parametrize("attempts", [0, -1, 2**31, 2**53, 2**70, True])
async def test_a_number_of_attempts_that_the_wire_does_not_carry_is_told(attempts: int) -> None:
    """A declaration that cannot be read would be asked for again and again."""

    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 1, retry=attempts)

    assert told(await outcome(body, discovery())).startswith("step 'a': ")


async def test_the_largest_policy_is_declared_as_it_is() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 1, retry=Retry(max_attempts=2**31 - 1, multiplier=1_000_000))

    app = Ryusen("shop")
    app.function(id="fulfil")(body)
    given = await answer(app, discovery())
    assert isinstance(given, bytes)
    declared = decode_outcome(given).outcome
    assert isinstance(declared, Declared)
    check_declaration(declared.declaration)


@pytest.mark.parametrize("options", [{"multiplier": 10**400}, {"multiplier": 1e7}, {"multiplier": float("nan")}, {"jitter": 10**400}])
def test_a_policy_out_of_bounds_is_told_where_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=r"Retry\((multiplier|jitter)=.*\): a (number|fraction) from"):
        Retry(**options)


@pytest.mark.parametrize("options", [{"returns": 5}, {"retry": "3"}, {"compensate": Compensate(print, retry=0)}])
async def test_a_wrong_option_names_its_step(options: dict[str, Any]) -> None:
    async def body(event: Event, step: Step) -> None:
        await step.run("a", charge, 1, **options)

    assert "step 'a'" in told(await outcome(body, discovery()))


async def test_a_child_that_cannot_be_invoked_names_its_step() -> None:
    async def no_function(event: Event, step: Step) -> None:
        await step.invoke("a", charge, 1)  # type: ignore[arg-type]

    async def no_type(event: Event, step: Step) -> None:
        await step.invoke("a", "fulfil", 1, returns=5)  # type: ignore[call-overload]

    for body in (no_function, no_type):
        assert "step 'a'" in told(await outcome(body, discovery()))


async def test_a_payload_over_the_limit_is_told_by_the_limit_of_payloads() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.send_event("a", "order/placed", b"x" * (3 * 2**20))

    assert "its payload of 3,145,728 bytes is over the limit of 1 MiB" in told(await outcome(body, discovery()))


async def test_a_typed_result_without_a_type_is_told_of_it() -> None:
    @dataclass
    class Charge:
        id: str

    async def one(event: Event, step: Step) -> None:
        await step.run("a", lambda: Charge("c"))

    async def several(event: Event, step: Step) -> None:
        await step.run("a", lambda: [Charge("c")])

    async def nested(event: Event, step: Step) -> None:
        await step.run("a", lambda: {"charge": Charge("c")})

    messages = [(await outcome(body, forward("a")))["failure"]["message"] for body in (one, several, nested)]
    assert "name the type of the result: returns=Charge" in messages[0]
    assert "name the type of the result: returns=list[Charge]" in messages[1]
    assert "returns=" not in messages[2]


async def test_a_sync_function_with_a_loop_of_its_own_is_told_before_the_effect() -> None:
    def body(event: Event, step: SyncStep) -> Any:
        async def inner() -> Any:
            return await step.run("a", charge, 1)  # type: ignore[misc]

        return asyncio.run(inner())

    assert "make the function an `async def`" in told(await outcome(body, discovery()))


@pytest.mark.parametrize("on", [5, 1.5, object()])
def test_a_trigger_that_is_no_event_name_is_told(on: Any) -> None:
    with pytest.raises(DefinitionError, match="an event name or a list of them"):
        Ryusen("shop").function(on=on, id="fulfil")(undo_two)
