"""Commands in real pseudo-terminals: every byte that a person's terminal would get, and the state that it is left in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.tui.stage import PATIENCE_S, environment

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(ROOT)!r}); from ryusen_cli.main import run; run()"]
ALTERNATE_ON, ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"
CURSOR_ON = b"\x1b[?25h"


class Terminal:
    """A command in a terminal of its own, and every byte that it wrote there."""

    def __init__(self, command: list[str], folder: Path, size: tuple[int, int] = (100, 30), **more: str) -> None:
        self._fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self._child = child
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment(**more), stdin=child, stdout=child, stderr=child, start_new_session=True
        )
        self.received = b""
        self._is_open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._is_open:
                if select.select([self._fd], [], [], 0.05)[0]:
                    self.received += os.read(self._fd, 65_536)

    def until(self, wanted: str, *, since: int = 0) -> None:
        """Until that text was written, wherever the cursor was moved to between its words."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in plain(self.received[since:]):
            assert time.monotonic() < deadline, f"never saw {wanted!r} in:\n{plain(self.received[since:])[-3000:]}"
            assert self.process.poll() is None or wanted in plain(self.received[since:]), plain(self.received)[-3000:]
            time.sleep(0.02)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_S)
        time.sleep(0.05)  # what was written last is still on its way through the terminal
        return code

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._child)[3] & termios.ICANON

    def hang_up(self) -> None:
        """The terminal goes away. Nobody is told, as below a session's leader that does not pass the signal on."""
        if self._is_open:
            self._is_open = False
            self._reader.join(PATIENCE_S)
            os.close(self._child)
            os.close(self._fd)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self.hang_up()


def plain(received: bytes) -> str:
    """What was written, without what moves the cursor and paints."""
    text = received.decode("utf-8", "replace")
    return re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[()][0-9A-Z]|\x1b[=>78]|\x1b\][^\x07]*(\x07|\x1b\\)|\x1bP[^\x1b]*\x1b\\", "", text)


@contextlib.contextmanager
def terminal(command: list[str], folder: Path, size: tuple[int, int] = (100, 30), **more: str) -> Iterator[Terminal]:
    made = Terminal(command, folder, size, **more)
    try:
        yield made
    finally:
        made.close()


def restored(made: Terminal) -> bool:
    return made.received.rfind(ALTERNATE_OFF) > made.received.rfind(ALTERNATE_ON) >= 0 and CURSOR_ON in made.received and not made.is_raw()
