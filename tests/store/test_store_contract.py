"""What every store promises the engine, over each adapter."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ryusen_protocol.ids import Application, AttemptId, EventId, FunctionId, ManifestGeneration, RoutingGeneration, RunId, Workspace
from ryusen_server.core.rows import WAKE_NOW, HistoryRow, OperatorCommandRow
from ryusen_server.ports.store import Counts, FanOutWrite, Heads, OperatorWrite, RunFilter, StorageUnavailable, Store, Unit, WakeRow
from ryusen_server.store.memory import Inconsistent, MemoryStore
from tests.store.builders import (
    APPLICATION,
    WORKSPACE,
    accepts,
    activates,
    attempt_row,
    begins,
    commit,
    ended,
    event_row,
    moves,
    registers,
    run_row,
    submit,
)
from tests.store.harness import Subject


async def test_an_empty_store_answers_every_read(store: Store) -> None:
    assert await store.heads() == Heads({}, [], [])
    assert await store.counts() == Counts(0, 0, 0, 0)
    assert await store.run(RunId("run_1")) is None
    assert await store.attempt(AttemptId("att_1")) is None
    assert await store.event(EventId("evt_1")) is None
    assert await store.event_key(WORKSPACE, "k") is None
    assert await store.manifest(WORKSPACE, ManifestGeneration("m")) is None
    assert await store.routing(WORKSPACE, RoutingGeneration("r")) is None
    assert await store.history(RunId("run_1")) == []
    assert await store.runs(WORKSPACE, RunFilter(), before=None, limit=10) == []
    assert await store.attempts(WORKSPACE, state=None, after=None, limit=10) == []
    assert await store.events(WORKSPACE, name=None, before=None, limit=10) == []
    assert await store.event_runs(EventId("evt_1")) == []
    assert await store.routings(WORKSPACE, before=None, limit=10) == []
    assert await store.wakes(until_ms=2**62, after=None, limit=10) == []
    assert await store.authorized_runs() == []
    assert await store.pending_fan_outs(after=None, limit=10) == []
    assert await store.blocked_runs(WORKSPACE, APPLICATION, [FunctionId("fulfil")]) == []


@pytest.mark.req("STO-06")
async def test_a_run_moves_with_its_history_and_attempts_in_one_unit(store: Store) -> None:
    run = run_row("run_1")
    queued = attempt_row("att_1", "run_1")
    first = await commit(store, begins(run, queued, records=b'[{"n":1}]'))
    authorized = msgspec.structs.replace(queued, state="authorized", request_id="req_1", authorized_at_ms=1_500)
    second = await commit(store, moves("run_1", first, authorized, records=b'[{"n":2}]'))
    over = ended(run, steps_declared=1)
    settled = msgspec.structs.replace(authorized, state="succeeded", settled_at_ms=1_900)
    third = await commit(store, moves("run_1", second, settled, run=over, records=b'[{"n":3}]'))

    assert first < second < third
    assert await store.history(RunId("run_1")) == [
        HistoryRow(first, 1_000, b'[{"n":1}]'),
        HistoryRow(second, 2_000, b'[{"n":2}]'),
        HistoryRow(third, 2_000, b'[{"n":3}]'),
    ]
    assert [row.position for row in await store.history(RunId("run_1"), after=first, limit=1)] == [second]
    assert await store.run(RunId("run_1")) == over
    assert await store.attempt(AttemptId("att_1")) == settled


async def test_rows_of_one_commit_keep_only_the_last_but_history_keeps_all(store: Store) -> None:
    run = run_row("run_1")
    attempt = attempt_row("att_1", "run_1")
    first, _ = submit(store, begins(run, attempt))
    second, _ = submit(store, moves("run_1", first, msgspec.structs.replace(attempt, state="authorized")))
    over = ended(run)
    third, told = submit(store, moves("run_1", second, msgspec.structs.replace(attempt, state="failed"), run=over))
    assert await told is None
    assert [row.position for row in await store.history(RunId("run_1"))] == [first, second, third]
    assert await store.run(RunId("run_1")) == over
    stored = await store.attempt(AttemptId("att_1"))
    assert stored is not None
    assert stored.state == "failed"


async def test_each_write_of_a_unit_has_its_own_position_below_the_returned_one(store: Store) -> None:
    await commit(store, accepts(event_row("evt_1")))
    runs = [run_row(f"run_{number}") for number in range(5)]
    last = await commit(store, *(begins(run) for run in runs), FanOutWrite(EventId("evt_1"), None))
    for number, run in enumerate(runs):
        assert [row.position for row in await store.history(run.run_id)] == [last - 5 + number]
    after = await commit(store, moves("run_0", last))
    assert after > last


async def test_an_operator_command_comes_back_under_its_key_and_workspace(store: Store) -> None:
    row = OperatorCommandRow(WORKSPACE, "k", "print", AttemptId("att_1"), 5, b'{"version":1}')
    await commit(store, OperatorWrite(row))
    assert await store.operator_command(WORKSPACE, "k") == row
    assert await store.operator_command(Workspace("other"), "k") is None
    assert await store.operator_command(WORKSPACE, "l") is None


async def test_an_event_comes_back_as_it_was_with_its_key(store: Store) -> None:
    event = event_row("evt_1", payload=b"\x00\xffraw")
    event = msgspec.structs.replace(event, position=await commit(store, accepts(event, key="k")))
    assert await store.event(EventId("evt_1")) == event
    key = await store.event_key(WORKSPACE, "k")
    assert key is not None
    assert (key.event_id, key.fingerprint) == ("evt_1", "print of k")
    assert await store.event_key(Workspace("other"), "k") is None
    assert await store.events(WORKSPACE, name=None, before=None, limit=9) == [msgspec.structs.replace(event, payload=b"")]


@pytest.mark.req("STO-02")
async def test_an_expansion_is_pending_until_it_is_complete(store: Store) -> None:
    for number in (3, 1, 2):
        await commit(store, accepts(event_row(f"evt_{number}", fan_out_next=None if number == 2 else 0)))
    assert await store.pending_fan_outs(after=None, limit=10) == ["evt_1", "evt_3"]
    assert await store.pending_fan_outs(after=None, limit=1) == ["evt_1"]
    assert await store.pending_fan_outs(after=EventId("evt_1"), limit=10) == ["evt_3"]
    await commit(store, begins(run_row("run_1")), FanOutWrite(EventId("evt_1"), 64))
    assert await store.pending_fan_outs(after=None, limit=10) == ["evt_1", "evt_3"]
    await commit(store, FanOutWrite(EventId("evt_1"), None))
    assert await store.pending_fan_outs(after=None, limit=10) == ["evt_3"]
    stored = await store.event(EventId("evt_1"))
    assert stored is not None
    assert stored.fan_out_next is None


async def test_wakes_come_by_instant_in_windows(store: Store) -> None:
    await commit(
        store,
        begins(run_row("run_b", wake_at_ms=500)),
        begins(run_row("run_a", wake_at_ms=500)),
        begins(run_row("run_c", wake_at_ms=WAKE_NOW)),
        begins(run_row("run_d", wake_at_ms=None)),
        begins(run_row("run_e", wake_at_ms=501)),
    )
    expected = [WakeRow(RunId("run_c"), 0), WakeRow(RunId("run_a"), 500), WakeRow(RunId("run_b"), 500)]
    assert await store.wakes(until_ms=500, after=None, limit=10) == expected
    page = await store.wakes(until_ms=500, after=None, limit=2)
    assert page == expected[:2]
    assert await store.wakes(until_ms=500, after=page[-1], limit=2) == expected[2:]
    assert await store.wakes(until_ms=500, after=expected[-1], limit=2) == []


async def test_authorized_and_blocked_runs_are_found(store: Store) -> None:
    await commit(
        store,
        begins(run_row("run_1"), attempt_row("att_1", "run_1", state="authorized"), attempt_row("att_2", "run_1", state="authorized")),
        begins(run_row("run_2"), attempt_row("att_3", "run_2", state="unknown")),
        begins(run_row("run_3", status="definition_blocked")),
        begins(run_row("run_4", status="definition_blocked", function=FunctionId("other"))),
        begins(run_row("run_5", status="definition_blocked", application=Application("elsewhere"))),
    )
    assert await store.authorized_runs() == ["run_1"]
    assert await store.blocked_runs(WORKSPACE, APPLICATION, [FunctionId("fulfil")]) == ["run_3"]
    assert sorted(await store.blocked_runs(WORKSPACE, APPLICATION, [FunctionId("fulfil"), FunctionId("other")])) == ["run_3", "run_4"]
    assert await store.blocked_runs(WORKSPACE, APPLICATION, []) == []
    assert (await store.counts()).attempts_unknown == 1


FILTERS = [
    (RunFilter(), "7654321"),
    (RunFilter(status="running"), "651"),
    (RunFilter(status="ended"), "7432"),
    (RunFilter(outcome="succeeded"), "72"),
    (RunFilter(outcome="failed"), "43"),
    (RunFilter(recovery="not_required"), "732"),
    (RunFilter(recovery="compensation_failed"), "4"),
    (RunFilter(function=FunctionId("refund")), "65"),
    (RunFilter(application=Application("billing")), "6"),
    (RunFilter(event_id=EventId("evt_2")), "52"),
    (RunFilter(attention="unknown"), "1"),
    (RunFilter(q="run_3"), "3"),
    (RunFilter(q="ref"), "65"),
    (RunFilter(q="run_"), "7654321"),
    (RunFilter(q="un_"), ""),
    (RunFilter(q=""), "7654321"),
    (RunFilter(q="%"), ""),
    (RunFilter(status="running", function=FunctionId("refund"), application=Application("orders")), "5"),
    (RunFilter(outcome="failed", recovery="not_required", status="ended", q="run_"), "3"),
    (RunFilter(event_id=EventId("evt_2"), function=FunctionId("refund"), q="refund"), "5"),
    (RunFilter(status="stopping"), ""),
]


@pytest.mark.parametrize(("where", "numbers"), FILTERS)
async def test_runs_are_listed_newest_first_by_every_filter(store: Store, where: RunFilter, numbers: str) -> None:
    refund = FunctionId("refund")
    await commit(
        store,
        begins(run_row("run_1", created_at_ms=1, attention="unknown")),
        begins(ended(run_row("run_2", created_at_ms=2, event_id=EventId("evt_2")))),
        begins(ended(run_row("run_3", created_at_ms=3), outcome="failed")),
        begins(ended(run_row("run_4", created_at_ms=4), outcome="failed", recovery="compensation_failed")),
        begins(run_row("run_5", created_at_ms=5, function=refund, event_id=EventId("evt_2"))),
        begins(run_row("run_6", created_at_ms=6, function=refund, application=Application("billing"))),
        begins(ended(run_row("run_7", created_at_ms=6))),
        begins(run_row("run_8", workspace=Workspace("other"), function=refund, event_id=EventId("evt_2"), attention="unknown")),
    )
    expected = [f"run_{number}" for number in numbers]
    listed = await store.runs(WORKSPACE, where, before=None, limit=100)
    assert [run.run_id for run in listed] == expected
    paged: list[str] = []
    before = None
    while page := await store.runs(WORKSPACE, where, before=before, limit=1):
        paged += [run.run_id for run in page]
        before = (page[-1].created_at_ms, page[-1].run_id)
    assert paged == expected


@pytest.mark.parametrize(
    ("state", "numbers"), [(None, "12345"), ("unknown", "24"), ("authorized", "1"), ("queued", "3"), ("failed", "5"), ("x", "")]
)
async def test_attempts_are_listed_oldest_first_by_state(store: Store, state: str | None, numbers: str) -> None:
    states = {"att_4": "unknown", "att_1": "authorized", "att_2": "unknown", "att_5": "failed", "att_3": "queued"}
    await commit(
        store, *(begins(run_row(f"run_{a}"), attempt_row(a, f"run_{a}", state=s, queued_at_ms=int(a[-1]) // 2)) for a, s in states.items())
    )
    expected = [f"att_{number}" for number in numbers]
    assert [a.attempt_id for a in await store.attempts(WORKSPACE, state=state, after=None, limit=10)] == expected
    paged: list[str] = []
    after = None
    while page := await store.attempts(WORKSPACE, state=state, after=after, limit=1):
        paged += [attempt.attempt_id for attempt in page]
        after = (page[-1].queued_at_ms, page[-1].attempt_id)
    assert paged == expected
    assert await store.attempts(Workspace("other"), state=state, after=None, limit=10) == []


async def test_a_run_that_changes_moves_between_the_lists(store: Store) -> None:
    async def found(where: RunFilter) -> bool:
        return bool(await store.runs(WORKSPACE, where, before=None, limit=9))

    run = run_row("run_1", wake_at_ms=None)
    position = await commit(store, begins(run))
    changes: list[tuple[dict[str, object], RunFilter | None]] = [
        ({"status": "definition_blocked", "attention": "blocked"}, RunFilter(attention="blocked")),
        ({"status": "running", "attention": None, "wake_at_ms": 70}, None),
        ({"steps_declared": 2, "unwind_pending": 1}, RunFilter(status="running")),
        ({"status": "stopping", "stop_reason": "cancelled"}, RunFilter(status="stopping")),
        ({"status": "compensating", "outcome": "cancelled", "wake_at_ms": 0}, RunFilter(outcome="cancelled")),
        ({"status": "ended", "recovery": "compensation_failed", "wake_at_ms": None}, RunFilter(recovery="compensation_failed")),
    ]
    for change, where in changes:
        run = msgspec.structs.replace(run, **change)
        position = await commit(store, moves("run_1", position, run=run))
        assert await store.run(RunId("run_1")) == run
        assert where is None or await found(where)
        assert await found(RunFilter(attention="blocked")) == (run.attention == "blocked")
        assert await found(RunFilter(status="running")) == (run.status == "running")
        assert bool(await store.blocked_runs(WORKSPACE, APPLICATION, [run.function])) == (run.status == "definition_blocked")
        wakes = await store.wakes(until_ms=100, after=None, limit=9)
        assert [wake.wake_at_ms for wake in wakes] == ([] if run.wake_at_ms is None else [run.wake_at_ms])


async def test_an_attempt_that_settles_leaves_the_open_ones(store: Store) -> None:
    attempt = attempt_row("att_1", "run_1", state="authorized")
    position = await commit(store, begins(run_row("run_1"), attempt))
    await commit(store, moves("run_1", position, msgspec.structs.replace(attempt, state="succeeded")))
    assert await store.authorized_runs() == []
    assert await store.attempts(WORKSPACE, state="authorized", after=None, limit=9) == []


async def test_events_are_listed_newest_first_by_name(store: Store) -> None:
    for number, name in enumerate(["a", "b", "a", "a"]):
        await commit(store, accepts(event_row(f"evt_{number}", name=name, received_at_ms=number // 2)))
    assert [e.event_id for e in await store.events(WORKSPACE, name=None, before=None, limit=10)] == ["evt_3", "evt_2", "evt_1", "evt_0"]
    page = await store.events(WORKSPACE, name="a", before=None, limit=2)
    assert [e.event_id for e in page] == ["evt_3", "evt_2"]
    rest = await store.events(WORKSPACE, name="a", before=(page[-1].received_at_ms, page[-1].event_id), limit=2)
    assert [e.event_id for e in rest] == ["evt_0"]


async def test_the_runs_of_an_event_are_all_listed(store: Store) -> None:
    await commit(store, begins(run_row("run_2", created_at_ms=1)), begins(run_row("run_1", created_at_ms=2)))
    await commit(store, begins(run_row("run_3", event_id=None)))
    assert [run.run_id for run in await store.event_runs(EventId("evt_1"))] == ["run_2", "run_1"]


async def test_a_manifest_moves_both_heads_and_old_generations_stay_readable(store: Store) -> None:
    first = await commit(store, activates(1))
    await commit(store, activates(1, application="billing", others={"orders": "man_orders_1"}))
    third = await commit(store, activates(2, parent=1, others={"billing": "man_billing_1"}))
    heads = await store.heads()
    assert heads.routing_heads == {WORKSPACE: "rtg_orders_2"}
    assert [manifest.manifest_generation for manifest in heads.manifests] == ["man_billing_1", "man_orders_2"]
    assert heads.manifests[0] == activates(1, application="billing").manifest
    assert await store.manifest(WORKSPACE, ManifestGeneration("man_orders_1")) == activates(1).manifest
    oldest = await store.routing(WORKSPACE, RoutingGeneration("rtg_orders_1"))
    assert oldest == msgspec.structs.replace(activates(1).routing, position=first)
    newest, middle = await store.routings(WORKSPACE, before=None, limit=2)
    assert (newest.position, newest.applications) == (third, {"billing": "man_billing_1", "orders": "man_orders_2"})
    assert await store.routings(WORKSPACE, before=middle.position, limit=2) == [oldest]


async def test_releases_are_ordered_by_their_first_commit(store: Store) -> None:
    positions = [await commit(store, registers(release)) for release in ("zebra", "apple", "mango")]
    heads = await store.heads()
    assert [(release.release_id, release.position) for release in heads.releases] == list(
        zip(("zebra", "apple", "mango"), positions, strict=True)
    )


async def test_counts_follow_what_is_stored(store: Store) -> None:
    await commit(store, accepts(event_row("evt_1")), begins(run_row("run_1")), begins(ended(run_row("run_2"))))
    assert await store.counts() == Counts(events=1, runs=2, runs_live=1, attempts_unknown=0)
    assert await store.counts([WORKSPACE]) == await store.counts([WORKSPACE, Workspace("other")]) == await store.counts()
    assert await store.counts([Workspace("other")]) == await store.counts([]) == Counts(0, 0, 0, 0)


async def test_done_is_called_later_in_order_and_once(store: Store) -> None:
    told: list[tuple[int, bool]] = []
    for number in range(40):
        run = run_row(f"run_{number}")
        store.submit(Unit((begins(run),), rides=number % 3 == 0), lambda failure, n=number: told.append((n, failure is None)))
    assert told == []
    await store.flush()
    assert told == [(number, True) for number in range(40)]


async def test_flush_waits_for_what_rides(store: Store) -> None:
    _, told = submit(store, begins(run_row("run_1")), rides=True)
    await store.flush()
    assert told.done()
    assert await store.run(RunId("run_1")) is not None


async def test_flush_with_nothing_to_do_returns(store: Store) -> None:
    await store.flush()


async def test_a_failure_takes_along_what_was_submitted_behind_it_and_then_the_store_goes_on(subject: Subject) -> None:
    store = subject.store
    position = await commit(store, begins(run_row("run_1")))
    subject.break_()
    order: list[str] = []
    behind: list[asyncio.Future[StorageUnavailable | None]] = []

    def first_failed(failure: StorageUnavailable | None) -> None:
        order.append("first")
        assert failure is not None
        assert failure.reason
        # Decided before the loop has heard of the second failure: it goes the same way, although the fault is over.
        subject.mend()
        behind.append(submit(store, begins(run_row("run_4")))[1])

    store.submit(Unit((moves("run_1", position, run=ended(run_row("run_1"))),)), first_failed)
    store.submit(Unit((begins(run_row("run_3")),)), lambda _: order.append("second"))
    await store.flush()
    assert order == ["first", "second"]
    assert await behind[0] is not None

    assert await store.run(RunId("run_1")) == run_row("run_1")
    assert await store.run(RunId("run_3")) is None
    assert await store.run(RunId("run_4")) is None
    assert [row.position for row in await store.history(RunId("run_1"))] == [position]
    later = await commit(store, moves("run_1", position), begins(run_row("run_3")))
    assert later > position
    assert await store.run(RunId("run_3")) is not None


async def test_a_unit_is_atomic(subject: Subject) -> None:
    store = subject.store
    subject.break_()
    with pytest.raises(StorageUnavailable):
        await commit(store, accepts(event_row("evt_1"), key="k"), begins(run_row("run_1"), attempt_row("att_1", "run_1")))
    subject.mend()
    assert await store.event(EventId("evt_1")) is None
    assert await store.event_key(WORKSPACE, "k") is None
    assert await store.attempt(AttemptId("att_1")) is None
    assert await store.history(RunId("run_1")) == []


async def test_the_memory_store_refuses_a_decision_on_a_position_left_behind() -> None:
    store = MemoryStore()
    first = await commit(store, begins(run_row("run_1")))
    second, _ = submit(store, moves("run_1", first))
    with pytest.raises(Inconsistent, match="run_1"):
        submit(store, moves("run_1", first))
    with pytest.raises(Inconsistent):
        submit(store, begins(run_row("run_1")))
    with pytest.raises(Inconsistent):
        submit(store, moves("run_2", second))
    assert await commit(store, moves("run_1", second)) > second


async def test_several_histories_are_read_at_once(store: Store) -> None:
    last = await commit(store, begins(run_row("run_b")), begins(run_row("run_a")))
    await commit(store, moves("run_a", last))
    ids = [RunId("run_a"), RunId("run_none"), RunId("run_b"), RunId("run_a")]
    assert await store.histories(ids) == {run_id: await store.history(run_id) for run_id in (RunId("run_a"), RunId("run_b"))}
