"""One command line run in this process, against a small real HTTP server that answers as it is told."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from ryusen_cli.main import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(ROOT)!r}); from ryusen_cli.main import run; run()"]

Answer = tuple[int, Any] | None
"""Status and document; `None` closes the connection without a word."""


class Told(ThreadingHTTPServer):
    """Answers by a function of method, path and body, and remembers what it was asked."""

    def __init__(self, answer: Callable[[str, str, Any], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Told

    def _any(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body))
        answer = self.server.answer(self.command, self.path, body)
        if answer is None:
            self.close_connection = True
            return
        status, document = answer
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _any  # noqa: N815 - the names the base class calls

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def told(answer: Callable[[str, str, Any], Answer]) -> Iterator[Told]:
    with Told(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Done:
    """How one command ended, and what it wrote where."""

    returncode: int
    stdout: bytes
    stderr: bytes


def ryusen(*arguments: str, stdin: bytes = b"", **environment: str) -> Done:
    """One command line, run by the entry point in this process, with streams and environment of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RYUSEN_")}
    streams = {"stdin": io.TextIOWrapper(io.BytesIO(stdin)), "stdout": _stream(), "stderr": _stream()}
    with ExitStack() as patches:
        patches.enter_context(patch.dict(os.environ, {**clean, **environment}, clear=True))
        for name, stream in streams.items():
            patches.enter_context(patch.object(sys, name, stream))
        code = main(list(arguments))
    return Done(code, *(cast("io.BytesIO", streams[name].buffer).getvalue() for name in ("stdout", "stderr")))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def problem(status: int, code: str, detail: str = "said why") -> Answer:
    return status, {"type": f"urn:ryusen:problem:{code}", "title": "t", "status": status, "detail": detail, "code": code}
