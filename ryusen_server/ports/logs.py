"""What keeping a callback's lines asks of a store. They are no history: a write of them may be lost, and nothing waits for it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ryusen_protocol.ids import AttemptId, RunId
from ryusen_server.core.rows import LogRow


class LogWrite(msgspec.Struct, frozen=True):
    """The lines of one attempt, in place of those that were kept before; nothing at all if its run was removed."""

    row: LogRow


class LogStore(Protocol):
    """Finds the lines of attempts."""

    async def attempt_log(self, attempt_id: AttemptId) -> LogRow | None: ...

    async def run_logs(self, run_id: RunId, *, after: int, limit: int) -> list[LogRow]:
        """Those of a run's attempts, by number: in the order in which the first line of each was kept."""
        ...
