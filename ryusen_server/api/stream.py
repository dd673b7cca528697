"""The change stream: what has committed in a workspace behind a position, then what commits, as server-sent events.

A follower is set up first and the past is read after, from the store, so that the two overlap and positions tell what was told already.
Nothing here holds more than one page of the past and the follower's bounded buffer: a reader that takes its events slowly slows down its
own reads, and one whose buffer runs over is told to begin anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from ryusen_protocol.changes import HEARTBEAT, RESYNC, Heartbeat, Resync, ResyncReason
from ryusen_protocol.problems import Problem, problem
from ryusen_protocol.sse import encode_event
from ryusen_server.api.context import Context
from ryusen_server.api.pace import Pace
from ryusen_server.api.parameters import POSITION_MAX, position, workspace
from ryusen_server.api.route import EVENT_STREAM, Call, Route, Streamed, Text
from ryusen_server.engine.feed import Follower, change_frame
from ryusen_server.ports.store import StorageUnavailable

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024
_AFTER: Final = position(
    "after", "Only what committed behind this position, such as a snapshot's; unless given, only what commits from now on."
)

_encode = msgspec.json.Encoder().encode


async def _stream(context: Context, call: Call) -> Streamed | Problem:
    pace = context.pace
    if context.engine.feed.followers >= pace.readers_max:
        return problem("busy", f"{pace.readers_max} readers follow the server already. Share a stream, or try again later.")
    start = _start(call)
    return Streamed(_Telling(context, call, pace).frames(start), pace.stalled_s)


def _start(call: Call) -> int | None:
    """Where to begin. What a reader was told last counts before what its address says, since it comes back to the same address.

    An id that is no position is one beyond all: the reader is told so in the stream, where it can hear it.
    """
    after = _AFTER.read(call)
    last = call.last_event_id
    if last is None or not last.strip():
        return after
    last = last.strip()
    return min(int(last), POSITION_MAX) if last.isascii() and last.isdigit() and len(last) <= len(str(POSITION_MAX)) else POSITION_MAX


class _Telling:
    """One reader's stream. `position` is how far everything has been told."""

    def __init__(self, context: Context, call: Call, pace: Pace) -> None:
        self._context = context
        self._principal = call.principal
        self._workspace = workspace(call)
        self._pace = pace
        self._position = 0

    async def frames(self, start: int | None) -> AsyncGenerator[bytes, None]:
        """The stream's bytes, until the server is about to go or the reader's token no longer allows it."""
        feed = self._context.engine.feed
        follower = feed.follow(self._workspace)
        try:
            async for frame in self._past(start):
                yield frame
            while not self._context.stopping.done() and self._is_allowed():
                if follower.overrun:
                    follower.clear()
                    yield await self._begin_anew("slow")
                told = follower.take(_CHUNK_BYTES)
                fresh = [one for one in told if one.position is None or one.position > self._position]
                if fresh:
                    yield b"".join(one.frame for one in fresh)
                    self._position = max([self._position, *(one.position for one in fresh if one.position is not None)])
                elif not told and not await self._something(follower):
                    yield self._heartbeat()
        except StorageUnavailable as error:
            _log.warning("a change stream ends: %s", error.reason)
        finally:
            feed.leave(follower)

    def _is_allowed(self) -> bool:
        return self._context.access.may_in_workspace(self._principal, "read", self._workspace)

    async def _past(self, start: int | None) -> AsyncGenerator[bytes, None]:
        """What committed behind the start so far; at first where the stream begins."""
        store = self._context.store
        if start is None:
            self._position = await store.position()
            yield self._heartbeat()
            return
        self._position = start
        told = False
        complete = False
        while not complete:
            page = await store.changes(self._workspace, after=self._position)
            if isinstance(page, str):
                yield await self._begin_anew(page)
                return
            if not told:
                yield self._heartbeat()
                told = True
            if page.rows:
                yield b"".join(map(change_frame, page.rows))
            self._position, complete = page.until, page.complete

    async def _begin_anew(self, reason: ResyncReason) -> bytes:
        self._context.engine.feed.resyncs[reason] += 1
        self._position = await self._context.store.position()
        return encode_event(RESYNC, _encode(Resync(position=self._position, reason=reason)), self._position)

    def _heartbeat(self) -> bytes:
        return encode_event(HEARTBEAT, _encode(Heartbeat(position=self._position)))

    async def _something(self, follower: Follower) -> bool:
        """Wait for something to tell, for the end, or as long as a reader may be left in silence; false in the last case."""
        waiting = asyncio.ensure_future(follower.wait())
        try:
            done, _ = await asyncio.wait(
                (waiting, self._context.stopping), timeout=self._pace.heartbeat_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        return bool(done)


ROUTES: Final = (
    Route(
        "GET",
        "/v1/workspaces/{workspace}/stream",
        _stream,
        "read",
        says="Follow what commits in the workspace, as server-sent events, from a position on.",
        details="`change` events carry a `Change` and its position as `id`; `resync` says that changes were left out and where the stream "
        "goes on; `notice` names something of the present to ask for again; `heartbeat` ends every long silence. `Last-Event-ID` counts "
        "before `after`.",
        query=(_AFTER,),
        answers={200: Text(EVENT_STREAM)},
        refuses=("busy",),
    ),
)
