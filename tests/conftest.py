"""Says loudly what is left out for want of a program."""

from __future__ import annotations

import shutil
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if shutil.which("chromium") is None:
        terminalreporter.write_sep("!", "chromium is not installed: THE WEB PAGES WERE NOT TESTED", red=True, bold=True)
