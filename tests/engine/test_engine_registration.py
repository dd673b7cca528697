"""Registration: what is refused, what a release's order rests on, and what a session that replaces another does."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from ryusen_protocol.frames import ExecutionContract, Registered, RegistrationRejected, Software
from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.outcome import DefinitionBlocked
from ryusen_protocol.scope import Scope
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import Channel, Step, body


@pytest.mark.req("OPT-09")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"contract": ExecutionContract(2, 1)}, "unsupported_contract"),
        ({"contract": ExecutionContract(1, 9)}, "unsupported_contract"),
        ({"functions": ["f", "f"]}, "invalid"),
        ({"functions": [""]}, "invalid"),
        ({"capacity": 0}, "invalid"),
        ({"capacity": 10**9}, "invalid"),
        ({"instance_id": ""}, "invalid"),
        ({"connection": 0}, "invalid"),
        ({"scope": Scope(Workspace(""), Application("shop"))}, "invalid"),
        ({"scope": Scope(DEFAULT, Application("a\x00b"))}, "invalid"),
        ({"scope": Scope(DEFAULT, Application("x" * 257))}, "invalid"),
        ({"instance_id": "w" * 257}, "invalid"),
        ({"instance_id": "a\x00b"}, "invalid"),
        ({"release_id": ""}, "invalid"),
        ({"release_id": "r\x00"}, "invalid"),
        ({"release_id": "\u00e9" * 129}, "invalid"),
        ({"functions": ["f", "g" * 257]}, "invalid"),
        ({"functions": ["f\x00"]}, "invalid"),
        ({"manifest_digest": "d" * 257}, "invalid"),
        ({"contract": ExecutionContract(1, 1, ["x" * 257])}, "invalid"),
        ({"contract": ExecutionContract(1, 1, [f"x{number}" for number in range(65)])}, "invalid"),
        ({"capabilities": ["x" * 257]}, "invalid"),
        ({"sdk": Software("x" * 257, "1")}, "invalid"),
        ({"runtime": Software("python", "3" * 257)}, "invalid"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_leaves_nothing(changes: dict[str, object], code: str) -> None:
    async with Bench() as bench:
        answer = await bench.worker().register(**changes)
        assert isinstance(answer, RegistrationRejected)
        assert answer.code == code
        assert len(answer.message) < 500
        assert not bench.engine.workers(DEFAULT)
        assert not bench.memory._releases


@pytest.mark.req("REG-03")
async def test_a_release_with_another_contract_is_refused_also_after_a_restart() -> None:
    async with Bench() as bench:
        await bench.connected("wk_1", release_id="r1", contract=ExecutionContract(1, 1, ["b", "a"]))
        await bench.connected("wk_2", release_id="r1", contract=ExecutionContract(1, 1, ["a", "b"]))
        other = bench.worker("wk_3", release_id="r1", contract=ExecutionContract(1, 1, ["a"]))
        for _ in range(2):
            answer = await other.register()
            assert isinstance(answer, RegistrationRejected)
            assert answer.code == "release_conflict"
            await bench.restart()
        elsewhere = bench.worker("wk_4", release_id="r1", contract=ExecutionContract(1, 1, ["a"]), application="other")
        assert isinstance(await elsewhere.register(), Registered), "a release id means something inside its application only"


@pytest.mark.req("REG-02", "REG-04")
async def test_the_order_of_releases_is_that_of_their_first_registration_whatever_reconnects_later() -> None:
    async with Bench() as bench:
        await bench.publish()
        old = await bench.connected("wk_old", release_id="zz-old")
        new = await bench.connected("wk_new", release_id="aa-new")
        replica = await bench.connected("wk_replica", release_id="aa-new", capacity=1)
        order = [row.release_id for row in bench.engine.releases(DEFAULT)]
        positions = [row.position for row in bench.engine.releases(DEFAULT)]
        assert order == ["zz-old", "aa-new"]
        await bench.restart()
        assert [row.position for row in bench.engine.releases(DEFAULT)] == positions
        for worker in (new, replica, old):
            await worker.connect()
        old.disconnect()
        await old.connect()
        await bench.begin()
        assert not old.invocations
        assert new.invocations or replica.invocations
        assert [row.release_id for row in bench.engine.releases(DEFAULT)] == order
        assert len(bench.memory._releases) == 2


async def test_a_new_connection_of_an_instance_replaces_its_session() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("discovery")
        run_id = await bench.begin()
        first = worker.channel
        assert first is not None
        await worker.connect()
        assert [frame.code for frame in worker.errors] == ["replaced"]
        assert first.closed_with is not None
        assert first.closed_with[0] == 4001
        assert len(bench.engine.workers(DEFAULT)) == 1
        bench.engine.disconnected(first.session_id, "its socket has closed")  # type: ignore[arg-type]
        assert bench.engine.workers(DEFAULT)[0].connected, "the end of the old socket does not touch the new session"
        assert len(worker.of("discovery")) == 2, "what was out at the old session is repeated"
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_an_older_connection_is_refused_and_the_newer_one_stays() -> None:
    async with Bench() as bench:
        worker = await bench.connected()
        worker.disconnect()
        await worker.connect()
        session_id = worker.session_id
        answer = await bench.engine.register(worker.frame(connection=1), Channel(worker))
        assert isinstance(answer, RegistrationRejected)
        assert answer.code == "replaced"
        assert bench.engine.workers(DEFAULT)[0].session_id == session_id
        assert not worker.errors


async def test_of_two_registrations_at_once_the_newer_connection_wins_whichever_is_decided_first() -> None:
    async with Bench() as bench:
        worker = bench.worker(release_id="r1")
        bench.memory.hold()
        slow = asyncio.ensure_future(bench.engine.register(worker.frame(connection=1, release_id="r2"), Channel(worker)))
        await bench.settle()
        newer = asyncio.ensure_future(bench.engine.register(worker.frame(connection=2, release_id="r2"), Channel(worker)))
        await bench.settle()
        bench.memory.release()
        answers = await asyncio.gather(slow, newer)
        assert isinstance(answers[1], Registered)
        views = bench.engine.workers(DEFAULT)
        assert [view.session_id for view in views] == [answers[1].session_id]
        assert len(bench.memory._releases) == 1


async def test_a_registration_overtaken_by_a_newer_connection_is_refused() -> None:
    async with Bench() as bench:
        worker = bench.worker()
        bench.memory.hold()
        slow = asyncio.ensure_future(bench.engine.register(worker.frame(connection=1, release_id="r1"), Channel(worker)))
        await bench.settle()
        newer = await bench.engine.register(worker.frame(connection=2), Channel(worker))
        assert isinstance(newer, Registered)
        bench.memory.release()
        refused = await slow
        assert isinstance(refused, RegistrationRejected)
        assert refused.code == "replaced"
        assert [view.session_id for view in bench.engine.workers(DEFAULT)] == [newer.session_id]
        assert not worker.errors


async def test_replicas_that_register_a_new_release_at_once_share_its_fate() -> None:
    async with Bench() as bench:
        bench.memory.hold()
        bench.memory.write_fault = "disk full"
        workers = [bench.worker(f"wk_{index}", release_id="r1") for index in range(3)]
        answers = [asyncio.ensure_future(worker.register()) for worker in workers]
        await bench.settle()
        bench.memory.release()
        for answer in await asyncio.gather(*answers):
            assert isinstance(answer, RegistrationRejected)
            assert answer.code == "unavailable"
        assert not bench.engine.releases(DEFAULT)
        assert not bench.engine.workers(DEFAULT)
        bench.memory.write_fault = None
        for answer in await asyncio.gather(*(worker.register() for worker in workers)):
            assert isinstance(answer, Registered)
        assert len(bench.memory._releases) == 1


async def test_registration_while_the_store_cannot_be_read_is_unavailable_and_works_after_it() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")))
        worker.holding("forward")
        run_id = await bench.begin()
        await bench.crash()
        await bench.engine.start()
        bench.engine._runs._live.clear()
        bench.memory.fault = "unplugged"
        answer = await worker.register()
        assert isinstance(answer, RegistrationRejected)
        assert answer.code == "unavailable"
        bench.memory.fault = None
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("REG-07")
async def test_a_reconnect_refreshes_functions_and_capacity_and_a_restart_forgets_connections() -> None:
    async with Bench() as bench:
        worker = await bench.serving(body(Step("a")), capacity=2)
        worker.holding("forward")
        run_id = await bench.begin()
        worker.disconnect()
        worker.functions = {**worker.functions, "g": body()}
        worker.capacity = 7
        await worker.connect()
        view = bench.engine.workers(DEFAULT)[0]
        assert (view.capacity, view.functions, view.in_flight) == (7, ("f", "g"), 1)
        await bench.restart()
        assert not bench.engine.workers(DEFAULT)
        assert (await bench.row(run_id)).status == "running"
        await worker.connect()
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("MAN-06", "REG-12")
async def test_no_word_of_a_worker_moves_a_head() -> None:
    async with Bench() as bench:
        await bench.publish()
        heads = (bench.engine.routing_head(DEFAULT), bench.engine.active_manifests(DEFAULT))
        worker = await bench.connected(functions={"f": body(), "extra": body()}, release_id="r1")
        worker.drain()
        worker.disconnect()
        await bench.advance(120_000)
        assert (bench.engine.routing_head(DEFAULT), bench.engine.active_manifests(DEFAULT)) == heads


async def test_a_lost_worker_is_listed_for_a_minute_and_then_forgotten() -> None:
    async with Bench() as bench:
        worker = await bench.connected()
        worker.disconnect("cable")
        await bench.advance(59_000)
        view = bench.engine.workers(DEFAULT)[0]
        assert (view.connected, view.last_failure) == (False, "cable")
        await bench.advance(2_000)
        assert not bench.engine.workers(DEFAULT)
        assert not bench.engine._fleet._runners


# blocked runs


BLOCK = DefinitionBlocked("duplicate_step_id", "a")  # type: ignore[arg-type]  # ids are text


@pytest.mark.req("BLK-08")
async def test_a_blocked_run_is_woken_by_a_newer_release_and_by_no_older_one() -> None:
    async with Bench() as bench:
        await bench.publish()
        (await bench.connected("wk_1", functions={"f": body()}, release_id="r1")).disconnect()
        newest = await bench.connected("wk_2", functions={"f": lambda _: BLOCK}, release_id="r2")
        run_id = await bench.begin()
        assert (await bench.row(run_id)).status == "definition_blocked"
        count = len(newest.invocations)
        unversioned = await bench.connected("wk_0", functions={"f": body()})
        older = await bench.connected("wk_1", functions={"f": body()}, release_id="r1")
        assert (len(newest.invocations), len(older.invocations), len(unversioned.invocations)) == (count, 0, 0)
        fixed = await bench.connected("wk_3", functions={"f": body(Step("a"))}, release_id="r3")
        assert await bench.ended(run_id) == ("succeeded", "not_required")
        assert len(fixed.of("forward")) == 1


async def test_a_blocked_run_that_left_the_memory_is_woken_too_and_a_fault_loses_no_wake() -> None:
    async with Bench() as bench:
        await bench.publish()
        await bench.connected("wk_2", functions={"f": lambda _: BLOCK}, release_id="r2")
        run_id = await bench.begin()
        await bench.restart()
        assert bench.engine._runs.get(run_id) is None
        fixed = bench.worker("wk_3", functions={"f": body(Step("a"))}, release_id="r3")
        await fixed.register()
        bench.memory.fault = "unplugged"
        await bench.settle()
        await bench.advance(3_000)
        bench.memory.fault = None
        await bench.advance(1_000)
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_a_pass_that_blocks_after_a_newer_release_came_is_repeated_at_once() -> None:
    async with Bench() as bench:
        await bench.publish()
        worker = await bench.connected("wk_2", functions={"f": lambda _: BLOCK}, release_id="r2")
        worker.holding("discovery")
        run_id = await bench.begin()
        await bench.connected("wk_3", functions={"f": body()}, release_id="r3")
        worker.release_all()
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


@pytest.mark.req("BLK-09", "BLK-11")
@pytest.mark.parametrize("restart", [False, True])
async def test_a_blocked_runs_code_is_probed_ever_more_seldom_and_a_mended_one_goes_on(restart: bool) -> None:
    async with Bench() as bench:
        await bench.publish()
        worker = await bench.connected(functions={"f": lambda _: BLOCK})
        run_id = await bench.begin()
        asked: list[int] = []
        for minute in range(1, 61):
            before = len(worker.invocations)
            await bench.advance(60_000)
            asked += [minute] * (len(worker.invocations) - before)
            if restart and minute == 20:
                await bench.restart()
                worker = await bench.connected(functions={"f": lambda _: BLOCK})
        gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
        assert gaps == sorted(gaps)
        assert (asked[0], gaps[-1]) == (1, 10)
        assert len(asked) <= 12
        blocker = (await bench.run(run_id)).blocker
        assert blocker is not None
        assert blocker.count == len(asked) + 1
        worker.functions = {"f": body()}
        await bench.advance(600_000)
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_an_operator_rediscovers_a_blocked_run() -> None:
    async with Bench() as bench:
        await bench.publish()
        worker = await bench.connected(functions={"f": lambda _: BLOCK})
        run_id = await bench.begin()
        worker.functions = {"f": body()}
        await bench.engine.rediscover(DEFAULT, run_id, by="tester")
        await bench.settle()
        assert await bench.ended(run_id) == ("succeeded", "not_required")


async def test_cancel_of_a_blocked_run_ends_it() -> None:
    async with Bench() as bench:
        await bench.publish()
        await bench.connected(functions={"f": lambda _: BLOCK})
        run_id = await bench.begin()
        await bench.cancel(run_id)
        assert await bench.ended(run_id) == ("cancelled", "not_required")
