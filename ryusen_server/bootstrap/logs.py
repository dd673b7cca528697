"""The server's log: one line a message on stderr. Whatever a user or a worker brought in is made fit to print."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final, Literal

import msgspec

from ryusen_protocol.words import printable

LogFormat = Literal["text", "json"]
ABOUT: Final = ("run_id", "attempt_id", "step_id", "request_id", "instance_id", "workspace", "application")
"""What a message may be about, given as `extra`. Payloads, results and errors of users' code are never part of a message."""
_QUIET: Final = ("sanic.root", "sanic.server", "sanic.access", "sanic.websockets", "aiosqlite", "asyncio", "websockets")


class OneLine(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING ryusen_server.engine.engine what happened`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = f"{at}.{int(record.msecs):03d}Z {record.levelname} {record.name} {printable(record.getMessage())}"
        if record.exc_info:
            trace = printable(self.formatException(record.exc_info), multiline=True)
            text = "\n    ".join([text, *trace.splitlines()])
        return text


class OneDocument(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, the ids that the message is about, and `trace` for what went wrong."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, object] = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        for name in ABOUT:
            value = getattr(record, name, None)
            if value is not None:
                document[name] = printable(str(value))
        if record.exc_info:
            document["trace"] = printable(self.formatException(record.exc_info), multiline=True).splitlines()
        return msgspec.json.encode(document).decode()


def configure(level: str, form: LogFormat = "text") -> None:
    """Send this process's log to stderr. Libraries are heard from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneDocument() if form == "json" else OneLine())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("ryusen_server").setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("sanic.error").setLevel(logging.ERROR)
