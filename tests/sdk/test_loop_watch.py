"""A user loop that does not turn is seen from outside, with the place where it stands."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ryusen_protocol.frames import LOOP_BLOCKED, LOOP_FREE
from ryusen_sdk import loop_watch
from ryusen_sdk.loop_watch import LoopWatch

PATIENCE_S = 20


def test_a_blocked_loop_is_told_once_with_its_place_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def turned() -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)

    watch = LoopWatch(loop)
    assert watch.look() is None
    turned()
    release, blocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(PATIENCE_S)

    loop.call_soon_threadsafe(block)
    assert blocked.wait(PATIENCE_S)
    assert watch.look() is None, "it is asked first"
    told = watch.look()
    assert told is not None
    assert told[0] == LOOP_BLOCKED
    assert "in wait" in told[1]
    assert watch.look() is None, "once"
    release.set()
    turned()
    assert watch.look() == (LOOP_FREE, "the event loop turns again")
    turned()
    assert watch.look() is None
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert watch.look() is None, "a closed loop is not asked"
