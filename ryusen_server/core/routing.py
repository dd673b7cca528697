"""What an event matches, and what a publication activates. Pure: heads come in, rows go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ryusen_protocol.identity import run_id_for_event
from ryusen_protocol.ids import Application, FunctionId, ManifestGeneration, RoutingGeneration, TriggerId
from ryusen_protocol.manifest import FunctionDeclaration, Publication, TriggerDeclaration
from ryusen_protocol.manifests import (
    canonical_declarations,
    content_digest,
    manifest_generation_id,
    routing_content_digest,
    routing_generation_id,
)
from ryusen_protocol.scope import Scope
from ryusen_server.core.commands.create_run import CreateRun
from ryusen_server.core.records import Deadline
from ryusen_server.core.rows import EventRow, ManifestRow, RoutingRow

INSTANT_MS_MAX = 2**53 - 1
"""Workers read a run's deadline as an integer that is exact in every language; an instant beyond it is kept as the last one."""


class ManifestContent(msgspec.Struct, frozen=True):
    """The declarations of a stored manifest document."""

    functions: list[FunctionDeclaration]
    triggers: list[TriggerDeclaration]
    contents: str


_decode_content = msgspec.json.Decoder(ManifestContent).decode


def manifest_content(row: ManifestRow) -> ManifestContent:
    """The declarations of a manifest generation."""
    return _decode_content(row.document)


class Binding(msgspec.Struct, frozen=True):
    """One trigger of one application's manifest generation. `timeout_ms` is its function's declared run timeout."""

    application: Application
    trigger_id: TriggerId
    function: FunctionId
    manifest_generation: ManifestGeneration
    timeout_ms: int | None


class RoutingTable(msgspec.Struct, frozen=True):
    """A routing generation made ready for matching: event name to bindings, in one fixed order."""

    routing_generation: RoutingGeneration
    bindings: dict[str, tuple[Binding, ...]]


def routing_table(routing_generation: RoutingGeneration, manifests: Iterable[ManifestRow]) -> RoutingTable:
    """The table of a routing generation. An event's bindings have one order, so fan-out can resume by index."""
    found: dict[str, list[Binding]] = {}
    for row in sorted(manifests, key=lambda manifest: manifest.application.encode()):
        content = manifest_content(row)
        timeouts = {function.id: function.timeout_ms for function in content.functions}
        for trigger in sorted(content.triggers, key=lambda declared: declared.id.encode()):
            binding = Binding(row.application, trigger.id, trigger.function, row.manifest_generation, timeouts.get(trigger.function))
            found.setdefault(trigger.event_name, []).append(binding)
    return RoutingTable(routing_generation, {name: tuple(bindings) for name, bindings in found.items()})


def run_for(event: EventRow, binding: Binding, now_ms: int, default_timeout_ms: int | None) -> CreateRun:
    """The run a binding starts for an event: the same identity however often fan-out is repeated."""
    return CreateRun(
        run_id=run_id_for_event(event.event_id, binding.application, binding.trigger_id),
        workspace=event.workspace,
        application=binding.application,
        function=binding.function,
        event_id=event.event_id,
        trigger_id=binding.trigger_id,
        manifest_generation=binding.manifest_generation,
        routing_generation=event.routing_generation,
        deadline=_deadline(now_ms, binding.timeout_ms, default_timeout_ms),
    )


def _deadline(now_ms: int, declared_ms: int | None, default_ms: int | None) -> Deadline | None:
    if declared_ms is not None:
        return Deadline(min(now_ms + declared_ms, INSTANT_MS_MAX), "function")
    if default_ms is not None:
        return Deadline(min(now_ms + default_ms, INSTANT_MS_MAX), "policy")
    return None


def activation(
    scope: Scope,
    publication: Publication,
    head: RoutingGeneration,
    active: Mapping[Application, ManifestGeneration],
    now_ms: int,
) -> tuple[ManifestRow, RoutingRow]:
    """Both generations that activating a checked publication over the workspace's head makes."""
    functions, triggers = canonical_declarations(publication.functions, publication.triggers)
    manifest_generation = manifest_generation_id(scope, publication.expected_parent, publication)
    applications = {**active, scope.application: manifest_generation}
    routing_generation = routing_generation_id(scope.workspace, head, applications)
    manifest = ManifestRow(
        manifest_generation=manifest_generation,
        workspace=scope.workspace,
        application=scope.application,
        expected_parent=publication.expected_parent,
        digest=content_digest(publication.contents, functions, triggers),
        document=msgspec.json.encode(ManifestContent(functions, triggers, publication.contents)),
        routing_generation=routing_generation,
        activated_at_ms=now_ms,
    )
    routing = RoutingRow(
        routing_generation=routing_generation,
        workspace=scope.workspace,
        expected_parent=head,
        content_hash=routing_content_digest(applications),
        applications=applications,
        activated_at_ms=now_ms,
    )
    return manifest, routing
