"""Contact between server and worker: leases, disconnects, heartbeats, late, stale and unreadable answers."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.ids import RequestId, RunId
from ryusen_protocol.outcome import CallbackFailed, Completed, RejectedBeforeStart, Succeeded
from tests.engine.bench import Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error, matches, value

TERMINAL = error("terminal", retryable=False)


async def in_effect(bench: Bench, **step: object) -> tuple[FakeWorker, RunId, RequestId]:
    """A run whose one step is out at a worker that has not answered."""
    worker = await bench.serving(body(Step("a", **step)))  # type: ignore[arg-type]
    worker.holding("forward")
    run_id = await bench.begin()
    return worker, run_id, next(iter(worker.executing))


async def state_of(bench: Bench, run_id: RunId) -> str:
    run = await bench.run(run_id)
    return run.attempts[run.steps["a"].attempts[-1]].state  # type: ignore[index]


# leases


@pytest.mark.req("UNK-01", "CON-04")
async def test_an_effect_whose_worker_is_gone_becomes_unknown_and_is_never_repeated() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.disconnect()
        contact = bench.engine.contact(request_id)
        assert contact is not None
        assert contact.out_of_contact
        await bench.advance(contact.unknown_at_ms - bench.clock.now_ms() - 1)
        assert await state_of(bench, run_id) == "authorized"
        await bench.advance(251)
        assert await state_of(bench, run_id) == "unknown"
        assert (await bench.row(run_id)).attention == "unknown"
        other = await bench.connected("wk_2", functions=worker.functions)
        await bench.advance(60_000, beating=[other])
        assert not other.invocations
        assert bench.engine.contact(request_id) is None


@pytest.mark.req("UNK-03")
async def test_a_late_answer_settles_an_unknown_attempt() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.disconnect()
        await bench.advance(31_000)
        assert await state_of(bench, run_id) == "unknown"
        await worker.connect()
        assert await state_of(bench, run_id) == "unknown", "only the answer counts"
        worker.finish(request_id)
        await bench.settle()
        assert worker.dispositions == ["accepted"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


@pytest.mark.req("UNK-02")
@pytest.mark.parametrize("mode", ["discovery", "forward"])
async def test_the_same_loss_repeats_a_discovery_and_leaves_an_effect(mode: str) -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding(mode)
        run_id = await bench.begin()
        worker.disconnect()
        other = await bench.connected("wk_2", functions=worker.functions)
        await bench.advance(60_000, beating=[other])
        if mode == "discovery":
            assert await bench.ended(run_id) == ("succeeded", "not_required")
        else:
            assert await state_of(bench, run_id) == "unknown"
            assert not other.invocations


async def test_heartbeats_keep_a_lease_and_their_absence_ends_it() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        await bench.advance(300_000, beating=[worker])
        assert await state_of(bench, run_id) == "authorized"
        await bench.advance(21_000)
        contact = bench.engine.contact(request_id)
        assert contact is not None
        assert contact.out_of_contact
        await bench.advance(10_000)
        assert await state_of(bench, run_id) == "unknown"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_heartbeat_that_does_not_name_an_effect_does_not_renew_it() -> None:
    async with Bench() as bench:
        worker, run_id, _ = await in_effect(bench)
        for _ in range(4):
            await bench.advance(8_000)
            worker.heartbeat_empty()
        assert await state_of(bench, run_id) == "unknown"


async def test_an_attempt_timeout_ends_in_unknown_two_seconds_later_whatever_the_contact() -> None:
    async with Bench() as bench:
        worker, run_id, _ = await in_effect(bench, timeout_ms=5_000)
        await bench.advance(6_999, beating=[worker])
        assert await state_of(bench, run_id) == "authorized"
        await bench.advance(251)
        assert await state_of(bench, run_id) == "unknown"
        run = await bench.run(run_id)
        assert run.attempts[run.steps["a"].attempts[0]].unknown_reason == "no answer came after its timeout"  # type: ignore[index]
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_the_slot_of_an_unknown_attempt_is_free_for_what_waits() -> None:
    async with Bench() as bench:
        await bench.publish()
        worker = await bench.connected(functions={"f": body(Step("a", timeout_ms=5_000))}, capacity=1)
        worker.holds = lambda invocation: matches(invocation, "forward") and len(worker.of("forward")) == 1
        first = await bench.begin()
        second = await bench.begin()
        assert bench.engine._dispatcher.waiting == 1
        worker.executing.clear()
        await bench.advance(7_500)
        assert await state_of(bench, first) == "unknown"
        assert await bench.ended(second) == ("succeeded", "not_required")


async def test_cancel_of_an_unknown_effect_waits_for_its_answer() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench, undo=[None])
        worker.disconnect()
        await bench.advance(31_000)
        await bench.cancel(run_id)
        await bench.advance(600_000)
        assert (await bench.row(run_id)).status == "stopping"
        await worker.connect()
        worker.release_all()
        assert request_id not in worker.executing
        await bench.settle()
        assert await bench.ended(run_id) == ("cancelled", "fully_compensated")


# reconnects


@pytest.mark.req("CON-05")
async def test_a_held_effect_keeps_its_lease_over_a_reconnect_and_its_result_counts_once() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.disconnect()
        await bench.advance(20_000)
        answer = await worker.connect()
        assert answer.wanted == [request_id]
        contact = bench.engine.contact(request_id)
        assert contact is not None
        assert not contact.out_of_contact
        await bench.advance(60_000, beating=[worker])
        assert await state_of(bench, run_id) == "authorized"
        worker.finish(request_id)
        outcome = next(iter(worker.unacknowledged.values()))
        await bench.settle()
        worker.unacknowledged[request_id] = outcome
        worker.resend()
        await bench.settle()
        assert worker.dispositions == ["accepted", "replayed"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 1


async def test_a_result_sent_while_disconnected_is_accepted_when_it_is_sent_again() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.disconnect()
        worker.finish(request_id)
        await bench.advance(3_000)
        await worker.connect()
        assert worker.dispositions == ["accepted"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_held_effect_still_takes_its_slot_after_a_reconnect() -> None:
    async with Bench() as bench:
        await bench.publish()
        worker = await bench.connected(functions={"f": body(Step("a"))}, capacity=1)
        worker.holding("forward")
        await bench.begin()
        waiting = await bench.begin()
        worker.disconnect()
        await worker.connect()
        assert bench.engine._dispatcher.waiting == 1
        worker.release_all()
        await bench.settle()
        assert await bench.ended(waiting) == ("succeeded", "not_required")


async def test_an_effect_of_the_previous_session_that_is_not_held_never_began() -> None:
    async with Bench() as bench:
        worker, run_id, first = await in_effect(bench)
        worker.disconnect()
        worker.forget()
        worker.holds = lambda _: False
        await worker.connect()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        attempts = [invocation.target.attempt for invocation in worker.of("forward")]  # type: ignore[union-attr]
        assert attempts == [1, 1], "no ordinal is consumed"
        assert worker.of("forward")[1].request_id != first
        assert bench.count("a") == 1


async def test_without_the_previous_session_nothing_is_proven() -> None:
    async with Bench() as bench:
        worker, run_id, _ = await in_effect(bench)
        worker.disconnect()
        worker.forget()
        worker.previous_session = None
        await worker.connect()
        assert await state_of(bench, run_id) == "authorized"
        await bench.advance(31_000, beating=[worker])
        assert await state_of(bench, run_id) == "unknown"
        assert len(worker.of("forward")) == 1


async def test_an_effect_once_held_over_a_reconnect_is_not_proven_by_a_later_one() -> None:
    async with Bench() as bench:
        worker, run_id, _ = await in_effect(bench)
        worker.disconnect()
        await worker.connect()
        worker.disconnect()
        worker.forget()
        await worker.connect()
        assert await state_of(bench, run_id) == "authorized", "it was sent on an earlier session than the previous one"
        await bench.advance(31_000)
        assert await state_of(bench, run_id) == "unknown"


async def test_never_began_after_a_cancel_fences_the_attempt() -> None:
    async with Bench() as bench:
        worker, run_id, _ = await in_effect(bench)
        await bench.cancel(run_id)
        worker.disconnect()
        worker.forget()
        await worker.connect()
        assert await bench.ended(run_id) == ("cancelled", "not_required")
        assert await state_of(bench, run_id) == "fenced"


@pytest.mark.req("CON-04")
async def test_a_session_gone_before_the_invocation_left_proves_that_it_never_began() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("discovery")
        run_id = await bench.begin()
        bench.memory.hold()
        worker.release_all()
        await bench.settle()
        worker.disconnect()
        bench.memory.release()
        await bench.settle()
        assert await state_of(bench, run_id) == "queued"
        assert not worker.of("forward")
        await worker.connect()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_discovery_that_was_to_leave_after_its_commit_is_repeated_when_its_session_is_gone() -> None:
    async with Bench(early=False) as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        bench.memory.hold()
        worker.release_all()
        await bench.settle()
        worker.disconnect()
        bench.memory.release()
        await bench.settle()
        await worker.connect()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert worker.dispositions == ["replayed"]


# discoveries


@pytest.mark.req("CON-04")
async def test_a_discovery_lost_again_and_again_is_paced_and_a_registration_ends_the_wait() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        other = await bench.connected("wk_2", functions=worker.functions)
        for each in (worker, other):
            each.holding("discovery")
        run_id = await bench.begin()
        assert (len(worker.invocations), len(other.invocations)) == (1, 0)
        worker.disconnect()
        await bench.settle()
        assert len(other.invocations) == 1, "the first repeat goes at once"
        other.disconnect()
        await bench.advance(500)
        assert (await bench.row(run_id)).status == "running"
        third = await bench.connected("wk_3", functions=worker.functions)
        assert len(third.of("discovery")) == 2, "the registration ended the wait"
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_paced_discovery_goes_by_itself_when_its_time_has_come() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body())
        worker.holding("discovery")
        run_id = await bench.begin()
        for repeat, wait_ms in enumerate([0, 1_000, 2_000, 4_000]):
            rejected = RejectedBeforeStart("busy")
            worker.finish(next(iter(worker.executing)), rejected)
            await bench.settle()
            if wait_ms:
                assert len(worker.invocations) == repeat + 1
                await bench.advance(wait_ms - 1)
                assert len(worker.invocations) == repeat + 1
                await bench.advance(1)
            assert len(worker.invocations) == repeat + 2
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert not worker.acks, "a discovery is never acknowledged"


async def test_a_discovery_that_two_heartbeats_do_not_name_is_repeated() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body())
        worker.deaf = True
        run_id = await bench.begin()
        worker.heartbeat_empty()
        await bench.settle()
        assert len(worker.invocations) == 1
        worker.deaf = False
        worker.heartbeat_empty()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_heartbeats_that_name_a_discovery_in_between_start_the_count_again() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body())
        worker.holding("discovery")
        run_id = await bench.begin()
        for _ in range(3):
            worker.heartbeat_empty()
            worker.heartbeat()
        await bench.settle()
        assert len(worker.invocations) == 1
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_the_answer_of_a_discovery_that_was_given_up_changes_nothing() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("discovery")
        run_id = await bench.begin()
        old = next(iter(worker.executing))
        worker.heartbeat_empty()
        worker.heartbeat_empty()
        await bench.settle()
        assert len(worker.executing) == 2
        before = bench.memory.rows_of(run_id)
        worker.finish(old, Completed(value(1)))
        await bench.settle()
        worker.submit(old, run_id, RejectedBeforeStart("busy"))
        await bench.settle()
        assert bench.memory.rows_of(run_id) == before
        assert not worker.acks
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


# answers that do not count


@pytest.mark.req("UNK-08")
async def test_another_answer_to_a_settled_attempt_is_stale_and_recorded_once() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.finish(request_id)
        await bench.settle()
        conflicting = CallbackFailed(TERMINAL, 1, 1)
        for _ in range(2):
            worker.submit(request_id, run_id, conflicting)
            await bench.settle()
        assert worker.dispositions == ["accepted", "stale", "stale"]
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        stale = b"".join(row.records for row in bench.memory.rows_of(run_id)).count(b'"submission_stale"')
        assert stale == 1


async def test_an_answer_with_another_generation_is_stale_and_leaves_the_attempt() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.submit(request_id, run_id, Succeeded(value(1), 1, 2))
        await bench.settle()
        assert worker.dispositions == ["stale"]
        assert await state_of(bench, run_id) == "authorized"
        worker.finish(request_id)
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("UNK-10")
async def test_an_answer_to_an_earlier_generation_is_stale() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a", forward=[error(), None])))
        run_id = await bench.begin()
        first = worker.of("forward")[0].request_id
        worker.holding("forward")
        await bench.advance(1_000)
        worker.submit(first, run_id, Succeeded(value(1), 1, 1))
        await bench.settle()
        assert worker.dispositions == ["accepted", "stale"]
        assert (await bench.row(run_id)).status == "running"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_an_answer_nobody_asked_for_is_discarded() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.submit(RequestId("rq_unheard"), run_id, Succeeded(value(1), 1, 1))
        worker.submit(RequestId("rq_unheard"), RunId("rn_unheard"), Succeeded(value(1), 1, 1))
        await bench.settle()
        assert worker.dispositions == ["discarded", "discarded"]
        worker.finish(request_id)
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_worker_of_another_application_can_answer_nothing() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        stranger = await bench.connected("wk_1", functions=worker.functions, application="other")
        stranger.submit(request_id, run_id, Succeeded(value("forged"), 1, 1))
        stranger.submit(request_id, run_id, Completed(value("forged")))
        bench.engine.unreadable_outcome(stranger.session_id, request_id, "garbage")
        stranger.heartbeat(request_id)
        await bench.settle()
        assert await state_of(bench, run_id) == "authorized"
        contact = bench.engine.contact(request_id)
        stranger.disconnect()
        assert bench.engine.contact(request_id) == contact, "the lease of a namesake is not touched"
        worker.holding("discovery")
        worker.finish(request_id)
        await bench.settle()
        discovery = next(iter(worker.executing))
        await stranger.connect()
        stranger.submit(discovery, run_id, Completed(value("forged")))
        await bench.settle()
        assert (await bench.row(run_id)).status == "running"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert msgspec.json.decode(bytes((await bench.run(run_id)).result or b"{}"))["value"] == "done"


@pytest.mark.parametrize("mode", ["discovery", "forward"])
async def test_an_unreadable_answer_repeats_a_discovery_and_makes_an_effect_unknown(mode: str) -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding(mode)
        run_id = await bench.begin()
        request_id = next(iter(worker.executing))
        bench.engine.unreadable_outcome(worker.session_id, request_id, "not JSON")
        await bench.settle()
        assert worker.dispositions == ["malformed"]
        if mode == "discovery":
            assert len(worker.of("discovery")) == 2
        else:
            assert await state_of(bench, run_id) == "unknown"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required"), "a readable one still counts"


async def test_an_unreadable_answer_is_acknowledged_only_after_the_commit() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        bench.memory.hold()
        bench.engine.unreadable_outcome(worker.session_id, request_id, "not JSON")
        await bench.settle()
        assert not worker.acks
        bench.memory.release()
        await bench.settle()
        assert worker.dispositions == ["malformed"]
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("PRO-17")
@pytest.mark.parametrize("answer", [Completed(value(1)), Succeeded(value(1)), CallbackFailed(TERMINAL), RejectedBeforeStart("busy")])
async def test_an_effect_answered_without_its_place_or_as_a_discovery_is_malformed(
    answer: Completed | Succeeded | CallbackFailed | RejectedBeforeStart,
) -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.submit(request_id, run_id, answer)
        await bench.settle()
        assert worker.dispositions == ["malformed"]
        assert await state_of(bench, run_id) == "unknown"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.parametrize("mode", ["discovery", "forward"])
async def test_an_answer_that_names_another_run_hangs_neither(mode: str) -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding(mode)
        run_id = await bench.begin()
        other = await bench.begin()
        request_id = next(iter(worker.executing))
        answer = Completed(value(1)) if mode == "discovery" else Succeeded(value(1), 1, 1)
        worker.submit(request_id, other, answer)
        await bench.settle()
        if mode == "discovery":
            del worker.executing[request_id]  # it believes that it has answered
        else:
            assert worker.dispositions == ["malformed"]
            assert await state_of(bench, run_id) == "unknown"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert await bench.ended(other) == ("succeeded", "not_required")


async def test_a_result_that_is_not_portable_is_a_failure_and_is_not_run_again() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        worker.finish(request_id, Succeeded(msgspec.Raw(b'{"type":"i64","value":7}'), 1, 1))
        await bench.advance(60_000, beating=[worker])
        assert await bench.ended(run_id) == ("failed", "not_required")
        run = await bench.run(run_id)
        failure = run.steps["a"].failure  # type: ignore[index]
        assert failure is not None
        assert failure.category == "sdk.invalid_result"
        assert bench.count("a") == 1


async def test_frames_of_a_session_that_is_over_are_passed_over() -> None:
    async with Bench() as bench:
        worker, run_id, request_id = await in_effect(bench)
        old = worker.session_id
        worker.disconnect()
        bench.engine.heartbeat(old, [request_id])
        bench.engine.draining(old)
        bench.engine.disconnected(old, "again")
        bench.engine.unreadable_outcome(old, request_id, "late")
        await bench.settle()
        contact = bench.engine.contact(request_id)
        assert contact is not None
        assert contact.out_of_contact
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
