"""What is old in both stores, and its removal."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ryusen_protocol.ids import AttemptId, RunId, StepId
from ryusen_server.core.decision import SettleParent
from ryusen_server.ports.changes import ChangePage
from ryusen_server.ports.retention import FamilyPage, PruneWrite, ReclaimWrite
from ryusen_server.ports.store import DischargeWrite, ObligationWrite, Store
from tests.store.builders import APPLICATION, WORKSPACE, accepts, attempt_row, begins, commit, ended, event_row, moves, prints, run_row
from tests.store.harness import Subject, opened

LATE = 10_000


async def end(
    store: Store, run_id: str, *, at_ms: int = 9_000, attempts: tuple[str, ...] = (), child: str | None = None, **members: str
) -> int:
    """A run that has ended, with its attempts and a child it invoked."""
    row = run_row(run_id, **members)
    rows = [attempt_row(name, run_id, state="succeeded") for name in attempts]
    queued = "".join(f',{{"kind":"attempt_queued","attempt_id":"{name}"}}' for name in attempts)
    invoked = "" if child is None else f',{{"kind":"child_invoked","child_run_id":"{child}"}}'
    position = await commit(store, begins(row, *rows, records=f'[{{"kind":"run_created"}}{queued}{invoked}]'.encode()))
    return await commit(store, moves(run_id, position, run=ended(row, ended_at_ms=at_ms)))


async def families(store: Store, before_ms: int = LATE) -> list[list[str]]:
    page = await store.old_families(WORKSPACE, before_ms=before_ms, after=None, limit=100)
    return [[run.run_id for run in family] for family in page.families]


async def test_only_what_ended_before_is_old_oldest_first_and_in_pages(subject: Subject) -> None:
    store = subject.store
    await end(store, "run_b", at_ms=2_000)
    await end(store, "run_a", at_ms=1_000)
    await end(store, "run_c", at_ms=5_000)
    await commit(store, begins(run_row("run_live")))
    assert await families(store) == [["run_a"], ["run_b"], ["run_c"]]
    assert await families(store, 5_000) == [["run_a"], ["run_b"]]
    first = await store.old_families(WORKSPACE, before_ms=LATE, after=None, limit=2)
    assert isinstance(first, FamilyPage)
    second = await store.old_families(WORKSPACE, before_ms=LATE, after=first.after, limit=2)
    assert [run.run_id for (run,) in second.families] == ["run_c"]
    assert second.after is None


async def test_a_family_is_old_when_all_of_it_is_and_owes_nothing(subject: Subject) -> None:
    store = subject.store
    await end(store, "run_top", child="run_child")
    child = run_row("run_child", parent_run_id="run_top", parent_step_id="s", event_id=None)
    position = await commit(store, begins(child, records=b'[{"kind":"run_created"}]'))
    assert await families(store) == []
    owed = SettleParent(RunId("run_child"), RunId("run_top"), StepId("s"))
    await commit(store, moves("run_child", position, run=ended(child, ended_at_ms=9_500)), ObligationWrite(owed, WORKSPACE, APPLICATION))
    assert await families(store) == []
    await commit(store, DischargeWrite(owed))
    assert await families(store, 9_400) == []
    assert await families(store) == [["run_top", "run_child"]]


async def test_a_removal_takes_everything_under_the_runs_and_nothing_else(subject: Subject) -> None:
    store = subject.store
    await commit(store, accepts(event_row("evt_1", fan_out_next=None), key="k"))
    await commit(store, accepts(event_row("evt_expanding")))
    gone = await end(store, "run_old", attempts=("att_1", "att_2"))
    stays = await commit(store, begins(run_row("run_new", event_id=None), attempt_row("att_3", "run_new")))
    await commit(store, prints("att_1", "run_old"))
    await commit(store, prints("att_3", "run_new"))
    events = await store.old_events(WORKSPACE, before_ms=LATE, after=None, limit=10)
    assert events.events == [], "its run is still there"

    (family,) = (await store.old_families(WORKSPACE, before_ms=LATE, after=None, limit=10)).families
    assert set(family[0].attempt_ids) == {"att_1", "att_2"}
    told = await commit(store, PruneWrite(WORKSPACE, 20_000, family, (), b'[{"kind":"pruned"}]'))
    (event,) = (await store.old_events(WORKSPACE, before_ms=LATE, after=None, limit=10)).events
    assert event.event_id == "evt_1"
    await commit(store, PruneWrite(WORKSPACE, 20_000, (), (event,), b'[{"kind":"pruned"}]'))

    assert await store.run(RunId("run_old")) is None
    assert await store.history(RunId("run_old")) == []
    assert await store.attempt(AttemptId("att_1")) is None
    assert await store.attempt_log(AttemptId("att_1")) is None
    assert await store.attempt_log(AttemptId("att_3")) is not None
    assert await store.event(event.event_id) is None
    assert await store.event_key(WORKSPACE, "k") is not None
    assert await store.run(RunId("run_new")) is not None
    assert await store.attempt(AttemptId("att_3")) is not None
    assert await store.changes(WORKSPACE, after=gone - 1) == "pruned"
    page = await store.changes(WORKSPACE, after=gone)
    assert isinstance(page, ChangePage)
    assert [row.position for row in page.rows][:2] == [stays, told]


async def test_positions_go_on_where_they_were_after_everything_is_gone(db: Path) -> None:
    async with opened(db) as store:
        last = await end(store, "run_1")
        (family,) = (await store.old_families(WORKSPACE, before_ms=LATE, after=None, limit=10)).families
        told = await commit(store, PruneWrite(WORKSPACE, 20_000, family, (), b'[{"kind":"pruned"}]'))
        assert told > last
    async with opened(db) as store:
        assert await commit(store, begins(run_row("run_2"))) > told
        assert await store.changes(WORKSPACE, after=last - 1) == "pruned"


async def test_free_pages_are_cut_off_a_few_a_commit(db: Path) -> None:
    async with opened(db) as store:
        assert sqlite3.connect(db).execute("PRAGMA auto_vacuum").fetchone() == (2,)
        for number in range(10):
            await commit(store, accepts(event_row(f"evt_{number}", payload=b"x" * 100_000, fan_out_next=None)))
        events = (await store.old_events(WORKSPACE, before_ms=LATE, after=None, limit=100)).events
        await commit(store, PruneWrite(WORKSPACE, 20_000, (), tuple(events), b"[]"))
        before = await store.space()
        assert before.free_pages > 200
        await commit(store, ReclaimWrite(50))
        after = await store.space()
        assert before.free_pages - after.free_pages >= 50
        assert before.bytes - after.bytes >= 50 * 4096
        await commit(store, ReclaimWrite(100_000))
        assert (await store.space()).free_pages == 0
    connection = sqlite3.connect(db)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("name", ["old_families", "old_events"])
async def test_a_page_of_a_live_store_ends(subject: Subject, name: str) -> None:
    page = await getattr(subject.store, name)(WORKSPACE, before_ms=LATE, after=None, limit=1)
    assert page.after is None
