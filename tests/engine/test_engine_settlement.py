"""What settles a stopped or failed run, and what may not: bounds met in the transaction, proofs of no start, restarts around the plan."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from ryusen_protocol.ids import AttemptId, RunId
from ryusen_protocol.invocation import Invocation
from ryusen_protocol.limits import MIB
from ryusen_protocol.operator import DeclareFailure, RefusalEnvelope, ResolveCommand, SupplySuccess
from ryusen_protocol.outcome import Declared, OutcomeBody, Succeeded
from ryusen_server.core.commands.resolve_attempt import SETTLED_RECORD_BYTES_MAX
from ryusen_server.store.sqlite import SqliteStore
from tests.api.operating import database
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error, value

TERMINAL = error("terminal", retryable=False)


async def lost(bench: Bench, worker: FakeWorker, step_id: str = "held") -> tuple[RunId, AttemptId]:
    """A run whose step is Unknown, though its worker still executes it."""
    worker.holding("forward", step_id)
    accepted = await bench.submit()
    for _ in range(200):
        await bench.settle()
        if worker.of("forward", step_id):
            break
    run_id = await bench.only_run(accepted.event.event_id)
    bench.engine.unreadable_outcome(worker.session_id, next(iter(worker.executing)), "garbled")
    await bench.settle()
    run = await bench.run(run_id)
    attempt = run.current_attempt()
    assert attempt is not None
    assert attempt.state == "unknown"
    return run_id, attempt.attempt_id


async def resolve(bench: Bench, attempt_id: AttemptId, command: SupplySuccess | DeclareFailure, key: str) -> bytes | RefusalEnvelope:
    request = ResolveCommand(attempt_id=attempt_id, attempt_generation=1, idempotency_key=key, command=command)
    return await bench.engine.resolve(DEFAULT, request, by="tester")


# bounds that only the run knows


def large_results(invocation: Invocation) -> OutcomeBody:
    """Four steps whose results fill the run's replay budget but for some bytes, then `held`."""
    answer = body(*(Step(f"s{index}") for index in range(4)), Step("held"))(invocation)
    return msgspec.structs.replace(answer, result=value("x" * (2 * MIB - 15_000))) if isinstance(answer, Succeeded) else answer


def large_declaration(invocation: Invocation) -> OutcomeBody:
    """One step `held` whose declaration takes most of what a settled record may."""
    answer = body(Step("held"))(invocation)
    if isinstance(answer, Declared):
        return Declared(msgspec.structs.replace(answer.declaration, name="n" * (SETTLED_RECORD_BYTES_MAX - MIB)))
    return answer


@pytest.mark.req("ACC-57", "ACC-58", "OPR-14", "ACC-56")
@pytest.mark.parametrize(
    ("program", "too_large", "fits"),
    [
        (large_results, SupplySuccess(value("x" * 60_000)), SupplySuccess(value("small"))),
        (large_results, DeclareFailure(error("x" * 60_000, retryable=False)), DeclareFailure(error("small", retryable=False))),
        (large_declaration, SupplySuccess(value("x" * MIB)), SupplySuccess(value("x" * (MIB // 2)))),
    ],
)
async def test_what_the_run_has_no_room_for_is_refused_inside_the_transaction_without_a_trace(
    tmp_path: Path, program: object, too_large: SupplySuccess | DeclareFailure, fits: SupplySuccess | DeclareFailure
) -> None:
    store = await SqliteStore.open(tmp_path / "ryusen.db", on_fatal=pytest.fail)
    async with Bench(store) as bench:
        worker = await bench.serving(program)  # type: ignore[arg-type]
        run_id, attempt_id = await lost(bench, worker)
        before = await bench.run(run_id)
        with database(tmp_path) as data, data.unchanged():
            for _ in range(2):
                answer = await resolve(bench, attempt_id, too_large, "k")
                assert isinstance(answer, RefusalEnvelope)
                assert answer.refusal.code == "limit_exceeded"
        assert await bench.run(run_id) == before
        assert isinstance(await resolve(bench, attempt_id, fits, "k"), bytes), "the key is not used up"
        assert (await bench.run(run_id)).attempts[attempt_id].settled_by_operator == "tester"
    await store.close()


# a timeout that waits


@pytest.mark.req("ACC-69", "STOP-10", "STO-07", "DLN-10")
async def test_a_timeout_that_waits_for_an_effect_is_the_same_however_often_its_timer_comes_also_after_a_reopening() -> None:
    async with Bench() as bench:
        await bench.publish(timeouts={"f": 10_000})
        worker = await bench.connected(functions={"f": body(Step("paid", undo=[None]), Step("held", undo=[None]))})
        run_id, attempt_id = await lost(bench, worker)
        await bench.advance(10_000, beating=[worker])
        waiting = await bench.run(run_id)
        assert (waiting.status, waiting.stop and waiting.stop.reason, waiting.outcome) == ("stopping", "timed_out", None)
        for reopened in (False, True):
            if reopened:
                await bench.restart()
            bench.engine._dispatcher.fire()
            bench.engine._wake(run_id)
            await bench.advance(60_000)
            assert (await bench.cancel(run_id)).replayed
            assert await bench.run(run_id) == waiting
        assert isinstance(await resolve(bench, attempt_id, SupplySuccess(value("supplied")), "k"), bytes)
        await worker.connect()
        await bench.settle()
        assert await bench.ended(run_id) == ("timed_out", "fully_compensated")
        assert [target.step_id for target in (await bench.run(run_id)).unwind] == ["held", "paid"]


# proofs of no start


async def rejected(bench: Bench, worker: FakeWorker) -> None:
    worker.reject(next(iter(worker.executing.values())))
    await bench.settle()


async def not_held(bench: Bench, worker: FakeWorker) -> None:
    worker.disconnect()
    worker.forget()
    await worker.connect()


PROOFS = pytest.mark.parametrize("prove", [rejected, not_held])


async def out(bench: Bench) -> tuple[FakeWorker, RunId]:
    worker = await bench.serving(body(Step("a")))
    worker.holding("forward")
    return worker, await bench.begin()


@PROOFS
@pytest.mark.req("ACC-70", "STOP-12")
async def test_a_proof_of_no_start_in_a_running_run_sends_the_same_attempt_again(prove: object) -> None:
    async with Bench() as bench:
        worker, run_id = await out(bench)
        await prove(bench, worker)  # type: ignore[operator]
        first, again = worker.of("forward")
        assert first.target == again.target, "attempt, generation and operation are the same"
        assert first.request_id != again.request_id
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert len((await bench.run(run_id)).attempts) == 1
        assert bench.count("a") == 1


@PROOFS
@pytest.mark.req("ACC-71", "STOP-13")
async def test_a_proof_of_no_start_after_a_stop_fences_the_attempt_and_ends_the_run(prove: object) -> None:
    async with Bench() as bench:
        worker, run_id = await out(bench)
        await bench.cancel(run_id)
        assert (await bench.row(run_id)).status == "stopping"
        await prove(bench, worker)  # type: ignore[operator]
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        (attempt,) = (await bench.run(run_id)).attempts.values()
        assert attempt.state == "fenced"
        assert len(worker.of("forward")) == 1
        assert bench.count("a") == 0


@PROOFS
@pytest.mark.req("ACC-73", "STOP-02", "STOP-13")
async def test_a_stop_after_the_proof_fences_what_was_queued_again(prove: object) -> None:
    async with Bench() as bench:
        worker, run_id = await out(bench)
        worker.drain()  # so that the attempt waits after the proof
        await prove(bench, worker)  # type: ignore[operator]
        (attempt,) = (await bench.run(run_id)).attempts.values()
        assert attempt.state == "queued"
        await bench.cancel(run_id)
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        (attempt,) = (await bench.run(run_id)).attempts.values()
        assert (attempt.state, attempt.attempt) == ("fenced", 1)
        worker.draining = False
        worker.disconnect()
        worker.holds = lambda _: False
        await worker.connect()
        assert bench.count("a") == 0


# restarts around the transaction that makes the plan

EMPTY = body(Step("a", forward=[TERMINAL], undo=[None]))
ALL_SKIPPED = body(Step("a"), Step("b"), Step("c", forward=[TERMINAL]))


def has_work(bench: Bench) -> bool:
    """Whether whatever is compensating has an attempt to make, as the store has it."""
    runs = [bench.memory.folded(run_id) for run_id in bench.memory.run_ids()]
    return all(run is not None and (run.status != "compensating" or run.current_attempt() is not None) for run in runs)


@pytest.mark.req("ACC-76", "CMP-18", "CMP-10")
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize(
    ("program", "recovery"), [(EMPTY, "not_required"), (ALL_SKIPPED, "partially_compensated")], ids=["empty unwind", "all skipped"]
)
async def test_whichever_commit_the_server_dies_after_no_run_is_left_compensating_without_work(
    program: object, recovery: str, merge: bool
) -> None:
    after = 3
    died = True
    while died:
        async with Bench(merge=merge) as bench:
            worker = await bench.serving(program)  # type: ignore[arg-type]
            accepted = await bench.submit()
            for _ in range(200):
                if bench.memory.commits >= after:
                    break
                await asyncio.sleep(0)
            run_id = await bench.only_run(accepted.event.event_id)
            died = (await bench.row(run_id)).status != "ended"
            await bench.restart()
            assert has_work(bench)
            await worker.connect()
            for _ in range(10):
                await bench.advance(1_000, beating=[worker])
                worker.resend()
            assert has_work(bench)
            assert await bench.ended(run_id) == ("failed", recovery)
            after += 1
    assert after > 5, "it died in the middle more than once"
