"""Painted lines: foreign text is harmless, columns are exact, nothing is lost by wrapping."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len

from ryusen_protocol.words import ASCII_GLYPHS
from ryusen_tui.feed import Filter
from ryusen_tui.filtering import NotAFilter, run_filter
from ryusen_tui.logs import LINES_MAX, LogBook
from ryusen_tui.spans import Glyphs, cut, fitted, foreign, own, plain, width, wrapped
from ryusen_tui.tables import EVENTS, FUNCTIONS, MATCHES, RUNS, UNKNOWN, WORKERS, Row, changed_places, layout, row_line
from ryusen_tui.widgets import text


def hostile(count: int) -> list[str]:
    """Texts that have broken terminals: the same ones at every run."""
    chosen = random.Random(5)
    pieces = [
        "\x1b[2J", "\x1b]0;t\x07", "\x9b1m", "\u202e", "\u200b", "\u2066", "\ud800", "\udfff", "\n", "\r", "\t", "\x00", "[/", "[/b]",
        "[@click=app.quit]x[/]", "[bold red]", "{}", "%s", "漢字", "e\u0301", "\U0001f469\u200d\U0001f680", "a" * 300, "\ufeff", "\u2028",
        "\\x1b",
    ]  # fmt: skip
    return ["".join(chosen.choice(pieces) for _ in range(chosen.randint(1, 8))) for _ in range(count)]


def is_harmless(shown: str) -> bool:
    return all(one.isprintable() or one in {" ", "\u200d", "\u200c"} for one in shown)


def test_hostile_text_reaches_no_screen_as_it_is_and_none_of_it_is_lost() -> None:
    for given in hostile(500):
        span = foreign(given)
        assert is_harmless(span.text), ascii(given)
        rows = wrapped((own("> "), span), 20)
        assert "".join(plain(row) for row in rows) == "> " + span.text
        assert all(width(row) <= 20 or len(plain(row)) == 1 for row in rows)
        assert text([(span,)]).plain == span.text, "markup would be gone"


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 7, 40])
def test_a_cell_has_exactly_its_columns(columns: int) -> None:
    for given in hostile(60):
        line = (own("x", "good"), foreign(given))
        assert width(cut(line, columns)) <= columns
        assert width(fitted(line, columns)) == columns


def test_what_is_cut_says_so() -> None:
    assert plain(cut((own("abcdef"),), 4)) == "abc…"
    assert plain(cut((own("abcdef"),), 4, unicode=False)) == "abc~"
    assert plain(cut((own("abcd"),), 4)) == "abcd"


def test_wrapping_prefers_blanks() -> None:
    assert [plain(row) for row in wrapped((own("one two three"),), 9)] == ["one two ", "three"]


@pytest.mark.parametrize("columns", [RUNS, UNKNOWN, EVENTS, WORKERS, FUNCTIONS, MATCHES])
@pytest.mark.parametrize("screen", [40, 50, 80, 120, 300])
def test_every_list_fits_every_screen(columns: tuple[object, ...], screen: int) -> None:
    widths = layout(columns, screen)  # type: ignore[arg-type]
    shown = [one for one in widths if one]
    assert shown
    assert 2 + sum(shown) + 2 * (len(shown) - 1) <= screen
    assert screen < 200 or len(shown) == len(columns)


def test_what_needs_somebody_is_seen_at_eighty_columns() -> None:
    shown = {column.title for column, columns in zip(RUNS, layout(RUNS, 80), strict=True) if columns}
    assert {"STATUS", "RECOVERY", "FUNCTION", "AGE"} <= shown


def test_ascii_glyphs_are_ascii() -> None:
    glyphs = Glyphs(unicode=False)
    assert all(glyphs.glyph(one).isascii() for one in ASCII_GLYPHS)
    assert all(cell_len(one) == 1 for one in ASCII_GLYPHS if one)


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("", Filter()),
        ("failed", Filter(outcome="failed")),
        ("unknown fn:ship", Filter(attention="unknown", function="ship")),
        ("status:running app:shop", Filter(status="running", application="shop")),
        ("'event:ev 1' rn_7", Filter(event="ev 1", q="rn_7")),
        ("partially_compensated", Filter(recovery="partially_compensated")),
        ("it's", Filter(q="it's")),
    ],
)
def test_a_filter_is_a_question_to_the_server(typed: str, asked: Filter) -> None:
    assert run_filter(typed) == asked


@pytest.mark.parametrize("typed", ["status:sleeping", "a b", "failed succeeded"])
def test_a_filter_for_nothing_there_is_says_what_there_is(typed: str) -> None:
    with pytest.raises(NotAFilter, match=r"one of|twice"):
        run_filter(typed)


def test_the_log_is_bounded_and_its_text_is_harmless() -> None:
    book = LogBook()
    for number in range(LINES_MAX + 10):
        book.write(f"server | {number} \x1b[31m")
    lines = [plain(line) for line in book.lines()]
    assert len(lines) == LINES_MAX
    assert lines[-1] == f"server | {LINES_MAX + 9} \\x1b[31m"
    assert [plain(line) for line in book.lines(f"{LINES_MAX + 9} ")] == [lines[-1]]


@pytest.mark.parametrize("columns", [120, 80, 50])
def test_a_row_differs_from_before_nowhere_but_in_the_cells_that_are_drawn_again(columns: int) -> None:
    widths = layout(RUNS, columns)
    texts = ["✓ Succeeded", "–", "漢字 order", "rn_7Kd2", "9s", "310ms", "2/2"]  # noqa: RUF001 - the dash is the glyph

    def row(*texts: str) -> Row:
        return Row("rn_7Kd2", tuple((own(text),) for text in texts))

    def shown(one: Row) -> str:
        return plain(row_line(one, widths, glyphs=Glyphs(), selected=False)).replace("漢字", "KANJ")  # one character a column

    before = row(*texts)
    assert changed_places(before, row(*texts), widths) == []
    for index, own_columns in enumerate(widths):
        after = row(*(f"{text}!" if at == index else text for at, text in enumerate(texts)))
        places = changed_places(before, after, widths)
        assert [columns for _, columns in places] == ([own_columns] if own_columns else [])
        drawn = {x for first, columns in places for x in range(first, first + columns)}
        differs = {x for x, (was, now) in enumerate(zip(shown(before), shown(after), strict=True)) if was != now}
        assert bool(differs) == bool(own_columns)
        assert differs <= drawn
