"""`Ryusen`: one application, its functions and the ways to run them.

Owns the public object. What is registered belongs to `manifest`, how it runs to `host` and `worker`; those are imported when they are
asked for, so that importing an application is quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.limits import ID_BYTES_MAX
from ryusen_protocol.scope import Scope
from ryusen_sdk.errors import DefinitionError
from ryusen_sdk.manifest import Manifest, Registry, manifest_of

if TYPE_CHECKING:
    from ryusen_protocol.manifest import PublicationReceipt
    from ryusen_sdk.http.asgi import AsgiHandler
    from ryusen_sdk.http.wsgi import WsgiHandler
    from ryusen_sdk.lifespan import Hold, Lifespan, LifespanSource
    from ryusen_sdk.options import Span
    from ryusen_sdk.worker import OnStatus

Fn = TypeVar("Fn", bound=Callable[..., Any])

DEFAULT_URL: Final = "http://127.0.0.1:7878"
DEFAULT_CAPACITY: Final = 32


class Ryusen:
    """One application in a workspace.

    `include` names modules that register functions on this object; they are imported at start. `lifespan` is an async context manager,
    or a function that makes one, entered once per worker process.
    """

    def __init__(
        self,
        application: str = "default",
        *,
        workspace: str = "default",
        include: Sequence[str] = (),
        lifespan: LifespanSource | None = None,
    ) -> None:
        self.scope = Scope(Workspace(_name("workspace", workspace)), Application(_name("application", application)))
        if isinstance(include, str):
            raise DefinitionError(f"include= is a list of module names: include=[{include!r}]")
        self._include = tuple(include)
        if lifespan is not None and not callable(lifespan) and not hasattr(lifespan, "__aenter__"):
            raise DefinitionError(f"lifespan= is an async context manager, or a function that makes one, not {lifespan!r:.80}")
        self._lifespan_source = lifespan
        self._lifespan: Lifespan | None = None
        self.registry = Registry()

    @property
    def application(self) -> str:
        return self.scope.application

    @property
    def workspace(self) -> str:
        return self.scope.workspace

    def function(
        self,
        on: str | Sequence[str] | None = None,
        id: str | None = None,  # noqa: A002 - the public name
        timeout: Span | None = None,
    ) -> Callable[[Fn], Fn]:
        """Registers a function of `(event, step)`, sync or async.

        `on` is an event name or several; without it the function is only invoked. `id` defaults to the name with dashes, `timeout`
        bounds a whole run. Raises `DefinitionError`, for two functions of one id `DuplicateFunction`.
        """
        if callable(on):
            raise DefinitionError("write @app.function() with parentheses")

        def register(function: Fn) -> Fn:
            self.registry.add(function, on, id, timeout)
            return function

        return register

    def load(self) -> None:
        """Imports the modules of `include`."""
        for module in self._include:
            importlib.import_module(module)

    def manifest(self) -> Manifest:
        """The complete manifest of what is registered now, `include` imported. The same registry gives the same bytes."""
        self.load()
        return manifest_of(self.registry)

    def publish(self, *, url: str = DEFAULT_URL, token: str | None = None) -> PublicationReceipt | None:
        """Activates the manifest on a server. `None` if it is active already.

        Raises `ServerUnreachable`, or `RequestRefused` (`parent_conflict` when others keep publishing this application).
        """
        from ryusen_sdk.publish import publish

        return publish(self.scope, self.manifest(), url, token)

    def run_worker(
        self,
        *,
        url: str = DEFAULT_URL,
        token: str | None = None,
        capacity: int = DEFAULT_CAPACITY,
        release: str | None = None,
        publish: bool = True,
        on_status: OnStatus | None = None,
    ) -> None:
        """Serves this application until SIGTERM or Ctrl+C, then drains; a second signal ends the process at once.

        Raises `RegistrationRejected` or `WorkerReplaced` when the server wants this worker to stop.
        """
        from ryusen_sdk.worker import run

        run(self, url=url, token=token, capacity=capacity, release=release, publish=publish, on_status=on_status)

    async def serve(
        self,
        *,
        url: str = DEFAULT_URL,
        token: str | None = None,
        capacity: int = DEFAULT_CAPACITY,
        release: str | None = None,
        publish: bool = True,
        on_status: OnStatus | None = None,
    ) -> None:
        """As `run_worker`, on the running loop: user coroutines run here. Cancelling it stops at once."""
        from ryusen_sdk.worker import Worker

        await Worker(self, url=url, token=token, capacity=capacity, release=release, publish=publish, on_status=on_status).serve()

    def asgi(self, secret: str | bytes | None = None, *, capacity: int = DEFAULT_CAPACITY, path: str | None = None) -> AsgiHandler:
        """An ASGI application that a server invokes this application's functions at, instead of a connected worker.

        With a `secret`, the server's `RYUSEN_HTTP_SECRET`, only signed requests run anything, and responses are signed. More than
        `capacity` invocations at a time are turned away unbegun. `path` is the one path to answer at; without it the handler answers
        wherever it is mounted. It publishes nothing: that is `publish`.
        """
        from ryusen_sdk.http.asgi import AsgiHandler

        return AsgiHandler(self, secret=secret, capacity=capacity, path=path)

    def wsgi(self, secret: str | bytes | None = None, *, capacity: int = DEFAULT_CAPACITY, path: str | None = None) -> WsgiHandler:
        """As `asgi`, for WSGI servers. Coroutines run on a loop of the handler's own."""
        from ryusen_sdk.http.wsgi import WsgiHandler

        return WsgiHandler(self, secret=secret, capacity=capacity, path=path)

    def lifespan(self) -> Hold:
        """The user's lifespan, for what serves this application: `async with app.lifespan()`, or `enter` and `leave` of what it gives.

        Entered once per process, however many hold it.
        """
        if self._lifespan is None:
            from ryusen_sdk.lifespan import Lifespan  # here, so that importing an application stays quick

            self._lifespan = Lifespan(self._lifespan_source)
        return self._lifespan.hold()

    def __repr__(self) -> str:
        return f"<Ryusen {self.workspace}/{self.application}>"


def _name(what: str, text: object) -> str:
    if not isinstance(text, str) or not text or len(text.encode("utf-8", "replace")) > ID_BYTES_MAX or "\x00" in text:
        raise DefinitionError(f"the {what} is text of 1 to {ID_BYTES_MAX} bytes, not {text!r:.80}")
    return text
