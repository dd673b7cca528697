"""How facts are said: the one table of words, glyphs and tones for every screen and every line of output.

Owns wording and the shared rule for printing foreign text. Knows no terminal, no colour and no markup: a tone is a name that each
front end paints its own way, and it never is the only thing that tells two facts apart.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ryusen_protocol.api import (
        AttemptState,
        Attention,
        Expansion,
        Recovery,
        RecoveryReason,
        RunOutcome,
        RunStatus,
        SettledBy,
        StepState,
        StopReason,
        TargetState,
        UnwindCounts,
    )

Tone: TypeAlias = Literal["accent", "good", "warn", "bad", "alert", "muted"]

ASCII_GLYPHS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "●": "*",
        "■": "#",
        "◌": ":",
        "↺": "<",
        "✓": "+",
        "✗": "x",
        "⊘": "/",
        "◷": "@",
        "◐": "%",
        "○": "o",
        "…": "~",
        "?": "?",
        "◆": "=",
        "–": "-",  # noqa: RUF001 - the dash is the glyph
        "": "",
    }
)
"""Every glyph in use and what stands for it where the terminal is not UTF-8. One column each, and no two alike."""


class Word(msgspec.Struct, frozen=True):
    """How one fact is shown: a glyph one column wide, the words, and a tone. Both are empty for a fact there is none of yet."""

    glyph: str
    text: str
    tone: Tone

    @property
    def ascii_glyph(self) -> str:
        """The glyph for a terminal that is not UTF-8."""
        return ASCII_GLYPHS[self.glyph]

    def shown(self, *, unicode: bool = True) -> str:
        """Glyph and words on one line; the words of every fact are ASCII, but for a dash that is its own glyph."""
        glyph = self.glyph if unicode else self.ascii_glyph
        return glyph if self.text == self.glyph else f"{glyph} {self.text}"


NONE_YET: Final = Word("", "", "muted")
_NOT_REQUIRED: Final = Word("–", "–", "muted")  # noqa: RUF001 - the dash is the glyph
_UNKNOWN: Final = Word("?", "Unknown", "alert")
_BY_OPERATOR: Final = Word("◆", "Settled by operator", "muted")
_SUCCEEDED: Final = Word("✓", "Succeeded", "good")
_FAILED: Final = Word("✗", "Failed", "bad")

OUTCOMES: Final[Mapping[RunOutcome, Word]] = MappingProxyType(
    {
        "succeeded": _SUCCEEDED,
        "failed": _FAILED,
        "cancelled": Word("⊘", "Cancelled", "muted"),
        "timed_out": Word("◷", "Timed out", "bad"),
    }
)
STOPPING: Final[Mapping[StopReason | None, Word]] = MappingProxyType(
    {
        "cancelled": Word("◌", "Cancelling", "warn"),
        "timed_out": Word("◌", "Timing out", "warn"),
        None: Word("◌", "Stopping", "warn"),
    }
)
ATTEMPTS: Final[Mapping[AttemptState, Word]] = MappingProxyType(
    {
        "queued": Word("○", "Queued", "muted"),
        "authorized": Word("●", "Executing", "accent"),
        "unknown": _UNKNOWN,
        "succeeded": _SUCCEEDED,
        "failed": _FAILED,
        "retry_authorized": _BY_OPERATOR,
        "fenced": Word("⊘", "Dropped by the stop", "muted"),
        "obsolete": Word("–", "No longer in the code", "muted"),  # noqa: RUF001 - the dash is the glyph
        "skipped": Word("–", "Nothing to undo", "muted"),  # noqa: RUF001 - the dash is the glyph
    }
)
STEPS: Final[Mapping[StepState, Word]] = MappingProxyType(
    {
        "pending": Word("●", "Pending", "accent"),
        "succeeded": _SUCCEEDED,
        "failed": _FAILED,
        "obsolete": Word("–", "No longer in the code", "muted"),  # noqa: RUF001 - the dash is the glyph
        "stopped": Word("⊘", "Stopped", "muted"),
    }
)
TARGETS: Final[Mapping[TargetState, Word]] = MappingProxyType(
    {
        "pending": Word("○", "To be undone", "muted"),
        "succeeded": Word("✓", "Undone", "good"),
        "failed": Word("✗", "Could not be undone", "bad"),
        "skipped": Word("–", "Nothing to undo", "warn"),  # noqa: RUF001 - the dash is the glyph
    }
)
ATTENTION: Final[Mapping[Attention, Word]] = MappingProxyType(
    {
        "unknown": Word("?", "Unknown, needs you", "alert"),
        "blocked": Word("■", "Blocked, needs a fix", "warn"),
        "no_worker": Word("○", "No worker can run it", "warn"),
    }
)
EXPANSIONS: Final[Mapping[Expansion, Word]] = MappingProxyType(
    {"pending": Word("●", "Expanding", "accent"), "complete": Word("✓", "Expanded", "good")}
)
SKIP_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {"no_compensator": "no compensator", "not_met": "step no longer met", "hidden": "hidden behind a new step"}
)


def run_word(status: RunStatus, stop_reason: StopReason | None, outcome: RunOutcome | None) -> Word:
    """The status of a run; how it ended once it has."""
    match status:
        case "running":
            return Word("●", "Running", "accent")
        case "definition_blocked":
            return Word("■", "Blocked", "warn")
        case "stopping":
            return STOPPING[stop_reason]
        case "compensating":
            return Word("↺", "Compensating", "accent")
        case "ended":
            return NONE_YET if outcome is None else OUTCOMES[outcome]
        case _:
            assert_never(status)


def recovery_word(recovery: Recovery | None, reason: RecoveryReason | None, counts: UnwindCounts | None = None) -> Word:
    """How recovery ended, with how many steps it reached. `NONE_YET` until the run has ended.

    Why nothing had to be undone changes no word: the outcome beside it tells.
    """
    del reason
    match recovery:
        case None:
            return NONE_YET
        case "not_required":
            return _NOT_REQUIRED
        case "fully_compensated":
            return Word("↺", f"Fully compensated{_counted(counts)}", "good")
        case "partially_compensated":
            return Word("◐", f"Partially compensated{_counted(counts)}", "warn")
        case "compensation_failed":
            return Word("✗", f"Compensation failed{_counted(counts)}", "bad")
        case _:
            assert_never(recovery)


def attempt_word(
    state: AttemptState,
    *,
    out_of_contact: bool = False,
    unknown_in_ms: int | None = None,
    settled_by: SettledBy | None = None,
) -> Word:
    """The state of an attempt. `unknown_in_ms` is the time left until an attempt out of contact becomes Unknown."""
    if settled_by == "operator":
        return _BY_OPERATOR
    if state == "authorized" and out_of_contact:
        left = "" if unknown_in_ms is None else f", Unknown in {_countdown(unknown_in_ms)}"
        return Word("…", f"Out of contact{left}", "warn")
    return ATTEMPTS[state]


def skip_reason(reason: str | None, hidden_by: str | None = None) -> str:
    """Why there was nothing to undo. `hidden_by` is the id of the step in the way, printed safely."""
    if reason == "hidden" and hidden_by is not None:
        return f"hidden behind new step {printable(hidden_by)}"
    return "no reason given" if reason is None else SKIP_REASONS.get(reason, printable(reason))


def _counted(counts: UnwindCounts | None) -> str:
    if counts is None:
        return ""
    numbers = (
        (counts.succeeded, "undone"),
        (counts.skipped, "had nothing to undo"),
        (counts.failed, "failed"),
    )
    said = ", ".join(f"{number} {what}" for number, what in numbers if number)
    return f" ({said})" if said else ""


def _countdown(left_ms: int) -> str:
    """Rounded up, so that nothing happens before its countdown is over."""
    seconds = max(0, -(-left_ms // 1_000))
    return f"{seconds}s" if seconds < 120 else f"{-(-seconds // 60)}m"


# C0, DEL and C1; the marks that reorder or hide what stands around them (bidi controls, line and paragraph separators,
# zero-width blanks, the byte-order mark, tag characters); and lone surrogates, which no terminal can be sent. The joiners
# U+200C and U+200D stay: scripts and emoji are spelled with them.
_UNPRINTABLE: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb"
    "\\ud800-\\udfff\\U000e0000-\\U000e007f"
)
_IN_LINE: Final = re.compile(f"[{_UNPRINTABLE}]")
_IN_BLOCK: Final = re.compile(f"(?![\\n\\t])[{_UNPRINTABLE}]")


def printable(text: str, *, multiline: bool = False) -> str:
    """The text with every control and reordering character written as an escape (`\\x1b`, `\\u202e`); all else is kept.

    For whatever a user, a worker or a file brought in, on its way to a terminal or a log. `multiline` keeps line feeds and tabs,
    where the place is a block of its own rather than part of a line.
    """
    return (_IN_BLOCK if multiline else _IN_LINE).sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
