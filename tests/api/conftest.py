"""The API is tested on the loop that servers run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Called by pytest-asyncio."""
    return {"uvloop": uvloop.new_event_loop}
