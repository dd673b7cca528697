"""What is deployed: applications with their active manifests, every manifest generation, publication, and routing generations."""

from __future__ import annotations

from typing import Final

from ryusen_protocol.api import ApplicationDocument, ManifestDocument, Page, RoutingDocument
from ryusen_protocol.ids import ManifestGeneration, RoutingGeneration, Workspace
from ryusen_protocol.limits import REQUEST_BYTES_MAX
from ryusen_protocol.manifest import Publication, PublicationReceipt
from ryusen_protocol.manifests import initial_routing_generation, routing_content_digest
from ryusen_protocol.problems import Problem, not_found
from ryusen_protocol.scope import Scope
from ryusen_server.api.context import Context
from ryusen_server.api.cursors import after, cursor, page_of
from ryusen_server.api.parameters import PAGED, application, document, page_size, workspace
from ryusen_server.api.route import Answer, Call, Route, answer
from ryusen_server.core.rows import ManifestRow, RoutingRow

_ROOT: Final = "/v1/workspaces/{workspace}"
_APPLICATION: Final = f"{_ROOT}/applications/{{application}}"


async def _applications(context: Context, call: Call) -> Answer | Problem:
    rows = context.engine.active_manifests(workspace(call))
    page = page_of(call, "applications", rows, lambda row: (0, row.application))
    items = [await _application(context, row) for row in page.items]
    return answer(Page[ApplicationDocument](items=items, next_cursor=page.next_cursor))


async def _application(context: Context, row: ManifestRow) -> ApplicationDocument:
    contents = context.contents(row)
    return ApplicationDocument(
        application=row.application,
        manifest_generation=row.manifest_generation,
        digest=row.digest,
        routing_generation=row.routing_generation,
        functions=len(contents.functions),
        triggers=len(contents.triggers),
        activated_at_ms=row.activated_at_ms,
        activated_position=await _position(context, row),
    )


async def _position(context: Context, row: ManifestRow) -> int:
    """A manifest is activated in the transaction of the routing generation it made."""
    routing = await context.store.routing(row.workspace, row.routing_generation)
    return 0 if routing is None else routing.position


def _active(context: Context, call: Call) -> ManifestRow | None:
    rows = context.engine.active_manifests(workspace(call))
    return next((row for row in rows if row.application == application(call)), None)


async def _get_application(context: Context, call: Call) -> Answer | Problem:
    row = _active(context, call)
    return not_found("application", application(call)) if row is None else answer(await _application(context, row))


async def _manifest(context: Context, call: Call) -> Answer | Problem:
    generation = ManifestGeneration(call.segments["manifest_generation"])
    row = await context.store.manifest(workspace(call), generation)
    if row is None or row.application != application(call):
        return not_found("manifest generation", generation)
    contents = context.contents(row)
    active = _active(context, call)
    return answer(
        ManifestDocument(
            application=row.application,
            manifest_generation=row.manifest_generation,
            expected_parent=row.expected_parent,
            digest=row.digest,
            functions=contents.functions,
            triggers=contents.triggers,
            contents=contents.contents,
            routing_generation=row.routing_generation,
            active=active is not None and active.manifest_generation == generation,
            activated_at_ms=row.activated_at_ms,
            activated_position=await _position(context, row),
        )
    )


async def _publish(context: Context, call: Call) -> Answer | Problem:
    publication = document(call, Publication, bytes_max=REQUEST_BYTES_MAX)
    activated = await context.to_its_end(context.engine.publish(Scope(workspace(call), application(call)), publication))
    if isinstance(activated, Problem):
        return activated
    row = activated.manifest
    receipt = PublicationReceipt(
        status="replayed" if activated.replayed else "created",
        manifest_generation=row.manifest_generation,
        routing_generation=row.routing_generation,
        digest=row.digest,
    )
    return answer(receipt, 200 if activated.replayed else 201)


async def _routings(context: Context, call: Call) -> Answer | Problem:
    """Newest first; behind the stored ones stands the generation that every workspace starts from."""
    where_in = workspace(call)
    last = after(call, "routing")
    most = page_size(call)
    rows = await context.store.routings(where_in, before=None if last is None else last[0], limit=most)
    items = [_routing(context, row) for row in rows]
    if len(items) < most:
        return answer(Page[RoutingDocument](items=[*items, _initial(context, where_in)]))
    next_cursor = cursor(call, "routing", rows[-1].position, rows[-1].routing_generation)
    return answer(Page[RoutingDocument](items=items, next_cursor=next_cursor))


def _routing(context: Context, row: RoutingRow) -> RoutingDocument:
    return RoutingDocument(
        workspace=row.workspace,
        routing_generation=row.routing_generation,
        expected_parent=row.expected_parent,
        content_digest=row.content_hash,
        applications=row.applications,
        active=context.engine.routing_head(row.workspace) == row.routing_generation,
        activated_at_ms=row.activated_at_ms,
        activated_position=row.position,
    )


def _initial(context: Context, where_in: Workspace) -> RoutingDocument:
    generation = initial_routing_generation(where_in)
    return RoutingDocument(
        workspace=where_in,
        routing_generation=generation,
        expected_parent=None,
        content_digest=routing_content_digest({}),
        applications={},
        active=context.engine.routing_head(where_in) == generation,
        activated_at_ms=None,
        activated_position=0,
    )


async def _get_routing(context: Context, call: Call) -> Answer | Problem:
    generation = RoutingGeneration(call.segments["routing_generation"])
    row = await context.store.routing(workspace(call), generation)
    if row is not None:
        return answer(_routing(context, row))
    if generation == initial_routing_generation(workspace(call)):
        return answer(_initial(context, workspace(call)))
    return not_found("routing generation", generation)


ROUTES: Final = (
    Route(
        "GET",
        f"{_ROOT}/applications",
        _applications,
        "read",
        says="List applications with their active manifests.",
        query=PAGED,
        answers={200: Page[ApplicationDocument]},
    ),
    Route(
        "GET",
        _APPLICATION,
        _get_application,
        "read",
        says="Read one application's active manifest generation.",
        also_by=("deploy", "execute"),
        answers={200: ApplicationDocument},
        refuses=("not_found",),
    ),
    Route(
        "GET",
        f"{_APPLICATION}/manifests/{{manifest_generation}}",
        _manifest,
        "read",
        says="Read one manifest generation, active or not.",
        also_by=("deploy", "execute"),
        answers={200: ManifestDocument},
        refuses=("not_found",),
    ),
    Route(
        "POST",
        f"{_APPLICATION}/manifests",
        _publish,
        "deploy",
        says="Publish the complete desired state of an application, and activate it.",
        details="The publication names the generation it replaces. Repeating an identical publication answers its first activation.",
        takes=Publication,
        answers={201: PublicationReceipt, 200: PublicationReceipt},
        refuses=("parent_conflict", "unsupported_version"),
    ),
    Route(
        "GET",
        f"{_ROOT}/routing",
        _routings,
        "read",
        says="List routing generations, newest first.",
        query=PAGED,
        answers={200: Page[RoutingDocument]},
    ),
    Route(
        "GET",
        f"{_ROOT}/routing/{{routing_generation}}",
        _get_routing,
        "read",
        says="Read one routing generation, active or not.",
        answers={200: RoutingDocument},
        refuses=("not_found",),
    ),
)
