"""What callbacks printed, in both stores."""

from __future__ import annotations

from ryusen_protocol.ids import AttemptId, RunId
from tests.store.builders import begins, commit, prints, run_row
from tests.store.harness import Subject


async def test_lines_take_the_place_of_those_before_and_keep_their_place_among_attempts(subject: Subject) -> None:
    store = subject.store
    await commit(store, begins(run_row("run_1")))
    for attempt in ("att_b", "att_a", "att_c"):
        await commit(store, prints(attempt, "run_1", b'["first"]'))
    await commit(store, prints("att_b", "run_1", b'["first","second"]'))
    await commit(store, begins(run_row("run_2")), prints("att_x", "run_2"), prints("att_z", "run_gone"))
    rows = await store.run_logs(RunId("run_1"), after=0, limit=10)
    assert [(row.attempt_id, row.lines) for row in rows] == [
        ("att_b", b'["first","second"]'),
        ("att_a", b'["first"]'),
        ("att_c", b'["first"]'),
    ]
    page = await store.run_logs(RunId("run_1"), after=rows[0].number, limit=1)
    assert [row.attempt_id for row in page] == ["att_a"]
    assert await store.attempt_log(AttemptId("att_c")) == rows[2]
    assert await store.attempt_log(AttemptId("att_y")) is None
    assert await store.attempt_log(AttemptId("att_z")) is None, "nobody would remove it with its run"


async def test_lines_are_no_history(subject: Subject) -> None:
    store = subject.store
    position = await commit(store, begins(run_row("run_1")))
    await commit(store, prints("att_1", "run_1"))
    assert await store.position() == position
    assert len(await store.history(RunId("run_1"))) == 1


async def test_of_several_in_one_commit_the_last_stays(subject: Subject) -> None:
    store = subject.store
    await commit(store, begins(run_row("run_1")), prints("att_1", "run_1", b"[1]"), prints("att_1", "run_1", b"[2]"))
    (row,) = await store.run_logs(RunId("run_1"), after=0, limit=10)
    assert row.lines == b"[2]"
