"""Where whatever is wrong ends up: the first violation ends the simulation, wherever in the product it would have been caught."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Verdicts(logging.Handler):
    """Collects violations: failed checks, errors the server logs, exceptions nobody handled. `stop` is called at the first."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__(logging.ERROR)
        self.violation: str | None = None
        self.details = ""
        self._stop = stop

    def fail(self, what: str, details: str = "") -> None:
        if self.violation is None:
            self.violation = what
            self.details = details
            self._stop()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        details = "".join(traceback.format_exception(error)) if error is not None else ""
        self.fail(f"the server logged an error: {record.getMessage()}" + (f" ({error!r})" if error is not None else ""), details)

    def unhandled(self, loop: object, context: dict[str, Any]) -> None:
        """The loop's exception handler."""
        del loop
        error = context.get("exception")
        details = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self.fail(str(error) if isinstance(error, AssertionError) else f"{context.get('message')}: {error!r}", details)

    def guard(self, check: F) -> F:
        """A check whose failure counts, whoever catches it."""

        @functools.wraps(check)
        def guarded(*args: Any, **options: Any) -> Any:
            try:
                return check(*args, **options)
            except AssertionError as broken:
                self.fail(str(broken) or repr(broken), traceback.format_exc())
                raise

        return guarded  # type: ignore[return-value]
