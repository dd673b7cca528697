"""Brings the board up to date: loads snapshots, follows the change stream, comes back after the server was away, and tells at most ten
times a second.

Owns time and order: what is asked when, how stale what is shown may be. Knows no widget: a listener hears that something is different.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ryusen_protocol.changes import CHANGE, HEARTBEAT, NOTICE, RESYNC, Change, Heartbeat, Resync
from ryusen_protocol.client import ApiProblem, UnreadableAnswer
from ryusen_tui.board import ROWS_MAX, Board, Topic, reduce
from ryusen_tui.link import AnswerLost, NoServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_protocol.client import Api, Request
    from ryusen_protocol.ids import RunId
    from ryusen_protocol.sse import StreamEvent
    from ryusen_tui.link import Link

FLUSH_S: Final = 0.1
AGAIN_S: Final = 1.0
"""A snapshot is not taken more often than that, however much changes."""
WORKERS_S: Final = 2.0
"""What is in flight and when a worker was last heard of is no change of the history: it is asked for while it is looked at."""
FIRST_PAUSE_S: Final = 0.1
ATTEMPTS_MAX: Final = 200
"""What a server gives of attempts in one page, whose documents are large."""
LONGEST_PAUSE_S: Final = 2.0
STALE_S: Final = 40.0
"""Longer silence than the server leaves between two heartbeats."""

Contact = Literal["starting", "connecting", "live", "stale", "reconnecting", "refused"]
TROUBLES: Final = (NoServer, AnswerLost, ApiProblem, UnreadableAnswer, msgspec.DecodeError)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What runs the server is asked for."""

    status: str | None = None
    outcome: str | None = None
    recovery: str | None = None
    function: str | None = None
    application: str | None = None
    event: str | None = None
    attention: str | None = None
    q: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every run is asked for."""
        return self == Filter()


class Feed:
    """Keeps one `Board` current. `run` is to be a task; everything else is called from the same loop."""

    def __init__(self, link: Link, api: Api, *, tell: Callable[[frozenset[Topic], frozenset[RunId]], None]) -> None:
        self.board = Board()
        self.contact: Contact = "connecting"
        self.why = ""
        self.errors: dict[Topic, str] = {}
        self.filter = Filter()
        self._link = link
        self._api = api
        self._tell = tell
        self._watched: frozenset[Topic] = frozenset(("server", "runs", "unknown", "workers", "functions"))
        self._needed: set[Topic] = set()
        self._loaded_at: dict[Topic, float] = {}
        self._pending: list[Change] = []
        self._told: set[Topic] = set()
        self._something = asyncio.Event()
        self._position: int | None = None
        self._heard_at = 0.0
        self._resynced = False

    # What a screen asks for.

    def watch(self, *topics: Topic) -> None:
        """Keep these current, beside what the header shows."""
        watched: set[Topic] = {"server", "unknown", "workers", "functions", *topics}
        self._watched = frozenset(watched)
        missing: list[Topic] = [topic for topic in topics if self._is_missing(topic)]
        self.need(*missing)
        self._tick()
        self._something.set()

    def _is_missing(self, topic: Topic) -> bool:
        return topic in self.errors or getattr(self.board, topic) is None

    def need(self, *topics: Topic) -> None:
        """Take these snapshots soon."""
        self._needed.update(topics)
        self._something.set()

    def reload(self) -> None:
        """Take every snapshot that is looked at, now."""
        self._loaded_at.clear()
        self.need(*self._watched)

    def choose(self, chosen: Filter) -> None:
        """Look at other runs."""
        if chosen != self.filter:
            self.filter = chosen
            self.board = msgspec.structs.replace(self.board, runs=None, runs_more=False)
            self._loaded_at.pop("runs", None)
            self.need("runs")
            self._mark("runs")

    # What goes on by itself.

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self._follow(), self._refresh())

    async def _follow(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._begin()
                pause_s = FIRST_PAUSE_S
                async with aclosing(self._link.follow(self._api.stream(after=self._position))) as events:
                    async for event in events:
                        self._hear(event)
                self._lost("the server closed the stream")
            except ApiProblem as problem:
                self._lost(problem.detail, "refused" if problem.code in {"unauthorized", "forbidden"} else "reconnecting")
            except TROUBLES as error:
                self._lost(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _begin(self) -> None:
        """Every snapshot that is looked at, before the stream goes on behind the oldest of them."""
        if self._position is None or self._resynced:
            self._resynced = False
            position = await self._load("runs")
            self._position = position if self._position is None or position is None else max(position, self._position)
        info = await self._link.ask(self._api.server())
        self._put("server", server=info)
        self._heard_at = time.monotonic()
        if self.contact != "live":
            self._contact("live", "")
        self.need(*self._watched)

    def _hear(self, event: StreamEvent) -> None:
        self._heard_at = time.monotonic()
        if self.contact == "stale":
            self._contact("live", "")
        match event.name:
            case str(name) if name == CHANGE:
                change = msgspec.json.decode(event.data, type=Change)
                self._position = change.position
                self._pending.append(change)
            case str(name) if name == RESYNC:
                self._position = msgspec.json.decode(event.data, type=Resync).position
                self.reload()
            case str(name) if name == HEARTBEAT:
                self._position = msgspec.json.decode(event.data, type=Heartbeat).position
                return
            case str(name) if name == NOTICE:
                self._needed.update(("workers", "functions", "server", "releases"))
            case _:
                return
        self._something.set()

    def _lost(self, why: str, contact: Contact = "reconnecting") -> None:
        never = self.board.server is None and contact == "reconnecting"
        self._contact("starting" if self.contact == "starting" else "connecting" if never else contact, why)

    async def _refresh(self) -> None:
        """Applies what came and takes the snapshots that are due."""
        while True:
            try:
                await asyncio.wait_for(self._something.wait(), self._sleep_s())
            except TimeoutError:
                self._tick()
            self._something.clear()
            self._flush()
            if self.contact == "live":
                await self._load_due()
                self._flush()
            await asyncio.sleep(FLUSH_S)

    def _sleep_s(self) -> float:
        due = [self._loaded_at.get(topic, 0.0) + AGAIN_S - time.monotonic() for topic in self._needed & self._watched]
        return max(FLUSH_S, min([WORKERS_S, *due])) if self.contact == "live" else WORKERS_S

    def _tick(self) -> None:
        now = time.monotonic()
        if self.contact == "live" and now - self._heard_at > STALE_S:
            self._contact("stale", f"nothing was heard for {now - self._heard_at:.0f} s")
        if now - self._loaded_at.get("workers", 0.0) >= WORKERS_S and "releases" in self._watched:
            self._needed.add("workers")

    def _flush(self) -> None:
        touched: frozenset[RunId] = frozenset()
        if self._pending:
            changes, self._pending = self._pending, []
            reduced = reduce(self.board, changes, filtered=not self.filter.is_empty)
            self.board = reduced.board
            self._needed |= reduced.needs
            self._told.add("runs")
            touched = reduced.touched
        if self._told or touched:
            told, self._told = frozenset(self._told), set()
            self._tell(told, touched)

    async def _load_due(self) -> None:
        now = time.monotonic()
        for topic in sorted(self._needed & self._watched):
            if now - self._loaded_at.get(topic, -AGAIN_S) >= AGAIN_S:
                try:
                    await self._load(topic)
                except (NoServer, AnswerLost) as error:
                    self._needed.add(topic)
                    self.errors[topic] = str(error)
                    self._mark(topic)
                    return
                except (ApiProblem, UnreadableAnswer, msgspec.DecodeError) as error:
                    self.errors[topic] = str(error)
                    self._mark(topic)

    async def _load(self, topic: Topic) -> int | None:
        """One snapshot. Returns the position that it holds everything up to, if it has one."""
        self._needed.discard(topic)
        self._loaded_at[topic] = time.monotonic()
        match topic:
            case "server":
                self._put(topic, server=await self._link.ask(self._api.server()))
            case "runs":
                return await self._load_runs()
            case "unknown":
                self._put(topic, unknown=await self._list(self._api.list_attempts(state="unknown", limit=ATTEMPTS_MAX)))
            case "events":
                self._put(topic, events=await self._list(self._api.list_events(limit=ROWS_MAX)))
            case "workers":
                self._put(topic, workers=await self._list(self._api.list_workers(limit=ROWS_MAX)))
            case "functions":
                self._put(topic, functions=await self._list(self._api.list_functions(limit=ROWS_MAX)))
            case "releases":
                self._put(topic, releases=await self._list(self._api.list_releases(limit=ROWS_MAX)))
            case "routing":
                self._put(topic, routing=await self._list(self._api.list_routing(limit=50)))
        return None

    async def _load_runs(self) -> int | None:
        chosen = self.filter
        arguments: dict[str, Any] = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value is not None}
        page = await self._link.ask(self._api.list_runs(limit=ROWS_MAX, **arguments))
        position = None if page.position is msgspec.UNSET else page.position
        if chosen == self.filter:
            self._put("runs", runs=tuple(page.items), runs_more=page.next_cursor is not None, runs_position=position or 0)
        return position

    async def _list(self, request: Request[Any]) -> tuple[Any, ...]:
        page = await self._link.ask(request)
        return tuple(page.items)

    def _put(self, topic: Topic, **found: Any) -> None:
        self.board = msgspec.structs.replace(self.board, **found)
        self.errors.pop(topic, None)
        self._loaded_at[topic] = time.monotonic()
        self._mark(topic)

    def _contact(self, contact: Contact, why: str) -> None:
        if (contact, why) != (self.contact, self.why):
            self.contact, self.why = contact, why
            self._mark("server")

    def _mark(self, topic: Topic) -> None:
        self._told.add(topic)
        self._something.set()
