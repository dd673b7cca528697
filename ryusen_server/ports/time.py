"""Where the engine gets instants, wake-ups and randomness from, so that a simulation can give it others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ryusen_protocol.ids import RequestId


class Handle(Protocol):
    """A wake-up that can be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The server's wall clock in epoch milliseconds, which may jump, and wake-ups after elapsed time, which may not."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Handle: ...


class Entropy(Protocol):
    """The one source of randomness."""

    def request_id(self) -> RequestId:
        """A fresh request id."""
        ...

    def token(self, prefix: str) -> str:
        """A fresh identifier behind `prefix_`."""
        ...

    def jitter(self) -> float:
        """Uniform in [-1, 1)."""
        ...
