"""Removing old runs beside an engine at work: what is in use stays until it is not, and nobody begins with what is going."""

from __future__ import annotations

import asyncio

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import RunId
from ryusen_protocol.outcome import CallbackFailed
from ryusen_server.engine.pruning import Pruned
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import FakeWorker, Step, body


async def ended_run(bench: Bench) -> tuple[FakeWorker, RunId]:
    worker = await bench.serving(body(Step("a")))
    run_id = await bench.begin()
    assert await bench.ended(run_id) == ("succeeded", "not_required")
    await bench.advance(10)
    return worker, run_id


async def prune(bench: Bench) -> Pruned:
    async with asyncio.timeout(10):  # a removal that begins while commits are held would wait for ever
        return await bench.engine.prune(DEFAULT, older_than_ms=1, bound_ms=1_000)


def answer_again(worker: FakeWorker, run_id: RunId) -> None:
    """Another answer to the attempt that has succeeded: it is recorded as stale."""
    (effect,) = worker.of("forward")
    worker.submit(effect.request_id, run_id, CallbackFailed(ErrorRecord("Late", "too late", retryable=False), 1, 1))


async def test_a_run_whose_last_word_is_not_durable_yet_stays_until_it_is() -> None:
    async with Bench() as bench:
        worker, run_id = await ended_run(bench)
        bench.memory.hold()
        answer_again(worker, run_id)
        await bench.settle()
        assert bench.memory.waiting == 1
        assert (await prune(bench)).runs == 0
        bench.memory.release()
        await bench.settle()
        assert worker.dispositions == ["accepted", "stale"]
        assert (await prune(bench)).runs == 1
        assert await bench.store.run(run_id) is None
        assert bench.memory.rows_of(run_id) == []


async def test_an_answer_to_a_run_that_is_being_removed_is_one_that_nobody_waits_for() -> None:
    async with Bench() as bench:
        worker, run_id = await ended_run(bench)
        bench.memory.hold()
        removing = asyncio.create_task(prune(bench))
        await bench.settle()
        answer_again(worker, run_id)
        await bench.settle()
        bench.memory.release()
        assert (await removing).runs == 1
        await bench.settle()
        assert worker.dispositions == ["accepted", "discarded"]
        assert bench.memory.rows_of(run_id) == []
