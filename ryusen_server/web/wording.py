"""The table of words, glyphs and tones as a module for browsers, so that a page says what a terminal says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ryusen_protocol import words
from ryusen_protocol.api import UnwindCounts
from ryusen_protocol.words import Word


def words_module() -> bytes:
    """An ES module that exports `WORDS`: facts to words, by family."""
    return b"export const WORDS = Object.freeze(" + msgspec.json.encode(_table()) + b");\n"


def _table() -> dict[str, Any]:
    return {
        "statuses": {
            "running": _word(words.run_word("running", None, None)),
            "definition_blocked": _word(words.run_word("definition_blocked", None, None)),
            "compensating": _word(words.run_word("compensating", None, None)),
        },
        "stopping": {("" if reason is None else reason): _word(word) for reason, word in words.STOPPING.items()},
        "outcomes": _words(words.OUTCOMES),
        "recoveries": {
            recovery: _word(words.recovery_word(recovery, None, UnwindCounts()))
            for recovery in ("not_required", "fully_compensated", "partially_compensated", "compensation_failed")
        },
        "attempts": _words(words.ATTEMPTS),
        "away": _word(words.attempt_word("authorized", out_of_contact=True)),
        "by_operator": _word(words.attempt_word("succeeded", settled_by="operator")),
        "steps": _words(words.STEPS),
        "targets": _words(words.TARGETS),
        "attention": _words(words.ATTENTION),
        "expansions": _words(words.EXPANSIONS),
        "skip_reasons": dict(words.SKIP_REASONS),
    }


def _words(table: Mapping[Any, Word]) -> dict[str, dict[str, str]]:
    return {str(fact): _word(word) for fact, word in table.items()}


def _word(word: Word) -> dict[str, str]:
    return {"glyph": word.glyph, "text": word.text, "tone": word.tone}
