"""Says loudly what is left out for want of a program, and gives tests an interrupt that interrupts."""

from __future__ import annotations

import shutil
import signal
from typing import Any

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs, and all that they start, ignore it


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if shutil.which("chromium") is None:
        terminalreporter.write_sep("!", "chromium is not installed: THE WEB PAGES WERE NOT TESTED", red=True, bold=True)
