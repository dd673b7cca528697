"""What every screen says to the letter, at three sizes, over a server that always tells the same.

`RYUSEN_SNAPSHOTS=write pytest tests/tui/test_snapshots.py` writes the files anew; what differs is then read like any other change.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.tui import fixed
from tests.tui.stage import SIZES, Driven, dashboard

HERE = Path(__file__).parent / "snapshots"
IS_WRITING = os.environ.get("RYUSEN_SNAPSHOTS") == "write"

Visit = Callable[[Driven], Awaitable[object]]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def pane(key: str, *wanted: str) -> Visit:
    async def visit(driven: Driven) -> None:
        await driven.press(key)
        await driven.sees("live", *wanted, without="loading")

    return visit


def opened(one: str, tabs: int, *wanted: str) -> Visit:
    async def visit(driven: Driven) -> None:
        await pane("1", "Runs 8")(driven)
        driven.app.open_run(one)
        await driven.sees("[Timeline]", without="loading")
        for _ in range(tabs):
            await driven.press("tab")
        await driven.sees(*wanted)

    return visit


async def event(driven: Driven) -> None:
    await pane("3", "order/placed")(driven)
    await driven.press("enter")
    await driven.sees("Fan-out", "order/placed", "fulfil-order")


async def resolving(driven: Driven) -> None:
    await pane("2", "ship")(driven)
    await driven.press("R", "2")
    await driven.sees("Resolve an Unknown", "It failed, for this reason")


async def asking(driven: Driven) -> None:
    await pane("1", "Runs 8")(driven)
    await driven.press("X")
    await driven.sees("Cancel this run?")


async def helped(driven: Driven) -> None:
    await pane("1", "Runs 8")(driven)
    await driven.press("question_mark")
    await driven.sees("Enter")


SCREENS: dict[str, Visit] = {
    "runs": pane("1", "Runs 8"),
    "unknown": pane("2", "ship"),
    "events": pane("3", "order/placed"),
    "workers": pane("4", "wi_shop-1"),
    "functions": pane("5", "pack-box"),
    "server": pane("6", "listening"),
    "run-timeline": opened(fixed.FAILED["run_id"], 0, "reserve"),
    "run-attempts": opened(fixed.FAILED["run_id"], 1, "charging"),
    "run-history": opened(fixed.FAILED["run_id"], 2, "run created"),
    "run-payload": opened(fixed.FAILED["run_id"], 3, "an order"),
    "run-blocked": opened(fixed.BLOCKED["run_id"], 0, "Blocked at step same"),
    "run-unknown": opened(fixed.UNKNOWN["run_id"], 0, "ship"),
    "event": event,
    "resolve": resolving,
    "cancel": asking,
    "help": helped,
}
EMPTY: dict[str, Visit] = {
    "1-runs": pane("1", "No run yet"),
    "2-unknown": pane("2", "Nothing is Unknown"),
    "3-events": pane("3", "No event yet"),
    "4-workers": pane("4", "No worker"),
    "5-functions": pane("5", "No application"),
}


async def shown_by(visit: Visit, driven: Driven) -> str:
    """What there is to see at the end of a visit, which leaves nothing open."""
    await visit(driven)
    shown = await settled(driven)
    while len(driven.app.screen_stack) > 1:
        await driven.press("escape")
    return shown


async def settled(driven: Driven) -> str:
    """What is shown once nothing moves any more, with the port that the test happened to get out of the way."""
    shown = ""
    while (now := re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:65535", driven.text())) != shown:
        shown = now
        await driven.pilot.pause(0.15)
    return shown.rstrip() + "\n"


async def compare(name: str, found: dict[str, str]) -> None:
    """One file a size: every screen under its name."""
    text = "\n".join(f"=== {title}\n{shown}" for title, shown in found.items())
    file = HERE / f"{name}.txt"
    if IS_WRITING:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "RYUSEN_SNAPSHOTS=write writes it anew; read what differs"


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_says_what_it_said(size: tuple[int, int]) -> None:
    found: dict[str, str] = {}
    async with fixed.serving(fixed.documents()) as url, dashboard(url, size=size, now_ms=lambda: fixed.NOW_MS) as driven:
        for name, visit in SCREENS.items():
            found[name] = await shown_by(visit, driven)
    await compare("x".join(map(str, size)), found)


async def test_empty_lists_say_what_would_fill_them() -> None:
    found: dict[str, str] = {}
    async with fixed.serving(fixed.documents(is_empty=True)) as url, dashboard(url, size=(80, 24), now_ms=lambda: fixed.NOW_MS) as driven:
        for name, visit in EMPTY.items():
            await visit(driven)
            found[name] = await settled(driven)
    await compare("empty-80x24", found)


async def test_a_terminal_that_is_not_utf_8_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without colour, too: every fact is still there."""
    monkeypatch.setenv("NO_COLOR", "1")
    found: dict[str, str] = {}
    options = {"size": (80, 24), "now_ms": lambda: fixed.NOW_MS, "unicode": False}
    async with fixed.serving(fixed.documents()) as url, dashboard(url, **options) as driven:  # type: ignore[arg-type]
        for name in ("runs", "events", "workers", "run-timeline", "run-attempts", "run-blocked", "run-unknown", "resolve"):
            found[name] = await shown_by(SCREENS[name], driven)
            assert found[name].replace("€", "").replace("ü", "").replace("漢字", "").isascii(), found[name]
    await compare("ascii-80x24", found)
