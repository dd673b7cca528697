"""The child's end of the pipes: an order comes down, facts go up, and the end of the pipe is the end of the process.

A parent that is killed cannot tell its children. The kernel can: it closes the parent's end, whatever killed it.
"""

from __future__ import annotations

import os
import queue
import signal
import threading

from ryusen_cli.dev.messages import Fact, Order, decode_connect, decode_order, encode

_READ_BYTES = 65_536


class Lifeline:
    """Both pipes of a child. The descriptors are not inherited by what the child starts in turn."""

    def __init__(self, control_fd: int, facts_fd: int) -> None:
        self._control_fd = control_fd
        self._facts_fd = facts_fd
        self._lock = threading.Lock()
        self._rest = b""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for fd in (control_fd, facts_fd):
            os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's spelling

    def await_order(self) -> Order | None:
        """Blocks until the order is there. `None`: the parent went away, or never needed this child."""
        while b"\n" not in self._rest:
            piece = os.read(self._control_fd, _READ_BYTES)
            if not piece:
                return None
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        return decode_order(line)

    def await_server(self) -> str:
        """Blocks until it is known where the server is. Only with `guard`, which hears it."""
        return decode_connect(self._lines.get()).url

    def tell(self, fact: Fact) -> None:
        """Say one fact. A parent that is gone hears nothing, and `guard` ends this process."""
        with self._lock:
            try:
                os.write(self._facts_fd, encode(fact))
            except OSError:
                return

    def guard(self) -> None:
        """From now on the end of the pipe ends this process and what it started, whatever its threads are doing."""
        threading.Thread(target=self._watch, name="ryusen-lifeline", daemon=True).start()

    def _watch(self) -> None:
        try:
            while True:
                *lines, self._rest = self._rest.split(b"\n")
                for line in lines:
                    self._lines.put(line)
                piece = os.read(self._control_fd, _READ_BYTES)
                if not piece:
                    break
                self._rest += piece
        except OSError:
            pass
        end_group()


def end_group() -> None:
    """Ends this process at once. Leading a group, it takes the group along: nobody is left to ask its members nicely."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(143)
