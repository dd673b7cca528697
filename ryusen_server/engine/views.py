"""What the engine tells readers of its present: facts that live in memory only."""

from __future__ import annotations

import msgspec

from ryusen_protocol.frames import ExecutionContract, Software
from ryusen_protocol.ids import FunctionId, InstanceId, ReleaseId, RequestId, RunId, SessionId
from ryusen_protocol.scope import Scope
from ryusen_server.core.rows import EventRow, ManifestRow, RunRow


class WorkerView(msgspec.Struct, frozen=True):
    """One worker instance: connected, or lost a moment ago and still holding leases; or an endpoint, which tells no software.

    An endpoint is `connected` unless its last exchange could not connect.
    """

    scope: Scope
    instance_id: InstanceId
    session_id: SessionId
    release_id: ReleaseId | None
    transport: str
    connected: bool
    functions: tuple[FunctionId, ...]
    capacity: int
    in_flight: int
    draining: bool
    manifest_digest: str
    contract: ExecutionContract
    capabilities: tuple[str, ...]
    sdk: Software | None
    runtime: Software | None
    connected_at_ms: int
    last_contact_at_ms: int
    last_failure: str | None
    last_failure_at_ms: int | None = None
    last_success_at_ms: int | None = None


class ContactView(msgspec.Struct, frozen=True):
    """The lease of an authorized attempt: whether its worker is in contact, and when it becomes Unknown if nothing is heard."""

    run_id: RunId
    request_id: RequestId
    out_of_contact: bool
    unknown_at_ms: int


class Present(msgspec.Struct, frozen=True):
    """What the engine holds in memory just now. `workers` counts instances by (transport, state); `capacity` is of those that take work."""

    runs_in_memory: int
    runs_waiting: int
    workers: dict[tuple[str, str], int]
    capacity: int
    in_flight: int


class AcceptedEvent(msgspec.Struct, frozen=True):
    """A durable event; `replayed` when an earlier submission under the same key had created it.

    `run_ids` are the runs it starts, where one batch creates them all; empty for a replay or a larger fan-out.
    """

    event: EventRow
    replayed: bool
    run_ids: tuple[RunId, ...] = ()


class ActivatedManifest(msgspec.Struct, frozen=True):
    """A durable manifest generation; `replayed` when an identical publication had activated it before."""

    manifest: ManifestRow
    replayed: bool


class StoppedRun(msgspec.Struct, frozen=True):
    """A run with durable stop intent; `replayed` when it had been asked for before."""

    run: RunRow
    replayed: bool
