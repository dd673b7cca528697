"""Supervises a server and its workers, or workers alone: starts them, replaces them on a save, restarts them, ends them.

Owns processes and time. What to do about a save or a death is decided by `swap`; what a person reads about the server by `facts`.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ryusen_cli.dev import messages
from ryusen_cli.dev.kept_server import KeptServer
from ryusen_cli.dev.process import Child, how_ended
from ryusen_cli.dev.sources import Sources, source_folder
from ryusen_cli.dev.swap import Action, Drain, Say, Slot, Start
from ryusen_cli.exits import CliError, Exit
from ryusen_cli.output import Output, Painted, printable_block

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ryusen_cli.dev.report import Standing
    from ryusen_cli.output import Cell

DRAIN_S: Final = 10.0
"""How long workers may finish their steps when a person ends the whole; a reload sets no such bound."""
SERVER_END_S: Final = 10.0
_READY_S: Final = 15.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to supervise. Without a `server` order, workers connect to the URL of theirs."""

    targets: list[str]
    worker: messages.RunWorker
    """What every worker gets; target, release and, with a `server`, URL are filled in."""
    server: messages.RunServer | None = None
    reload: bool = True
    browse: bool = False
    """Whether to open the pages once the server answers."""


class Target:
    """One target: its sources, its workers and their processes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.slot = Slot(name)
        self.sources = Sources([source_folder(name, folder)])
        self.children: dict[int, Child] = {}
        self.wanted: set[int] = set()
        """Keys to start whose pause is not over."""
        self.was_seen = asyncio.Event()
        """Set once the first worker is registered, or has failed."""
        self.watch_again = asyncio.Event()
        self.seen = ""
        """The digest that was last acted on."""
        self.example: str | None = None
        self.workspace: str | None = None


class Supervisor:
    """Runs one plan to its end. Use it once."""

    def __init__(self, plan: Plan, output: Output) -> None:
        self._plan = plan
        self._output = output
        self._targets = [Target(name, Path.cwd()) for name in plan.targets]
        self._server: KeptServer | None = None
        self._standby: Child | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._finish: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._stop_watching = asyncio.Event()
        self.listening: Callable[[str], None] = lambda _: None
        """Called with the server's URL whenever it begins to answer."""

    async def run(self) -> int:
        """Supervises until a signal, or until it cannot go on. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            if self._plan.server is not None:
                server = KeptServer(
                    self._plan.server, say=self._say, printed=self._printed, listening=self._listens, may_end=lambda: self._stopping
                )
                await server.start()
                self._server = server
                self._spawn(self._server.keep())
            await self._prepare_standby()
            for target in self._targets:
                target.seen = await asyncio.to_thread(target.sources.digest)
                target.sources.trust()
                self._perform(target, target.slot.saved(self._release(target.seen)))
                if self._plan.reload:
                    self._spawn(self._watch(target))
            if self._server is not None:
                self._spawn(self._report(self._server))
            return await self._finish
        finally:
            await self._end()

    # Ending.

    def _signalled(self, number: int) -> None:
        code = Exit.INTERRUPTED if number == signal.SIGINT else Exit.TERMINATED
        if self._stopping:
            self._say("ending at once")
            for child in self._all_children():
                child.kill()
            return
        self._stopping = True
        if not self._finish.done():
            self._finish.set_result(int(code))
            self._say("finishing what runs; once more ends at once")

    def finish(self, code: int) -> None:
        """End as a signal would, with this exit code. A second time, and after a signal, it does nothing."""
        self._stopping = True
        if not self._finish.done():
            self._finish.set_result(code)

    def _give_up(self, error: CliError) -> None:
        self._stopping = True
        if not self._finish.done():
            self._finish.set_exception(error)

    async def _end(self) -> None:
        """Workers first, while the server can still take what they finish."""
        self._stopping = True
        self._stop_watching.set()
        workers = [child for target in self._targets for child in target.children.values()]
        if self._standby is not None:
            self._standby.close()
            workers.append(self._standby)
        await self._end_children(workers, DRAIN_S)
        await self._end_children([] if self._server is None else [self._server.child], SERVER_END_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end_children(self, children: list[Child], bound_s: float) -> None:
        running = [child for child in children if child.is_running]
        for child in running:
            child.drain()
        ends = [asyncio.ensure_future(child.ended()) for child in running]
        if ends:
            await asyncio.wait(ends, timeout=bound_s)
        for child in running:
            if child.is_running:
                self._say(f"{child.name} did not finish in {bound_s:g} s; ended at once", is_trouble=True)
                child.kill()
        if ends:
            await asyncio.wait(ends, timeout=2.0)

    def _all_children(self) -> list[Child]:
        children = [child for target in self._targets for child in target.children.values()]
        return children + [child for child in (self._standby, self._server and self._server.child) if child is not None]

    def _listens(self, url: str) -> None:
        self.listening(url)

    # Workers.

    def _perform(self, target: Target, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Say(text, is_trouble):
                    self._say(text, is_trouble=is_trouble)
                case Drain(key):
                    target.wanted.discard(key)
                    child = target.children.get(key)
                    if child is not None:
                        child.drain()
                    else:
                        target.slot.ended(key, "never started")
                case Start(key, release, after_ms):
                    target.wanted.add(key)
                    self._spawn(self._start_worker(target, key, release, after_ms))

    async def _start_worker(self, target: Target, key: int, release: str, after_ms: int) -> None:
        if after_ms:
            await asyncio.sleep(after_ms / 1_000)
        if key not in target.wanted or self._stopping:
            return
        child, self._standby = self._standby, None
        if child is None or not child.is_running:
            child = await self._spawn_worker()
        if key not in target.wanted:
            # Superseded while it was coming up; it serves as the next one standing by.
            self._standby = child
            return
        target.wanted.discard(key)
        child.name = target.name
        child.on_fact = lambda fact: self._worker_said(target, key, fact)
        target.children[key] = child
        url = self._plan.worker.url if self._server is None else self._server.url
        child.order(msgspec.structs.replace(self._plan.worker, target=target.name, url=url, release=release))
        self._spawn(self._await_worker(target, key, child))
        if self._server is not None and url is None:  # it imports the target meanwhile
            child.order(messages.Connect(await self._server.answers()))

    async def _await_worker(self, target: Target, key: int, child: Child) -> None:
        code = await child.ended()
        del target.children[key]
        if self._stopping:
            return
        self._perform(target, target.slot.ended(key, how_ended(code)))
        target.was_seen.set()
        await self._prepare_standby()

    def _worker_said(self, target: Target, key: int, fact: messages.Fact) -> None:
        match fact:
            case messages.Imported(_, workspace, sources, example):
                target.workspace, target.example = workspace, example
                if target.sources.add(Path(file) for file in sources):
                    target.watch_again.set()
            case messages.Registered():
                self._worker_registered(target, key, fact)
            case messages.Away(reason, retry_in_ms):
                self._say(f"{target.name}: no connection: {reason}; trying again in {retry_in_ms / 1_000:.1f} s", is_trouble=True)
            case messages.Failed(message, hint, leads_nowhere=True) if not target.was_seen.is_set():
                # Nobody is about to save what was never there: a slip in the command line is said at once.
                self._give_up(CliError(message, hint=hint, code="target"))
            case messages.Failed(message, hint, at_import):
                if at_import:
                    target.slot.import_failed(key)
                self._say(f"{target.name}: {message}" + (f"\n  try: {hint}" if hint else ""), is_trouble=True)
            case messages.Noted(text, is_trouble):
                self._say(f"{target.name}: {text}", is_trouble=is_trouble)
            case messages.Listening():
                pass

    def _worker_registered(self, target: Target, key: int, fact: messages.Registered) -> None:
        if key == target.slot.current:
            self._say(f"{target.name}: connected again")
        elif self._plan.server is None or target.was_seen.is_set():
            self._say(f"{target.name}: registered, {', '.join(fact.functions) or 'no functions'}; capacity {fact.capacity}")
        self._perform(target, target.slot.registered(key))
        target.was_seen.set()
        self._spawn(self._prepare_standby())

    async def _prepare_standby(self) -> None:
        """A worker that has everything but the user's code, so that a save is live as soon as that is imported."""
        if self._standby is None and not self._stopping:
            child = await self._spawn_worker()
            if self._standby is not None or self._stopping:
                child.kill()
                return
            self._standby = child

    async def _spawn_worker(self) -> Child:
        child = Child("standby", said=lambda child, fact: child.on_fact(fact), printed=self._printed)
        await child.start("worker")
        return child

    # Saves.

    async def _watch(self, target: Target) -> None:
        from ryusen_cli.dev.watch import changes

        while not self._stop_watching.is_set():
            if target.watch_again.is_set():
                # More folders make another digest, and no save.
                target.watch_again.clear()
                target.seen = await asyncio.to_thread(target.sources.digest)
            stop = asyncio.Event()
            again = asyncio.create_task(_set_when(stop, target.watch_again, self._stop_watching))
            try:
                async for changed in changes(target.sources.folders, stop):
                    await self._saved(target, is_certain=bool(changed))
            finally:
                again.cancel()

    async def _saved(self, target: Target, *, is_certain: bool) -> None:
        """Sources were saved, or are looked at to find out. A save of the same contents is a wish to try again what failed."""
        digest = await asyncio.to_thread(target.sources.digest)
        if digest == target.seen and not is_certain:
            return
        target.seen = digest
        if self._stopping:
            return
        if target.slot.is_running(self._release(digest)):
            self._perform(target, target.slot.saved(self._release(digest)))
            return
        error = await asyncio.to_thread(target.sources.first_error)
        if error is not None:
            self._perform(target, target.slot.broken(error))
        elif not self._stopping:
            self._perform(target, target.slot.saved(self._release(digest)))

    def _release(self, digest: str) -> str:
        given = self._plan.worker.release
        if given is None:
            return f"dev-{digest}"
        return f"{given}-{digest}" if self._plan.reload else given

    # Telling.

    async def _report(self, server: KeptServer) -> None:
        """Once server and workers are there, or it is clear that they will not be."""
        from ryusen_cli.dev.report import report

        url = await server.answers()
        if self._plan.browse:
            from ryusen_cli.dev.browser import open_pages

            self._say(await asyncio.to_thread(open_pages, url))
        seen = [asyncio.create_task(target.was_seen.wait()) for target in self._targets]
        await asyncio.wait(seen, timeout=_READY_S)
        for task in seen:
            task.cancel()
        await report(lambda: self._standing(url), self._output, self._say)

    def _standing(self, url: str) -> Standing:
        from ryusen_cli.dev.report import Standing

        return Standing(
            url=url,
            workspace=next((target.workspace for target in self._targets if target.workspace), "default"),
            example=next((target.example for target in self._targets if target.example), None),
            token=self._plan.worker.token,
            without_worker=[target.name for target in self._targets if target.slot.current is None],
        )

    def _printed(self, child: Child, line: str) -> None:
        self._note(Painted(f"{child.name} | ", "muted"), line)

    def _say(self, text: str, *, is_trouble: bool = False) -> None:
        self._note(Painted("ryusen | ", "warn" if is_trouble else "accent"), printable_block(text))

    def _note(self, *cells: Cell) -> None:
        """A line for whoever reads along. With nobody left to read, all of it ends, and as it always does."""
        try:
            self._output.note(*cells)
        except BrokenPipeError:
            self.finish(Exit.ERROR)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished_task)

    def _finished_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._finish.done():
            self._finish.set_exception(error)


async def _set_when(flag: asyncio.Event, *causes: asyncio.Event) -> None:
    waits = [asyncio.create_task(cause.wait()) for cause in causes]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    flag.set()
