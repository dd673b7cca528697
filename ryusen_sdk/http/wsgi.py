"""Hosts an application in a WSGI web server: `gunicorn shop:wsgi` and the like.

Owns the WSGI environment and one event loop on a thread of its own, for user coroutines and the lifespan: both are there from the first
invocation of a process on, so a server that forks has one a child. A web server's thread waits for its invocation to end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as TimedOut
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from ryusen_protocol.exchange import SIGNATURE_HEADER, TIMESTAMP_HEADER
from ryusen_sdk.host import Stopped, rejection
from ryusen_sdk.http.exchange import BODY_BYTES_MAX, Exchanges, Head, Reply, cut_off, failed, length_required, too_large
from ryusen_sdk.http.handler import DRAIN_S, Handler, capacity_checked, path_checked, secret_bytes

if TYPE_CHECKING:
    from ryusen_sdk.app import Ryusen

_log: Final = logging.getLogger("ryusen.http")

Environment = dict[str, Any]
StartResponse = Callable[..., object]

_CHUNK_BYTES: Final = 1 << 16
_START_S: Final = 60.0
_LEAVE_S: Final = 5.0


class WsgiHandler:
    """The WSGI application. Called on any number of threads."""

    def __init__(self, app: Ryusen, *, secret: str | bytes | None, capacity: int, path: str | None) -> None:
        self._app = app
        self._exchanges = Exchanges(secret_bytes(secret), path_checked(path))
        self._capacity = capacity_checked(capacity)
        self._lock = threading.Lock()
        self._life: _Life | None = None

    def __call__(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        reply, stop = self._reply(environ)
        headers = [*reply.headers.items(), ("Content-Length", str(len(reply.body)))]
        start_response(f"{reply.status} {HTTPStatus(reply.status).phrase}", headers)
        if stop is not None:
            return _then_raise(reply.body, stop)
        return [reply.body]

    def _reply(self, environ: Environment) -> tuple[Reply, BaseException | None]:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        head = Head(
            environ["REQUEST_METHOD"],
            path,
            environ.get("CONTENT_TYPE"),
            environ.get("CONTENT_LENGTH"),
            environ.get("HTTP_CONTENT_ENCODING"),
        )
        refusal = self._exchanges.refusal(head)
        if refusal is not None:
            return refusal, None
        body = _body(environ)
        if isinstance(body, Reply):
            return body, None
        asked = self._exchanges.invocation(
            body, environ.get(_variable(TIMESTAMP_HEADER)), environ.get(_variable(SIGNATURE_HEADER)), _now_s()
        )
        if isinstance(asked, Reply):
            return asked, None
        try:
            life = self._started()
        except Exception:  # noqa: BLE001 - nothing has run; said so, the invocation comes again, and an effect is in no doubt
            _log.exception("the application could not be started")
            life = self._life
            refused = rejection(asked, "busy") if life is None else life.handler.reject(asked, "busy")
            return self._exchanges.answer(refused, _now_s()), None
        answer = life.handler.begin(asked).result()
        if isinstance(answer, Stopped):
            return failed(), life.settle(answer)
        return self._exchanges.answer(answer, _now_s()), None

    def _started(self) -> _Life:
        with self._lock:
            life = self._life
            if life is None or life.process != os.getpid():
                life = self._life = _Life(self._app, self._capacity)
        life.enter()
        return life


class _Life:
    """The loop's thread of one process, with what runs on it."""

    def __init__(self, app: Ryusen, capacity: int) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.handler = Handler(app, self._loop, capacity)
        self._hold = app.lifespan()
        threading.Thread(target=self._loop.run_forever, name="ryusen-http", daemon=True).start()
        atexit.register(self._leave)

    def enter(self) -> None:
        """Return once the lifespan is entered. Raises what it raises."""
        if not self._hold.is_entered:
            asyncio.run_coroutine_threadsafe(self._hold.enter(), self._loop).result(_START_S)

    def settle(self, stop: Stopped) -> BaseException:
        """What user code wants the process to end with, once the rest has finished."""
        return asyncio.run_coroutine_threadsafe(self.handler.settle(stop), self._loop).result()

    def _leave(self) -> None:
        if self.process != os.getpid():
            return  # a child that was forked has no such thread
        with contextlib.suppress(TimedOut):
            asyncio.run_coroutine_threadsafe(self.handler.drain(), self._loop).result(DRAIN_S + _LEAVE_S)
            asyncio.run_coroutine_threadsafe(self._hold.leave(), self._loop).result(_LEAVE_S)


def _body(environ: Environment) -> bytes | Reply:
    announced = environ.get("CONTENT_LENGTH")
    if not announced and not environ.get("wsgi.input_terminated"):
        return length_required()
    wanted = int(announced) if announced else BODY_BYTES_MAX + 1
    body = bytearray()
    while len(body) < wanted:
        chunk = environ["wsgi.input"].read(min(_CHUNK_BYTES, wanted - len(body)))
        if not chunk:
            break
        body += chunk
    if announced and len(body) < wanted:
        return cut_off()
    return too_large() if len(body) > BODY_BYTES_MAX else bytes(body)


def _then_raise(body: bytes, stop: BaseException) -> Iterable[bytes]:
    """The wish of user code goes to the web server behind the response."""
    yield body
    raise stop


def _variable(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


def _now_s() -> int:
    return int(time.time())
