"""How change streams keep time, and how many there may be."""

from __future__ import annotations

from typing import Final

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """`heartbeat_s`: the longest silence. `stalled_s`: how long a reader may leave lying what was sent. Both in seconds."""

    heartbeat_s: float = 10.0
    stalled_s: float = 30.0
    readers_max: int = 500


PACE: Final = Pace()
