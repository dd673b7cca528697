"""Runs the server in this process, and says where it listens or why it cannot.

Owns the step from settings to the server's own bootstrap, and nothing of what a server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ryusen_cli.dev import messages
from ryusen_cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable


def run_server(order: messages.RunServer, tell: Callable[[messages.Fact], None]) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    raise NotImplementedError
