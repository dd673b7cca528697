"""What code may know about where it runs: the current operation in a callback, the current pass in a function body.

Owns the context variables and the logger that stays silent while a pass replays. Identity comes from the server unchanged; nothing
here is derived from a clock, the process or the source.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ryusen_sdk.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from ryusen_protocol.invocation import Phase


@dataclass(frozen=True, slots=True)
class Operation:
    """One physical attempt of one logical operation, as the server names it.

    `id` is the same over every attempt of this step and phase: pass it to an external system as its idempotency key. `attempt`
    counts physical attempts from 1, and `attempt_generation` fences them.
    """

    id: str
    step_id: str
    phase: Phase
    attempt: int
    attempt_generation: int
    run_id: str


class Replaying(Protocol):
    """The part of a pass that a logger asks."""

    @property
    def is_news(self) -> bool:
        """Whether what the body does now was not done by an earlier pass."""
        ...


current_operation: ContextVar[Operation | None] = ContextVar("ryusen_operation", default=None)
current_pass: ContextVar[Replaying | None] = ContextVar("ryusen_pass", default=None)


def operation() -> Operation:
    """The operation whose callback is running. Raises `MisuseError` outside a callback."""
    found = current_operation.get()
    if found is None:
        raise MisuseError("operation() is only known inside a callback or compensator; a function body runs many times and is no operation")
    return found


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs once what a function body logs on every pass. Inside callbacks and outside runs it is an ordinary logger."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name logging calls
        return _is_news() and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


def run_logger(name: str = "ryusen.run") -> RunLogger:
    """A logger for function bodies: silent while a pass replays what an earlier one already logged."""
    return RunLogger(logging.getLogger(name), {})


def _is_news() -> bool:
    running = current_pass.get()
    return running is None or current_operation.get() is not None or running.is_news
