"""How the engine reaches a worker, whatever carries it: over a session that stays open, or by one exchange an invocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ryusen_protocol.ids import RequestId, RunId
from ryusen_protocol.outcome import Outcome


class WorkerChannel(Protocol):
    """One open session. `send` queues an encoded frame and never blocks; after `close` or a loss it does nothing."""

    def send(self, frame: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None:
        """Close after what is queued has been sent."""
        ...


class Exchange(msgspec.Struct, frozen=True):
    """One invocation that goes out by itself. `attempt` and `attempt_generation` are those of an effect, none of a discovery.

    `invocation` is the encoded document. `within_ms` bounds how long the exchange may stay open.
    """

    request_id: RequestId
    run_id: RunId
    attempt: int | None
    attempt_generation: int | None
    invocation: bytes
    within_ms: int

    @property
    def is_effect(self) -> bool:
        """Whether a callback may run."""
        return self.attempt is not None


class Answered(msgspec.Struct, frozen=True):
    """A well-formed outcome of exactly this invocation came back."""

    outcome: Outcome


class Lost(msgspec.Struct, frozen=True):
    """The invocation may have reached the application, and what came back, if anything, is no answer."""

    why: str


class NotSent(msgspec.Struct, frozen=True):
    """Not a byte of the invocation was accepted by anybody."""

    why: str


ExchangeEnd = Answered | Lost | NotSent


class Endpoint(Protocol):
    """Where exchanges go."""

    def invoke(self, exchange: Exchange, ended: Callable[[ExchangeEnd], None]) -> None:
        """Send it once, without blocking. `ended` is called once, on the loop's thread, never from within this call."""
        ...
