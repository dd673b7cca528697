"""Words, glyphs and the printing of foreign text."""

import unicodedata
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol import api, words
from ryusen_protocol.api import UnwindCounts
from ryusen_protocol.words import Word, attempt_word, printable, recovery_word, run_word, skip_reason


def table(facts: Mapping[Any, Word]) -> set[str]:
    return set(facts)


def test_every_word_of_the_api_has_an_entry():
    assert table(words.OUTCOMES) == set(get_args(api.RunOutcome))
    assert table(words.ATTEMPTS) == set(get_args(api.AttemptState))
    assert table(words.STEPS) == set(get_args(api.StepState))
    assert table(words.TARGETS) == set(get_args(api.TargetState))
    assert table(words.ATTENTION) == set(get_args(api.Attention))
    assert table(words.EXPANSIONS) == set(get_args(api.Expansion))


@pytest.mark.parametrize(
    ("arguments", "shown", "tone"),
    [
        (("running", None, None), "● Running", "accent"),
        (("definition_blocked", None, None), "■ Blocked", "warn"),
        (("stopping", "cancelled", None), "◌ Cancelling", "warn"),
        (("stopping", "timed_out", None), "◌ Timing out", "warn"),
        (("compensating", None, "failed"), "↺ Compensating", "accent"),
        (("ended", None, "succeeded"), "✓ Succeeded", "good"),
        (("ended", None, "failed"), "✗ Failed", "bad"),
        (("ended", "cancelled", "cancelled"), "⊘ Cancelled", "muted"),
        (("ended", "timed_out", "timed_out"), "◷ Timed out", "bad"),
    ],
)
def test_run_words(arguments: tuple[Any, Any, Any], shown: str, tone: str):
    word = run_word(*arguments)
    assert (word.shown(), word.tone) == (shown, tone)


@pytest.mark.parametrize(
    ("recovery", "counts", "shown"),
    [
        ("not_required", UnwindCounts(), "\u2013"),
        ("fully_compensated", UnwindCounts(succeeded=2), "↺ Fully compensated (2 undone)"),
        ("fully_compensated", None, "↺ Fully compensated"),
        (
            "partially_compensated",
            UnwindCounts(succeeded=1, skipped=1),
            "◐ Partially compensated (1 undone, 1 had nothing to undo)",
        ),
        ("partially_compensated", UnwindCounts(skipped=3), "◐ Partially compensated (3 had nothing to undo)"),
        ("compensation_failed", UnwindCounts(succeeded=1, failed=1), "✗ Compensation failed (1 undone, 1 failed)"),
    ],
)
def test_recovery_words(recovery: Any, counts: UnwindCounts | None, shown: str):
    assert recovery_word(recovery, None, counts).shown() == shown


def test_a_run_that_goes_on_has_no_recovery_word_yet():
    assert recovery_word(None, None) == words.NONE_YET


def test_attempt_words():
    assert attempt_word("queued").shown() == "○ Queued"
    assert attempt_word("authorized").shown() == "● Executing"
    assert attempt_word("authorized", out_of_contact=True, unknown_in_ms=17_001).shown() == ("… Out of contact, Unknown in 18s")
    assert attempt_word("authorized", out_of_contact=True, unknown_in_ms=-1).text.endswith("Unknown in 0s")
    assert attempt_word("authorized", out_of_contact=True, unknown_in_ms=121_000).text.endswith("in 3m")
    assert attempt_word("authorized", out_of_contact=True).text == "Out of contact"
    assert (attempt_word("unknown").shown(), attempt_word("unknown").tone) == ("? Unknown", "alert")
    assert attempt_word("succeeded", settled_by="operator").shown() == "◆ Settled by operator"
    assert attempt_word("succeeded", settled_by="worker").shown() == "✓ Succeeded"
    assert attempt_word("unknown", out_of_contact=True).text == "Unknown"


def test_ascii_glyphs_are_ascii_one_column_and_distinct():
    shown = [glyph for glyph in words.ASCII_GLYPHS.values() if glyph]
    assert all(len(glyph) == 1 and glyph.isascii() for glyph in shown)
    assert len(set(shown)) == len(shown)
    assert all(unicodedata.east_asian_width(glyph) not in "WF" for glyph in words.ASCII_GLYPHS if glyph)
    assert recovery_word("not_required", None).shown(unicode=False) == "-"
    assert run_word("running", None, None).shown(unicode=False) == "* Running"
    assert attempt_word("authorized", out_of_contact=True).shown(unicode=False).isascii()


def test_a_skip_always_says_why():
    assert skip_reason("no_compensator") == "no compensator"
    assert skip_reason("not_met") == "step no longer met"
    assert skip_reason("hidden", "pay\x1b") == "hidden behind new step pay\\x1b"
    assert skip_reason("brand_new\x07") == "brand_new\\x07"
    assert skip_reason(None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\tc\rd", "a\\x0ab\\x09c\\x0dd"),
        ("\x9b31m \x85", "\\x9b31m \\x85"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("\u200f\u061c\u2028", "\\u200f\\u061c\\u2028"),
        ("\ud83d lone", "\\ud83d lone"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve 日本 👩\u200d🔧 [bold] C:\\n", "naïve 日本 👩\u200d🔧 [bold] C:\\n"),
    ],
)
def test_printable_escapes_what_acts_and_keeps_what_reads(text: str, expected: str):
    assert printable(text) == expected


def test_a_block_keeps_its_lines():
    assert printable("a\n\tb\r\x1b", multiline=True) == "a\n\tb\\x0d\\x1b"


@given(st.text(st.characters()))
def test_printable_text_holds_no_control_and_settles(text: str):
    once = printable(text)
    assert not any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in once)
    assert not any(unicodedata.bidirectional(char) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"} for char in once)
    assert printable(once) == once
    once.encode()  # no lone surrogate is left that would stop an output stream
