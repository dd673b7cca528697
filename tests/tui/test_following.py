"""The dashboard's board follows a real server's change stream through everything that a line can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import pytest

from ryusen_protocol.changes import CHANGE
from ryusen_protocol.client import Api
from ryusen_protocol.sse import StreamEvent
from ryusen_tui import feed as feeds
from ryusen_tui.feed import Feed
from ryusen_tui.link import Link
from tests.tui.stage import PATIENCE_S, Stage, off_loop, stage

CUTS = 100


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("source")) as made:
        yield made


class Line:
    """Between a board and its server. `meets` sees each request for the stream before the server does, and may rewrite it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.meets: Callable[[bytes], Awaitable[bytes]] | None = None
        self.cuts_left = 0
        self.streams = 0
        self._open = set[asyncio.Task[None]]()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(asyncio.create_task(self._carry(reader, writer)))

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(_closed, writer)
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
            stack.push_async_callback(_closed, up_writer)
            is_stream = False

            async def back() -> None:
                with contextlib.suppress(OSError):
                    while piece := await up_reader.read(65_536):
                        writer.write(piece)
                        if is_stream and self.cuts_left and b"event: change" in piece:
                            self.cuts_left -= 1
                            break
                writer.close()
                up_writer.close()

            stack.push_async_callback(_cancelled, asyncio.create_task(back()))
            with contextlib.suppress(OSError):
                while head := await reader.read(65_536):
                    if b"/stream" in head.split(b"\r\n", 1)[0]:
                        is_stream, self.streams = True, self.streams + 1
                        head = await self.meets(head) if self.meets is not None else head
                    up_writer.write(re.sub(rb"(?i)host: [^\r]+", b"Host: 127.0.0.1:%d" % self._port, head))


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def following(source: Stage) -> AsyncGenerator[tuple[Feed, Line]]:
    """A board that is kept current over such a line."""
    line = Line(int(source.url.rsplit(":", 1)[1]))
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    link = Link(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    feed = Feed(link, Api("default", None), tell=lambda *_: None)
    work = asyncio.create_task(feed.run())
    try:
        yield feed, line
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        await link.close()
        await line.close()
        server.close()


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for is what a person sees
            await asyncio.sleep(0.02)
    assert holds(), what


def listed(feed: Feed) -> list[str]:
    return [run.run_id for run in feed.board.runs or ()]


async def test_what_commits_between_the_snapshot_and_the_stream_is_shown(source: Stage) -> None:
    async with following(source) as (feed, line):
        made: list[str] = []

        async def held(head: bytes) -> bytes:
            if not made:
                made.append(await off_loop(lambda: source.run_of("order/placed", {})))
                await off_loop(lambda: source.ended(made[0]))
                assert made[0] not in listed(feed)
            return head

        line.meets = held
        await until(lambda: made and made[0] in listed(feed), "the run is there")
        await until(lambda: next(run.status for run in feed.board.runs or () if run.run_id == made[0]) == "ended", "and its end")


async def test_a_stream_that_is_cut_a_hundred_times_loses_and_repeats_nothing(source: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.001)
    # A snapshot would hide what the stream lost, so after the first one there is none.
    monkeypatch.setattr(feeds, "AGAIN_S", 10_000.0)
    async with following(source) as (feed, line):
        await until(lambda: feed.contact == "live", "live")
        before, heard = listed(feed), list[int]()
        hear = feed._hear

        def heard_too(event: StreamEvent) -> None:
            hear(event)
            if event.name == CHANGE:
                assert feed._position is not None
                heard.append(feed._position)

        feed._hear = heard_too  # type: ignore[method-assign]
        line.cuts_left = CUTS
        made: list[str] = []
        while line.cuts_left:
            made.append(await off_loop(lambda: source.run_of("order/placed", {})))
        for one in made:
            await off_loop(lambda one=one: source.ended(one))  # type: ignore[misc]
        await until(lambda: all(run.status == "ended" for run in feed.board.runs or () if run.run_id in made), "every end is known")
        assert listed(feed) == [*reversed(made), *before], "each once, newest first"
        assert heard == sorted(set(heard)), "in the order of their commits, none twice"
        assert line.streams > CUTS


async def test_a_position_that_the_server_never_told_has_everything_taken_anew(source: Stage) -> None:
    async with following(source) as (feed, _):
        await until(lambda: feed.contact == "live" and feed._position is not None, "live")
        wanted = await off_loop(lambda: source.run_of("order/placed", {}))
        feed._position = 2**50
        feed.board = feeds.Board()
        await _anew(feed)
        await until(lambda: wanted in listed(feed), "it is listed again")
        assert feed._position is not None
        assert feed._position < 2**50
        again = await off_loop(lambda: source.run_of("order/placed", {}))
        await until(lambda: again in listed(feed), "and news come")


async def _anew(feed: Feed) -> None:
    """The line is lost; the board begins to follow once more where it believes to be."""
    await feed._link.close()
    feed._link._is_closed = False


async def test_a_position_that_no_server_can_read_is_said_and_got_over(source: Stage) -> None:
    async with following(source) as (feed, line):

        async def spoilt(head: bytes) -> bytes:
            return re.sub(rb"after=\d+", b"after=x7", head, count=1)

        line.meets = spoilt
        await until(lambda: feed.contact == "reconnecting" and "after" in feed.why, "what is wrong is said")
        assert feed.board.runs is not None, "what was known stays"
        line.meets = None
        wanted = await off_loop(lambda: source.run_of("order/placed", {}))
        await until(lambda: feed.contact == "live" and wanted in listed(feed), "it follows again")


async def test_what_workers_are_at_is_asked_for_as_soon_as_somebody_looks(source: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(source) as (feed, _):
        await until(lambda: feed.board.workers, "workers are known")
        monkeypatch.setattr(feeds, "WORKERS_S", 0.0)
        assert "workers" not in feed._needed
        feed.watch("workers", "releases")
        assert "workers" in feed._needed  # no change of the history tells of it, and what is there may be from long ago
