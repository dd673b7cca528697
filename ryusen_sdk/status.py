"""What a connected worker tells about itself while it runs, one value a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """The manifest is active. `is_new`: this worker published it; otherwise it was active already."""

    digest: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Connecting:
    """A connection is being opened; `connection` counts from 1."""

    url: str
    connection: int


@dataclass(frozen=True, slots=True)
class Connected:
    """The server registered this worker: it gets work from now on."""

    session_id: str
    functions: tuple[str, ...]
    capacity: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The server refused this worker for good; it stops."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """No connection. The next try comes in `retry_in_ms`."""

    reason: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class Noted:
    """Something a person should see; the worker goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """No new work is taken; `executing` invocations finish and `unacknowledged` outcomes wait for the server."""

    executing: int
    unacknowledged: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has ended. `error` is why, if it was not asked to."""

    error: str | None


WorkerStatus = Published | Connecting | Connected | Rejected | Disconnected | Noted | DrainStarted | Stopped

OnStatus = Callable[[WorkerStatus], None]
"""Called on the connection's thread, in order; must be quick."""


def describe(status: WorkerStatus) -> str:
    """One line for people."""
    match status:
        case Published(digest, is_new):
            return f"manifest {digest[:19]} {'published' if is_new else 'is active already'}"
        case Connecting(url, connection):
            return f"connecting to {url} (connection {connection})"
        case Connected(session_id, functions, capacity):
            return f"registered as {session_id}: {', '.join(functions) or 'no functions'}; capacity {capacity}"
        case Rejected(code, message):
            return f"rejected by the server ({code}): {message}"
        case Disconnected(reason, retry_in_ms):
            return f"no connection: {reason}; trying again in {retry_in_ms / 1000:.1f} s"
        case Noted(text):
            return text
        case DrainStarted(executing, unacknowledged):
            return f"draining: {executing} running, {unacknowledged} waiting for an acknowledgement"
        case Stopped(error):
            return f"stopped: {error}" if error else "stopped"
