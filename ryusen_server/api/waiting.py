"""The long poll: waits until something is committed, the time is over, or the server is about to go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ryusen_server.api.context import Context


class Patience:
    """How long one answer may still wait. Several waits of one answer share it."""

    def __init__(self, context: Context, wait_ms: int) -> None:
        self._stopping = context.stopping
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + wait_ms / 1000

    async def all_done(self, futures: Sequence[asyncio.Future[None]]) -> None:
        """Return when all are done, or when patience ends. Cancels none of them."""
        pending = [future for future in futures if not future.done()]
        remaining = self._until - self._loop.time()
        if not pending or remaining <= 0 or self._stopping.done():
            return
        everything = pending[0] if len(pending) == 1 else asyncio.gather(*map(asyncio.shield, pending), return_exceptions=True)
        try:
            await asyncio.wait((everything, self._stopping), timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if len(pending) > 1:
                everything.cancel()
