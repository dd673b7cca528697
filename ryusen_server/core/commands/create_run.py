"""Create a run: for a trigger binding of an event.

| when | effect |
|---|---|
| fan-out reaches the binding | the run is `running` with its first discovery queued, and has its deadline, if any |
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import (
    Application,
    EventId,
    FunctionId,
    ManifestGeneration,
    RoutingGeneration,
    RunId,
    TriggerId,
    Workspace,
)
from ryusen_server.core.records import Deadline, DiscoveryQueued, Record, RunCreated


class CreateRun(msgspec.Struct, frozen=True):
    """One matched binding. `deadline` is already an instant, from the server's clock."""

    run_id: RunId
    workspace: Workspace
    application: Application
    function: FunctionId
    event_id: EventId
    trigger_id: TriggerId
    manifest_generation: ManifestGeneration
    routing_generation: RoutingGeneration
    deadline: Deadline | None


def decide(command: CreateRun) -> tuple[RunCreated, list[Record]]:
    """The record that makes the run, and all of its first transaction."""
    created = RunCreated(
        run_id=command.run_id,
        workspace=command.workspace,
        application=command.application,
        function=command.function,
        event_id=command.event_id,
        trigger_id=command.trigger_id,
        manifest_generation=command.manifest_generation,
        routing_generation=command.routing_generation,
        deadline=command.deadline,
    )
    return created, [created, DiscoveryQueued(1)]
