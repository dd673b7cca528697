"""Whether the loop of user coroutines turns, looked at from another thread, and where it stands if it does not."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

from ryusen_protocol.frames import LOOP_BLOCKED, LOOP_FREE

if TYPE_CHECKING:
    import asyncio

BLOCKED_S: Final = 1.0
"""A loop that has not turned for so long, from one look to the next, is blocked."""


class LoopWatch:
    """Asks the loop to answer, and sees at the next look whether it has. One thread looks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at: float | None = None
        self._thread: int | None = None
        self._is_blocked = False

    def look(self) -> tuple[str, str] | None:
        """What has changed since the last look, as a code and words for people."""
        now = time.monotonic()
        asked_at = self._asked_at
        if asked_at is None:
            self._ask(now)
            if not self._is_blocked:
                return None
            self._is_blocked = False
            return LOOP_FREE, "the event loop turns again"
        if self._is_blocked or now - asked_at < BLOCKED_S:
            return None
        self._is_blocked = True
        where = self._where()
        at = "" if where is None else f" at {where}"
        return (
            LOOP_BLOCKED,
            f"the event loop has not turned for {now - asked_at:.0f} s: something blocks it{at}, and no coroutine goes on",
        )

    def _ask(self, now: float) -> None:
        self._asked_at = now
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return  # it is closed: the worker has ended

    def _answer(self) -> None:
        self._thread = threading.get_ident()
        self._asked_at = None

    def _where(self) -> str | None:
        frame = None if self._thread is None else sys._current_frames().get(self._thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return None
        last = traceback.extract_stack(frame)[-1]
        return f"{last.filename}:{last.lineno} in {last.name}"
