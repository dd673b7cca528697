"""The workers of this server's life: sessions, capacity, and what is out at whom.

Owns no rule: who gets work is `core.selection`, what a loss means is the core's. Everything here is forgotten at a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from ryusen_protocol.frames import HISTORY_DELTA, Register
from ryusen_protocol.ids import FunctionId, InstanceId, ReleaseId, RequestId, RunId, SessionId, Workspace
from ryusen_protocol.scope import Scope
from ryusen_server.core.records import WorkerRef
from ryusen_server.core.selection import UNVERSIONED_POSITION, choose
from ryusen_server.engine.held import HeldHistories
from ryusen_server.engine.views import WorkerView
from ryusen_server.ports.worker import Endpoint, WorkerChannel


class Flight(msgspec.Struct):
    """One invocation that takes a slot of a worker. `missed` counts the heartbeats in a row that did not name it."""

    request_id: RequestId
    run_id: RunId
    instance: Instance
    discovery: bool
    function: FunctionId
    missed: int = 0


class Instance(msgspec.Struct, eq=False):
    """One worker process over all of its sessions, or one configured endpoint: that one has no channel, and a session for this life."""

    scope: Scope
    instance_id: InstanceId
    frame: Register
    session_id: SessionId
    channel: WorkerChannel | None
    release_position: int
    registered_order: int
    connected_at_ms: int
    last_contact_at_ms: int
    draining: bool
    flights: dict[RequestId, Flight] = {}
    refused: set[FunctionId] = set()
    """Functions it rejected as unsupported since it registered."""
    held: HeldHistories = msgspec.field(default_factory=lambda: HeldHistories(is_kept=False))
    """What the current session's worker holds of runs' histories."""
    last_failure: str | None = None
    endpoint: Endpoint | None = None
    reachable: bool = True
    """Whether the last exchange with the endpoint could connect; a worker that is present is reachable."""
    last_failure_at_ms: int | None = None
    last_success_at_ms: int | None = None

    @property
    def present(self) -> bool:
        """Connected, or an endpoint."""
        return self.channel is not None or self.endpoint is not None

    @property
    def available(self) -> bool:
        """Present and not draining."""
        return self.present and not self.draining

    @property
    def transport(self) -> Literal["connected", "http"]:
        return "connected" if self.endpoint is None else "http"

    @property
    def capacity(self) -> int:
        return self.frame.capacity

    @property
    def in_flight(self) -> int:
        return len(self.flights)

    @property
    def ref(self) -> WorkerRef:
        """Who an effect is authorized for."""
        return WorkerRef(self.instance_id, self.session_id, self.frame.release_id, self.transport)


class Fleet:
    """Every instance known, by session and by what it can run."""

    def __init__(self) -> None:
        self._instances: dict[tuple[Scope, InstanceId], Instance] = {}
        self._sessions: dict[SessionId, Instance] = {}
        self._runners: dict[tuple[Scope, FunctionId], list[Instance]] = {}
        self._flights: dict[RequestId, Flight] = {}
        self._registered = 0

    def instance(self, scope: Scope, instance_id: InstanceId) -> Instance | None:
        """The instance under this id, connected or lost."""
        return self._instances.get((scope, instance_id))

    def at(self, session_id: SessionId) -> Instance | None:
        """The instance whose current session this is."""
        return self._sessions.get(session_id)

    def all(self) -> Iterator[Instance]:
        """Every instance, in the order of first registration."""
        return iter(self._instances.values())

    def open(self, frame: Register, session_id: SessionId, channel: WorkerChannel, release_position: int, now_ms: int) -> Instance:
        """Begin a session; the instance keeps what it holds from an earlier one."""
        key = (frame.scope, frame.instance_id)
        instance = self._instances.get(key)
        self._registered += 1
        if instance is None:
            instance = Instance(
                scope=frame.scope,
                instance_id=frame.instance_id,
                frame=frame,
                session_id=session_id,
                channel=channel,
                release_position=release_position,
                registered_order=self._registered,
                connected_at_ms=now_ms,
                last_contact_at_ms=now_ms,
                draining=frame.draining,
            )
            self._instances[key] = instance
        else:
            self._unlist(instance)
            self._sessions.pop(instance.session_id, None)
            instance.frame = frame
            instance.session_id = session_id
            instance.channel = channel
            instance.release_position = release_position
            instance.connected_at_ms = now_ms
            instance.last_contact_at_ms = now_ms
            instance.draining = frame.draining
            instance.refused = set()
        instance.held = HeldHistories(is_kept=HISTORY_DELTA in frame.capabilities)
        self._sessions[session_id] = instance
        self._list(instance)
        return instance

    def attach(self, frame: Register, session_id: SessionId, endpoint: Endpoint, now_ms: int) -> Instance:
        """Know an endpoint from now on, as an unversioned worker that `frame` describes."""
        self._registered += 1
        instance = Instance(
            scope=frame.scope,
            instance_id=frame.instance_id,
            frame=frame,
            session_id=session_id,
            channel=None,
            release_position=UNVERSIONED_POSITION,
            registered_order=self._registered,
            connected_at_ms=now_ms,
            last_contact_at_ms=now_ms,
            draining=False,
            endpoint=endpoint,
        )
        self._instances[frame.scope, frame.instance_id] = instance
        self._sessions[session_id] = instance
        self._list(instance)
        return instance

    def redescribe(self, instance: Instance, frame: Register) -> None:
        """The endpoint runs other functions from now on. What is out at it stays out."""
        self._unlist(instance)
        instance.frame = frame
        self._list(instance)

    def close(self, instance: Instance, reason: str, now_ms: int) -> None:
        """End the instance's session. What it holds stays known until `forget`."""
        self._sessions.pop(instance.session_id, None)
        instance.channel = None
        instance.last_failure = reason
        instance.last_failure_at_ms = now_ms

    def forget(self, instance: Instance) -> None:
        """Drop a lost instance that holds nothing any more."""
        self._unlist(instance)
        self._instances.pop((instance.scope, instance.instance_id), None)

    def _list(self, instance: Instance) -> None:
        for function in instance.frame.functions:
            self._runners.setdefault((instance.scope, function), []).append(instance)

    def _unlist(self, instance: Instance) -> None:
        for function in instance.frame.functions:
            runners = self._runners.get((instance.scope, function))
            if runners is not None and instance in runners:
                runners.remove(instance)
                if not runners:
                    del self._runners[instance.scope, function]

    def choose(self, scope: Scope, function: FunctionId, asking: Instance | None = None) -> Instance | None:
        """The worker that gets a piece of work of this function, if anybody has room."""
        runners = self._runners.get((scope, function))
        if runners is None:
            return None
        chosen = choose((runner for runner in runners if runner.reachable and function not in runner.refused), asking)
        if chosen is None:
            # An endpoint that could not be reached is not given up: trying again is how its return is noticed.
            chosen = choose((runner for runner in runners if not runner.reachable), asking)
        return chosen

    def preferred_release(self, scope: Scope, function: FunctionId) -> ReleaseId | None:
        """The newest release that is connected, not draining and runs the function."""
        newest: Instance | None = None
        for runner in self._runners.get((scope, function), ()):
            newer = newest is None or runner.release_position > newest.release_position
            if runner.available and runner.release_position != UNVERSIONED_POSITION and newer:
                newest = runner
        return None if newest is None else newest.frame.release_id

    def can_run(self, scope: Scope, function: FunctionId) -> bool:
        """Whether some worker that is there, not draining and reachable can run the function."""
        runners = self._runners.get((scope, function), ())
        return any(runner.available and runner.reachable and function not in runner.refused for runner in runners)

    def take_off(self, instance: Instance, request_id: RequestId, run_id: RunId, function: FunctionId, *, discovery: bool) -> None:
        """Take a slot of the worker for an invocation."""
        flight = Flight(request_id, run_id, instance, discovery, function)
        self._flights[request_id] = flight
        instance.flights[request_id] = flight

    def flight(self, request_id: RequestId) -> Flight | None:
        """What is out under a request id."""
        return self._flights.get(request_id)

    def land(self, request_id: RequestId) -> Flight | None:
        """Give the slot back."""
        flight = self._flights.pop(request_id, None)
        if flight is not None:
            flight.instance.flights.pop(request_id, None)
        return flight

    def forget_history(self, run_id: RunId) -> None:
        """Whoever holds something of the run's history: nothing is to build on it any more."""
        for instance in self._sessions.values():
            instance.held.forget(run_id)

    def in_flight(self) -> int:
        """How much is out at connected workers."""
        return sum(instance.in_flight for instance in self._sessions.values())

    def views(self, workspace: Workspace) -> list[WorkerView]:
        """The workspace's workers, for readers."""
        return [_view(instance) for instance in self._instances.values() if instance.scope.workspace == workspace]


def _view(instance: Instance) -> WorkerView:
    frame = instance.frame
    return WorkerView(
        scope=instance.scope,
        instance_id=instance.instance_id,
        session_id=instance.session_id,
        release_id=frame.release_id,
        transport=instance.transport,
        connected=instance.present and instance.reachable,
        functions=tuple(frame.functions),
        capacity=frame.capacity,
        in_flight=instance.in_flight,
        draining=instance.draining,
        manifest_digest=frame.manifest_digest,
        contract=frame.contract,
        capabilities=tuple(frame.capabilities),
        sdk=frame.sdk if instance.endpoint is None else None,
        runtime=frame.runtime if instance.endpoint is None else None,
        connected_at_ms=instance.connected_at_ms,
        last_contact_at_ms=instance.last_contact_at_ms,
        last_failure=instance.last_failure,
        last_failure_at_ms=instance.last_failure_at_ms,
        last_success_at_ms=instance.last_success_at_ms,
    )


def request_ids(flights: Iterable[Flight]) -> list[RequestId]:
    """The request ids of some flights, as a list that may be changed under."""
    return [flight.request_id for flight in flights]
