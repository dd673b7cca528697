"""The desired state of one application (`protocol` 9): its functions and the triggers that start them."""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import FunctionId, ManifestGeneration, RoutingGeneration, TriggerId
from ryusen_protocol.limits import Int53


class FunctionDeclaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A logical workflow. `timeout_ms` bounds a whole run; absent means no deadline."""

    id: FunctionId
    timeout_ms: Int53 | None = None


class TriggerDeclaration(msgspec.Struct, frozen=True):
    """Starts `function` for every event of exactly `event_name`."""

    id: TriggerId
    event_name: str
    function: FunctionId


class Publication(msgspec.Struct, frozen=True):
    """The complete desired state and the generation it replaces. `contents` is opaque base64."""

    protocol_version: Int53
    expected_parent: ManifestGeneration | None
    functions: list[FunctionDeclaration]
    triggers: list[TriggerDeclaration]
    contents: str


class PublicationReceipt(msgspec.Struct, frozen=True):
    """The answer to a publication. `status` is `created` or `replayed`."""

    status: str
    manifest_generation: ManifestGeneration
    routing_generation: RoutingGeneration
    digest: str
