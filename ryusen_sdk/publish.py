"""Publication of a manifest: reads what is active, publishes what differs, over plain HTTP.

Owns the compare-and-publish of a start-up and its bounded answer to other publishers. Uses the standard library's client, because it
sends two requests and a worker should start fast.
"""

from __future__ import annotations

import http.client
import ssl
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from ryusen_protocol.client import Api, ApiProblem, Request, UnreadableAnswer
from ryusen_sdk.errors import MisuseError, RequestRefused, ServerUnreachable

if TYPE_CHECKING:
    from ryusen_protocol.manifest import PublicationReceipt
    from ryusen_protocol.scope import Scope
    from ryusen_sdk.manifest import Manifest

T = TypeVar("T")

_CONFLICTS_MAX: Final = 5
_TIMEOUT_SECONDS: Final = 10.0


def publish(scope: Scope, manifest: Manifest, url: str, token: str | None) -> PublicationReceipt | None:
    """Activates the manifest unless it is active already (`None`).

    Raises `ServerUnreachable` when no usable answer came, and `RequestRefused`: `parent_conflict` only when others keep publishing.
    """
    api = Api(scope.workspace, token)
    for attempt in range(1, _CONFLICTS_MAX + 1):
        try:
            head = call(api.get_application(scope.application), url)
        except RequestRefused as refused:
            if refused.code != "not_found":
                raise
            head = None
        if head is not None and head.digest == manifest.digest:
            return None
        parent = None if head is None else head.manifest_generation
        try:
            return call(api.publish_manifest(scope.application, manifest.publication(parent)), url)
        except RequestRefused as refused:
            if refused.code != "parent_conflict" or attempt == _CONFLICTS_MAX:
                raise
    msg = "unreachable"
    raise AssertionError(msg)


def call(request: Request[T], url: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> T:
    """Sends one request to a server's base URL. Raises `ServerUnreachable` or `RequestRefused`."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise MisuseError(f"{url!r} is no server address; write http://HOST:PORT or https://HOST:PORT")
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_seconds, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_seconds)
    )
    try:
        connection.request(request.method, parts.path.rstrip("/") + request.target, request.body, request.headers)
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(f"no answer from {url}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    try:
        return request.read(status, body)
    except ApiProblem as problem:
        raise RequestRefused(problem.code, problem.status, problem.detail) from None
    except UnreadableAnswer as unreadable:
        raise ServerUnreachable(f"{url}: {unreadable}") from None
