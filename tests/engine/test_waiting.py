"""What those who wait for a run's end are told, and how much of it is remembered."""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import RunId
from ryusen_server.engine.waiting import ENDED_BYTES_MAX, ENDED_KEPT_MAX, EndedRun, Waiters
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import Step, body
from tests.store.builders import run_row


def ended(run_id: str, result: bytes = b'{"type":"null"}') -> EndedRun:
    return EndedRun(run_row(run_id), msgspec.Raw(result), None)


async def test_a_run_that_ended_is_told_and_remembered() -> None:
    waiters = Waiters()
    future = waiters.run_ended(RunId("rn_1"))
    assert waiters.ended(RunId("rn_1")) is None
    waiters.run_has_ended(RunId("rn_1"), ended("rn_1"))
    assert future.done()
    assert waiters.ended(RunId("rn_1")) == ended("rn_1")


async def test_a_large_result_is_told_and_left_in_the_store() -> None:
    waiters = Waiters()
    future = waiters.run_ended(RunId("rn_1"))
    waiters.run_has_ended(RunId("rn_1"), ended("rn_1", b'"' + b"x" * ENDED_BYTES_MAX + b'"'))
    assert future.done()
    assert waiters.ended(RunId("rn_1")) is None


async def test_only_so_many_are_remembered() -> None:
    waiters = Waiters()
    for number in range(ENDED_KEPT_MAX + 1):
        waiters.run_has_ended(RunId(f"rn_{number}"), ended(f"rn_{number}"))
    assert waiters.ended(RunId("rn_0")) is None
    assert waiters.ended(RunId(f"rn_{ENDED_KEPT_MAX}")) is not None


async def test_an_accepted_event_names_its_runs_and_an_end_is_told_only_once_it_is_durable() -> None:
    async with Bench() as bench:
        await bench.publish()
        await bench.connected(functions={"f": body(Step("a"))})
        accepted = await bench.submit()
        (run_id,) = accepted.run_ids
        assert run_id == await bench.only_run(accepted.event.event_id)
        await bench.settle()
        known = bench.engine.waiters.ended(run_id)
        assert known is not None
        assert known.row == await bench.row(run_id)
        again = await bench.engine.submit_event(DEFAULT, name="nobody", payload=b"{}", metadata={}, key=None)
        assert getattr(again, "run_ids", None) == ()
