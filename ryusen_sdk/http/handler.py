"""Runs the invocations that come in over HTTP, one answer each, with the host that every transport shares.

Owns how many run at a time, that an invocation is run once however often its request arrives in this process, and when nothing runs any
more. An invocation that has begun is never cancelled because nobody waits for its answer: its effect has happened or will. Knows no web
server and no bytes of a request.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from ryusen_protocol.invocation import DiscoveryTarget
from ryusen_protocol.limits import MIB
from ryusen_sdk.errors import MisuseError
from ryusen_sdk.host import Answer, Host, Stopped, rejection
from ryusen_sdk.threads import ThreadPool

if TYPE_CHECKING:
    from ryusen_protocol.ids import RequestId
    from ryusen_protocol.invocation import Invocation
    from ryusen_protocol.outcome import RejectionReason
    from ryusen_sdk.app import Ryusen

_log: Final = logging.getLogger("ryusen.http")

KEPT_MAX: Final = 1_000
KEPT_BYTES_MAX: Final = 16 * MIB
"""Answers of effects kept for a request that arrives again: by number, and together."""
DRAIN_S: Final = 10.0
"""How long what runs may take once the web server has told the handler to end."""


class Handler:
    """The invocations of one application in this process. `loop` runs user coroutines; every call is allowed from any thread."""

    def __init__(self, app: Ryusen, loop: asyncio.AbstractEventLoop, capacity: int) -> None:
        app.load()
        self.loop = loop
        self._scope = app.scope
        self._capacity = capacity
        self._pool = ThreadPool(capacity)
        self._host = Host(app.registry, loop, self._pool)
        self._host.check()
        self._lock = threading.Lock()
        self._running: dict[RequestId, Future[Answer]] = {}
        self._kept: OrderedDict[RequestId, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._is_draining = False

    def begin(self, invocation: Invocation) -> Future[Answer]:
        """Run it, unless it runs or has run already, or may not: then the answer says so. The future cannot be cancelled."""
        request_id = invocation.request_id
        with self._lock:
            running = self._running.get(request_id)
            if running is not None:
                return running
            future: Future[Answer] = Future()
            future.set_running_or_notify_cancel()
            kept = self._kept.get(request_id)
            if kept is not None:
                future.set_result(kept)
                return future
            reason = self._refusal(invocation)
            if reason is None:
                self._running[request_id] = future
            else:
                future.set_result(self._rejected(invocation, reason))
        if reason is None:
            self._host.start([invocation], self._done)
        return future

    def reject(self, invocation: Invocation, reason: RejectionReason) -> bytes:
        """The answer that it may not begin, now or ever: the server counts on that, and sends its effect under another request."""
        with self._lock:
            return self._kept.get(invocation.request_id) or self._rejected(invocation, reason)

    def _rejected(self, invocation: Invocation, reason: RejectionReason) -> bytes:
        answer = rejection(invocation, reason)
        if not isinstance(invocation.target, DiscoveryTarget):
            self._keep(invocation.request_id, answer)
        return answer

    def _refusal(self, invocation: Invocation) -> RejectionReason | None:
        if invocation.scope != self._scope:
            _log.warning("an invocation of %s came to a handler of %s", invocation.scope, self._scope)
            return "unsupported_target"
        if self._is_draining:
            return "draining"
        return "busy" if len(self._running) >= self._capacity else None

    def _done(self, invocation: Invocation, answer: Answer) -> None:
        request_id = invocation.request_id
        with self._lock:
            future = self._running.pop(request_id)
            if isinstance(answer, bytes) and not isinstance(invocation.target, DiscoveryTarget):
                self._keep(request_id, answer)
        future.set_result(answer)

    def _keep(self, request_id: RequestId, answer: bytes) -> None:
        self._kept[request_id] = answer
        self._kept_bytes += len(answer)
        while len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)

    async def drain(self, within_s: float = DRAIN_S) -> None:
        """Take nothing new, and return when nothing runs, or the time is over. On the loop."""
        self._is_draining = True
        with self._lock:
            running = [asyncio.wrap_future(future) for future in self._running.values()]
        if running:
            _, late = await asyncio.wait(running, timeout=within_s)
            if late:
                _log.warning("%d callbacks did not finish in %g s; what they did is not known", len(late), within_s)

    async def settle(self, stop: Stopped) -> BaseException:
        """User code asked the process to stop: let the rest finish first, then hand its wish on. On the loop."""
        await self.drain()
        self._is_draining = False  # a web server that goes on in spite of it goes on serving this
        return stop.error

    def close(self) -> None:
        """Give up what still runs. On the loop."""
        self._is_draining = True
        self._host.abandon()
        self._pool.close()


def secret_bytes(secret: str | bytes | None) -> bytes | None:
    """A secret as it signs. Raises `MisuseError` for an empty one, which would protect nothing."""
    if secret is None:
        return None
    if not secret:
        raise MisuseError("secret= is empty; give the value the server has as RYUSEN_HTTP_SECRET, or None to leave calls unsigned")
    return secret.encode() if isinstance(secret, str) else secret


def capacity_checked(capacity: int) -> int:
    """How much runs at a time. Raises `MisuseError`."""
    if type(capacity) is not int or capacity < 1:
        raise MisuseError(f"capacity={capacity!r}: the number of invocations at a time, at least 1")
    return capacity


def path_checked(path: str | None) -> str | None:
    """The one path to answer at. Raises `MisuseError`."""
    if path is not None and not path.startswith("/"):
        raise MisuseError(f"path={path!r} begins with a slash, such as /ryusen; leave it out to answer at every path")
    return path
