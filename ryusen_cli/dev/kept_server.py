"""The server's process, kept alive: started, started again when it dies, given up when that leads nowhere.

Owns where it answers and how often it has died of late. When it is to end, the supervisor says.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ryusen_cli.dev import messages
from ryusen_cli.dev.process import Child, how_ended
from ryusen_cli.dev.spawn import head_start
from ryusen_cli.exits import CliError

if TYPE_CHECKING:
    from collections.abc import Callable

_RESTARTS_MAX: Final = 5
_RESTART_WINDOW_S: Final = 60.0


class Say(Protocol):
    """Says one thing to whoever reads along."""

    def __call__(self, text: str, *, is_trouble: bool = False) -> None: ...


class KeptServer:
    """One server over all its processes. `start`, then `keep`."""

    child: Child
    """The process it has, or had last."""

    def __init__(
        self,
        order: messages.RunServer,
        *,
        say: Say,
        printed: Callable[[Child, str], None],
        listening: Callable[[str], None],
        may_end: Callable[[], bool],
    ) -> None:
        """`listening` is called with its URL whenever it begins to answer; `may_end` tells whether its end is no accident."""
        self.url: str | None = None
        """Where it answers, once it has."""
        self._order = order
        self._say = say
        self._printed = printed
        self._told = listening
        self._listening = asyncio.Event()
        self._failure: messages.Failed | None = None
        self._crashes: list[float] = []
        self._may_end = may_end

    async def answers(self) -> str:
        """Its URL, as soon as it answers there."""
        await self._listening.wait()
        if self.url is None:
            raise AssertionError("a server that listens has a URL")
        return self.url

    async def start(self) -> None:
        """Starts a process, or takes the one that has a head start, and tells it what to do."""
        self._failure = None
        child = Child("server", said=self._said, printed=self._printed)
        begun = head_start.take()
        if begun is None:
            await child.start("server")
        else:
            await child.adopt(begun)
        child.order(self._order)
        self.child = child

    async def keep(self) -> None:
        """Starts it again whenever it dies, until it may end. Raises `CliError` when that leads nowhere."""
        while True:
            code = await self.child.ended()
            if not self._may_end():
                await asyncio.sleep(self._died(code))
            if self._may_end():
                return
            await self.start()

    def _died(self, code: int) -> float:
        """How many seconds to wait before it is started again."""
        if self._failure is not None and not self._listening.is_set():
            raise CliError(self._failure.message, hint=self._failure.hint, code="server_failed")
        now = time.monotonic()
        self._crashes = [at for at in self._crashes if now - at < _RESTART_WINDOW_S] + [now]
        why = self._failure.message if self._failure is not None else how_ended(code)
        if len(self._crashes) > _RESTARTS_MAX or not self._listening.is_set():
            raise CliError(f"the server ended ({why}) and is not started again", code="server_failed")
        pause_s = 0.2 * 2 ** (len(self._crashes) - 1)
        self._say(f"server: ended ({why}); starting it again in {pause_s:g} s", is_trouble=True)
        return pause_s

    def _said(self, _child: Child, fact: messages.Fact) -> None:
        match fact:
            case messages.Listening(addresses, database):
                self._answers_at(addresses, database)
            case messages.Failed():
                self._failure = fact
            case messages.Noted(text, is_trouble):
                self._say(f"server: {text}", is_trouble=is_trouble)
            case _:
                pass

    def _answers_at(self, addresses: list[str], database: str) -> None:
        from ryusen_cli.dev.facts import reachable

        self.url = reachable(addresses[0])
        if self._order.port == 0:
            # A restarted server has to be where its workers and clients look for it.
            port = int(addresses[0].rpartition(":")[2].rstrip("/"))
            self._order = msgspec.structs.replace(self._order, port=port)
        if self._listening.is_set():
            self._say(f"server: listening again on {', '.join(addresses)}, database {database}")
        self._listening.set()
        self._told(self.url)
