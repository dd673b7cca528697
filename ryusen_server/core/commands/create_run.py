"""Create a run: for a trigger binding of an event, or for a step of a parent run.

| when | effect |
|---|---|
| fan-out reaches the binding | the run is `running` with its first discovery queued, and has its deadline, if any |
| a parent's `child` step is accepted | the same, in the parent's transaction; the run knows its parent and has its input |
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
from ryusen_server.core.records import Deadline, DiscoveryQueued, ParentRef, Record, RunCreated


class CreateRun(msgspec.Struct, frozen=True):
    """One matched binding, or one invocation by a parent, which has no event and no trigger but an input.

    `deadline` is already an instant, from the server's clock.
    """

    run_id: RunId
    workspace: Workspace
    application: Application
    function: FunctionId
    event_id: EventId | None
    trigger_id: TriggerId | None
    manifest_generation: ManifestGeneration
    routing_generation: RoutingGeneration
    deadline: Deadline | None
    parent: ParentRef | None = None
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


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
        parent=command.parent,
        input=command.input,
    )
    return created, [created, DiscoveryQueued(1)]
