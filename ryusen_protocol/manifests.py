"""What a manifest is made of: canonical form, digests, generation ids, and every reason to refuse a publication.

Pure. Which generation is active, and whether a publication builds on it, is the server's to know.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.canonical import jcs, sha256_digest
from ryusen_protocol.identity import derived
from ryusen_protocol.ids import Application, ManifestGeneration, RoutingGeneration, Workspace
from ryusen_protocol.limits import MANIFEST_TIMEOUT_MS_MAX
from ryusen_protocol.manifest import Publication
from ryusen_protocol.submission import identifier_problem, strict_base64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ryusen_protocol.manifest import FunctionDeclaration, TriggerDeclaration
    from ryusen_protocol.scope import Scope

    Declarations: TypeAlias = tuple[list[FunctionDeclaration], list[TriggerDeclaration]]


class ManifestRefused(msgspec.Struct, frozen=True):
    """Why a publication is refused: `code` is that of the problem, `message` says what to change, `path` where it stands."""

    code: Literal["invalid", "unsupported_version", "limit_exceeded"]
    message: str
    path: str


def canonical_declarations(functions: Iterable[FunctionDeclaration], triggers: Iterable[TriggerDeclaration]) -> Declarations:
    """Both lists sorted by the UTF-8 bytes of their ids: the order of declaration carries no meaning."""
    return (
        sorted(functions, key=lambda function: function.id.encode()),
        sorted(triggers, key=lambda trigger: trigger.id.encode()),
    )


def sdk_contents(functions: Iterable[FunctionDeclaration], triggers: Iterable[TriggerDeclaration]) -> bytes:
    """The contents every SDK publishes for these declarations, byte for byte. `Publication.contents` is their base64."""
    return jcs(_declared(functions, triggers))


def sdk_publication(
    functions: Iterable[FunctionDeclaration],
    triggers: Iterable[TriggerDeclaration],
    expected_parent: ManifestGeneration | None,
) -> Publication:
    """The publication of these declarations as an SDK sends it, on top of `expected_parent`."""
    ordered_functions, ordered_triggers = canonical_declarations(functions, triggers)
    return Publication(
        protocol_version=PROTOCOL_VERSION,
        expected_parent=expected_parent,
        functions=ordered_functions,
        triggers=ordered_triggers,
        contents=base64.b64encode(sdk_contents(ordered_functions, ordered_triggers)).decode(),
    )


def content_digest(contents_base64: str, functions: Iterable[FunctionDeclaration], triggers: Iterable[TriggerDeclaration]) -> str:
    """What a manifest says, whatever it replaces. The active generation shows it and a worker registers with it."""
    return sha256_digest(jcs({"contents": contents_base64, **_declared(functions, triggers)}))


def manifest_generation_id(scope: Scope, expected_parent: ManifestGeneration | None, publication: Publication) -> ManifestGeneration:
    """The generation a publication creates, and creates again only as itself: the parent is part of its identity."""
    return ManifestGeneration(
        derived(
            "mg",
            "manifest",
            scope.workspace,
            scope.application,
            *_optional(expected_parent),
            content_digest(publication.contents, publication.functions, publication.triggers),
        )
    )


def routing_content_digest(mapping: Mapping[Application, ManifestGeneration]) -> str:
    """What a routing generation routes by, whatever it replaces."""
    return sha256_digest(jcs(dict(mapping)))


def routing_generation_id(
    workspace: Workspace, expected_parent: RoutingGeneration | None, mapping: Mapping[Application, ManifestGeneration]
) -> RoutingGeneration:
    """The generation that maps each application to its manifest, on top of `expected_parent`."""
    return RoutingGeneration(derived("rg", "routing", workspace, *_optional(expected_parent), routing_content_digest(mapping)))


def initial_routing_generation(workspace: Workspace) -> RoutingGeneration:
    """What a workspace routes by before its first publication: nothing. Events accepted then name this generation."""
    return routing_generation_id(workspace, None, {})


def check_publication(publication: Publication, *, timeout_ms_max: int | None = None) -> ManifestRefused | None:
    """The first reason to refuse a publication, if there is one. `timeout_ms_max` is the server's policy, if it has one."""
    if publication.protocol_version != PROTOCOL_VERSION:
        return ManifestRefused(
            "unsupported_version",
            f"The publication speaks protocol version {publication.protocol_version}; "
            f"this server speaks {PROTOCOL_VERSION}. Use an SDK of the same major version.",
            "$.protocol_version",
        )
    return (
        _check_functions(publication.functions, timeout_ms_max)
        or _check_triggers(publication.triggers, {function.id for function in publication.functions})
        or _check_contents(publication.contents)
    )


def _check_functions(functions: Sequence[FunctionDeclaration], timeout_ms_max: int | None) -> ManifestRefused | None:
    seen: set[str] = set()
    for index, function in enumerate(functions):
        path = f"$.functions[{index}]"
        refusal = _check_identifier("function id", function.id, f"{path}.id")
        if refusal is not None:
            return refusal
        if function.id in seen:
            return _invalid(f"The function id {function.id!r} is declared twice. Give each function an id of its own.", f"{path}.id")
        seen.add(function.id)
        refusal = _check_timeout(function, timeout_ms_max, f"{path}.timeout_ms")
        if refusal is not None:
            return refusal
    return None


def _check_timeout(function: FunctionDeclaration, timeout_ms_max: int | None, path: str) -> ManifestRefused | None:
    timeout_ms = function.timeout_ms
    if timeout_ms is None:
        return None
    if not 1 <= timeout_ms <= MANIFEST_TIMEOUT_MS_MAX:
        return _invalid(
            f"The function {function.id!r} has a timeout of {timeout_ms} ms. "
            f"A timeout is 1 to {MANIFEST_TIMEOUT_MS_MAX} ms; leave it out for no deadline.",
            path,
        )
    if timeout_ms_max is not None and timeout_ms > timeout_ms_max:
        return _invalid(
            f"The function {function.id!r} has a timeout of {timeout_ms} ms, above the {timeout_ms_max} ms this server "
            "allows. Shorten it, or raise the server's maximum; it is never shortened for you.",
            path,
        )
    return None


def _check_triggers(triggers: Sequence[TriggerDeclaration], functions: set[str]) -> ManifestRefused | None:
    seen: set[str] = set()
    for index, trigger in enumerate(triggers):
        path = f"$.triggers[{index}]"
        refusal = _check_identifier("trigger id", trigger.id, f"{path}.id") or _check_identifier(
            f"event name of trigger {trigger.id!r}", trigger.event_name, f"{path}.event_name"
        )
        if refusal is not None:
            return refusal
        if trigger.id in seen:
            return _invalid(f"The trigger id {trigger.id!r} is declared twice. Give each trigger an id of its own.", f"{path}.id")
        seen.add(trigger.id)
        if trigger.function not in functions:
            return _invalid(
                f"The trigger {trigger.id!r} starts the function {trigger.function!r}, which this manifest does not declare. "
                "A manifest is complete: declare the function too, or drop the trigger.",
                f"{path}.function",
            )
    return None


def _check_contents(contents: str) -> ManifestRefused | None:
    if strict_base64(contents) is not None:
        return None
    return _invalid("The contents are not standard base64 with padding and without blanks. Encode them again.", "$.contents")


def _check_identifier(what: str, text: str, path: str) -> ManifestRefused | None:
    refusal = identifier_problem(what, text, path)
    if refusal is None:
        return None
    return ManifestRefused("limit_exceeded" if refusal.code == "limit_exceeded" else "invalid", refusal.detail, path)


def _invalid(message: str, path: str) -> ManifestRefused:
    return ManifestRefused("invalid", message, path)


def _declared(functions: Iterable[FunctionDeclaration], triggers: Iterable[TriggerDeclaration]) -> dict[str, list[dict[str, object]]]:
    """The two lists as plain JSON in canonical order; `timeout_ms` is there only where a function declares one."""
    ordered_functions, ordered_triggers = canonical_declarations(functions, triggers)
    return {
        "functions": [
            {"id": function.id} if function.timeout_ms is None else {"id": function.id, "timeout_ms": function.timeout_ms}
            for function in ordered_functions
        ],
        "triggers": [{"id": trigger.id, "event_name": trigger.event_name, "function": trigger.function} for trigger in ordered_triggers],
    }


def _optional(identity: str | None) -> tuple[str, ...]:
    """Nothing and the empty text stay two things in a derived id."""
    return ("none",) if identity is None else ("some", identity)
