"""What may be set about a server, and how a refusal to start and a successful start are told. Refuses to know where settings come from."""

from __future__ import annotations

from pathlib import Path

import msgspec

PORT_DEFAULT = 7878


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one server; the defaults are those of `ryusen serve`. Durations in milliseconds.

    `db` is the database file, none for one that is gone with the server. The default host stands for the loopback addresses of both
    families. `port` 0 takes a free one. A heartbeat is a third of `lease_ms`.
    """

    db: Path | None = Path(".ryusen/ryusen.db")
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    allow_hosts: tuple[str, ...] = ()
    lease_ms: int = 30_000
    reconnect_grace_ms: int = 30_000
    default_run_timeout_ms: int | None = None
    max_run_timeout_ms: int | None = None
    drain_ms: int = 10_000
    log_level: str = "INFO"


class StartRefused(Exception):
    """The server cannot start as it is set up. The message is one line for people: what, why, what to do."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The server answers. `addresses` are base URLs, `url` the first; `warnings` are for people."""

    url: str
    addresses: tuple[str, ...]
    database: str
    ephemeral: bool
    warnings: tuple[str, ...]
