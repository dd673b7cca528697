"""Endpoints on the engine's virtual clock: how long an exchange is contact, what a restart leaves of it, and who gets the work."""

from __future__ import annotations

import pytest

from ryusen_protocol.frames import RegistrationRejected
from ryusen_protocol.ids import RunId
from ryusen_server.core.commands.authorize_attempt import ANSWER_GRACE_MS
from ryusen_server.core.state import Attempt
from ryusen_server.engine.views import ContactView
from ryusen_server.ports.worker import Lost, NotSent
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import Answer, Step, body
from tests.http.scripted_endpoint import ADDRESS, ScriptedEndpoint

HOUR_MS = 3_600_000


async def served(bench: Bench, answer: Answer | None = None) -> ScriptedEndpoint:
    """The function `f` is published for the event `go`, and an endpoint runs it."""
    endpoint = ScriptedEndpoint(bench, answer or body(Step("charge")))
    endpoint.attach()
    await bench.publish()
    await bench.settle()
    return endpoint


async def attempt_of(bench: Bench, run_id: RunId) -> Attempt:
    run = await bench.run(run_id)
    return run.attempts[run.steps["charge"].attempts[-1]]  # type: ignore[index]  # ids are text


def contact_of(bench: Bench, attempt: Attempt) -> ContactView:
    assert attempt.request_id is not None
    contact = bench.engine.contact(attempt.request_id)
    assert contact is not None
    return contact


@pytest.mark.req("ACC-88", "HTT-08")
async def test_two_seconds_after_its_timeout_an_effect_is_unknown_and_a_late_answer_still_counts() -> None:
    async with Bench() as bench:
        endpoint = await served(bench, body(Step("charge", timeout_ms=5_000)))
        endpoint.holding("forward")
        run_id = await bench.begin()
        (request_id,) = endpoint.executing
        await bench.advance(5_000 + ANSWER_GRACE_MS - 500)
        assert (await attempt_of(bench, run_id)).state == "authorized"
        await bench.advance(1_000)
        assert (await attempt_of(bench, run_id)).state == "unknown"
        assert bench.engine.workers(DEFAULT)[0].in_flight == 0, "its slot is not lost with it"
        await bench.advance(60_000)
        endpoint.finish(request_id)
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert len(endpoint.of("forward")) == 1


async def test_an_open_exchange_is_contact_for_an_hour() -> None:
    async with Bench(tick_ms=10_000) as bench:
        endpoint = await served(bench)
        endpoint.holding("forward")
        run_id = await bench.begin()
        await bench.advance(HOUR_MS - 10_000)
        attempt = await attempt_of(bench, run_id)
        assert attempt.state == "authorized"
        contact = contact_of(bench, attempt)
        assert not contact.out_of_contact
        assert contact.unknown_at_ms - (attempt.authorized_at_ms or 0) == HOUR_MS
        await bench.advance(20_000)
        assert (await attempt_of(bench, run_id)).state == "unknown"


async def test_a_timeout_beyond_the_hour_is_waited_for() -> None:
    async with Bench(tick_ms=10_000) as bench:
        endpoint = await served(bench, body(Step("charge", timeout_ms=2 * HOUR_MS)))
        endpoint.holding("forward")
        run_id = await bench.begin()
        assert endpoint.exchanges[-1].within_ms == 2 * HOUR_MS + ANSWER_GRACE_MS
        await bench.advance(2 * HOUR_MS)
        assert (await attempt_of(bench, run_id)).state == "authorized"
        endpoint.finish(next(iter(endpoint.executing)))
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_after_a_restart_an_effect_keeps_its_durable_lease_and_no_more() -> None:
    async with Bench() as bench:
        endpoint = await served(bench)
        endpoint.holding("forward")
        run_id = await bench.begin()
        await bench.advance(60_000)
        endpoint.cut()
        await bench.restart()
        endpoint.attach()
        await bench.settle()
        attempt = await attempt_of(bench, run_id)
        assert attempt.state == "authorized"
        assert contact_of(bench, attempt).out_of_contact
        await bench.advance(bench.config.reconnect_grace_ms - 1_000)
        assert (await attempt_of(bench, run_id)).state == "authorized"
        await bench.advance(2_000)
        unknown = await attempt_of(bench, run_id)
        assert (unknown.state, unknown.attempt) == ("unknown", 1)
        assert len(endpoint.of("forward")) == 1


@pytest.mark.parametrize("merge", [True, False])
async def test_an_answer_that_could_not_be_kept_is_kept_once_the_store_is_back(merge: bool) -> None:
    async with Bench(merge=merge) as bench:
        bench.expect_errors = True
        endpoint = await served(bench)
        endpoint.holding("forward")
        run_id = await bench.begin()
        (request_id,) = endpoint.executing
        bench.memory.write_fault = "the disk is full"
        endpoint.finish(request_id)
        await bench.settle()
        assert (await attempt_of(bench, run_id)).state == "authorized"
        bench.memory.write_fault = None
        await bench.advance(2_000)
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert len(endpoint.of("forward")) == 1


@pytest.mark.parametrize("lost", [True, False], ids=["in doubt", "not begun"])
async def test_an_end_without_an_answer_is_not_forgotten_with_a_failed_commit(lost: bool) -> None:
    async with Bench() as bench:
        endpoint = await served(bench)
        endpoint.holding("forward")
        run_id = await bench.begin()
        (request_id,) = endpoint.executing
        bench.memory.write_fault = "the disk is full"
        if lost:
            endpoint.end(request_id, Lost("cut"))
        else:
            endpoint.end(request_id, NotSent("refused"))
        await bench.settle()
        bench.memory.write_fault = None
        endpoint.holds = lambda _: False
        await bench.advance(2_000)
        if lost:
            assert (await attempt_of(bench, run_id)).state == "unknown"
        else:
            assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert (await attempt_of(bench, run_id)).attempt == 1


@pytest.mark.req("HTT-05", "ACC-84")
async def test_an_endpoint_that_is_down_is_tried_again_at_the_pace_of_repeats_and_its_return_ends_the_wait() -> None:
    async with Bench(tick_ms=5_000) as bench:
        endpoint = await served(bench)
        endpoint.down = True
        runs = [await bench.begin() for _ in range(3)]
        assert endpoint.refused == 6, "once, and again at once"
        await bench.advance(999)
        assert endpoint.refused == 6
        await bench.advance(1)
        assert endpoint.refused == 9
        (worker,) = bench.engine.workers(DEFAULT)
        assert (worker.connected, worker.last_failure) == (False, "connection refused")
        await bench.advance(600_000)
        assert endpoint.refused < 60, "at most once a minute each"
        endpoint.down = False
        await bench.advance(60_000)
        for run_id in runs:
            assert await bench.ended(run_id) == ("succeeded", "not_required")
        (worker,) = bench.engine.workers(DEFAULT)
        assert (worker.connected, worker.in_flight) == (True, 0)


async def test_work_that_waits_for_a_lost_endpoint_is_explained_and_another_that_answers_is_used() -> None:
    async with Bench() as bench:
        endpoint = await served(bench)
        (view,) = bench.engine.workers(DEFAULT)
        scope, function = view.scope, view.functions[0]
        assert bench.engine.can_run(scope, function)
        endpoint.down = True
        run_id = await bench.begin()
        assert not bench.engine.can_run(scope, function)
        other = ScriptedEndpoint(bench, body(Step("charge")), address="http://127.0.0.1:9001/ryusen")
        other.attach()
        await bench.settle()
        assert bench.engine.can_run(scope, function)
        assert await bench.ended(run_id) == ("succeeded", "not_required"), "its coming ended the wait"
        assert len(other.of("forward")) == 1


async def test_a_release_is_preferred_and_the_endpoint_takes_what_is_left() -> None:
    async with Bench() as bench:
        endpoint = await served(bench)
        worker = await bench.connected(functions={"f": body(Step("charge"))}, release_id="r1", capacity=1)
        worker.holding("forward")
        first = await bench.begin()
        assert (len(worker.of("forward")), endpoint.invocations) == (1, [])
        second = await bench.begin()
        assert await bench.ended(second) == ("succeeded", "not_required")
        assert len(endpoint.of("forward")) == 1
        worker.release_all()
        await bench.settle()
        assert await bench.ended(first) == ("succeeded", "not_required")


async def test_an_endpoint_stays_known_however_long_nothing_is_asked_of_it() -> None:
    async with Bench(tick_ms=5_000) as bench:
        endpoint = await served(bench)
        await bench.advance(10 * 60_000)
        assert [worker.instance_id for worker in bench.engine.workers(DEFAULT)] == [ADDRESS]
        assert await bench.ended(await bench.begin()) == ("succeeded", "not_required")
        assert len(endpoint.of("forward")) == 1


async def test_no_worker_takes_the_name_of_an_endpoint() -> None:
    async with Bench() as bench:
        await served(bench)
        answer = await bench.worker(ADDRESS).register()
        assert isinstance(answer, RegistrationRejected)
        assert answer.code == "invalid"
        assert [worker.transport for worker in bench.engine.workers(DEFAULT)] == ["http"]


async def test_functions_that_leave_the_manifest_leave_the_endpoint() -> None:
    async with Bench() as bench:
        endpoint = await served(bench)
        first = bench.engine.active_manifests(DEFAULT)[0].manifest_generation
        await bench.publish([("go", "f"), ("come", "g")], parent=first)
        assert bench.engine.workers(DEFAULT)[0].functions == ("f", "g")
        second = bench.engine.active_manifests(DEFAULT)[0].manifest_generation
        await bench.publish([("come", "g")], parent=second)
        assert bench.engine.workers(DEFAULT)[0].functions == ("g",)
        endpoint.answer = body(Step("charge"))
        assert await bench.ended(await bench.begin("come")) == ("succeeded", "not_required")
