"""What a supervisor and its child processes say to each other, one JSON document a line.

Downwards a child gets exactly one order, and a worker that was not told where its server is then gets that; otherwise the pipe only
stands open, and its end means that the parent is gone. Upwards go facts.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class RunServer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="server"):
    """Serve. Durations in milliseconds. `ephemeral`: the database is gone with the process."""

    db: str
    host: str
    port: int
    allow_hosts: list[str] = []
    credentials: str | None = None
    lease_ms: int
    reconnect_grace_ms: int
    max_run_timeout_ms: int | None = None
    default_run_timeout_ms: int | None = None
    http_endpoints: list[str] = []
    http_capacity: int = 32
    http_secret: str | None = None
    ephemeral: bool = False
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"


class RunWorker(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="worker"):
    """Import the target and serve it. The working directory is the parent's.

    `url`: the server. `None`: it is not known yet, and comes as `Connect`; the target is imported meanwhile.
    """

    target: str
    url: str | None
    token: str | None = None
    workspace: str | None = None
    release: str | None = None
    capacity: int = 32
    publish: bool = True


Order = RunServer | RunWorker


class Connect(msgspec.Struct, frozen=True, tag_field="type", tag="connect"):
    """Where the server of a worker is."""

    url: str


class Listening(msgspec.Struct, frozen=True, tag_field="type", tag="listening"):
    """The server answers. `addresses` are base URLs, with the real port."""

    addresses: list[str]
    database: str


class Imported(msgspec.Struct, frozen=True, tag_field="type", tag="imported"):
    """The target is imported. `sources` are the files of the project it loaded; `example` a `ryusen send` line from its docstring."""

    application: str
    workspace: str
    sources: list[str]
    example: str | None


class Registered(msgspec.Struct, frozen=True, tag_field="type", tag="registered"):
    """The server gives this worker work from now on."""

    functions: list[str]
    capacity: int


class Away(msgspec.Struct, frozen=True, tag_field="type", tag="away"):
    """The worker has no connection, and tries again."""

    reason: str
    retry_in_ms: int


class Noted(msgspec.Struct, frozen=True, tag_field="type", tag="noted"):
    """Something a person should see."""

    text: str
    is_trouble: bool = False


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="failed"):
    """The child cannot do what it was told, and ends.

    `at_import`: the user's code did not load. `leads_nowhere`: the target names nothing that could be loaded.
    """

    message: str
    hint: str | None = None
    at_import: bool = False
    leads_nowhere: bool = False


Fact = Listening | Imported | Registered | Away | Noted | Failed

_ORDER = msgspec.json.Decoder(Order)
_CONNECT = msgspec.json.Decoder(Connect)
_FACT = msgspec.json.Decoder(Fact)


def encode(message: Order | Connect | Fact) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    """The order of a line. Raises `msgspec.DecodeError`."""
    return _ORDER.decode(line)


def decode_connect(line: bytes) -> Connect:
    """What a worker still has to know. Raises `msgspec.DecodeError`."""
    return _CONNECT.decode(line)


def decode_fact(line: bytes) -> Fact:
    """The fact of a line. Raises `msgspec.DecodeError`."""
    return _FACT.decode(line)
