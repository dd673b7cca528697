"""What may be set about a server, and how a refusal to start and a successful start are told. Refuses to know where settings come from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.limits import ID_BYTES_MAX
from ryusen_protocol.scope import Scope

PORT_DEFAULT = 7878
HTTP_CAPACITY_MAX = 10_000


class HttpEndpoint(msgspec.Struct, frozen=True):
    """Where an application's work is sent by HTTP. The URL is shown to whoever may read workers: it holds no secret."""

    scope: Scope
    url: str


def http_endpoint(text: str) -> HttpEndpoint:
    """`APPLICATION=URL`, or `WORKSPACE/APPLICATION=URL`. Raises `StartRefused`."""
    name, _, url = text.partition("=")
    workspace, slash, application = name.partition("/")
    if not slash:
        workspace, application = "default", name
    if not workspace or not application or not url:
        raise StartRefused(f"the HTTP endpoint {text!r} is not APPLICATION=URL; write for instance shop=http://127.0.0.1:9000/ryusen")
    wrong = _url_problem(url)
    if wrong is not None:
        raise StartRefused(f"the URL of the HTTP endpoint {name!r} {wrong}")
    return HttpEndpoint(Scope(Workspace(workspace), Application(application)), url)


def _url_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "cannot be read; write for instance http://127.0.0.1:9000/ryusen"
    if not known or not url.isascii() or any(character.isspace() for character in url):
        return "is not an address; write for instance http://127.0.0.1:9000/ryusen"
    if parts.username is not None or parts.password is not None:
        return "holds a user name or password, which would be shown; sign with a shared secret instead"
    if parts.fragment:
        return "has a part behind a #, which is never sent; leave it out"
    if len(url) > ID_BYTES_MAX:
        return f"has {len(url)} characters; at most {ID_BYTES_MAX} are taken"
    return None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one server; the defaults are those of `ryusen serve`. Durations in milliseconds.

    `db` is the database file, none for one that is gone with the server. The default host stands for the loopback addresses of both
    families. `port` 0 takes a free one. `credentials` names the file of tokens; without it everybody may do everything. A heartbeat is
    a third of `lease_ms`. `http_capacity` is how much may be out at each of the `http_endpoints`; with an `http_secret` requests to them
    are signed and responses have to be.
    """

    db: Path | None = Path(".ryusen/ryusen.db")
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    allow_hosts: tuple[str, ...] = ()
    credentials: Path | None = None
    lease_ms: int = 30_000
    reconnect_grace_ms: int = 30_000
    default_run_timeout_ms: int | None = None
    max_run_timeout_ms: int | None = None
    http_endpoints: tuple[HttpEndpoint, ...] = ()
    http_capacity: int = 32
    http_secret: str | None = None
    drain_ms: int = 10_000
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"


class StartRefused(Exception):
    """The server cannot start as it is set up. The message is one line for people: what, why, what to do."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The server answers. `addresses` are base URLs, `url` the first; `warnings` are for people."""

    url: str
    addresses: tuple[str, ...]
    database: str
    ephemeral: bool
    warnings: tuple[str, ...]
