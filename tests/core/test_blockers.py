"""The words of a definition blocker: what, where, why, and the fix."""

from __future__ import annotations

from typing import get_args

import pytest

from ryusen_protocol.declarations import Location
from ryusen_protocol.ids import StepId
from ryusen_protocol.outcome import BlockReason
from ryusen_server.core.blockers import blocker_message

FIRST = Location("orders.py", 12, "charge")
AGAIN = Location("orders.py", 30)


@pytest.mark.req("BLK-03")
def test_a_duplicate_names_both_places_and_shows_the_fix_for_a_loop() -> None:
    message = blocker_message("duplicate_step_id", StepId("charge"), FIRST, AGAIN)
    assert "'charge'" in message
    assert "orders.py:12 (charge)" in message
    assert "orders.py:30" in message
    assert 'step.run(f"charge-{item.id}", …)' in message


@pytest.mark.req("BLK-03")
def test_places_that_are_not_known_are_not_invented() -> None:
    message = blocker_message("duplicate_step_id", StepId("charge"), None, None)
    assert "None" not in message
    assert "could not name" in message


@pytest.mark.parametrize("reason", get_args(BlockReason))
@pytest.mark.parametrize("place", [FIRST, None])
def test_every_reason_names_the_step_and_gives_its_detail(reason: BlockReason, place: Location | None) -> None:
    message = blocker_message(reason, StepId("charge"), place, None, "Because of this.")
    assert "'charge'" in message
    if reason not in ("duplicate_step_id", "replay_budget"):
        assert "Because of this." in message
    if place is not None:
        assert "orders.py:12" in message
    assert "  " not in message
