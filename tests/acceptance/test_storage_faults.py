"""The database is locked or taken away under a running server: no false acknowledgement, and it goes on when the fault is gone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.acceptance.product import Product, W, eventually, product


def post(running: Product, order: int) -> tuple[int, str]:
    answer = running.client.post(
        f"{running.url}{W}/events",
        json={"name": "order/placed", "data": {"order": order, "fail": False}, "idempotency_key": f"order-{order}"},
    )
    return answer.status_code, answer.text


@pytest.mark.req("STO-02")
def test_b57_a_lock_held_by_another_program_refuses_events_and_strands_no_run(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        in_step = running.send("hang/after", 1)["event_id"]
        running.await_marker("in-callback")
        other = sqlite3.connect(tmp_path / "ryusen.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        status, text = post(running, 2)
        assert status == 503
        assert "storage_unavailable" in text
        running.go_on()  # the result of the step arrives while nothing can be written
        status, _ = post(running, 2)
        assert status == 503
        other.execute("ROLLBACK")
        other.close()
        eventually(lambda: post(running, 2)[0] == 201, "the same event is accepted under the same key")
        run = running.ended(in_step)
        assert run["outcome"] == "succeeded"
        assert [attempt["attempt"] for step in run["steps"] for attempt in step["attempts"]] == [1]
        assert running.effect_names(1) == ["held"]
        assert len(running.get(f"{W}/events")["items"]) == 2


@pytest.mark.req("STO-02")
def test_b59_a_database_that_is_moved_away_stops_acknowledgements_and_says_why(tmp_path: Path) -> None:
    with product(tmp_path) as running:
        running.start_worker()
        assert post(running, 1)[0] == 201
        (tmp_path / "ryusen.db").rename(tmp_path / "elsewhere.db")
        status, text = post(running, 2)
        assert status == 503
        assert "ryusen.db" in text
        (tmp_path / "elsewhere.db").rename(tmp_path / "ryusen.db")
        eventually(lambda: post(running, 2)[0] == 201, "events are accepted again once the file is back")
        running.kill_server()
        running.start_server()
        assert {event["name"] for event in running.get(f"{W}/events")["items"]} == {"order/placed"}
        assert len(running.get(f"{W}/events")["items"]) == 2
