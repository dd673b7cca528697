"""What the store promises about waits, what one run owes another, and an Unknown that is shown further up, over each adapter."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ryusen_protocol.ids import EventId, RunId, StepId, Workspace
from ryusen_server.core.correlation import digest_of, is_match, shape_of
from ryusen_server.core.decision import Obligation, SettleParent, StopChild
from ryusen_server.core.rows import WaitRow
from ryusen_server.ports.store import DischargeWrite, FanOutWrite, ObligationWrite, RunFilter, RunWrite, Store, WaitedName
from tests.store.builders import APPLICATION, WORKSPACE, accepts, begins, commit, ended, event_row, moves, run_row
from tests.store.harness import opened

APPROVED = "order/approved"


def wait_row(run_id: str, correlation: dict[str, str], *, event_name: str = APPROVED, workspace: Workspace = WORKSPACE) -> WaitRow:
    shape = shape_of(correlation)
    digest = digest_of(shape, correlation)
    assert digest is not None
    return WaitRow(RunId(run_id), workspace, APPLICATION, event_name, shape, digest, StepId("ok"), timeout_at_ms=9_000)


async def waits(store: Store, run_id: str, correlation: dict[str, str], **changes: str) -> int:
    """A run that begins with a registered wait; the position of its registration."""
    wait = msgspec.structs.replace(wait_row(run_id, correlation), **changes)
    return await commit(store, msgspec.structs.replace(begins(run_row(run_id)), wait=wait))


def owes(obligation: Obligation) -> ObligationWrite:
    return ObligationWrite(obligation, WORKSPACE, APPLICATION)


async def matched(store: Store, metadata: dict[str, str], *, before: int = 2**60, name: str = APPROVED) -> list[str]:
    return [row.run_id for row in await store.matching_waits(WORKSPACE, name, metadata, before=before, after=None, limit=100)]


@pytest.mark.req("EVW-02")
async def test_a_wait_is_found_by_every_event_that_carries_all_its_pairs(store: Store) -> None:
    await waits(store, "any", {})
    await waits(store, "order_7", {"order": "7"})
    await waits(store, "order_8", {"order": "8"})
    await waits(store, "both", {"order": "7", "by": "ann"})
    await waits(store, "by", {"by": "ann"})
    await waits(store, "other_name", {"order": "7"}, event_name="order/refused")
    await waits(store, "other_workspace", {"order": "7"}, workspace="other")

    assert await matched(store, {}) == ["any"]
    assert set(await matched(store, {"order": "7"})) == {"any", "order_7"}
    assert set(await matched(store, {"order": "7", "by": "ann", "more": "x"})) == {"any", "order_7", "both", "by"}
    assert set(await matched(store, {"order": "7", "by": "bob"})) == {"any", "order_7"}
    assert await matched(store, {"order": "9"}) == ["any"]
    assert await matched(store, {"order": "7"}, name="order/refused") == ["other_name"]
    assert await store.waited_names() == [
        WaitedName(WORKSPACE, APPROVED, 5),
        WaitedName(WORKSPACE, "order/refused", 1),
        WaitedName(Workspace("other"), APPROVED, 1),
    ]


@pytest.mark.req("EVW-03")
async def test_only_waits_registered_before_a_position_are_found_and_in_pages(store: Store) -> None:
    positions = [await waits(store, f"run_{number}", {"order": "7"} if number % 2 else {}) for number in range(6)]
    assert set(await matched(store, {"order": "7"}, before=positions[3])) == {"run_0", "run_1", "run_2"}
    seen: list[str] = []
    after: WaitRow | None = None
    while page := await store.matching_waits(WORKSPACE, APPROVED, {"order": "7"}, before=2**60, after=after, limit=2):
        assert [row.position for row in page] == [positions[int(row.run_id[-1])] for row in page]
        seen += [row.run_id for row in page]
        after = page[-1]
    assert seen == ["run_1", "run_3", "run_5", "run_0", "run_2", "run_4"]


@pytest.mark.req("EVW-05")
async def test_a_wait_lasts_until_its_run_says_that_it_is_over(store: Store) -> None:
    position = await waits(store, "run_1", {"order": "7"})
    assert await store.wait(RunId("run_1")) == msgspec.structs.replace(wait_row("run_1", {"order": "7"}), position=position)
    position = await commit(store, moves("run_1", position))
    assert await matched(store, {"order": "7"}) == ["run_1"]
    over = msgspec.structs.replace(moves("run_1", position, run=ended(run_row("run_1"))), wait_over=True)
    position = await commit(store, over)
    assert await matched(store, {"order": "7"}) == []
    assert await store.wait(RunId("run_1")) is None
    assert await store.waited_names() == []


async def test_a_wait_that_begins_and_ends_in_one_commit_leaves_nothing(store: Store) -> None:
    registers = msgspec.structs.replace(begins(run_row("run_1")), wait=wait_row("run_1", {}))
    over: RunWrite = msgspec.structs.replace(moves("run_1", 1), wait_over=True)
    await commit(store, registers, over)
    assert await store.wait(RunId("run_1")) is None


async def test_events_whose_expansion_is_under_way_are_found_by_name_behind_a_position(store: Store) -> None:
    positions = [
        await commit(store, accepts(event_row(f"evt_{number}", name=APPROVED, fan_out_next=None if number == 1 else 0)))
        for number in range(4)
    ]
    await commit(store, accepts(event_row("evt_other", name="other")))

    async def expanding(after: int, limit: int = 9) -> list[tuple[str, int]]:
        return [(row.event_id, row.position) for row in await store.expanding_events(WORKSPACE, APPROVED, after=after, limit=limit)]

    assert await expanding(0) == [("evt_0", positions[0]), ("evt_2", positions[2]), ("evt_3", positions[3])]
    assert await expanding(positions[0], limit=1) == [("evt_2", positions[2])]
    await commit(store, FanOutWrite(EventId("evt_2"), None))
    assert await expanding(positions[0]) == [("evt_3", positions[3])]
    stored = await store.event(EventId("evt_3"))
    assert stored is not None
    assert (stored.position, stored.payload) == (positions[3], b'{"total": 12}')


@pytest.mark.req("STO-02")
async def test_what_is_owed_stays_until_it_is_carried_out(store: Store) -> None:
    settle: Obligation = SettleParent(RunId("child_1"), RunId("parent"), StepId("pack"))
    stop: Obligation = StopChild(RunId("child_1"), RunId("parent"), "cancelled")
    other: Obligation = StopChild(RunId("child_2"), RunId("parent_2"), "timed_out")
    await commit(store, begins(run_row("child_1")), owes(settle))
    await commit(store, owes(stop), owes(other), owes(settle))
    assert await store.obligations(after=None, limit=9) == [settle, stop, other]
    assert await store.obligations(after=None, limit=1) == [settle]
    assert await store.obligations(after=settle, limit=1) == [stop]
    assert await store.obligations(after=stop, limit=9) == [other]
    await commit(store, DischargeWrite(stop), DischargeWrite(stop))
    assert await store.obligations(after=None, limit=9) == [settle, other]
    await commit(store, owes(stop), DischargeWrite(stop), DischargeWrite(settle))
    assert await store.obligations(after=None, limit=9) == [other]


async def test_an_unknown_is_shown_on_every_run_above_until_it_is_over(store: Store) -> None:
    family = [run_row("top"), run_row("mid", parent_run_id="top"), run_row("low", parent_run_id="mid"), run_row("aside")]
    await commit(store, *(begins(run) for run in family))

    async def flagged() -> dict[str, str | None]:
        found = await store.runs(WORKSPACE, RunFilter(attention="unknown"), before=None, limit=9)
        return {row.run_id: row.unknown_below_run_id for row in found}

    unknown = msgspec.structs.replace(family[2], attention="unknown")
    position = await commit(store, msgspec.structs.replace(moves("low", 2**40, run=unknown), unknown_moved=True))
    assert await flagged() == {"low": None, "top": "low", "mid": "low"}
    # A row of its own does not take the flag away.
    await commit(store, moves("top", 2**40, run=msgspec.structs.replace(family[0], status="stopping")))
    assert await flagged() == {"low": None, "top": "low", "mid": "low"}
    top = await store.run(RunId("top"))
    assert top is not None
    assert (top.status, top.attention, top.unknown_below_run_id) == ("stopping", None, "low")

    await commit(store, msgspec.structs.replace(moves("low", position, run=family[2]), unknown_moved=True))
    assert await flagged() == {}


@pytest.mark.req("EVW-05", "STO-02")
async def test_waits_and_obligations_survive_a_reopen(db: Path) -> None:
    owed: Obligation = SettleParent(RunId("child_1"), RunId("parent"), StepId("pack"))
    async with opened(db) as store:
        position = await waits(store, "run_1", {"order": "7"})
        await commit(store, owes(owed))
    async with opened(db) as store:
        assert [
            wait.position for wait in await store.matching_waits(WORKSPACE, APPROVED, {"order": "7"}, before=99, after=None, limit=9)
        ] == [position]
        assert await store.obligations(after=None, limit=9) == [owed]


def test_the_digest_tells_values_apart_wherever_one_ends() -> None:
    shape = shape_of({"b": "", "a": ""})
    assert shape == '["a","b"]'
    assert digest_of(shape, {"a": "xy", "b": "z"}) != digest_of(shape, {"a": "x", "b": "yz"})
    assert digest_of(shape, {"a": "x"}) is None
    assert is_match({"a": "x"}, {"a": "x", "b": "y"})
    assert not is_match({"a": "x", "b": "z"}, {"a": "x", "b": "y"})
