"""Bodies that stand at a step: what goes on in them, what ends them, and that nobody can tell the difference."""

from __future__ import annotations

import asyncio
import gc
import random
import types
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from ryusen_sdk import Event, Failure, Ryusen, Step, StepFailed, SyncStep, Terminal, run_logger
from ryusen_sdk import standing as standing_module
from ryusen_sdk.latch import Pass
from ryusen_sdk.operation import operation
from ryusen_sdk.standing import CoroutineBody, Watched
from ryusen_sdk.worker import Worker
from tests.sdk.peer import NULL, JsonDict, compensation, discovery, done, failed, fake_server, forward, number, text
from tests.sdk.standing_runs import Function, Process, Seen, process, same_as_replayed


def linear(seen: Seen, count: int = 5) -> Function:
    async def body(_event: Event, step: Step) -> int:
        seen.begun += 1
        total = 0
        try:
            for place in range(count):
                total += await step.run(f"s{place}", call, place, compensate=call)
        finally:
            seen.ended += 1
        return total

    def call(place: int, *_: object) -> int:
        seen.called.append(f"{operation().step_id}:{operation().attempt}")
        return place

    return body


async def test_a_run_goes_on_where_its_body_stands() -> None:
    seen = Seen()
    async with process(linear(seen)) as worker:
        for _ in range(5):
            await worker.step()
        assert await worker.discover() == {"type": "completed", "result": number(10)}
    assert seen == Seen(begun=1, ended=1, called=[f"s{place}:1" for place in range(5)])


async def test_a_run_with_few_steps_is_replayed_and_so_is_one_that_has_gone_far_in_one_go() -> None:
    seen = Seen()
    async with process(linear(seen), steps_min=3) as worker:
        for _ in range(3):
            await worker.step()
        assert seen.begun == 6, "each pass begins at the first line"
        await worker.step()
        await worker.step()
        assert seen.begun == 7
    seen = Seen()
    async with process(linear(seen), stretch_max=3) as worker:
        for _ in range(4):
            await worker.step()
        assert (seen.begun, seen.ended) == (2, 2), "the fourth answer ends it"


async def test_a_recorded_result_counts_and_not_what_the_callback_returned() -> None:
    told: list[object] = []

    async def body(_event: Event, step: Step) -> None:
        items = await step.run("s0", lambda: ["of", "the", "callback"])
        told.append(items)
        await step.run("s1", str)

    async with process(body) as worker:
        await worker.discover()
        assert (await worker.ask(forward("s0")))["type"] == "succeeded"
        worker.history.append(done("s0", {"type": "array", "value": [text("recorded")]}))
        assert (await worker.discover())["declaration"]["step_id"] == "s1"
    assert told == [["recorded"]]


def other_history(worker: Process) -> JsonDict:
    return discovery(done("s0", number(100)), done("s1", number(1)), done("s2", number(2)))


def shorter_history(worker: Process) -> JsonDict:
    return discovery(*worker.history[:1])


def nothing_new(worker: Process) -> JsonDict:
    return discovery(*worker.history)


def next_step(worker: Process) -> JsonDict:
    return discovery(*worker.history, done("s2", number(2)))


UNFIT: dict[str, tuple[Callable[[Process], JsonDict], bool, JsonDict]] = {
    "history that is another": (other_history, False, {"declared": "s3"}),
    "history of another instance": (next_step, True, {"declared": "s3"}),
    "history that is shorter": (shorter_history, False, {"declared": "s1"}),
    "the same pass again": (nothing_new, False, {"declared": "s2"}),
    "another step's target": (lambda worker: forward("s3", *worker.history), False, {"target_not_found": "hidden"}),
    "compensation": (lambda worker: compensation("s1", *worker.history, result=number(1)), False, {"succeeded": None}),
    "target with news": (lambda worker: forward("s2", *worker.history, done("x", NULL)), False, {"succeeded": None}),
    "news of another step": (lambda worker: discovery(*worker.history, done("x", NULL)), False, {"declared": "s2"}),
    "the step as another kind": (
        lambda worker: discovery(*worker.history, done("s2", NULL, "timer")),
        False,
        {"definition_blocked": "declaration_conflict"},
    ),
}


@pytest.mark.req("SDK-09")
@pytest.mark.parametrize("case", UNFIT)
async def test_what_does_not_follow_begins_at_the_first_line(case: str) -> None:
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.step()
        await worker.step()
        await worker.discover()
        assert seen.begun == 1
        make, whole, expected = UNFIT[case]
        outcome = await worker.ask(make(worker), whole=whole)
        await asyncio.sleep(0)
        assert seen.begun == 2
        assert seen.ended >= 1, "the body that stood has unwound"
    (kind, detail), *_ = expected.items()
    assert outcome["type"] == kind
    assert detail is None or detail in {outcome.get("reason"), outcome.get("declaration", {}).get("step_id")}


async def test_a_step_that_ran_goes_on_only_with_its_success_on_record() -> None:
    """A record says that it failed though its callback returned: what the callback may have left behind is not gone on with."""
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.discover()
        assert (await worker.ask(forward("s0")))["type"] == "succeeded"
        assert (await worker.ask(discovery(failed("s0"))))["type"] == "uncaught"
        assert seen.begun == 2


async def test_a_step_that_ran_and_is_to_run_again_begins_at_the_first_line() -> None:
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.discover()
        await worker.ask(forward("s0"))
        await worker.ask(forward("s0", attempt=2))
        assert seen.begun == 2
        assert seen.called == ["s0:1", "s0:2"]


async def test_a_result_that_cannot_be_recorded_ends_its_body() -> None:
    seen = Seen()

    async def body(_event: Event, step: Step) -> None:
        seen.begun += 1
        try:
            await step.run("s0", object)
        finally:
            seen.ended += 1

    async with process(body) as worker:
        await worker.discover()
        assert (await worker.ask(forward("s0")))["failure"]["category"] == "sdk.invalid_result"
        assert seen == Seen(begun=1, ended=1)


async def test_a_body_that_forgot_a_step_does_not_stand() -> None:
    seen = Seen()

    async def body(_event: Event, step: Step) -> None:
        seen.begun += 1
        step.run("forgotten", str)  # pyright: ignore[reportUnusedCoroutine] - the case
        await step.run("s0", str)

    async with process(body) as worker:
        assert (await worker.ask(forward("s0")))["type"] == "succeeded"
        assert "never awaited" in (await worker.ask(discovery(done("s0", NULL))))["failure"]["message"]
        assert seen.begun == 2


async def test_a_failed_callback_ends_its_body() -> None:
    seen = Seen()
    attempts = 0

    async def body(_event: Event, step: Step) -> str:
        seen.begun += 1
        given: list[str] = []
        try:
            return await step.run("s0", unlucky, given)
        finally:
            seen.ended += 1

    def unlucky(given: list[str]) -> str:
        nonlocal attempts
        attempts += 1
        given.append("left behind by a failed attempt")
        if attempts == 1:
            raise Failure("no", retryable=True)
        return " ".join(given)

    async with process(body) as worker:
        await worker.discover()
        assert (await worker.ask(forward("s0")))["type"] == "callback_failed"
        assert seen == Seen(begun=1, ended=1)
        assert (await worker.ask(forward("s0", attempt=2)))["result"] == text("left behind by a failed attempt")
        assert seen.begun == 2


async def test_waits_and_their_failures_reach_a_body_that_stands() -> None:
    seen = Seen()

    async def body(_event: Event, step: Step) -> str:
        seen.begun += 1
        await step.sleep("nap", "1h")
        try:
            await step.wait_for_event("answer", "answered", timeout="1h")
        except StepFailed as error:
            return error.category
        return "came"

    async with process(body) as worker:
        await worker.discover()
        worker.history.append(done("nap", NULL, "timer"))
        await worker.discover()
        worker.history.append(failed("answer", "sdk.timeout", kind="event_wait"))
        assert (await worker.discover())["result"] == text("sdk.timeout")
    assert seen.begun == 1


async def test_duplicate_ids_are_found_over_the_passes_of_one_body() -> None:
    async def body(_event: Event, step: Step) -> None:
        await step.run("same", str)
        await step.run("same", str)

    async with process(body) as worker:
        await worker.step()
        blocked = await worker.discover()
    assert blocked["type"] == "definition_blocked"
    assert blocked["first"]["line"] + 1 == blocked["duplicate"]["line"]


async def test_a_body_stands_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_module, "WAIT_S", 0.01)
    seen = Seen()
    ended = asyncio.Event()
    counting = linear(seen)

    async def body(event: Event, step: Step) -> None:
        try:
            await counting(event, step)
        finally:
            ended.set()

    async with process(body) as worker:
        await worker.step()
        async with asyncio.timeout(10):
            await ended.wait()
        await worker.step()
        assert seen.begun >= 2, "and once more where the machine is slow"


async def test_a_pass_is_freed_with_its_end_and_not_by_the_next_collection() -> None:
    """A history may be large, and a worker has many of them."""

    async def body(_event: Event, step: Step) -> None:
        await step.run("s0", str)

    def sync_body(_event: Event, step: SyncStep) -> None:
        step.run("s0", str)

    gc.collect()
    others = [found for found in gc.get_objects() if isinstance(found, Pass)]  # what other tests have left alive
    known = set(map(id, others))
    gc.disable()
    try:
        for one in (body, sync_body):
            async with process(one, steps_min=1) as worker:
                for _ in range(3):
                    await worker.discover()
                for _ in range(100):  # a thread is a moment behind its answer
                    if not any(isinstance(found, Pass) and id(found) not in known for found in gc.get_objects()):
                        break
                    await asyncio.sleep(0.01)
                else:
                    pytest.fail("a pass is held in a cycle")
    finally:
        gc.enable()


async def test_so_many_bodies_stand_and_the_one_that_stood_longest_gives_way() -> None:
    begun: list[str] = []

    async def body(event: Event, step: Step) -> None:
        begun.append(event.run_id)
        await step.run("s0", str)
        await step.run("s1", str)

    def of(run: str, document: JsonDict) -> JsonDict:
        return {**document, "run": {**document["run"], "run_id": run}}

    async with process(body) as worker:
        assert worker.standing is not None
        worker.standing.coroutines.bodies_max = 2
        for run in ("rn_a", "rn_b", "rn_c"):
            await worker.ask(of(run, discovery()), whole=True)
        for run in ("rn_c", "rn_b", "rn_a"):
            await worker.ask(of(run, forward("s0")), whole=True)
        assert begun == ["rn_a", "rn_b", "rn_c", "rn_a"]


async def test_steps_of_tasks_beside_the_body_are_never_stood_at() -> None:
    """Neither gathered ones, nor any while another call waits, nor a body that a task of its own met a step beside."""
    begun: list[str] = []

    async def gathered(_event: Event, step: Step) -> None:
        begun.append("gathered")
        await asyncio.gather(step.run("s0", str), step.run("s1", str))

    async def open_call(_event: Event, step: Step) -> None:
        begun.append("open")
        later = step.run("s1", str)
        await step.run("s0", str)
        await later

    for body in (gathered, open_call):
        async with process(body) as worker:
            await worker.step()
            await worker.step()
            assert (await worker.discover())["type"] == "completed"
    assert begun == ["gathered"] * 5 + ["open"] * 3, "an open call is no more than one step's matter"

    begun.clear()
    meets: list[asyncio.Event] = []

    async def disturbed(_event: Event, step: Step) -> None:
        begun.append("disturbed")
        meets.append(asyncio.Event())

        async def beside(meet: asyncio.Event) -> None:
            await meet.wait()
            await step.run("beside", str)

        task = asyncio.create_task(beside(meets[-1]))
        await step.run("s0", str)
        await task

    async with process(disturbed) as worker:
        await worker.discover()
        meets[0].set()
        await asyncio.sleep(0.01)
        assert (await worker.ask(forward("s0")))["type"] == "succeeded"
        assert begun == ["disturbed"] * 2


async def test_a_timeout_around_a_step_ends_a_body_that_stands_and_fails_nothing() -> None:
    seen = Seen()

    async def body(_event: Event, step: Step) -> str:
        seen.begun += 1
        async with asyncio.timeout(0.02):
            await step.run("s0", str)
        return "in time"

    async with process(body) as worker:
        await worker.discover()
        await asyncio.sleep(0.05)
        assert (await worker.ask(forward("s0")))["type"] == "succeeded"
        assert (await worker.ask(discovery(done("s0", NULL))))["result"] == text("in time")
    assert seen.begun == 2


def the_body(worker: Process) -> CoroutineBody:
    """The one that stands."""
    assert worker.standing is not None
    (body,) = worker.standing.coroutines._bodies.values()  # pyright: ignore[reportPrivateUsage] - what tests end
    return body


async def cancelled_as_it_goes_on(worker: Process, document: JsonDict) -> JsonDict:
    """The answer to what the body that stands was to go on with: its task is cancelled before it does."""
    body = the_body(worker)
    assert body.task is not None
    going_on = worker.begin(document)
    worker.loop.call_soon(body.task.cancel)
    async with asyncio.timeout(10):
        return await going_on


async def test_an_invocation_that_meets_the_end_of_a_body_begins_at_the_first_line() -> None:
    """The body was to go on with it, and is cancelled before it does."""
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.discover()
        assert (await cancelled_as_it_goes_on(worker, forward("s0")))["outcome"]["type"] == "succeeded"
        assert seen == Seen(begun=2, ended=1, called=["s0:1"])


class Alone:
    """What two passes of one run cannot both have, and makes the second fail rather than wait."""

    def __init__(self) -> None:
        self.is_taken = False

    async def __aenter__(self) -> None:
        assert not self.is_taken, "another pass of the run is still in its body"
        self.is_taken = True

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        self.is_taken = False


@pytest.mark.parametrize("ended_by", ["the invocation itself", "a timer", "a cancellation"])
async def test_a_pass_begins_when_the_body_that_stood_has_unwound(ended_by: str) -> None:
    """Its answer came before that; without standing it would have come after."""
    alone = Alone()

    async def body(_event: Event, step: Step) -> None:
        async with alone:
            await step.run("s0", str)
            await step.run("s1", str)

    async with process(body) as worker:
        await worker.step()
        await worker.discover()
        assert worker.standing is not None
        stood = the_body(worker)
        if ended_by == "the invocation itself":
            document = compensation("s0", *worker.history, result=text(""))
        elif ended_by == "a timer":
            document = discovery(*worker.history)
            worker.standing.coroutines.end(stood)
        else:
            document = forward("s1", *worker.history)
            assert stood.task is not None
            worker.loop.call_soon(stood.task.cancel)
        outcome = await worker.ask(document)
        assert outcome["type"] in {"target_not_found", "declared", "succeeded"}, outcome
    assert not alone.is_taken


async def test_a_pass_knows_no_context_variable_of_the_body_before_it() -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    found: list[str] = []

    async def body(_event: Event, step: Step) -> None:
        found.append(name.get())
        name.set("the body's")
        await step.run("s0", str)

    async with process(body) as worker:
        await worker.discover()
        await cancelled_as_it_goes_on(worker, forward("s0"))
    assert found == ["none", "none"]


class Cancels:
    """Cancels the body's task at once where it is left waiting, as a timeout that an earlier pass entered would."""

    def __init__(self) -> None:
        self.begun = 0
        self.caught: list[str] = []

    async def between(self, _event: Event, step: Step) -> str:
        self.begun += 1
        task = asyncio.current_task()
        assert task is not None
        await step.run("s0", str)
        if self.begun == 1:
            task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            task.uncancel()
            self.caught.append("timed out")
            await step.run("instead", str)
        return "in time"

    async def within(self, _event: Event, step: Step) -> str:
        self.begun += 1
        begun = self.begun
        task = asyncio.current_task()
        assert task is not None

        async def callback() -> None:
            task.cancel()
            await asyncio.sleep(0)

        await step.run("s0", callback)
        return f"{begun}: {task.cancelling()}"


async def test_a_cancellation_that_a_replay_would_not_meet_is_not_answered() -> None:
    """It may be the end of a timeout that began passes ago, around a loop of steps."""
    cancels = Cancels()
    async with process(cancels.between) as worker:
        await worker.step()
        assert await worker.discover() == {"type": "completed", "result": text("in time")}
    assert cancels.begun == 2
    assert cancels.caught == ["timed out"], "the body that went on has met it, and answers nothing"


async def test_a_function_may_give_anything_to_await() -> None:
    """As a decorator may have it, that says of its wrapper that it is a coroutine function."""

    class Given:
        """Awaited by an iterator that can only be iterated."""

        def __await__(self) -> Iterator[Any]:
            return iter([None])

    assert await Watched(old_style_sum(), lambda: None) == 3
    assert await Watched(Given(), lambda: None) is None  # pyright: ignore[reportArgumentType] - the case


@types.coroutine
def old_style_sum() -> Generator[Any, Any, int]:
    yield
    return 3


async def test_a_body_cancelled_in_its_first_pass_answers_for_itself() -> None:
    async def body(_event: Event, step: Step) -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(10)
        except TimeoutError:
            return await step.run("instead", lambda: "of it")
        return "in time"

    async with process(body) as worker:
        await worker.step()
        assert (await worker.discover())["result"] == text("of it")


async def test_a_body_whose_callback_held_off_a_cancellation_stands_no_more() -> None:
    cancels = Cancels()
    async with process(cancels.within) as worker:
        await worker.step()
        assert (await worker.discover())["result"] == text("2: 0")


async def test_what_is_raised_after_a_cancellation_has_no_other_cause_than_in_a_replay() -> None:
    """The errors of a body are told with what they came from."""

    async def body(_event: Event, step: Step) -> None:
        await step.run("s0", str)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            task.uncancel()
        raise ValueError("of its own")

    async with process(body) as worker:
        outcome = await worker.ask(discovery(done("s0", NULL)))
        assert outcome["failure"]["message"] == "of its own"
        assert "cause" not in outcome["failure"]


async def test_a_worker_that_was_stopped_begins_nothing() -> None:
    seen = Seen()
    async with process(linear(seen)) as worker:
        await worker.discover()
        worker.begin(forward("s0"))
        worker.loop.call_soon(worker.host.abandon)
        await asyncio.sleep(0.01)
    assert seen == Seen(begun=1, ended=1)


async def test_what_a_callback_prints_is_its_own_attempts_and_a_body_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def body(_event: Event, step: Step) -> None:
        for place in range(3):
            print("the body is nobody's attempt")
            await step.run(f"s{place}", print, f"callback {place}")
            run_logger("shop").info("after %s", place)

    async with process(body) as worker:
        for place in range(3):
            await worker.discover()
            answer = await worker.begin(forward(f"s{place}", *worker.history))
            assert [line["text"] for line in answer["logs"]] == [f"callback {place}"]
            worker.history.append(done(f"s{place}", NULL))
        assert (await worker.begin(discovery(*worker.history))).get("logs", []) == []
    logged = [record.message for record in caplog.records if record.name == "shop"]
    assert logged == ["after 0", "after 1", "after 2"]
    async with process(body) as worker:
        await worker.discover()
        worker.history += [done("s0", NULL), done("s1", NULL)]
        await worker.discover()
    logged = [record.message for record in caplog.records if record.name == "shop"]
    assert logged[3:] == ["after 1"], "who recorded the second step has told what comes before it"


async def test_the_end_of_a_worker_lets_bodies_unwind() -> None:
    seen = Seen()
    unwound: list[str] = []
    counting = linear(seen)

    async def body(event: Event, step: Step) -> None:
        try:
            await counting(event, step)
        finally:
            await asyncio.sleep(0)
            unwound.append("closed what it had open")

    async with process(body) as worker:
        await worker.step()
        await worker.host.end_standing()
        assert unwound == ["closed what it had open"]
        assert seen.ended == 1


async def test_the_end_of_a_worker_waits_for_a_body_that_has_begun_to_unwind() -> None:
    alone = Alone()

    async def body(_event: Event, step: Step) -> None:
        async with alone:
            await step.run("s0", str)

    async with process(body) as worker:
        await worker.discover()
        assert worker.standing is not None
        worker.standing.coroutines.end(the_body(worker))
        await worker.host.end_standing()
        assert not alone.is_taken


async def test_a_worker_that_user_code_ends_lets_bodies_unwind_before_its_lifespan() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        yield
        told.append("lifespan left")

    app = Ryusen("shop", lifespan=lifespan)

    @app.function(id="fulfil")
    async def long(_event: Event, step: Step) -> None:
        try:
            for place in range(standing_module.STEPS_MIN + 1):
                await step.run(f"s{place}", str)
        finally:
            await asyncio.sleep(0)
            told.append("body unwound")

    @app.function(id="ends")
    async def ends(_event: Event, _step: Step) -> None:
        raise SystemExit(3)

    assert long is not ends
    async with fake_server() as server:
        worker = Worker(app, url=server.url, publish=False)
        serving = asyncio.create_task(_ends_with(worker))
        peer = await server.peer()
        await peer.registered()
        history = [done(f"s{place}", text("")) for place in range(standing_module.STEPS_MIN)]
        assert (await peer.call(discovery(*history)))["type"] == "declared"
        assert not told, "it stands"
        other = discovery()
        await peer.invoke({**other, "run": {**other["run"], "run_id": "rn_other", "function": "ends"}})
        async with asyncio.timeout(10):
            assert await serving == 3
    assert told == ["body unwound", "lifespan left"]


async def _ends_with(worker: Worker) -> object:
    """The exit code that user code asked for. Caught in the task: one that leaves a task ends the loop."""
    try:
        await worker.serve()
    except SystemExit as error:
        return error.code
    return None


class Program:
    """A random body over values, failures, waits and branches, that does the same whenever it is given the same outcomes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def body(self, _event: Event, step: Step) -> list[str]:
        chance = random.Random(self.seed)
        told: list[str] = []
        for place in range(chance.randrange(3, 25)):
            told.append(await self.one(chance.randrange(8), f"s{place}", step))
            if chance.random() < 0.05 and told[-1] == "odd":
                break
        return told

    async def one(self, kind: int, step_id: str, step: Step) -> str:
        if kind == 0:
            await step.sleep(step_id, "1s")
            return "slept"
        if kind == 1:
            first, second = await asyncio.gather(step.run(f"{step_id}a", self.effect), step.run(f"{step_id}b", self.effect))
            return f"{first} {second}"
        if kind == 2:
            try:
                return await step.run(step_id, self.fails)
            except StepFailed as error:
                return error.category
        if kind == 3:
            return await step.send_event(step_id, "told", {"by": step_id})
        if kind == 4:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(step.run(step_id, self.effect))
            return task.result()
        return await step.run(step_id, self.effect, compensate=str)

    def effect(self) -> str:
        mine = random.Random(f"{self.seed}{operation().step_id}{operation().attempt}")
        if mine.random() < 0.15:
            raise Failure("again", retryable=True)
        return mine.choice(("odd", "even"))

    async def fails(self) -> str:
        await asyncio.sleep(0)
        raise Terminal("never")


@pytest.mark.req("SDK-09")
async def test_nobody_can_tell_a_body_that_stands_from_a_replay() -> None:
    assert await same_as_replayed(lambda seed: Program(seed).body, 60) > 400
