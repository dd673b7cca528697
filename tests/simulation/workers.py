"""Simulated worker processes around the real SDK: its line, its session, its host, its decision machine and its steps.

Only the socket is ours, and what is global to a process: the loop, and the spread of reconnects.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

from ryusen_protocol.frames import Software
from ryusen_protocol.ids import FunctionId, InstanceId, ReleaseId
from ryusen_protocol.scope import Scope
from ryusen_sdk import line as line_module
from ryusen_sdk.errors import WorkerError
from ryusen_sdk.host import Host
from ryusen_sdk.line import Line, Server, Timings
from ryusen_sdk.manifest import Manifest, Registry, manifest_of
from ryusen_sdk.session import Session, WorkerFacts
from ryusen_sdk.standing import Standing
from tests.simulation.network import End, WorkerSocket
from tests.simulation.outside import Outside
from tests.simulation.programs import Release, function_of
from tests.simulation.scheduling import Process, SimulatedLoop, current_process

SOFTWARE = Software("simulated", "1")


class Listener(Protocol):
    """The server, as the network knows it."""

    def is_listening(self) -> bool: ...
    def open_wire(self, worker: Worker) -> End: ...


class Place(Protocol):
    """Where the server is."""

    @property
    def server(self) -> Listener: ...


class Connector:
    """How a worker reaches the server: an open end of a wire, or an `OSError`."""

    def __init__(self, world: Place) -> None:
        self._world = world
        self.workers: dict[Process, Any] = {}

    async def connect(self, url: str, token: str | None, owner: Any, made: Callable[[Any], None]) -> WorkerSocket:
        """Stands in for the SDK's own."""
        del url, token
        process = current_process()
        assert process is not None
        worker = self.workers[process]
        if not self._world.server.is_listening():
            raise ConnectionRefusedError("nobody listens")
        await asyncio.sleep(worker.chance.randrange(20) / 1000)
        socket = WorkerSocket(self._world.server.open_wire(worker), owner, worker.loop)
        made(socket)
        worker.loop.call_soon(owner.opened)
        return socket


class Worker:
    """One worker process. `kill` ends it at any point; `pause` stops it as SIGSTOP does. `pretends`: functions it names and has not."""

    def __init__(
        self,
        name: str,
        scope: Scope,
        release: Release,
        *,
        instance_id: str,
        capacity: int,
        loop: SimulatedLoop,
        builds: Builds,
        connector: Connector,
        chance: random.Random,
        trace: Callable[[str], None],
        pretends: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.scope = scope
        self.release = release
        self.loop = loop
        self.chance = chance
        self.process = Process(name)
        self.capacity = capacity
        self.finished: str | None = None
        self.end: End | None = None
        self._trace = trace
        connector.workers[self.process] = self
        registry, manifest = builds.of(release)
        facts = WorkerFacts(
            scope=scope,
            instance_id=InstanceId(instance_id),
            release_id=None if release.release_id is None else ReleaseId(release.release_id),
            manifest_digest=manifest.digest,
            functions=[*(function.id for function in manifest.functions), *(FunctionId(name) for name in pretends)],
            capacity=capacity,
            sdk=SOFTWARE,
            runtime=SOFTWARE,
        )
        self.session = Session(facts)
        # Runs here are short: their bodies stand from the first step on, and go one step, a few, or as many as they have in one go.
        standing = Standing(steps_min=0, stretch_max=chance.choice((0, 1, 3, 100)))
        host = Host(registry, loop, _NoPool(), standing=standing)  # type: ignore[arg-type]
        self.line = Line(
            Server("http://simulated", "ws://simulated", None, publishes=False), self.session, manifest, host, _ignore, Timings()
        )
        loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        try:
            await self.line._run()
        except WorkerError as error:
            self.finished = str(error)
        else:
            self.finished = "drained"
        self._trace(f"{self.name} ends: {self.finished}")
        # The process exits: whatever still runs in it ends with it.
        self.loop.call_soon(self._exit)

    def _exit(self) -> None:
        self.process.end()
        if self.end is not None and not self.end.is_gone:
            self.end.peer.told_lost(None)

    @property
    def is_alive(self) -> bool:
        return self.process.alive and self.finished is None

    @property
    def is_up(self) -> bool:
        """Alive, and not stopped."""
        return self.is_alive and not self.process.paused

    def kill(self, why: str, *, silently: bool = False) -> None:
        """SIGKILL. Its machine resets the connection, unless the machine is gone too (`silently`)."""
        if not self.process.alive:
            return
        self._trace(f"{self.name} is killed {why}")
        self.process.end()
        if self.end is not None and not silently:
            self.end.peer.told_lost(ConnectionResetError("the worker died"))

    def pause(self) -> None:
        self._trace(f"{self.name} is stopped")
        self.process.pause()

    def resume(self) -> None:
        if self.process.paused:
            self._trace(f"{self.name} goes on")
            self.loop.resume(self.process)

    def drain(self) -> None:
        """SIGTERM."""
        self._trace(f"{self.name} drains")
        self.loop.call_soon(self.line._drain, context=self.process.context)


class Builds:
    """What each release's code comes to when it is imported: its functions as the SDK has them registered, and what it publishes.

    Made once a release; its workers differ in nothing but the process they run in.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._made: dict[int, tuple[Release, Registry, Manifest]] = {}

    def of(self, release: Release) -> tuple[Registry, Manifest]:
        """The build of a release."""
        made = self._made.get(id(release))
        if made is None:
            registry = self._registry(release)
            made = self._made[id(release)] = (release, registry, manifest_of(registry))
        return made[1], made[2]

    def _registry(self, release: Release) -> Registry:
        registry = Registry()
        for function, program in release.programs.items():
            timeout_ms = release.timeouts_ms.get(function)
            registry.add(
                function_of(program, self._outside),
                list(release.triggers.get(function, ())) or None,
                function,
                None if timeout_ms is None else timeout_ms / 1000,
            )
        return registry


class _NoPool:
    """No simulated callback needs a thread."""

    def submit(self, work: object) -> None:
        raise AssertionError("a simulated callback ran in a thread")


def _given(loop: SimulatedLoop) -> SimulatedLoop:
    return loop


def _ignore(change: object) -> None:
    """Nobody watches a simulated worker's status."""


def installed(connector: Connector, loop: SimulatedLoop, chance: random.Random) -> Any:
    """Gives every worker of this simulation its loop, its socket and its spread. A context manager."""
    spread = SimpleNamespace(uniform=chance.uniform)
    return _Patches(
        [
            mock.patch.object(line_module.asyncio, "new_event_loop", partial(_given, loop)),
            mock.patch.object(line_module, "connect", connector.connect),
            mock.patch.object(line_module, "random", spread),
        ]
    )


class _Patches:
    def __init__(self, patches: list[Any]) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *error: object) -> None:
        for patch in reversed(self._patches):
            patch.stop()
