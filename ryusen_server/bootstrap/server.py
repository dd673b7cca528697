"""One server: its parts, and the order in which they start and stop.

Start: port, then database, then recovery, then answers. Stop: no new work, what is out comes back or its time is over, those who wait
are answered, connections close, and the database last.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ryusen_protocol.api import DatabaseInfo
from ryusen_protocol.words import printable
from ryusen_server.api.app import create_app
from ryusen_server.api.context import Context, ServerFacts
from ryusen_server.api.credentials_file import CredentialsRefused
from ryusen_server.api.gate import gate_rules
from ryusen_server.api.serving import Serving, prepare_app
from ryusen_server.bootstrap.credentials import CredentialsKeeper
from ryusen_server.bootstrap.listening import BACKLOG, base_url, is_loopback, listen
from ryusen_server.bootstrap.settings import HTTP_CAPACITY_MAX, Ready, ServerSettings, StartRefused
from ryusen_server.bootstrap.system import SystemClock, SystemEntropy
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.engine import Engine
from ryusen_server.ports.store import StorageUnavailable, Store
from ryusen_server.store.sqlite import SqliteStore, StoreRefused
from ryusen_server.store.sqlite.schema import SCHEMA_VERSION
from ryusen_server.transports.connected.connection import GOING_AWAY, ConnectedConfig
from ryusen_server.transports.connected.gateway import Gateway
from ryusen_server.web.site import site

if TYPE_CHECKING:
    from ryusen_server.transports.http.invoker import HttpInvoker

_log = logging.getLogger(__name__)

_ANSWERS_MS = 1_000
"""How long answers that are being written may take at the end."""
_SILENT_MS_MIN = 1_000


class OpenStore(Store, Protocol):
    """A store this server has to close."""

    async def close(self) -> None: ...


StoreFactory = Callable[[Path | None, Callable[[str], None]], Awaitable[OpenStore]]
"""Opens a store at a path, or an ephemeral one; calls the second argument, on any thread, when nothing may be written any more."""


class Server:
    """A server and its parts. One loop; `start` once, then `stop`."""

    engine: Engine
    store: OpenStore

    def __init__(
        self,
        settings: ServerSettings,
        *,
        store_factory: StoreFactory | None = None,
        engine_config: EngineConfig | None = None,
        connected_config: ConnectedConfig | None = None,
    ) -> None:
        self.settings = _checked(settings)
        self.addresses: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self._open_store = store_factory or _open_sqlite
        self._engine_config = engine_config or _engine_config(settings)
        self._connected_config = connected_config or _connected_config(self._engine_config)
        self._sockets: list[socket.socket] = []
        self._serving: Serving | None = None
        self._stopped = False
        self._credentials: CredentialsKeeper | None = None
        self._gateway: Gateway | None = None
        self._invoker: HttpInvoker | None = None
        self._context: Context | None = None

    @property
    def url(self) -> str:
        """The first base URL it answers at."""
        return self.addresses[0]

    @property
    def ready(self) -> Ready:
        """How a successful start is told."""
        db = self.settings.db
        return Ready(
            url=self.url,
            addresses=self.addresses,
            database="in memory only" if db is None else str(db),
            ephemeral=db is None,
            warnings=self.warnings,
        )

    async def start(self) -> None:
        """Answer requests from now on. Raises `StartRefused`, with everything closed again."""
        loop = asyncio.get_running_loop()
        self.fatal: asyncio.Future[str] = loop.create_future()
        """Done with one line for people when the database may not be written any more: the process must end."""
        _check_policies(self.settings)
        self._credentials = _credentials(self.settings)
        self._sockets = listen(self.settings.host, self.settings.port)
        try:
            await self._open_and_prepare(loop)
            try:
                await self._start_engine()
                try:
                    await self._answer()
                except BaseException:
                    await self._end_exchanges()
                    await self.engine.stop()
                    raise
            except BaseException:
                await self.store.close()
                raise
        except BaseException:
            if self._serving is not None:
                self._serving.discard()
            for bound in self._sockets:
                bound.close()
            raise

    async def _open_and_prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        """The database opens on threads of its own, so the routes are built meanwhile."""
        opening = loop.create_task(self._open(loop))
        try:
            await asyncio.sleep(0)  # the threads begin
            port: int = self._sockets[0].getsockname()[1]
            app = create_app(rules=gate_rules(port, self.settings.allow_hosts), files=site())
            self._serving = await prepare_app(app, self._sockets, backlog=BACKLOG)
        except BaseException:
            await (await opening).close()
            raise
        self.store = await opening

    async def _open(self, loop: asyncio.AbstractEventLoop) -> OpenStore:
        def on_fatal(reason: str) -> None:
            loop.call_soon_threadsafe(self._lost, reason)

        try:
            return await self._open_store(self.settings.db, on_fatal)
        except (StoreRefused, StorageUnavailable) as refused:
            raise StartRefused(str(refused)) from refused

    def _lost(self, reason: str) -> None:
        if not self.fatal.done():
            self.fatal.set_result(reason)

    async def _start_engine(self) -> None:
        self.clock = SystemClock()
        self.engine = Engine(store=self.store, clock=self.clock, entropy=SystemEntropy(), config=self._engine_config)
        try:
            await self.engine.start()
        except StorageUnavailable as refused:
            await self.engine.stop()
            raise StartRefused(refused.reason) from refused
        self._attach_endpoints()

    def _attach_endpoints(self) -> None:
        settings = self.settings
        if not settings.http_endpoints:
            return
        from ryusen_server.transports.http.invoker import HttpInvoker  # what it builds on is a quarter of a server's start

        secret = None if settings.http_secret is None else settings.http_secret.encode()
        self._invoker = HttpInvoker(secret)
        for endpoint in settings.http_endpoints:
            self.engine.attach_endpoint(endpoint.scope, endpoint.url, self._invoker.endpoint(endpoint.url), settings.http_capacity)

    async def _answer(self) -> None:
        if self._serving is None:
            raise AssertionError("the routes are prepared first")
        self.addresses = tuple(base_url(bound) for bound in self._sockets)
        self.warnings = () if self._credentials is not None else _warnings(self._sockets)
        self._gateway = Gateway(self.engine, self._connected_config)
        self._context = Context(
            engine=self.engine,
            store=self.store,
            clock=self.clock,
            config=self._engine_config,
            facts=_facts(self.settings, self.addresses, self.clock.now_ms()),
            workers_connected=self._gateway.sessions,
            access=None if self._credentials is None else self._credentials.access,
        )
        self._context.access.on_change(self._access_changed)
        await self._serving.begin(self._context, self._gateway)
        if isinstance(self.store, SqliteStore):
            self.store.set_owner_url(self.url)
        if self._credentials is not None:
            self._credentials.start()

    def _access_changed(self) -> None:
        """What was begun under other credentials and would not be begun now ends, or gets no more work."""
        if self._gateway is not None and self._context is not None and self._context.access.credentials is not None:
            self._gateway.access_changed()
            self.engine.permit_endpoints(self._context.access.credentials.executes)

    def reload_credentials(self) -> None:
        """Read the credentials file again, if there is one."""
        if self._credentials is not None:
            self._credentials.reload()

    async def stop(self, drain_ms: int | None = None, hurry: asyncio.Event | None = None) -> None:
        """Stop within the bound, or at once when `hurry` is set meanwhile. What is durable stays; what was out is asked for again."""
        if self._context is None or self._gateway is None or self._serving is None:
            raise AssertionError("only a started server stops")
        if self._stopped:
            return
        self._stopped = True
        if self._credentials is not None:
            self._credentials.stop()
        self._context.draining = True
        await _first(self.engine.drain(self.settings.drain_ms if drain_ms is None else drain_ms), hurry)
        if not self._context.stopping.done():
            self._context.stopping.set_result(None)
        self._serving.stop_listening()
        await _first(self._gateway.close(GOING_AWAY, "the server is shutting down"), hurry)
        await self._serving.finish(0 if hurry is not None and hurry.is_set() else _ANSWERS_MS)
        await self._end_exchanges()
        await self.engine.stop()
        await self.store.close()

    async def _end_exchanges(self) -> None:
        """What an open exchange was asked for is in doubt from here on, and that is recorded while it still can be."""
        if self._invoker is not None:
            await self._invoker.close()


async def _first(work: Awaitable[None], hurry: asyncio.Event | None) -> None:
    """Wait for the work, or until there is a hurry."""
    if hurry is None:
        await work
        return
    task = asyncio.ensure_future(work)
    hurried = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait((task, hurried), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        hurried.cancel()


@asynccontextmanager
async def running(server: Server) -> AsyncGenerator[Server, None]:
    """The server, started, and stopped again at the end."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def _open_sqlite(path: Path | None, on_fatal: Callable[[str], None]) -> OpenStore:
    return await SqliteStore.open(path, on_fatal=on_fatal)


def _checked(settings: ServerSettings) -> ServerSettings:
    endpoints = settings.http_endpoints
    if len(set(endpoints)) != len(endpoints):
        raise StartRefused("an HTTP endpoint is given twice; give each once, and raise --http-capacity if one may do more at a time")
    if not 1 <= settings.http_capacity <= HTTP_CAPACITY_MAX:
        raise StartRefused(f"an HTTP capacity of {settings.http_capacity} is not between 1 and {HTTP_CAPACITY_MAX}")
    if settings.http_secret == "":
        raise StartRefused("the HTTP secret is empty; give it a long random value, or unset it to leave calls unsigned")
    return settings


def _check_policies(settings: ServerSettings) -> None:
    default_ms, max_ms = settings.default_run_timeout_ms, settings.max_run_timeout_ms
    if default_ms is not None and max_ms is not None and default_ms > max_ms:
        raise StartRefused(
            f"--default-run-timeout is {default_ms} ms, above the {max_ms} ms of --max-run-timeout; shorten the one or raise the other"
        )


def _credentials(settings: ServerSettings) -> CredentialsKeeper | None:
    if settings.credentials is None:
        return None
    try:
        keeper = CredentialsKeeper(settings.credentials)
    except CredentialsRefused as refused:
        raise StartRefused(str(refused)) from refused
    for endpoint in settings.http_endpoints:
        if not keeper.executes(endpoint.scope):
            scope = printable(f"{endpoint.scope.workspace}/{endpoint.scope.application}")
            raise StartRefused(
                f"no token of {printable(str(settings.credentials))} may execute {scope}, so no endpoint may run its work; "
                f'add applications = {{"{scope}" = ["execute"]}} to one, or leave the endpoint out'
            )
    return keeper


def _engine_config(settings: ServerSettings) -> EngineConfig:
    return EngineConfig(
        lease_ms=settings.lease_ms,
        heartbeat_ms=max(1, settings.lease_ms // 3),
        reconnect_grace_ms=settings.reconnect_grace_ms,
        default_run_timeout_ms=settings.default_run_timeout_ms,
        max_run_timeout_ms=settings.max_run_timeout_ms,
    )


def _connected_config(engine: EngineConfig) -> ConnectedConfig:
    """A quiet worker is asked when a heartbeat is missing and given up before its lease is over."""
    return ConnectedConfig(ping_after_ms=engine.heartbeat_ms, silent_after_ms=max(_SILENT_MS_MIN, engine.heartbeat_ms * 5 // 2))


def _facts(settings: ServerSettings, addresses: tuple[str, ...], now_ms: int) -> ServerFacts:
    path = "" if settings.db is None else str(settings.db.absolute())
    return ServerFacts(
        product_version=product_version(),
        addresses=addresses,
        database=DatabaseInfo(path=path, schema_version=SCHEMA_VERSION, ephemeral=settings.db is None),
        started_at_ms=now_ms,
    )


def product_version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("ryusen")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


def _warnings(sockets: list[socket.socket]) -> tuple[str, ...]:
    exposed = [base_url(bound) for bound in sockets if not is_loopback(bound)]
    if not exposed:
        return ()
    warning = (
        f"{', '.join(exposed)} can be reached from other machines and there is no login: whoever reaches it can read every payload, send "
        "events, publish manifests, run work and stop runs. Bind 127.0.0.1 unless the network is trusted, or ask callers for a token with "
        "--credentials. Requests are answered only for the host names this server knows; add others with --allow-host."
    )
    return (warning,)
