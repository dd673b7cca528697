"""The gateway is tested on the loop that servers run on, and on the one they fall back to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Called by pytest-asyncio: each asynchronous test runs once on each."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
