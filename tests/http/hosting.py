"""Web servers for tests: a small ASGI server on asyncio and h11, and the WSGI server of the standard library. Real sockets, free ports.

The ASGI server speaks HTTP/1.1 and the lifespan protocol, one request a connection, and never cancels an application because its client is
gone. As a program it hosts an application's file: `hosting.py asgi|wsgi TARGET URL_FILE`, with `RYUSEN_HTTP_SECRET` and the port,
`HOSTING_PORT`, from the environment; or `hosting.py publish TARGET SERVER` publishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import h11

PATIENCE_S = 20


class AsgiServer:
    """Hosts one ASGI application. `errors` are what it raised."""

    def __init__(self, application: Any, *, lifespan: bool = True) -> None:
        self.application = application
        self.errors: list[BaseException] = []
        self.port = 0
        self._speaks_lifespan = lifespan
        self._requests: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/ryusen"

    async def _lifespan(self, received: asyncio.Queue[Any], sent: asyncio.Queue[Any]) -> None:
        with contextlib.suppress(Exception):  # told by the message
            await self.application({"type": "lifespan", "asgi": {"version": "3.0"}}, received.get, sent.put)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncGenerator[AsgiServer, None]:
        received: asyncio.Queue[Any] = asyncio.Queue()
        sent: asyncio.Queue[Any] = asyncio.Queue()
        life = asyncio.create_task(self._lifespan(received, sent)) if self._speaks_lifespan else None
        if life is not None:
            received.put_nowait({"type": "lifespan.startup"})
            started = await asyncio.wait_for(sent.get(), PATIENCE_S)
            assert started["type"] == "lifespan.startup.complete", started
        server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()
            if life is not None:
                received.put_nowait({"type": "lifespan.shutdown"})
                ended = await asyncio.wait_for(sent.get(), PATIENCE_S)
                assert ended["type"] == "lifespan.shutdown.complete", ended
                await life
            for request in self._requests:
                request.cancel()
            await asyncio.gather(*self._requests, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        # Closed when it is cancelled; the streams module reports a cancelled handler as an error.
        with contextlib.suppress(ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
            try:
                await self._serve(_Wire(reader, writer))
            finally:
                writer.close()
            await writer.wait_closed()

    async def _serve(self, wire: _Wire) -> None:
        request = await wire.event()
        if not isinstance(request, h11.Request):
            return
        path = request.target.decode().partition("?")[0]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": request.method.decode(),
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(request.headers.raw_items()),
        }
        try:
            await self.application(scope, wire.receive, wire.send)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.errors.append(error)


class _Wire:
    """One connection as ASGI messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def event(self) -> Any:
        while True:
            found = self._http.next_event()
            if found is not h11.NEED_DATA:
                return found
            self._http.receive_data(await self._reader.read(65_536))

    async def receive(self) -> dict[str, Any]:
        try:
            part = await self.event()
        except (ConnectionError, h11.RemoteProtocolError):
            return {"type": "http.disconnect"}
        if isinstance(part, h11.Data):
            return {"type": "http.request", "body": bytes(part.data), "more_body": True}
        if isinstance(part, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [*message["headers"], (b"connection", b"close")]
            self._write(h11.Response(status_code=message["status"], headers=headers))
        else:
            self._write(h11.Data(data=message["body"]))
            self._write(h11.EndOfMessage())
        await self._writer.drain()

    def _write(self, event: Any) -> None:
        self._writer.write(self._http.send(event) or b"")


class _ThreadedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        """Nobody reads it."""


@contextmanager
def wsgi_server(application: Any, port: int = 0) -> Generator[str, None, None]:
    """The URL of a hosted WSGI application."""
    server = make_server("127.0.0.1", port, application, server_class=_ThreadedServer, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/ryusen"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def _tell(file: Path, url: str) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(url)
    partial.rename(file)


def _load(target: Path) -> Any:
    spec = importlib.util.spec_from_file_location(target.stem, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.stem] = module
    spec.loader.exec_module(module)
    return module


async def _host(kind: str, target: Path, told: Path) -> None:
    module = _load(target)
    secret = os.environ.get("RYUSEN_HTTP_SECRET")
    port = int(os.environ.get("HOSTING_PORT", "0"))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    if kind == "asgi":
        async with AsgiServer(module.app.asgi(secret)).serving(port) as server:
            _tell(told, server.url)
            await ended.wait()
    else:
        with wsgi_server(module.app.wsgi(secret), port) as url:
            _tell(told, url)
            await ended.wait()


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        _load(Path(sys.argv[2])).app.publish(url=sys.argv[3])
    else:
        asyncio.run(_host(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
