"""How the engine reaches a worker, whatever carries it."""

from __future__ import annotations

from typing import Protocol


class WorkerChannel(Protocol):
    """One open session. `send` queues an encoded frame and never blocks; after `close` or a loss it does nothing."""

    def send(self, frame: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None:
        """Close after what is queued has been sent."""
        ...
