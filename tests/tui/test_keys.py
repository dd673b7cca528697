"""Every key on every screen, at three sizes, in a dashboard of a real server."""

from __future__ import annotations

from typing import Any

import pytest

from ryusen_tui.chart import Chart
from ryusen_tui.keys import HINTS_MAX, MORE, PLACES
from ryusen_tui.runview import TABS, RunView
from tests.tui.conftest import Gallery
from tests.tui.stage import SIZES, Driven, dashboard

PANES = {"1": "Runs", "2": "Unknown", "3": "Events", "4": "Workers", "5": "Functions", "6": "Server"}


def is_clean(shown: str) -> bool:
    return all(one.isprintable() or one == "\n" for one in shown)


async def walk(driven: Driven) -> None:
    """The six panes and what Enter opens in each."""
    for key, title in PANES.items():
        await driven.press(key)
        await driven.sees(f" {title}", "help", without="loading")
        await driven.press("j", "k", "G", "g")
        await driven.press("question_mark")
        assert "Everywhere" in driven.text() or title in driven.text()
        await driven.press("escape")
        if key == "6":
            continue
        await driven.press("enter")
        await driven.until(lambda: len(driven.app.screen_stack) == 2, f"Enter opens something on {title}")
        await driven.press("escape")
        assert len(driven.app.screen_stack) == 1, "Esc goes back"
    await driven.press("escape", "escape", "escape")
    assert driven.app.is_running, "Esc never quits"


@pytest.mark.parametrize("size", SIZES)
async def test_every_pane_opens_and_closes_at_every_size(gallery: Gallery, size: tuple[int, int]) -> None:
    async with dashboard(gallery.stage.url, size=size) as driven:
        await driven.sees("Failed", "Unknown 1", "blocked 1")
        await walk(driven)
        assert is_clean(driven.text())
        await driven.press("q")
        await driven.pilot.pause()
    assert driven.app.return_value == "quit"


@pytest.mark.parametrize("size", SIZES)
async def test_every_key_of_a_run(gallery: Gallery, size: tuple[int, int]) -> None:
    async with dashboard(gallery.stage.url, size=size) as driven:
        await driven.sees("Failed")
        driven.app.open_run(gallery.failed)
        await driven.sees("charge", "reserve", "ship", "Timeline")
        view = driven.app.screen
        assert isinstance(view, RunView)
        chart = view.query_one(Chart)
        for key in ("plus", "plus", "minus", "plus"):
            await driven.press(key)
        assert chart.zoom == 4
        panned = chart.pan
        await driven.press("h", "left")
        assert chart.pan < panned
        await driven.press("l", "right", "0")
        assert (chart.zoom, chart.pan) == (1, 0)
        await driven.press("z")
        assert chart.is_folded
        await driven.press("j", "j", "k", "G", "g")
        for title, seen in (("Attempts", "doing charge"), ("History", "run created"), ("Input/Output", "input")):
            await driven.press("tab")
            await driven.sees(f"[{title}]", seen)
        await driven.press("tab", "shift+tab", "shift+tab")
        await driven.sees("[History]")
        assert is_clean(driven.text())
        before = view.run_id
        await driven.press("left_square_bracket")
        await driven.until(lambda: view.run_id != before and view.run, "[ shows another run")
        await driven.press("right_square_bracket")
        await driven.until(lambda: view.run_id == before and view.run, "] comes back")
        await driven.press("shift+tab", "shift+tab", "enter")
        await driven.sees("[Attempts]")
        await driven.press("e")
        assert set(TABS) == {"timeline", "attempts", "history", "payload"}
        await driven.press("1")
        assert len(driven.app.screen_stack) == 1


@pytest.mark.parametrize("size", SIZES)
async def test_a_blocked_run_shows_both_places_and_the_fix(gallery: Gallery, size: tuple[int, int]) -> None:
    lines = gallery.stage.target.read_text().splitlines()
    first, again = [number for number, line in enumerate(lines, 1) if '"same"' in line]
    async with dashboard(gallery.stage.url, size=size) as driven:
        driven.app.open_run(gallery.blocked)
        await driven.sees("Blocked at step same", f":{first}", f":{again}" if size[0] > 50 else "Blocked")
        if size[0] > 50:
            assert "fix" in driven.text()
        await driven.press("B")


async def test_the_filter_narrows_and_is_kept_or_cleared(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.sees("Failed", "Succeeded")
        await driven.press("slash", *"failed", "enter")
        shown = await driven.sees("Runs 1", "filter: failed", "Failed")
        assert "Succeeded" not in shown
        await driven.press("escape")
        await driven.sees("Succeeded", without="filter: failed")
        await driven.press("slash", *"status:x")
        await driven.sees("status is one of")
        await driven.press("escape", "3", "slash", *"[/b]", "enter")
        await driven.sees("Events 1")
        await driven.press("slash", *"zzz")
        await driven.sees("Nothing matches")
        await driven.press("1", "2")
        await driven.sees("Unknown 1")


async def test_the_filter_of_one_pane_types_keys_of_the_others_without_obeying_them(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.press("3", "slash", *"q1XDsu")
        await driven.sees("Events 0")
        assert driven.app.is_running
        assert len(driven.app.screen_stack) == 1


async def test_copying_gives_the_id_of_what_is_marked(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.press("2")
        await driven.sees("held")
        await driven.press("y")
        assert driven.app.clipboard == gallery.attempt
        await driven.press("o", "r", "p")
        await driven.sees(f"{gallery.stage.url}/unknown")


async def test_the_next_unknown_is_one_key_away_and_its_run_another(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.sees("Failed")
        await driven.press("u")
        await driven.sees("Unknown 1", "held", "result, failure, retry")
        await driven.press("u", "enter")
        await driven.sees("hold-up", "Unknown, needs you", "???")


async def test_an_event_is_sent_and_its_fan_out_is_a_key_away(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.press("5")
        await driven.sees("fulfil-order")
        await driven.press("G", "s")
        await driven.sees("Send an event", "Enter sends")
        reached = []
        for _ in range(4):
            await driven.press("tab")
            reached.append(driven.app.focused.id if driven.app.focused is not None else None)
        assert sorted(map(str, reached)) == ["cancel", "data", "name", "send"], "Tab goes round"
        await driven.press("escape", "s")
        name, data = driven.app.screen.query("Input")
        name.value = "order/placed"  # type: ignore[attr-defined]
        name.focus()
        await driven.press("enter", "backspace")
        await driven.sees("not JSON")
        await driven.press(*'"order": 5}', "enter")
        shown = await driven.sees("accepted ev_", "1 matched")
        event_id = shown.split("accepted ", 1)[1].split(":", 1)[0]
        assert data.has_focus
        await driven.press("escape", "3")
        await driven.sees("order/placed")
        await driven.until(lambda: driven.app.feed.board.events and driven.app.feed.board.events[0].event_id == event_id, "it is listed")
        await driven.press("g", "enter")
        await driven.sees(event_id, "Fan-out", "fulfil-order", "rn_")
        await driven.press("s")
        assert driven.app.screen.query_one("#name").value == "order/placed"  # type: ignore[attr-defined]
        await driven.press("escape", "enter")
        await driven.sees("charge", "Succeeded")


async def test_an_event_that_nothing_listens_for_says_so(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.sees("Failed")
        await driven.press("3")
        await driven.sees("order/placed")
        await driven.press("G", "s")
        driven.app.screen.query_one("#name").value = "nobody/listens"  # type: ignore[attr-defined]
        await driven.press("enter")
        await driven.sees("0 matched; no trigger matches")


async def test_a_run_is_cancelled_only_after_a_question(gallery: Gallery) -> None:
    run_id = gallery.stage.run_of("nap", {})
    async with dashboard(gallery.stage.url) as driven:
        await driven.until(lambda: [one for one in driven.app.feed.board.runs or () if one.run_id == run_id], "it is listed")
        driven.app.open_run(run_id)
        await driven.sees("Sleeping")
        await driven.press("X")
        await driven.sees("Cancel this run?")
        await driven.press("X", "enter", "escape")
        assert gallery.stage.run(run_id)["stop"] is None
        await driven.press("X", "y")
        await driven.sees("asked to stop", "Cancelled")


async def test_the_palette_finds_what_keys_do(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.press("ctrl+p")
        await driven.until(lambda: len(driven.app.screen_stack) == 2, "the palette opens")
        await driven.press(*"show workers")
        await driven.sees("Show workers")
        await driven.press("enter")
        await driven.sees(" Workers", "Connected")


async def test_the_mouse_marks_and_opens(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.sees("Failed", "Succeeded")
        table: Any = driven.app.screen.query_one("#runs-table")
        await driven.pilot.click("#runs-table", offset=(5, 2))
        assert table.index == 1
        await driven.pilot.click("#runs-table", offset=(5, 2))
        await driven.sees("[Timeline]")
        await driven.pilot.click("#tabs", offset=(14, 0))
        await driven.sees("[Attempts]")


@pytest.mark.parametrize("size", [(39, 20), (60, 9)])
async def test_below_the_least_size_one_line_says_so(gallery: Gallery, size: tuple[int, int]) -> None:
    async with dashboard(gallery.stage.url, size=size) as driven:
        assert (await driven.sees("needs 40x10")).strip() == "Ryusen needs 40x10"
        await driven.pilot.resize_terminal(80, 24)
        await driven.sees(" Runs")


async def test_leaving_asks_only_who_owns_the_server(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url, owns_server=True) as driven:
        driven.app.server_is_at(gallery.stage.url)
        await driven.sees("live")
        await driven.press("q")
        await driven.sees("Leave?")
        await driven.press("escape", "ctrl+c")
        await driven.sees("Leave?")
        await driven.press("enter", "x")
        assert driven.app.is_running
        await driven.press("q")
        await driven.pilot.pause()
    assert driven.app.return_value == "quit"
    async with dashboard(gallery.stage.url) as driven:
        await driven.press("D")
        await driven.pilot.pause()
    assert driven.app.return_value == "plain"


async def test_hostile_text_is_shown_as_it_was_sent_and_nothing_obeys_it(gallery: Gallery) -> None:
    async with dashboard(gallery.stage.url) as driven:
        await driven.press("3")
        shown = await driven.sees("[/b][@click=app.quit]x[/] \\x1b[2J\\x1b]0;owned\\x07 \\u202e")
        assert is_clean(shown)
        row = next(number for number, line in enumerate(shown.splitlines()) if "@click" in line)
        await driven.pilot.click(offset=(12, row))
        await driven.pilot.click(offset=(12, row))
        await driven.sees("Fan-out", "[TODO] ü 漢")
        driven.app.open_run(gallery.failed)
        await driven.sees("no carrier [/b][@click=app.quit]x[/]")
        for _ in TABS:
            await driven.press("tab")
            assert is_clean(driven.text())
        assert driven.app.is_running


def test_no_footer_tells_more_than_six_keys() -> None:
    assert all(len(hints) <= HINTS_MAX for hints in PLACES.values())
    assert set(MORE) <= set(PLACES)


@pytest.mark.parametrize("size", SIZES[1:])
async def test_every_dialog_is_usable_where_there_is_less_room(gallery: Gallery, size: tuple[int, int]) -> None:
    async with dashboard(gallery.stage.url, size=size, owns_server=True) as driven:
        driven.app.server_is_at(gallery.stage.url)
        await driven.sees("Failed", "Unknown 1")
        await driven.press("slash", *"failed", "enter")
        await driven.sees("filter: failed")
        await driven.press("escape")
        await driven.sees("Failed", without="filter: failed")
        await driven.press("s")
        await driven.sees("Send an event", "Send", "Cancel")
        await driven.press("escape")
        await driven.press("X")
        await driven.sees("Cancel this run?", "y cancels it")
        await driven.press("escape", "u")
        await driven.sees("held")
        await driven.press("R")
        await driven.sees("Resolve an Unknown attempt", "Cancel", "Apply")
        await driven.press("1")
        await driven.sees("It happened.", "Apply")
        await driven.press("escape", "R", "2")
        await driven.sees("It failed", "Apply")
        await driven.press("escape", "R", "3")
        await driven.sees("type retry", "Apply")
        await driven.press("escape", "question_mark")
        await driven.sees("Everywhere")
        await driven.press("escape", "ctrl+p", *"quit")
        await driven.sees("Quit")
        await driven.press("escape", "q")
        await driven.sees("Leave?", "y or q leaves")
        assert is_clean(driven.text())
        await driven.press("escape")
        await driven.sees("held", without="Leave?")
        await driven.press("q", "y")
        await driven.pilot.pause()
    assert driven.app.return_value == "quit"
