"""The change stream's side of both stores: commits as they happen, and pages of what committed before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ryusen_protocol.ids import Workspace
from ryusen_server.ports.changes import ChangePage, ChangeRow
from ryusen_server.ports.commits import changes_of
from ryusen_server.ports.store import StorageUnavailable, Store, Unit
from ryusen_server.store.sqlite import changes as sqlite_changes
from tests.store.builders import WORKSPACE, accepts, activates, begins, commit, event_row, moves, registers, run_row
from tests.store.harness import Subject, opened

OTHER = Workspace("other")


async def fill(store: Store) -> None:
    """One change of every kind, and one of another workspace between them."""
    await commit(store, activates(1))
    await commit(store, registers("r1"))
    await commit(store, accepts(event_row("evt_1"), key="k"))
    await commit(store, accepts(event_row("evt_2", workspace=OTHER)))
    position = await commit(store, begins(run_row("run_1")), begins(run_row("run_2")))
    await commit(store, moves("run_2", position))


async def page(store: Store, after: int, workspace: Workspace = WORKSPACE) -> ChangePage:
    found = await store.changes(workspace, after=after)
    assert isinstance(found, ChangePage)
    return found


async def test_what_is_told_is_what_is_read_again(subject: Subject) -> None:
    store = subject.store
    told: list[tuple[Workspace, ChangeRow]] = []

    def watch(commits: Sequence[tuple[Unit, int]]) -> None:
        told.extend(change for unit, last_position in commits for change in changes_of(unit, last_position))

    store.watch(watch)
    await fill(store)
    store.watch(None)
    await commit(store, accepts(event_row("evt_3")))

    assert [msgspec.json.decode(row.records)[0]["kind"] for _, row in told] == [
        "manifest_activated", "release_seen", "event_accepted", "event_accepted", "run_created", "run_created", "moved",
    ]  # fmt: skip
    read = await page(store, 0)
    assert read.complete
    assert read.rows[:-1] == [row for workspace, row in told if workspace == WORKSPACE]
    assert (await page(store, 0, OTHER)).rows == [row for workspace, row in told if workspace == OTHER]
    positions = [row.position for row in read.rows]
    assert positions == sorted(set(positions))
    assert await store.position() == positions[-1] == read.until


async def test_a_page_begins_behind_a_position_and_none_is_beyond_the_last(subject: Subject) -> None:
    store = subject.store
    assert await store.position() == 0
    assert (await page(store, 0)).rows == []
    await fill(store)
    everything = (await page(store, 0)).rows
    for index, row in enumerate(everything):
        assert (await page(store, row.position)).rows == everything[index + 1 :]
    last = await store.position()
    assert (await page(store, last)) == ChangePage([], last, complete=True)
    assert await store.changes(WORKSPACE, after=last + 1) == "unknown_position"


async def test_a_commit_that_fails_is_not_told(subject: Subject) -> None:
    told: list[object] = []
    subject.store.watch(told.append)
    subject.break_()
    with pytest.raises(StorageUnavailable):
        await commit(subject.store, accepts(event_row("evt_1")))
    assert told == []


async def test_pages_are_bounded_and_together_they_are_everything(db: Path) -> None:
    async with opened(db) as store:
        position = await commit(store, begins(run_row("run_1")))
        for size in (10, 900_000, 900_000, 900_000, 3_000_000, 10, 10):
            position = await commit(store, moves("run_1", position, records=b'[{"kind":"moved","text":"%b"}]' % (b"x" * size)))
        after, found, pages = 0, list[ChangeRow](), 0
        while True:
            read = await page(store, after)
            assert sum(len(row.records) for row in read.rows) <= sqlite_changes.PAGE_BYTES_MAX or len(read.rows) == 1
            found += read.rows
            after, pages = read.until, pages + 1
            if read.complete:
                break
        assert pages >= 4
        assert [row.position for row in found] == [row.position for row in await store.history(run_row("run_1").run_id)]


async def test_a_page_of_a_quiet_workspace_walks_on_over_the_others(db: Path) -> None:
    async with opened(db) as store:
        count = sqlite_changes.PAGE_ROWS_MAX + 5
        await commit(store, *(accepts(event_row(f"evt_{number}", workspace=OTHER)) for number in range(count)))
        await commit(store, accepts(event_row("ours")))
        first = await page(store, 0)
        assert first.rows == []
        assert not first.complete
        second = await page(store, first.until)
        assert [row.position for row in second.rows] == [await store.position()]
        assert second.complete
