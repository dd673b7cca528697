"""Timers, event waits, children and emissions in the engine: what the server does of itself, over restarts, stops and clock jumps."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from ryusen_protocol.identity import run_id_for_child
from ryusen_protocol.ids import EventId, RunId, StepId
from ryusen_protocol.scope import Scope
from ryusen_server.core.rows import HistoryRow
from ryusen_server.core.state import Step as StepState
from ryusen_server.engine import runs as engine_runs
from ryusen_server.engine.views import AcceptedEvent
from ryusen_server.ports.store import DischargeWrite, EventWrite, FanOutWrite, ObligationWrite, RunFilter, RunWrite
from tests.engine.bench import DEFAULT, Bench, until
from tests.engine.bench_worker import Answer, FakeWorker, Step, body, emit, error, invoke, sleep, wait_for

LONG_MS = 150_000
"""Longer than what the engine keeps in memory."""
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
OK = "order/approved"


async def serving(
    bench: Bench,
    *,
    functions: tuple[str, ...] = (),
    triggers: tuple[tuple[str, str], ...] = (("go", "f"),),
    timeouts: dict[str, int] | None = None,
    **answers: Answer,
) -> FakeWorker:
    await bench.publish(triggers, functions=functions, timeouts=timeouts)
    return await bench.connected(functions=answers)


async def step_of(bench: Bench, run_id: RunId, step_id: str) -> StepState:
    return (await bench.run(run_id)).steps[step_id]  # type: ignore[index]  # ids are text


async def state_of(bench: Bench, run_id: RunId, step_id: str) -> str:
    return (await step_of(bench, run_id, step_id)).state


def payload_of(step: StepState) -> bytes:
    assert step.result is not None
    document = msgspec.json.decode(step.result)
    assert document["type"] == "bytes"
    return base64.b64decode(document["value"])


def category_of(step: StepState) -> str:
    assert step.failure is not None
    return step.failure.category


async def child_of(bench: Bench, run_id: RunId, step_id: str = "pack") -> RunId:
    child_run_id = (await step_of(bench, run_id, step_id)).child_run_id
    assert child_run_id is not None
    return child_run_id


async def send(bench: Bench, name: str = OK, payload: bytes = b"{}", **metadata: str) -> EventId:
    accepted = await bench.submit(name, payload=payload, **metadata)
    await bench.settle()
    return accepted.event.event_id


def nothing_is_left(bench: Bench) -> bool:
    return not (bench.memory._waits or bench.memory._obligations or bench.engine._control._waited or bench.engine._control._under_way)


# timers


@pytest.mark.req("TMR-03", "TMR-07")
async def test_a_timer_completes_at_its_instant_and_no_earlier() -> None:
    async with Bench() as bench:
        worker = await serving(bench, f=body(Step("a"), sleep("cool", LONG_MS), Step("b")))
        run_id = await bench.begin()
        armed_at = bench.clock.now_ms()
        await bench.advance(LONG_MS - 1)
        assert await state_of(bench, run_id, "cool") == "pending"
        assert (await bench.row(run_id)).work_queued == 0
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert (await step_of(bench, run_id, "cool")).completed_at_ms == armed_at + LONG_MS
        assert len(worker.of("discovery")) == 4


@pytest.mark.req("TMR-03", "TMR-06")
@pytest.mark.parametrize("down_ms", [LONG_MS // 2, 2 * LONG_MS])
async def test_a_timer_keeps_its_instant_over_a_restart_and_settles_when_the_server_is_back(down_ms: int) -> None:
    async with Bench() as bench:
        worker = await serving(bench, f=body(sleep("cool", LONG_MS)))
        run_id = await bench.begin()
        due_at_ms = (await step_of(bench, run_id, "cool")).due_at_ms
        assert due_at_ms == bench.clock.now_ms() + LONG_MS
        await bench.crash()
        await bench.advance(down_ms)
        await bench.engine.start()
        await bench.settle()
        await worker.connect()
        assert (await step_of(bench, run_id, "cool")).due_at_ms == due_at_ms
        assert due_at_ms is not None
        await bench.advance(max(0, due_at_ms - 1 - bench.clock.now_ms()))
        assert (await bench.row(run_id)).status == ("running" if down_ms < LONG_MS else "ended")
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_timer_of_no_time_is_settled_by_the_server() -> None:
    async with Bench() as bench:
        worker = await serving(bench, f=body(sleep("cool", 0)))
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        kinds = [record["kind"] for row in await bench.store.history(run_id) for record in msgspec.json.decode(row.records)]
        assert [kind for kind in kinds if kind in {"timer_armed", "step_completed"}] == ["timer_armed", "step_completed"]
        assert len(worker.of("discovery")) == 2


@pytest.mark.req("TMR-06")
async def test_a_cancel_ends_a_run_that_sleeps() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(sleep("cool", LONG_MS)))
        run_id = await bench.begin()
        await bench.cancel(run_id)
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        await bench.advance(2 * LONG_MS)


async def waiting_three_ways(bench: Bench) -> tuple[RunId, RunId, RunId]:
    await serving(
        bench,
        triggers=(("timer", "t"), ("wait", "w"), ("deadline", "d")),
        timeouts={"d": HOUR_MS},
        t=body(sleep("cool", HOUR_MS)),
        w=body(wait_for("ok", OK, HOUR_MS, handled=True)),
        d=body(wait_for("ok", OK, 50 * YEAR_MS)),
    )
    return await bench.begin("timer"), await bench.begin("wait"), await bench.begin("deadline")


async def statuses(bench: Bench, run_ids: tuple[RunId, ...]) -> list[str]:
    return [(await bench.row(run_id)).status for run_id in run_ids]


async def outcomes(bench: Bench, run_ids: tuple[RunId, ...]) -> list[str | None]:
    return [(await bench.ended(run_id))[0] for run_id in run_ids]


@pytest.mark.req("TMR-06", "EVW-05")
@pytest.mark.parametrize("restart", [False, True])
async def test_nothing_is_early_and_nothing_lost_when_the_clock_goes_back_two_hours(restart: bool) -> None:
    async with Bench(tick_ms=4_000) as bench:
        waiting = await waiting_three_ways(bench)
        await bench.advance(HOUR_MS // 2)
        bench.clock.jump(-2 * HOUR_MS)
        if restart:
            await bench.restart()
            await bench.workers[0].connect()
        await bench.advance(2 * HOUR_MS + HOUR_MS // 2 - 1)
        assert await statuses(bench, waiting) == ["running"] * 3
        await bench.advance(1)
        assert await outcomes(bench, waiting) == ["succeeded", "succeeded", "timed_out"]
        assert category_of(await step_of(bench, waiting[1], "ok")) == "sdk.timeout"
        assert nothing_is_left(bench)


async def test_a_timer_that_begins_after_the_clock_went_back_is_not_lost_behind_those_of_before() -> None:
    async with Bench() as bench:
        await serving(bench, triggers=(("go", "f"), ("far", "g")), f=body(sleep("cool", LONG_MS)), g=body(sleep("cool", 70_000)))
        await bench.begin("far")
        await bench.advance(40_000)
        bench.clock.jump(-2 * HOUR_MS)
        run_id = await bench.begin()
        await bench.advance(LONG_MS - 1)
        assert await state_of(bench, run_id, "cool") == "pending"
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_timer_that_begins_while_the_clock_is_back_for_a_moment_is_not_lost_behind_those_of_before() -> None:
    """No tick falls into that moment, and the walk of the index is past the new instant when it goes on."""
    async with Bench(tick_ms=4_000) as bench:
        await serving(bench, triggers=(("go", "f"), ("far", "g")), f=body(sleep("cool", 62_000)), g=body(sleep("cool", 70_000)))
        await bench.begin("far")
        await bench.advance(40_000)
        bench.clock.jump(-45_000)
        run_id = await bench.begin()
        bench.clock.jump(45_000)
        await bench.advance(16_999)
        assert await state_of(bench, run_id, "cool") == "pending"
        await bench.advance(1)
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("TMR-06", "EVW-05")
@pytest.mark.parametrize("restart", [False, True])
async def test_everything_that_ten_years_make_due_settles_when_the_clock_jumps(restart: bool) -> None:
    async with Bench() as bench:
        waiting = await waiting_three_ways(bench)
        bench.clock.jump(10 * YEAR_MS)
        if restart:
            await bench.restart()
            await bench.workers[0].connect()
        await bench.advance(500)
        assert await outcomes(bench, waiting) == ["succeeded", "succeeded", "timed_out"]
        assert nothing_is_left(bench)


@pytest.mark.parametrize(("resting_max", "runs_in_memory"), [(5, 1_000), (1_000, 5)])
async def test_pending_timers_and_waits_leave_the_memory_and_come_back_for_their_moment(
    resting_max: int, runs_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_runs, "RESTING_MAX", resting_max)
    async with Bench(runs_in_memory=runs_in_memory) as bench:
        await serving(
            bench,
            triggers=(("timer", "t"), ("wait", "w")),
            timeouts={"t": 3 * LONG_MS},
            t=body(sleep("cool", LONG_MS + 5_000), sleep("again", 7_000)),  # which no walk of the wake index comes by in time
            w=body(wait_for("ok", OK, 2 * LONG_MS, handled=True)),
        )
        runs = [await bench.begin("timer" if number % 2 else "wait") for number in range(40)]
        assert len(bench.engine._runs) <= 5
        assert len(bench.engine._dispatcher._armed_for) <= 5, "the instants of the others are the store's to keep"
        await bench.advance(LONG_MS + 12_000)
        assert [await bench.ended(run_id) for run_id in runs[1::2]] == [("succeeded", "not_required")] * 20
        assert await statuses(bench, tuple(runs[::2])) == ["running"] * 20
        await send(bench)
        assert [await bench.ended(run_id) for run_id in runs[::2]] == [("succeeded", "not_required")] * 20
        assert nothing_is_left(bench)


# waits


@pytest.mark.req("EVW-06")
async def test_a_wait_takes_the_first_matching_event_and_no_other() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(wait_for("ok", OK, LONG_MS, order="7"), Step("b")))
        run_id = await bench.begin()
        await send(bench, OK, b"8", order="8")
        await send(bench, "order/other", b"7", order="7")
        assert await state_of(bench, run_id, "ok") == "pending"
        event_id = await send(bench, OK, b'{"by":"ann"}', order="7", more="x")
        await send(bench, OK, b"late", order="7")
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert payload_of(await step_of(bench, run_id, "ok")) == b'{"by":"ann"}'
        assert (await bench.store.event(event_id)).fan_out_next is None
        assert nothing_is_left(bench)


async def test_an_event_that_nobody_waits_for_costs_one_write() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(wait_for("ok", OK, LONG_MS)))
        await bench.begin()
        before, reads = len(bench.memory.units), bench.memory.reads
        await send(bench, "order/other")
        assert [[type(write) for write in unit.writes] for unit in bench.memory.units[before:] if unit.writes] == [[EventWrite]]
        assert bench.memory.reads == reads


@pytest.mark.req("EVW-03")
async def test_an_event_accepted_before_a_registration_never_matches_though_it_is_still_being_expanded() -> None:
    async with Bench(fan_out_batch=1) as bench:
        await serving(
            bench,
            triggers=(("go", "f"), (OK, "h"), (OK, "h2"), (OK, "h3")),
            f=body(wait_for("ok", OK, LONG_MS)),
            h=body(),
            h2=body(),
            h3=body(),
        )
        bench.memory.hold()
        early = bench.engine.submit_event(DEFAULT, name=OK, payload=b"early", metadata={}, key=None)
        registering = bench.engine.submit_event(DEFAULT, name="go", payload=b"", metadata={}, key=None)
        tasks = [asyncio.ensure_future(early), asyncio.ensure_future(registering)]
        await bench.settle()
        bench.memory.release()
        accepted = await tasks[1]
        await tasks[0]
        await bench.settle()
        assert isinstance(accepted, AcceptedEvent)
        run_id = await bench.only_run(accepted.event.event_id)
        assert await state_of(bench, run_id, "ok") == "pending"
        await send(bench, OK, b"after")
        assert payload_of(await step_of(bench, run_id, "ok")) == b"after"


@pytest.mark.req("EVW-05")
async def test_a_wait_is_still_there_after_a_restart_and_gone_after_a_cancel() -> None:
    async with Bench() as bench:
        worker = await serving(bench, f=body(wait_for("ok", OK, LONG_MS)))
        first, second = await bench.begin(), await bench.begin()
        await bench.cancel(second)
        assert await bench.ended(second) == ("cancelled", "not_required")
        await bench.restart()
        await worker.connect()
        assert len(bench.memory._waits) == 1
        await send(bench)
        assert await bench.ended(first) == ("succeeded", "not_required")
        assert nothing_is_left(bench)


@pytest.mark.req("EVW-07", "EVW-11")
async def test_a_timeout_of_no_time_is_settled_by_the_server() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(wait_for("ok", OK, 0, handled=True)))
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        step = await step_of(bench, run_id, "ok")
        assert category_of(step) == "sdk.timeout"
        kinds = [record["kind"] for row in await bench.store.history(run_id) for record in msgspec.json.decode(row.records)]
        assert "wait_registered" in kinds
        assert nothing_is_left(bench)


@pytest.mark.req("EVW-04")
async def test_an_event_at_the_timeout_instant_is_too_late() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(wait_for("ok", OK, LONG_MS, handled=True)))
        run_id = await bench.begin()
        due_at_ms = (await step_of(bench, run_id, "ok")).due_at_ms
        assert due_at_ms is not None
        bench.clock.jump(due_at_ms - bench.clock.now_ms())
        await send(bench)
        await bench.advance(500)
        assert category_of(await step_of(bench, run_id, "ok")) == "sdk.timeout"
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.parametrize("down", [False, True])
async def test_an_event_accepted_before_a_timeout_wins_however_late_it_is_processed(down: bool) -> None:
    async with Bench(storage_retry_ms=10_000) as bench:
        worker = await serving(bench, triggers=(("go", "f"), (OK, "h")), f=body(wait_for("ok", OK, 5_000, handled=True)), h=body())
        run_id = await bench.begin()
        await bench.advance(4_999)
        # The event is durable with its first run; what comes next of its expansion is lost.
        bench.memory.failing_commits.add(bench.memory.commits + 2)
        await bench.submit(OK, payload=b"in time")
        if down:
            await bench.restart()
            await worker.connect()
        await bench.advance(1)
        assert payload_of(await step_of(bench, run_id, "ok")) == b"in time"
        bench.memory.failing_commits.clear()
        await bench.advance(30_000, beating=[worker])
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert nothing_is_left(bench)
        bench.expect_errors = True


async def test_timeouts_that_look_behind_them_do_not_push_each_other_from_memory() -> None:
    async with Bench(runs_in_memory=1) as bench:
        await serving(bench, f=body(wait_for("ok", OK, 1_000, order="7")))
        runs = [await bench.begin(), await bench.begin()]
        await bench.advance(900)
        bench.memory.hold()
        accepted = asyncio.create_task(bench.submit(OK, order="8"))
        await bench.settle()
        async with asyncio.timeout(20):
            await bench.advance(200)
        bench.memory.release()
        await accepted
        await bench.settle()
        assert [await bench.ended(run_id) for run_id in runs] == [("failed", "not_required")] * 2


async def test_the_earliest_accepted_event_wins_though_a_later_one_comes_to_the_wait_first() -> None:
    async with Bench(storage_retry_ms=10_000) as bench:
        await serving(bench, f=body(wait_for("ok", OK, LONG_MS)))
        run_id = await bench.begin()
        page = bench.memory.matching_waits
        held: list[Any] = []

        async def stuck(*names: Any, **more: Any) -> Any:
            if not held:
                held.append(names)
                raise engine_runs.StorageUnavailable("the first event's matching is late")
            return await page(*names, **more)

        bench.memory.matching_waits = stuck
        await send(bench, OK, b"first")
        assert await state_of(bench, run_id, "ok") == "pending"
        await send(bench, OK, b"second")
        assert payload_of(await step_of(bench, run_id, "ok")) == b"first"
        await bench.advance(11_000)
        assert nothing_is_left(bench)


@pytest.mark.req("EVW-08")
async def test_a_payload_beyond_the_budget_fails_the_step_and_neither_strands_the_wait_nor_the_event() -> None:
    async with Bench() as bench:
        waits = [wait_for(f"w{number}", OK, LONG_MS, handled=True) for number in range(7)]
        await serving(bench, triggers=(("go", "f"), (OK, "h")), f=body(*waits), h=body())
        run_id = await bench.begin()
        payload = b"x" * (1024 * 1024)
        for _ in range(7):
            event_id = await send(bench, OK, payload)
            assert await bench.ended(await bench.only_run(event_id)) == ("succeeded", "not_required")
        states = [await step_of(bench, run_id, f"w{number}") for number in range(7)]
        assert [step.state for step in states] == ["succeeded"] * 5 + ["failed"] * 2
        assert category_of(states[6]) == "sdk.invalid_result"
        assert nothing_is_left(bench)


async def test_one_event_settles_pages_of_waits_and_starts_its_runs_whichever_commit_the_server_dies_after() -> None:
    after = 0
    while True:
        async with Bench(fan_out_batch=2) as bench:
            triggers = (("go", "f"), (OK, "h1"), (OK, "h2"), (OK, "h3"))
            worker = await serving(
                bench, triggers=triggers, f=body(wait_for("ok", OK, LONG_MS)), h1=body(Step("c")), h2=body(Step("c")), h3=body(Step("c"))
            )
            waiting = [await bench.begin() for _ in range(3)]
            stop_at = bench.memory.commits + after
            await bench.engine.submit_event(DEFAULT, name=OK, payload=b"p", metadata={}, key=None)
            died = await die_after(bench, stop_at)
            await bench.restart()
            await worker.connect()
            await persist(bench, worker)
            assert [payload_of(await step_of(bench, run_id, "ok")) for run_id in waiting] == [b"p"] * 3
            assert bench.count("c") == 3
            assert nothing_is_left(bench)
        if not died:
            assert after > 4
            return
        after += 1


async def test_a_page_of_waits_whose_commit_fails_is_settled_again() -> None:
    async with Bench() as bench:
        worker = await serving(bench, f=body(wait_for("ok", OK, LONG_MS)))
        waiting = [await bench.begin() for _ in range(5)]
        page = bench.memory.matching_waits

        async def slow(*names: Any, **more: Any) -> Any:
            for _ in range(5):  # as long as a commit takes, so that what follows the page is not lost with it
                await asyncio.sleep(0)
            return await page(*names, **more)

        bench.memory.matching_waits = slow
        bench.memory.failing_commits.add(bench.memory.commits + 2)
        await send(bench, OK, b"p")
        await bench.advance(2_000, beating=[worker])
        assert [payload_of(await step_of(bench, run_id, "ok")) for run_id in waiting] == [b"p"] * 5
        assert nothing_is_left(bench)


async def die_after(bench: Bench, commits: int) -> bool:
    """Let the server live until so many commits; whether anything was left to do then."""
    for _ in range(2_000):
        if bench.memory.commits >= commits:
            break
        timer = bench.clock.next_within(bench.clock.elapsed_ms + 1_000)
        if timer is not None:
            timer.callback()
        await asyncio.sleep(0)
    return any(row.status != "ended" for row in bench.memory._runs.values()) or bool(bench.memory._obligations)


async def persist(bench: Bench, worker: FakeWorker) -> None:
    for _ in range(120):
        owed = bench.memory._obligations or bench.engine._control._retry
        if not owed and all(row.status == "ended" for row in bench.memory._runs.values()):
            return
        await bench.advance(1_000, beating=[worker])
        if worker.channel is not None:
            worker.resend()
        await bench.settle()
    raise AssertionError([row for row in bench.memory._runs.values() if row.status != "ended"])


# children


@pytest.mark.req("INV-04", "INV-05")
async def test_a_child_is_an_ordinary_run_whose_result_completes_the_parents_step() -> None:
    async with Bench() as bench:
        worker = await serving(
            bench, functions=("g",), f=body(invoke("pack", "g", given={"box": 3}), Step("b")), g=body(Step("c"), answer="packed")
        )
        before = len(bench.memory.units)
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        step = await step_of(bench, run_id, "pack")
        assert step.result is not None
        assert bytes(step.result) == b'{"type":"string","value":"packed"}'
        child_run_id = await child_of(bench, run_id)
        child = await bench.row(child_run_id)
        assert (child.parent_run_id, child.parent_step_id, child.function, child.event_id) == (run_id, "pack", "g", None)
        birth = next(
            unit for unit in bench.memory.units[before:] if any(isinstance(w, RunWrite) and w.run_id == child_run_id for w in unit.writes)
        )
        assert [write.run_id for write in birth.writes if isinstance(write, RunWrite)] == [run_id, child_run_id]
        (first, *_) = [invocation for invocation in worker.of("discovery") if invocation.run.run_id == child_run_id]
        given = msgspec.json.decode(msgspec.json.encode(first.input))
        assert given["kind"] == "child"
        assert (given["parent_run_id"], given["parent_step_id"]) == (run_id, "pack")
        assert given["value"]["value"]["box"]["value"] == "3"
        owed = [type(w) for unit in bench.memory.units[before:] for w in unit.writes if isinstance(w, (ObligationWrite, DischargeWrite))]
        assert owed == [ObligationWrite, DischargeWrite]
        assert nothing_is_left(bench)


async def test_a_run_that_begins_and_ends_while_it_is_being_read_does_not_come_back_as_it_was_read() -> None:
    async with Bench() as bench:
        worker = await serving(bench, functions=("g",), f=body(invoke("pack", "g")), g=body())
        worker.holding("discovery")
        run_id = await bench.begin()
        child_run_id = run_id_for_child(Scope(DEFAULT, worker.scope.application), run_id, StepId("pack"))
        read, history = asyncio.Event(), bench.memory.history

        async def slowly(run_id: RunId, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
            if run_id != child_run_id or read.is_set():
                return await history(run_id, after=after, limit=limit)
            await until(lambda: child_run_id in bench.memory._runs, bench)
            found = await history(run_id, after=after, limit=limit)
            await read.wait()
            return found

        bench.memory.history = slowly
        loading = asyncio.create_task(bench.engine._runs.load(child_run_id))
        await asyncio.sleep(0)
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        read.set()
        loaded = await loading
        assert loaded is not None
        assert loaded.run.status == "ended"


async def test_a_parent_stays_in_memory_until_the_birth_of_its_child_is_durable() -> None:
    async with Bench(runs_in_memory=1) as bench:
        worker = await serving(bench, functions=("g",), f=body(invoke("pack", "g")), g=body(sleep("rest", LONG_MS)))
        worker.holding("discovery")
        run_id = await bench.begin()
        bench.memory.hold()
        worker.release_all()
        await bench.settle()
        cancelled = asyncio.create_task(bench.cancel(run_id))
        await bench.settle()
        bench.memory.release()
        await cancelled
        await bench.settle()
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        assert (await bench.row(await child_of(bench, run_id))).outcome == "cancelled"


async def test_the_end_of_a_child_reaches_its_parent_though_a_restarted_server_cannot_read_at_first() -> None:
    async with Bench() as bench:
        worker = await serving(bench, functions=("g",), f=body(invoke("pack", "g")), g=body(answer=1))
        worker.holding("discovery")
        run_id = await bench.begin()
        worker.release_all()
        await until(lambda: bool(bench.memory._obligations), bench)
        await bench.crash()
        await bench.engine.start()
        bench.memory.fault = "unplugged"
        await bench.advance(1_000)
        assert bench.memory._obligations
        bench.memory.fault = None
        await bench.advance(1_000)
        await worker.connect()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert nothing_is_left(bench)


@pytest.mark.parametrize(
    ("child", "category"),
    [(body(fails=error("broken box", retryable=False)), "sdk.child_failed"), (body(sleep("z", LONG_MS)), "sdk.timeout")],
)
async def test_a_childs_failure_and_timeout_are_failures_of_the_step(child: Answer, category: str) -> None:
    async with Bench() as bench:
        await serving(bench, functions=("g",), f=body(invoke("pack", "g", timeout_ms=1_000, handled=True)), g=child)
        run_id = await bench.begin()
        await bench.advance(1_000)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        step = await step_of(bench, run_id, "pack")
        assert category_of(step) == category
        assert step.failure is not None
        assert step.failure.details is not None
        assert msgspec.json.decode(step.failure.details["child_run_id"])["value"] == await child_of(bench, run_id)


@pytest.mark.req("INV-06")
async def test_a_child_is_bounded_by_the_tightest_of_what_bounds_it() -> None:
    async with Bench() as bench:
        await serving(
            bench,
            triggers=(("one", "f"), ("two", "f2"), ("three", "f3")),
            functions=("g", "g2"),
            timeouts={"g": 3_000, "f3": 2_000},
            f=body(invoke("pack", "g", timeout_ms=4_000)),
            f2=body(invoke("pack", "g", timeout_ms=1_000)),
            f3=body(invoke("pack", "g", timeout_ms=4_000)),
            g=body(sleep("z", LONG_MS)),
        )
        found: list[tuple[int | None, str | None]] = []
        for event in ("one", "two", "three"):
            run_id = await bench.begin(event)
            row = await bench.row(await child_of(bench, run_id))
            found.append((None if row.deadline_at_ms is None else row.deadline_at_ms - row.created_at_ms, row.deadline_source))
        assert found == [(3_000, "function"), (1_000, "invoke"), (2_000, "parent")]
        await bench.advance(5_000)


@pytest.mark.req("INV-07")
async def test_a_child_without_time_is_created_and_times_out_before_anything_of_it_runs() -> None:
    async with Bench() as bench:
        await serving(bench, functions=("g",), f=body(invoke("pack", "g", timeout_ms=0, handled=True)), g=body(Step("c")))
        run_id = await bench.begin()
        await bench.advance(500)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert category_of(await step_of(bench, run_id, "pack")) == "sdk.timeout"
        assert await bench.ended(await child_of(bench, run_id)) == ("timed_out", "not_required")
        assert bench.count("c") == 0


@pytest.mark.req("INV-01")
async def test_a_function_that_is_not_in_the_active_manifest_blocks_the_parent_until_it_is() -> None:
    async with Bench() as bench:
        published = await bench.publish()
        await bench.publish((("other", "g"),), application="other")
        await bench.connected(functions={"f": body(invoke("pack", "g")), "g": body()})
        run_id = await bench.begin()
        blocked = await bench.run(run_id)
        assert blocked.blocker is not None
        assert (blocked.status, blocked.blocker.reason) == ("definition_blocked", "unknown_function")
        await bench.publish(functions=("g",), parent=published.manifest.manifest_generation)
        await bench.engine.rediscover(DEFAULT, run_id, by="tester")
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("INV-04")
@pytest.mark.parametrize("resting", [False, True])
async def test_a_stop_goes_down_the_family_and_the_ends_come_back_up(resting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if resting:
        monkeypatch.setattr(engine_runs, "RESTING_MAX", 0)
    async with Bench() as bench:
        worker = await serving(
            bench,
            functions=("g", "h"),
            f=body(Step("a", undo=[None]), invoke("pack", "g")),
            g=body(Step("b", undo=[None]), invoke("pack", "h")),
            h=body(Step("c", undo=[None])),
        )
        worker.holding("forward", "c")
        top = await bench.begin()
        mid = await child_of(bench, top)
        low = await child_of(bench, mid)
        await bench.cancel(top)
        assert await statuses(bench, (top, mid, low)) == ["stopping"] * 3
        stop = (await bench.run(low)).stop
        assert stop is not None
        assert (stop.reason, stop.by) == ("cancelled", mid)
        worker.release_all()
        await bench.settle()
        assert [await bench.ended(run_id) for run_id in (top, mid, low)] == [("cancelled", "fully_compensated")] * 3
        order = [(await bench.row(run_id)).ended_at_ms for run_id in (low, mid, top)]
        assert order == sorted(order, key=lambda at: at or 0)
        assert category_of(await step_of(bench, top, "pack")) == "sdk.child_cancelled"
        assert nothing_is_left(bench)


async def test_a_parents_deadline_stops_the_child_for_the_same_reason() -> None:
    async with Bench() as bench:
        await serving(bench, functions=("g",), timeouts={"f": 1_000}, f=body(invoke("pack", "g")), g=body(sleep("z", LONG_MS)))
        run_id = await bench.begin()
        await bench.advance(1_000)
        child_run_id = await child_of(bench, run_id)
        assert await bench.ended(run_id) == ("timed_out", "not_required")
        assert await bench.ended(child_run_id) == ("timed_out", "not_required")
        assert nothing_is_left(bench)


async def test_a_cancelled_child_fails_the_step_and_the_parent_goes_on() -> None:
    async with Bench() as bench:
        await serving(bench, functions=("g",), f=body(invoke("pack", "g", handled=True), Step("b")), g=body(sleep("z", LONG_MS)))
        run_id = await bench.begin()
        await bench.cancel(await child_of(bench, run_id))
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert category_of(await step_of(bench, run_id, "pack")) == "sdk.child_cancelled"


async def test_a_childs_unknown_is_shown_on_every_run_that_waits_for_it() -> None:
    async with Bench() as bench:
        worker = await serving(bench, functions=("g", "h"), f=body(invoke("pack", "g")), g=body(invoke("pack", "h")), h=body(Step("c")))
        worker.holding("forward", "c")
        top = await bench.begin()
        mid = await child_of(bench, top)
        low = await child_of(bench, mid)
        worker.disconnect()
        await bench.advance(31_000)

        async def shown() -> dict[str, str | None]:
            rows = await bench.store.runs(DEFAULT, RunFilter(attention="unknown"), before=None, limit=9)
            return {row.run_id: row.unknown_below_run_id for row in rows}

        assert await shown() == {low: None, mid: low, top: low}
        await bench.restart()
        assert await shown() == {low: None, mid: low, top: low}
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await shown() == {}
        assert await bench.ended(top) == ("succeeded", "not_required")


# emissions


@pytest.mark.req("EMT-04", "EMT-06", "EMT-08")
async def test_an_emission_is_accepted_with_its_step_and_starts_runs_and_settles_waits() -> None:
    async with Bench() as bench:
        await serving(
            bench,
            triggers=(("go", "f"), ("wait", "w"), ("told", "h")),
            f=body(emit("tell", "told", b'{"n":1}', order="7"), emit("bare", "plain")),
            w=body(wait_for("ok", "told", LONG_MS, order="7")),
            h=body(Step("c")),
        )
        waiting = await bench.begin("wait")
        accepted = await bench.submit(source="web")
        await bench.settle()
        run_id = await bench.only_run(accepted.event.event_id)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert payload_of(await step_of(bench, waiting, "ok")) == b'{"n":1}'
        assert bench.count("c") == 1
        units = [
            unit for unit in bench.memory.units if any(isinstance(w, EventWrite) and w.event.name in {"told", "plain"} for w in unit.writes)
        ]
        assert [[type(write) for write in unit.writes] for unit in units] == [[RunWrite, EventWrite]] * 2
        told, plain = (next(w.event for w in unit.writes if isinstance(w, EventWrite)) for unit in units)
        assert (told.metadata, told.payload, plain.metadata) == ({"order": "7"}, b'{"n":1}', {})
        receipt = (await step_of(bench, run_id, "tell")).result
        assert receipt is not None
        assert msgspec.json.decode(receipt)["value"] == told.event_id
        assert nothing_is_left(bench)


@pytest.mark.req("EMT-10")
async def test_an_emission_waits_for_nothing_that_its_event_starts() -> None:
    async with Bench() as bench:
        worker = await serving(bench, triggers=(("go", "f"), ("told", "h")), f=body(emit("tell", "told"), Step("b")), h=body(Step("c")))
        worker.holding("forward", "c")
        run_id = await bench.begin()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("c") == 0
        worker.release_all()
        await bench.settle()


@pytest.mark.req("EMT-09", "INV-02", "TMR-05", "EVW-04")
@pytest.mark.parametrize("merge", [True, False])
async def test_a_run_of_every_kind_ends_the_same_whichever_commit_the_server_dies_after(merge: bool) -> None:
    """The wait is met by the emission of a run that another emission has started."""
    after = 2
    while True:
        async with Bench(merge=merge, early=merge) as bench:
            worker = await serving(
                bench,
                functions=("g",),
                triggers=(("go", "f"), ("asked", "h")),
                f=body(
                    Step("a", undo=[None]),
                    sleep("cool", 300),
                    invoke("pack", "g"),
                    emit("ask", "asked", b"please"),
                    wait_for("ok", "answered", LONG_MS, order="7"),
                    Step("b", forward=[error("terminal", retryable=False)]),
                ),
                g=body(Step("c", undo=[None]), sleep("rest", 200)),
                h=body(sleep("think", 400), emit("answer", "answered", b"yes", order="7")),
            )
            await bench.submit(key="k")
            died = await die_after(bench, after)
            await bench.restart()
            await worker.connect()
            await persist(bench, worker)
            run_id = await bench.only_run((await bench.submit(key="k")).event.event_id)
            assert await bench.ended(run_id) == ("failed", "fully_compensated")
            run = await bench.run(run_id)
            assert [step.state for step in run.steps.values()] == ["succeeded"] * 5 + ["failed"]
            assert [target.step_id for target in run.unwind] == ["a"]
            assert payload_of(run.steps["ok"]) == b"yes"  # type: ignore[index]  # ids are text
            names = [event.name for event in bench.memory._events.values()]
            assert sorted(names) == ["answered", "asked", "go"]
            assert len(bench.memory._runs) == 3
            assert {step: bench.count(step) for step in "ac"} == {"a": 1, "c": 1}
            assert bench.count("c", "compensation") == 0
            assert nothing_is_left(bench)
        if not died:
            assert after > 14
            return
        after += 1


@pytest.mark.parametrize("failing", range(1, 14))
async def test_a_run_of_every_kind_ends_the_same_whichever_commit_fails(failing: int) -> None:
    async with Bench() as bench:
        worker = await serving(
            bench,
            functions=("g",),
            triggers=(("go", "f"), ("asked", "h")),
            f=body(
                invoke("pack", "g"), emit("ask", "asked", b"please"), wait_for("ok", "answered", LONG_MS, order="7"), sleep("cool", 300)
            ),
            g=body(Step("c")),
            h=body(sleep("think", 400), emit("answer", "answered", b"yes", order="7")),
        )
        accepted = await bench.submit(key="k")
        bench.memory.failing_commits.add(bench.memory.commits + failing)
        await persist(bench, worker)
        assert await bench.ended(await bench.only_run(accepted.event.event_id)) == ("succeeded", "not_required")
        assert sorted(event.name for event in bench.memory._events.values()) == ["answered", "asked", "go"]
        assert bench.count("c") == 1
        assert nothing_is_left(bench)


async def test_an_expansion_is_written_complete_when_its_waits_are_settled() -> None:
    async with Bench() as bench:
        await serving(bench, f=body(wait_for("ok", OK, LONG_MS)))
        await bench.begin()
        before = len(bench.memory.units)
        event_id = await send(bench)
        done = [w for unit in bench.memory.units[before:] for w in unit.writes if isinstance(w, FanOutWrite)]
        assert done == [FanOutWrite(event_id, None)]
