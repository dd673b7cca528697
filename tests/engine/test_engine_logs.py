"""What callbacks print on its way through the engine: merged by attempt, bounded in memory, and in nobody's way."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
import pytest

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.frames import Log
from ryusen_protocol.ids import RequestId, RunId
from ryusen_protocol.invocation import DiscoveryTarget, Invocation
from ryusen_protocol.outcome import LogLine, Outcome, Succeeded
from ryusen_server.engine import logs as engine_logs
from tests.engine.bench import Bench
from tests.engine.bench_worker import FakeWorker, Step, body

SAGA = body(Step("a"), Step("b"))


def line(text: str, at_ms: int = 1) -> LogLine:
    return LogLine(at_ms, "stdout", text)


def is_effect(invocation: Invocation) -> bool:
    return not isinstance(invocation.target, DiscoveryTarget)


async def kept(bench: Bench, run_id: RunId) -> list[list[str]]:
    """The lines of each attempt that printed, as a reader gets them."""
    await bench.engine.settle_logs(run_id)
    rows = await bench.store.run_logs(run_id, after=0, limit=100)
    return [[one.text for one in msgspec.json.decode(row.lines, type=list[LogLine])] for row in rows]


def prints(worker: FakeWorker, request_id: RequestId, *texts: str) -> None:
    worker.bench.engine.log(worker.session_id, Log(PROTOCOL_VERSION, request_id, [line(text) for text in texts]))


def answer(worker: FakeWorker, request_id: RequestId, *texts: str) -> Outcome:
    """The effect's outcome, with what it printed."""
    invocation = worker.executing.pop(request_id)
    outcome = Outcome(
        PROTOCOL_VERSION, request_id, invocation.run.run_id, worker.functions["f"](invocation), [line(text) for text in texts]
    )
    worker.unacknowledged[request_id] = outcome
    worker.bench.engine.outcome(worker.session_id, outcome)
    return outcome


async def executing(bench: Bench, worker: FakeWorker) -> RequestId:
    await bench.settle()
    (request_id,) = [request for request, invocation in worker.executing.items() if is_effect(invocation)]
    return request_id


async def test_frames_and_the_outcome_become_one_list(bench_run: tuple[Bench, FakeWorker, RunId]) -> None:
    bench, worker, run_id = bench_run
    request_id = await executing(bench, worker)
    prints(worker, request_id, "one")
    assert await kept(bench, run_id) == [["one"]], "while it runs"
    prints(worker, request_id, "two")
    answer(worker, request_id, "one", "two", "three")
    await bench.settle()
    answer(worker, await executing(bench, worker), "other")
    await bench.settle()
    assert await kept(bench, run_id) == [["one", "two", "three"], ["other"]]
    assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_what_comes_too_often_is_written_now_and_then_and_for_whoever_reads(bench_run: tuple[Bench, FakeWorker, RunId]) -> None:
    bench, worker, run_id = bench_run
    request_id = await executing(bench, worker)
    prints(worker, request_id, "first")
    await bench.settle()
    commits = bench.memory.commits
    for number in range(50):
        prints(worker, request_id, f"line {number}")
    await bench.settle()
    assert bench.memory.commits == commits, "held back"
    assert len((await kept(bench, run_id))[0]) == 51


async def test_a_restart_repeats_no_line_and_loses_none_the_outcome_tells(bench_run: tuple[Bench, FakeWorker, RunId]) -> None:
    bench, worker, run_id = bench_run
    request_id = await executing(bench, worker)
    prints(worker, request_id, "before")
    await bench.settle()
    await bench.restart()
    await worker.connect()
    prints(worker, request_id, "after")
    answer(worker, request_id, "before", "after", "end")
    await bench.settle()
    assert await kept(bench, run_id) == [["before", "after", "end"]]
    answer(worker, await executing(bench, worker))
    await bench.settle()


async def test_a_late_outcome_tells_what_the_callback_printed_though_it_is_stale(bench_run: tuple[Bench, FakeWorker, RunId]) -> None:
    bench, worker, run_id = bench_run
    request_id = await executing(bench, worker)
    answer(worker, request_id, "said")
    await bench.settle()
    other = msgspec.structs.replace(answered(worker, request_id), result=msgspec.Raw(b'{"type":"null"}'))
    again = Outcome(PROTOCOL_VERSION, request_id, run_id, other, [line("said"), line("and more")])
    bench.engine.outcome(worker.session_id, again)
    await bench.settle()
    assert worker.acks[-1].disposition == "stale"
    assert await kept(bench, run_id) == [["said", "and more"]]
    answer(worker, await executing(bench, worker))
    await bench.settle()


async def test_lines_of_nobody_and_of_others_are_passed_over(bench_run: tuple[Bench, FakeWorker, RunId]) -> None:
    bench, worker, run_id = bench_run
    request_id = await executing(bench, worker)
    prints(worker, RequestId("rq_none"), "nobody's")
    other = await bench.connected("wk_2", application="other", functions={"g": body()})
    prints(other, request_id, "another application's")
    assert await kept(bench, run_id) == []
    prints(worker, request_id, "mine")
    prints(other, request_id, "another application's")
    assert await kept(bench, run_id) == [["mine"]]
    answer(worker, request_id)
    await bench.settle()
    answer(worker, await executing(bench, worker))
    await bench.settle()


async def test_lines_a_store_does_not_take_delay_nothing(bench_run: tuple[Bench, FakeWorker, RunId]) -> None:
    bench, worker, run_id = bench_run
    request_id = await executing(bench, worker)
    bench.memory.fault = "the disk is full"
    prints(worker, request_id, "lost")
    await bench.settle()
    bench.memory.fault = None
    await bench.advance(2_000, beating=[worker])
    answer(worker, request_id, "lost", "not lost")
    await bench.settle()
    assert await kept(bench, run_id) == [["lost", "not lost"]]
    answer(worker, await executing(bench, worker))
    await bench.settle()


async def test_only_so_many_attempts_are_held_and_none_forgets_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_logs, "IN_MEMORY_MAX", 2)
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holds = is_effect
        runs = [await bench.begin() for _ in range(4)]
        await bench.settle()
        requests = {worker.executing[request].run.run_id: request for request in worker.executing}
        for run_id in runs:
            prints(worker, requests[run_id], "one")
            await bench.settle()
        for run_id in runs:
            answer(worker, requests[run_id], "two")
            await bench.settle()
        assert [await kept(bench, run_id) for run_id in runs] == [[["one", "two"]]] * 4


@pytest.mark.parametrize("claim", ["refused it", "came back without it"])
async def test_a_worker_that_printed_and_claims_never_to_have_begun_mixes_up_nothing(
    bench_run: tuple[Bench, FakeWorker, RunId], claim: str
) -> None:
    bench, worker, run_id = bench_run
    first = await executing(bench, worker)
    prints(worker, first, "a lie")
    if claim == "refused it":
        worker.reject(worker.executing[first])
    else:
        worker.disconnect()
        worker.forget()
        await worker.connect()
    await bench.settle()
    await bench.advance(1_000)
    second = await executing(bench, worker)
    assert second != first
    prints(worker, second, "one")
    answer(worker, second, "one")
    await bench.settle()
    prints(worker, first, "a later lie")
    answer(worker, await executing(bench, worker))
    await bench.settle()
    assert await kept(bench, run_id) == [["a lie", "one"]], "what was told before the attempt went out again stays, and nothing after it"
    assert await bench.ended(run_id) == ("succeeded", "not_required")


def answered(worker: FakeWorker, request_id: RequestId) -> Succeeded:
    """What it answered."""
    (invocation,) = [one for one in worker.invocations if one.request_id == request_id]
    body_ = worker.functions["f"](invocation)
    assert isinstance(body_, Succeeded)
    return body_


@pytest.fixture
async def bench_run() -> AsyncGenerator[tuple[Bench, FakeWorker, RunId]]:
    """A run whose first callback runs."""
    async with Bench() as bench:
        worker = await bench.serving(SAGA)
        worker.holds = is_effect
        run_id = await bench.begin()
        yield bench, worker, run_id
