"""Who can run what: workers as they are now, releases in the order they were first seen, functions with those who run them."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from ryusen_protocol.api import FunctionDocument, FunctionTrigger, Page, ReleaseDocument, Transport, WorkerDocument
from ryusen_protocol.frames import ExecutionContract
from ryusen_protocol.ids import Workspace
from ryusen_protocol.problems import Problem
from ryusen_server.api.context import Context
from ryusen_server.api.cursors import page_of
from ryusen_server.api.parameters import PAGED, workspace
from ryusen_server.api.route import Answer, Call, Route, answer
from ryusen_server.core.rows import ManifestRow, ReleaseRow
from ryusen_server.engine.views import WorkerView

_ROOT: Final = "/v1/workspaces/{workspace}"


async def _workers(context: Context, call: Call) -> Answer | Problem:
    workers = [_worker(view) for view in context.engine.workers(workspace(call))]
    return answer(page_of(call, "workers", workers, _worker_key))


def _worker_key(worker: WorkerDocument) -> tuple[int, str]:
    """An instance id is unique in its application only: one endpoint may serve several."""
    return worker.connected_at_ms or 0, f"{worker.application}\x00{worker.instance_id}"


def _worker(view: WorkerView) -> WorkerDocument:
    return WorkerDocument(
        instance_id=view.instance_id,
        application=view.scope.application,
        session_id=view.session_id if view.connected else None,
        release_id=view.release_id,
        transport=cast("Transport", view.transport),
        connected=view.connected,
        functions=list(view.functions),
        capacity=view.capacity,
        in_flight=view.in_flight,
        draining=view.draining,
        manifest_digest=view.manifest_digest,
        contract=view.contract,
        capabilities=list(view.capabilities),
        sdk=view.sdk,
        runtime=view.runtime,
        connected_at_ms=view.connected_at_ms,
        last_contact_at_ms=view.last_contact_at_ms,
        last_failure=view.last_failure,
        last_failure_at_ms=view.last_failure_at_ms,
        last_success_at_ms=view.last_success_at_ms,
    )


async def _releases(context: Context, call: Call) -> Answer | Problem:
    views = context.engine.workers(workspace(call))
    releases = [_release(row, views) for row in context.engine.releases(workspace(call))]
    return answer(page_of(call, "releases", releases, lambda release: (release.first_seen_position, release.release_id)))


def _release(row: ReleaseRow, views: list[WorkerView]) -> ReleaseDocument:
    return ReleaseDocument(
        application=row.application,
        release_id=row.release_id,
        first_seen_position=row.position,
        first_seen_at_ms=row.first_seen_at_ms,
        contract=msgspec.json.decode(row.contract, type=ExecutionContract),
        instances=sorted(
            view.instance_id
            for view in views
            if view.connected and view.scope.application == row.application and view.release_id == row.release_id
        ),
    )


async def _functions(context: Context, call: Call) -> Answer | Problem:
    where_in = workspace(call)
    functions = [document for manifest in context.engine.active_manifests(where_in) for document in _declared(context, where_in, manifest)]
    functions.sort(key=lambda document: (document.application, document.function))
    return answer(page_of(call, "functions", functions, lambda document: (0, f"{document.application}\x00{document.function}")))


def _declared(context: Context, where_in: Workspace, manifest: ManifestRow) -> list[FunctionDocument]:
    contents = context.contents(manifest)
    present = [
        view
        for view in context.engine.workers(where_in)
        if view.connected and not view.draining and view.scope.application == manifest.application
    ]
    return [
        FunctionDocument(
            application=manifest.application,
            function=function.id,
            timeout_ms=function.timeout_ms,
            triggers=[
                FunctionTrigger(trigger_id=trigger.id, event_name=trigger.event_name)
                for trigger in contents.triggers
                if trigger.function == function.id
            ],
            manifest_generation=manifest.manifest_generation,
            workers=sorted(view.instance_id for view in present if function.id in view.functions),
        )
        for function in contents.functions
    ]


ROUTES: Final = (
    Route(
        "GET",
        f"{_ROOT}/workers",
        _workers,
        "read",
        says="List worker instances as they are now: release, capacity, load, last contact and failure.",
        query=PAGED,
        answers={200: Page[WorkerDocument]},
    ),
    Route(
        "GET",
        f"{_ROOT}/releases",
        _releases,
        "read",
        says="List releases in the order they were first seen.",
        query=PAGED,
        answers={200: Page[ReleaseDocument]},
    ),
    Route(
        "GET",
        f"{_ROOT}/functions",
        _functions,
        "read",
        says="List the functions of every active manifest, what starts them, and who can run them now.",
        query=PAGED,
        answers={200: Page[FunctionDocument]},
    ),
)
