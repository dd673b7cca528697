"""The control plane: events and their keys, publications and heads, fan-out."""

from __future__ import annotations

import asyncio

import pytest

from ryusen_protocol import manifests
from ryusen_protocol.ids import FunctionId, TriggerId, Workspace
from ryusen_protocol.manifest import FunctionDeclaration, TriggerDeclaration
from ryusen_protocol.problems import Problem
from ryusen_protocol.scope import Scope
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest
from ryusen_server.ports.store import EventWrite, FanOutWrite, StorageUnavailable
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import Step, body

# events


@pytest.mark.req("ING-01", "ING-04")
async def test_the_same_key_gives_one_event_in_a_row_and_at_once() -> None:
    async with Bench() as bench:
        await bench.serving(body(Step("a")))
        in_a_row = [await bench.submit(key="k") for _ in range(3)]
        at_once = await asyncio.gather(*(bench.submit(key="k") for _ in range(3)))
        assert len({accepted.event.event_id for accepted in (*in_a_row, *at_once)}) == 1
        assert [accepted.replayed for accepted in (*in_a_row, *at_once)] == [False] + [True] * 5
        await bench.settle()
        assert await bench.ended(await bench.only_run(in_a_row[0].event.event_id)) == ("succeeded", "not_required")
        assert bench.count("a") == 1
        assert not bench.engine._control._keys
        assert not bench.engine._control._submissions


async def test_first_submissions_of_one_key_at_once_give_one_event() -> None:
    async with Bench() as bench:
        await bench.serving(body(Step("a")))
        bench.memory.hold()
        sending = [asyncio.ensure_future(bench.submit(key="k")) for _ in range(5)]
        await bench.settle()
        assert not any(each.done() for each in sending)
        bench.memory.release()
        accepted = await asyncio.gather(*sending)
        assert len({each.event.event_id for each in accepted}) == 1
        assert sorted(each.replayed for each in accepted) == [False, True, True, True, True]


@pytest.mark.req("ING-01")
async def test_without_a_key_every_submission_is_an_event() -> None:
    async with Bench() as bench:
        first, second = await bench.submit(), await bench.submit()
        assert first.event.event_id != second.event.event_id
        assert not first.replayed
        assert not second.replayed


@pytest.mark.req("ING-05")
async def test_a_key_with_another_request_is_refused_and_changes_nothing() -> None:
    async with Bench() as bench:
        await bench.submit(key="k")
        units = len([unit for unit in bench.memory.units if unit.writes])
        for name, payload, metadata in (("go2", b"{}", {}), ("go", b"{ }", {}), ("go", b"{}", {"a": "b"})):
            refused = await bench.engine.submit_event(DEFAULT, name=name, payload=payload, metadata=metadata, key="k")
            assert isinstance(refused, Problem)
            assert refused.code == "idempotency_key_reused"
        assert len([unit for unit in bench.memory.units if unit.writes]) == units


@pytest.mark.req("ING-02")
async def test_the_same_key_in_another_workspace_is_another_event() -> None:
    async with Bench() as bench:
        first = await bench.submit(key="k")
        second = await bench.engine.submit_event(Workspace("other"), name="go", payload=b"{}", metadata={}, key="k")
        assert isinstance(second, AcceptedEvent)
        assert not second.replayed
        assert second.event.event_id != first.event.event_id


async def test_a_caller_that_goes_away_does_not_free_its_key_before_the_event_is_durable() -> None:
    async with Bench() as bench:
        bench.memory.hold()
        gone = asyncio.ensure_future(bench.submit(key="k"))
        await bench.settle()
        gone.cancel()
        again = asyncio.ensure_future(bench.submit(key="k"))
        await bench.settle()
        assert not again.done()
        bench.memory.release()
        assert (await again).replayed
        assert len(bench.memory._events) == 1


async def test_a_replay_shows_the_expansion_as_it_stands_now() -> None:
    async with Bench(fan_out_batch=1) as bench:
        await bench.publish([("go", "f")] * 3)
        first = await bench.submit(key="k")
        assert (first.event.matched, first.event.fan_out_next) == (3, 0)
        await bench.settle()
        assert (await bench.submit(key="k")).event.fan_out_next is None


@pytest.mark.req("ING-03")
async def test_event_key_routing_and_fan_out_obligation_are_one_unit() -> None:
    async with Bench() as bench:
        await bench.publish()
        bench.memory.hold()
        sending = asyncio.ensure_future(bench.submit(key="k"))
        await bench.settle()
        assert not sending.done()
        bench.memory.release()
        accepted = await sending
        unit = next(unit for unit in bench.memory.units if any(isinstance(write, EventWrite) for write in unit.writes))
        write = unit.writes[0]
        assert isinstance(write, EventWrite)
        assert write.key is not None
        assert write.event.routing_generation == bench.engine.routing_head(DEFAULT)
        assert write.event.fan_out_next == 0
        assert write.event.event_id == accepted.event.event_id


@pytest.mark.req("ING-08", "MAN-19")
async def test_an_event_before_the_first_manifest_never_gets_a_run() -> None:
    async with Bench() as bench:
        early = await bench.submit()
        assert (early.event.matched, early.event.fan_out_next) == (0, None)
        await bench.serving(body())
        late = await bench.submit()
        await bench.restart()
        await bench.advance(60_000)
        assert await bench.store.event_runs(early.event.event_id) == []
        assert early.event.routing_generation == manifests.initial_routing_generation(DEFAULT)
        assert len(await bench.store.event_runs(late.event.event_id)) == 1
        await bench.workers[0].connect()


@pytest.mark.req("ING-09")
@pytest.mark.parametrize("name", ["go2", "g", "Go", "go ", "go/f"])
async def test_an_event_name_matches_exactly(name: str) -> None:
    async with Bench() as bench:
        await bench.publish()
        assert (await bench.submit(name)).event.matched == 0


# fan-out


@pytest.mark.req("ING-06", "MAN-02")
async def test_an_event_starts_one_run_for_each_binding_of_each_application() -> None:
    async with Bench(fan_out_batch=3) as bench:
        await bench.publish([("go", "f")] * 4)
        await bench.publish([("go", "f")] * 3, application="depot")
        accepted = await bench.submit()
        await bench.settle()
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert sorted((row.application, row.trigger_id) for row in rows) == [
            *(("depot", f"f/go/{index}") for index in range(3)),
            *(("shop", f"f/go/{index}") for index in range(4)),
        ]
        sizes = [len(unit.writes) - 1 for unit in bench.memory.units if any(isinstance(write, FanOutWrite) for write in unit.writes)]
        assert sizes == [3, 3, 1]
        for row in rows:
            assert row.routing_generation == accepted.event.routing_generation
            assert row.manifest_generation is not None
        await bench.connected(functions={"f": body()})
        await bench.connected("wk_2", functions={"f": body()}, application="depot")


@pytest.mark.req("ING-06", "ING-11", "MAN-11")
@pytest.mark.parametrize("commits", range(7))
async def test_a_crash_between_any_two_batches_loses_no_run_and_doubles_none(commits: int) -> None:
    async with Bench(fan_out_batch=2) as bench:
        published = await bench.publish([("go", "f")] * 10)
        worker = await bench.connected(functions={"f": body(Step("a"))})
        accepted = await bench.submit()
        for _ in range(commits):
            await asyncio.sleep(0)
        await bench.crash()
        await bench.engine.start()
        await bench.publish([("other", "f")], parent=published.manifest.manifest_generation)
        await worker.connect()
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert len(rows) == 10
        assert {row.routing_generation for row in rows} == {accepted.event.routing_generation}
        for row in rows:
            assert await bench.ended(row.run_id) == ("succeeded", "not_required")
        assert bench.count("a") == 10
        assert (await bench.store.event(accepted.event.event_id)).fan_out_next is None


@pytest.mark.req("MAN-19")
async def test_an_expansion_under_way_goes_on_against_its_own_generation() -> None:
    async with Bench(fan_out_batch=1) as bench:
        published = await bench.publish([("go", "f")] * 12)
        accepted = await bench.submit()
        await bench.publish([("go", "g")], parent=published.manifest.manifest_generation)
        assert len(await bench.store.event_runs(accepted.event.event_id)) < 12, "the expansion is under way"
        await bench.settle()
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert [row.function for row in rows] == ["f"] * 12
        later = await bench.submit()
        await bench.settle()
        assert [row.function for row in await bench.store.event_runs(later.event.event_id)] == ["g"]


@pytest.mark.req("ING-08", "ING-11", "MAN-11")
async def test_an_expansion_that_a_restart_takes_up_goes_on_against_its_own_generation_whatever_is_active_by_then() -> None:
    async with Bench(fan_out_batch=1) as bench:
        published = await bench.publish([("go", "f")] * 12)
        accepted = await bench.submit()
        await bench.publish([("go", "g")], parent=published.manifest.manifest_generation)
        begun = await bench.store.event_runs(accepted.event.event_id)
        assert len(begun) < 12, "the expansion is under way, and the other generation is durable"
        await bench.restart()
        rows = await bench.store.event_runs(accepted.event.event_id)
        assert [row.function for row in rows] == ["f"] * 12
        assert {row.routing_generation for row in rows} == {accepted.event.routing_generation}
        assert {row.manifest_generation for row in rows} == {published.manifest.manifest_generation}


# publications


@pytest.mark.req("MAN-08")
async def test_an_identical_publication_returns_its_first_activation_in_a_row_at_once_and_later() -> None:
    async with Bench() as bench:
        first = await bench.publish()
        again = await asyncio.gather(*(bench.publish() for _ in range(3)))
        assert [each.replayed for each in (first, *again)] == [False, True, True, True]
        assert {each.manifest for each in again} == {first.manifest}
        newer = await bench.publish([("go", "g")], parent=first.manifest.manifest_generation)
        head = bench.engine.routing_head(DEFAULT)
        old = await bench.publish()
        assert (old.replayed, old.manifest) == (True, first.manifest)
        assert bench.engine.routing_head(DEFAULT) == head
        assert bench.engine.active_manifests(DEFAULT) == [newer.manifest]


async def test_first_publications_at_once_activate_once() -> None:
    async with Bench() as bench:
        bench.memory.hold()
        publishing = [asyncio.ensure_future(bench.publish()) for _ in range(3)]
        await bench.settle()
        bench.memory.release()
        published = await asyncio.gather(*publishing)
        assert sorted(each.replayed for each in published) == [False, True, True]


@pytest.mark.req("MAN-07")
async def test_of_two_publishers_on_one_parent_one_wins_and_the_other_is_told() -> None:
    async with Bench() as bench:
        base = await bench.publish()
        parent = base.manifest.manifest_generation
        results = await asyncio.gather(
            bench.try_publish([("go", "g")], parent=parent),
            bench.try_publish([("go", "h")], parent=parent),
        )
        won = [result for result in results if isinstance(result, ActivatedManifest)]
        lost = [result for result in results if isinstance(result, Problem)]
        assert (len(won), len(lost)) == (1, 1)
        assert lost[0].code == "parent_conflict"
        assert lost[0].active_generation == won[0].manifest.manifest_generation
        assert bench.engine.active_manifests(DEFAULT) == [won[0].manifest]


@pytest.mark.req("MAN-09")
async def test_publications_of_two_applications_at_once_both_succeed() -> None:
    async with Bench() as bench:
        await asyncio.gather(*(bench.publish(application=name) for name in ("a", "b", "c")))
        active = bench.engine.active_manifests(DEFAULT)
        assert [row.application for row in active] == ["a", "b", "c"]
        head = await bench.store.routing(DEFAULT, bench.engine.routing_head(DEFAULT))
        assert head.applications == {row.application: row.manifest_generation for row in active}
        parents = {row.routing_generation: row.expected_parent for row in await bench.store.routings(DEFAULT, before=None, limit=10)}
        assert len(set(parents.values())) == 3, "each built on the one before"


@pytest.mark.req("MAN-13")
@pytest.mark.parametrize(
    ("functions", "triggers"),
    [
        ([""], []),
        (["f", "f"], []),
        (["f"], [("", "go", "f")]),
        (["f"], [("t", "", "f")]),
        (["f"], [("t", "go", "other")]),
        (["f"], [("t", "go", "f"), ("t", "stop", "f")]),
    ],
)
async def test_a_publication_that_cannot_be_moves_no_head(functions: list[str], triggers: list[tuple[str, str, str]]) -> None:
    async with Bench() as bench:
        before = await bench.publish()
        publication = manifests.sdk_publication(
            [FunctionDeclaration(FunctionId(function)) for function in functions],
            [TriggerDeclaration(TriggerId(trigger), event, FunctionId(function)) for trigger, event, function in triggers],
            before.manifest.manifest_generation,
        )
        head = bench.engine.routing_head(DEFAULT)
        refused = await bench.engine.publish(Scope(DEFAULT, "shop"), publication)  # type: ignore[arg-type]  # ids are text
        assert isinstance(refused, Problem)
        assert refused.code == "invalid"
        assert bench.engine.routing_head(DEFAULT) == head
        assert (await bench.store.heads()).routing_heads == {DEFAULT: head}


async def test_a_timeout_above_the_policy_is_refused() -> None:
    async with Bench(max_run_timeout_ms=1_000) as bench:
        refused = await bench.try_publish(timeouts={"f": 1_001})
        assert isinstance(refused, Problem)
        await bench.publish(timeouts={"f": 1_000})


@pytest.mark.req("MAN-10", "MAN-03")
async def test_what_a_publication_leaves_out_is_gone_for_later_events() -> None:
    async with Bench() as bench:
        first = await bench.publish([("go", "f"), ("stop", "g")])
        assert (await bench.submit("stop")).event.matched == 1
        await bench.publish([("go", "f")], parent=first.manifest.manifest_generation)
        assert (await bench.submit("stop")).event.matched == 0
        assert await bench.store.manifest(DEFAULT, first.manifest.manifest_generation) == first.manifest


@pytest.mark.req("MAN-21")
async def test_heads_are_the_same_after_a_restart_and_work_with_no_worker() -> None:
    async with Bench() as bench:
        await bench.publish()
        await bench.publish(application="depot")
        heads = (bench.engine.routing_head(DEFAULT), bench.engine.active_manifests(DEFAULT))
        await bench.restart()
        assert (bench.engine.routing_head(DEFAULT), bench.engine.active_manifests(DEFAULT)) == heads
        accepted = await bench.submit()
        await bench.settle()
        assert len(await bench.store.event_runs(accepted.event.event_id)) == 2


async def test_a_failed_activation_takes_the_heads_back_and_is_acknowledged_to_nobody() -> None:
    async with Bench() as bench:
        first = await bench.publish()
        heads = (bench.engine.routing_head(DEFAULT), bench.engine.active_manifests(DEFAULT))
        parent = first.manifest.manifest_generation
        bench.memory.write_fault = "disk full"
        attempts = await asyncio.gather(
            bench.try_publish([("go", "g")], parent=parent),
            bench.try_publish([("go", "g")], parent=parent),
            bench.try_publish([("go", "g")], application="depot"),
            bench.submit(),
            return_exceptions=True,
        )
        assert all(isinstance(each, StorageUnavailable) for each in attempts), attempts
        assert (bench.engine.routing_head(DEFAULT), bench.engine.active_manifests(DEFAULT)) == heads
        bench.memory.write_fault = None
        assert not (await bench.publish([("go", "g")], parent=parent)).replayed
        assert (await bench.submit()).event.matched == 1


async def test_an_event_that_named_a_head_that_was_lost_is_lost_with_it() -> None:
    async with Bench() as bench:
        bench.memory.hold()
        publishing = asyncio.ensure_future(bench.try_publish())
        for _ in range(3):
            await asyncio.sleep(0)
        bench.memory.release()
        await bench.settle()
        assert isinstance(await publishing, ActivatedManifest)
        parent = bench.engine.active_manifests(DEFAULT)[0].manifest_generation
        bench.memory.hold()
        bench.memory.write_fault = "disk full"
        moving = asyncio.ensure_future(bench.try_publish([("go", "g")], parent=parent))
        await bench.settle()
        bench.memory.release()
        bench.memory.hold()
        sending = asyncio.ensure_future(bench.submit(key="k"))
        await bench.settle()
        bench.memory.release()
        failed = await asyncio.gather(moving, sending, return_exceptions=True)
        assert all(isinstance(each, StorageUnavailable) for each in failed), failed
        bench.memory.write_fault = None
        accepted = await bench.submit(key="k")
        await bench.settle()
        assert not accepted.replayed
        assert [row.function for row in await bench.store.event_runs(accepted.event.event_id)] == ["f"]
