"""Opens the pages of a server in the reader's browser, where there is one that draws in a window of its own."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Final

_WINDOWED: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def open_pages(url: str) -> str:
    """Open them; what came of it, as one line for people. A text browser is none: it would draw over what is printed here."""
    if (sys.platform == "darwin" or any(os.environ.get(name) for name in _WINDOWED)) and webbrowser.open(url):
        return f"opened {url}"
    return f"no browser here; the pages are at {url}"
