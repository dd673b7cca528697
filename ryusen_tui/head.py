"""The line at the top of every screen, and what stands where rows would be while there is no server. Pure.

Owns how contact is told: connecting, live, stale, reconnecting, refused and without a server are six different words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ryusen_tui.spans import Glyphs, Line, Span, foreign, own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ryusen_protocol.api import WorkerDocument
    from ryusen_tui.board import Board
    from ryusen_tui.feed import Contact


class Failure(Exception):
    """Why the server that a dashboard stands in front of is not there. `hint` is what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def head_line(board: Board, said: Line, url: str, glyphs: Glyphs, columns: int) -> Line:
    """Which server, whether it is heard (`said`), and what needs somebody, for a screen of that width."""
    spans: list[Span] = [own(" ryusen ", strong=True)] if columns >= 60 else [own(" ")]
    if columns >= 75:
        spans += [own(" "), foreign(url.partition("://")[2] or url)]
    spans += [own("  " if columns >= 60 else ""), *said]
    if board.workers is not None:
        spans += _workers([worker for worker in board.workers if worker.connected], glyphs, columns)
    if board.server is not None:
        counts = board.server.counts
        unknown = max(counts.unknown, 0) if board.unknown is None else len(board.unknown)
        gap = "   " if columns >= 60 else "  "
        spans.append(own(f"{gap}? Unknown {unknown}", "alert" if unknown else "muted"))
        spans.append(own(f"{gap}{glyphs.glyph('■')} blocked {counts.blocked}", "warn" if counts.blocked else "muted"))
    return tuple(spans)


def _workers(connected: Sequence[WorkerDocument], glyphs: Glyphs, columns: int) -> list[Span]:
    found = [own(f"   workers {len(connected)}" if columns >= 60 else f"  w {len(connected)}", None if connected else "warn")]
    release = connected[0].release_id if len(connected) == 1 and columns >= 100 else None
    if release:
        found += [own(f" {glyphs.text('·', '-')} ", "muted"), foreign(release, "muted")]
    return found


def contact_line(contact: Contact, failure: Failure | None, glyphs: Glyphs) -> Line:
    """Whether the server is heard."""
    if failure is not None:
        return (own(f"{glyphs.glyph('✗')} no server", "bad"),)
    match contact:
        case "live":
            return (own(f"{glyphs.glyph('●')} live", "good"),)
        case "starting":
            return (own(f"{glyphs.glyph('◌')} starting server{glyphs.glyph('…')}", "accent"),)
        case "connecting":
            return (own(f"{glyphs.glyph('◌')} connecting", "accent"),)
        case "stale":
            return (own(f"{glyphs.glyph('…')} stale", "warn"),)
        case "refused":
            return (own(f"{glyphs.glyph('✗')} refused", "bad"),)
        case "reconnecting":
            return (own(f"{glyphs.glyph('◌')} reconnecting", "warn"),)


def failure_lines(failure: Failure, glyphs: Glyphs) -> list[Line]:
    """Why there is no server, and what to do."""
    first, *rest = str(failure).split("\n")
    lines: list[Line] = [(own(f"{glyphs.glyph('✗')} ", "bad"), foreign(first, "bad"))]
    lines += [(own("  "), foreign(one)) for one in rest]
    if failure.hint is not None:
        lines.append((own("  try: ", "muted"), foreign(failure.hint)))
    return [*lines, (own("6 shows the log, q leaves.", "muted"),)]
