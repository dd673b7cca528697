"""Whether the terminal is still there. Knows nothing of what is to end with it."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNAL_S: Final = 1.0
"""By then the signal of a terminal that went away has come, if one comes."""


def watch_terminal(fd: int, gone: Callable[[], None]) -> None:
    """Call `gone` on this loop when the terminal behind a descriptor has gone away.

    Its signal goes to the session's leader, and to others only once that one has ended: never, if it is a `make` that waits for us.
    """
    loop = asyncio.get_running_loop()
    terminal = select.poll()
    terminal.register(fd, 0)  # nothing but its end

    def watch() -> None:
        terminal.poll()
        time.sleep(SIGNAL_S)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(gone)

    threading.Thread(target=watch, name="ryusen-terminal", daemon=True).start()
