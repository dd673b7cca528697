"""What a callback prints and logs, kept beside what it does: whoever prints finds out nothing of it.

Owns the taps on `sys.stdout`, `sys.stderr` and `logging`, and which callback a line belongs to: the one whose context printed it, so tasks,
`asyncio.to_thread` and copied contexts count, and a thread that a callback starts without its context does not. A tap calls through
first and looks on afterwards: streams stay the objects they are, handlers and their errors too. What the body of a function prints is
nobody's, since it runs again and again. Output that passes by Python's streams, such as a child process's, is not seen.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ryusen_protocol.limits import LOG_BYTES_MAX
from ryusen_protocol.log_lines import BoundedLines, cut_mark
from ryusen_protocol.outcome import LogLine
from ryusen_sdk.operation import current_operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_protocol.ids import RequestId

_PARTIAL_CHARACTERS_MAX: Final = 8 * 1024
_TOLD_BYTES_MAX: Final = LOG_BYTES_MAX
"""Of a callback that still runs; its outcome tells the first and the last of what it printed."""

current_lines: ContextVar[Lines | None] = ContextVar("ryusen_lines", default=None)
"""Set around the body of an effect's invocation; it counts while a callback runs."""
_is_logging: ContextVar[bool] = ContextVar("ryusen_is_logging", default=False)
"""What handlers write while a record goes through them is that record again."""


class Lines:
    """What one callback has printed and logged. From any thread; nothing here raises."""

    __slots__ = ("_broken", "_has_news", "_is_over", "_kept", "_lock", "_on_news", "_partial", "_told_bytes", "_untold", "request_id")

    def __init__(self, request_id: RequestId, on_news: Callable[[Lines], None] | None = None) -> None:
        self.request_id = request_id
        self._on_news = on_news
        self._lock = threading.RLock()  # a finalizer may print in the midst of a line
        self._kept: BoundedLines | None = None
        """Made with the first line: most callbacks print nothing, and should pay next to nothing."""
        self._partial: dict[str, str] = {}
        self._broken: set[str] = set()
        self._untold: list[LogLine] = []
        self._told_bytes = 0
        self._has_news = False
        self._is_over = False

    def wrote(self, level: str, text: object) -> None:
        """Text on its way to a stream."""
        if not isinstance(text, str) or not text:
            return
        text = str.__str__(text)
        with self._lock:
            *whole, rest = (self._partial.pop(level, "") + text).split("\n")
            if whole and level in self._broken:
                self._broken.discard(level)
                if not whole[0]:
                    del whole[0]  # the end of a line that was too long to wait for
            for line in whole:
                self._add(level, _overwritten(line.removesuffix("\r")))
            rest = _overwritten(rest) if "\r" in rest[:-1] else rest
            if len(rest) > _PARTIAL_CHARACTERS_MAX:
                self._add(level, rest)
                self._broken.add(level)
            elif rest:
                self._partial[level] = rest
        self._tell()

    def logged(self, record: logging.LogRecord) -> None:
        """A record on its way to handlers."""
        text = _text(record)
        with self._lock:
            self._add(record.levelname.lower(), text)
        self._tell()

    def untold(self) -> list[LogLine]:
        """What came since the last call, for whoever watches the callback run."""
        with self._lock:
            self._has_news = False
            told, self._untold = self._untold, []
            return [] if self._is_over else told

    def end(self) -> list[LogLine]:
        """The callback has ended: everything that is kept. What still comes is nobody's."""
        with self._lock:
            self._is_over = True
            for level, rest in self._partial.items():
                self._keep(LogLine(_now_ms(), level, _valid(_overwritten(rest))))
            self._partial.clear()
            return [] if self._kept is None else self._kept.lines()

    def _add(self, level: str, text: str) -> None:
        if self._is_over:
            return
        line = LogLine(_now_ms(), level, _valid(text))
        self._keep(line)
        if self._on_news is None or self._told_bytes > _TOLD_BYTES_MAX:
            return
        self._told_bytes += len(line.text.encode()) + 64
        self._untold.append(line if self._told_bytes <= _TOLD_BYTES_MAX else cut_mark(line.at_ms))

    def _keep(self, line: LogLine) -> None:
        if self._kept is None:
            self._kept = BoundedLines()
        self._kept.add(line)

    def _tell(self) -> None:
        if self._on_news is None:
            return
        with self._lock:
            if self._has_news or not self._untold:
                return
            self._has_news = True
        self._on_news(self)


_tapped: tuple[object, object] = (None, None)


def install() -> None:
    """See to it that what callbacks print is seen, on the streams that stand now. Again does nothing."""
    global _tapped  # noqa: PLW0603 - the streams are the process's
    streams = (sys.stdout, sys.stderr)
    if streams[0] is _tapped[0] and streams[1] is _tapped[1]:
        return
    _tapped = streams
    _tap(sys.stdout, "stdout")
    _tap(sys.stderr, "stderr")
    _tap_logging()


def _here() -> Lines | None:
    """The lines of the callback whose context this is."""
    if current_operation.get() is None or _is_logging.get():
        return None
    return current_lines.get()


def _tap(stream: Any, level: str) -> None:
    write = getattr(stream, "write", None)
    if write is None or hasattr(write, "is_ryusen_tap"):
        return

    def tapped(*args: Any, **kwargs: Any) -> Any:
        written = write(*args, **kwargs)
        lines = _here()
        if lines is not None and args:
            with contextlib.suppress(Exception):  # a line may be lost; a callback must never notice
                lines.wrote(level, args[0])
        return written

    tapped.is_ryusen_tap = True  # type: ignore[attr-defined]
    try:
        stream.write = tapped
    except (AttributeError, TypeError):
        return  # a stream that takes no attribute is left alone


def _tap_logging() -> None:
    call_handlers = logging.Logger.callHandlers
    if hasattr(call_handlers, "is_ryusen_tap"):
        return

    def tapped(self: logging.Logger, record: logging.LogRecord) -> None:
        lines = _here()
        if lines is None:
            call_handlers(self, record)
            return
        with contextlib.suppress(Exception):
            lines.logged(record)
        token = _is_logging.set(True)
        try:
            call_handlers(self, record)
        finally:
            _is_logging.reset(token)

    tapped.is_ryusen_tap = True  # type: ignore[attr-defined]
    logging.Logger.callHandlers = tapped


_formatter: Final = logging.Formatter()


def _text(record: logging.LogRecord) -> str:
    """The message with its traceback, without leaving a trace in the record."""
    try:
        text = str(record.getMessage())
    except Exception:  # noqa: BLE001 - whatever the arguments raise; handlers tell of it in their own way
        text = f"{record.msg!s} (its arguments do not fit)"
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + _formatter.formatException(record.exc_info)
    return text if record.stack_info is None else f"{text}\n{record.stack_info}"


def _overwritten(line: str) -> str:
    """What a terminal shows of a line that returns to its start, as progress bars do."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


def _valid(text: str) -> str:
    """What can be sent: lone surrogates, which stand for undecodable bytes, are written out."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
