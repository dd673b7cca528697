"""The child's end of the pipes: one order comes down, facts go up, and the end of the pipe is the end of the process.

A parent that is killed cannot tell its children. The kernel can: it closes the parent's end, whatever killed it.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

from ryusen_cli.dev.messages import Fact, Order, decode_order, encode

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 65_536


class Lifeline:
    """Both pipes of a child. The descriptors are not inherited by what the child starts in turn."""

    def __init__(self, control_fd: int, facts_fd: int) -> None:
        self._control_fd = control_fd
        self._facts_fd = facts_fd
        self._lock = threading.Lock()
        for fd in (control_fd, facts_fd):
            os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's spelling

    def await_order(self) -> Order | None:
        """Blocks until the order is there. `None`: the parent went away, or never needed this child."""
        received = b""
        while b"\n" not in received:
            piece = os.read(self._control_fd, _READ_BYTES)
            if not piece:
                return None
            received += piece
        return decode_order(received)

    def tell(self, fact: Fact) -> None:
        """Say one fact. A parent that is gone hears nothing, and `guard` ends this process."""
        with self._lock:
            try:
                os.write(self._facts_fd, encode(fact))
            except OSError:
                return

    def guard(self) -> None:
        """From now on the end of the pipe ends this process and what it started, whatever its threads are doing."""
        watch_parent(self._control_fd, end_group)


def watch_parent(fd: int, ended: Callable[[], None]) -> None:
    """Calls `ended` on a thread of its own when the other end of the pipe is closed."""

    def watch() -> None:
        try:
            while os.read(fd, _READ_BYTES):
                pass
        except OSError:
            pass
        ended()

    threading.Thread(target=watch, name="ryusen-lifeline", daemon=True).start()


def end_group() -> None:
    """Ends this process at once. Leading a group, it takes the group along: nobody is left to ask its members nicely."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(143)
