"""What every route answers from: committed state, the engine's present, the clock, and what bootstrap knows of the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ryusen_protocol.api import DatabaseInfo, HealthStatus
from ryusen_protocol.ids import ManifestGeneration, Workspace
from ryusen_protocol.manifest import FunctionDeclaration, TriggerDeclaration
from ryusen_server.api.credentials import Access
from ryusen_server.api.pace import PACE
from ryusen_server.api.requests import Requests
from ryusen_server.core.rows import ManifestRow

if TYPE_CHECKING:
    from ryusen_server.engine.config import EngineConfig
    from ryusen_server.engine.engine import Engine
    from ryusen_server.ports.store import Store
    from ryusen_server.ports.time import Clock

T = TypeVar("T")

_MANIFESTS_KEPT_MAX: Final = 1_000
_STORAGE_DOUBTED_MS: Final = 10_000
"""How long after a failure the database counts as unavailable, unless something succeeds: nobody writes just to find out."""


class ServerFacts(msgspec.Struct, frozen=True):
    """What does not change while a server runs. `addresses` are base URLs."""

    product_version: str
    addresses: tuple[str, ...]
    database: DatabaseInfo
    started_at_ms: int


class ManifestContents(msgspec.Struct, frozen=True):
    """The canonical document of a manifest generation."""

    contents: str
    functions: list[FunctionDeclaration]
    triggers: list[TriggerDeclaration]


class Context:
    """Shared by all routes of one server. Loop thread only."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        clock: Clock,
        config: EngineConfig,
        facts: ServerFacts,
        workers_connected: Callable[[], int],
        access: Access | None = None,
    ) -> None:
        self.access = access or Access()
        self.engine = engine
        self.store = store
        self.clock = clock
        self.config = config
        self.facts = facts
        self.workers_connected = workers_connected
        self.pace = PACE
        self.requests = Requests()
        self.draining = False
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server is about to go: whoever waits is answered with what there is."""
        self._mutations: set[asyncio.Task[Any]] = set()
        self._storage_failed_at_ms: int | None = None
        self._manifests: dict[tuple[Workspace, ManifestGeneration], ManifestContents] = {}

    def health(self) -> HealthStatus:
        """Whether new work is taken, and why not."""
        if self.draining:
            return "draining"
        failed_at_ms = self._storage_failed_at_ms
        if failed_at_ms is not None and self.clock.now_ms() - failed_at_ms < _STORAGE_DOUBTED_MS:
            return "storage_unavailable"
        return "ok"

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to. A caller that hangs up cancels its handler; what was begun is finished all the same."""
        task = asyncio.get_running_loop().create_task(work)
        self._mutations.add(task)
        task.add_done_callback(self._mutated)
        return await asyncio.shield(task)

    def _mutated(self, task: asyncio.Task[Any]) -> None:
        self._mutations.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._storage_failed_at_ms = None

    def storage_failed(self) -> None:
        """A request could not be served for want of the database."""
        self._storage_failed_at_ms = self.clock.now_ms()

    def contents(self, manifest: ManifestRow) -> ManifestContents:
        """What a manifest generation declares. It never changes, so it is read once."""
        key = (manifest.workspace, manifest.manifest_generation)
        known = self._manifests.get(key)
        if known is None:
            if len(self._manifests) >= _MANIFESTS_KEPT_MAX:
                self._manifests.pop(next(iter(self._manifests)))
            known = self._manifests[key] = msgspec.json.decode(manifest.document, type=ManifestContents)
        return known
