"""Events: accepting them with their idempotency key, and showing what each matched and started."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Final

import msgspec

from ryusen_protocol.api import (
    EventDetail,
    EventMatch,
    EventReceipt,
    EventRun,
    EventSubmission,
    EventSummary,
    Expansion,
    Page,
)
from ryusen_protocol.identity import run_id_for_event
from ryusen_protocol.ids import EventId, RoutingGeneration, RunId
from ryusen_protocol.limits import MIB, PAYLOAD_BYTES_MAX
from ryusen_protocol.manifests import initial_routing_generation
from ryusen_protocol.problems import Problem, not_found
from ryusen_protocol.submission import submitted_payload
from ryusen_server.api.context import Context
from ryusen_server.api.cursors import after, cursor
from ryusen_server.api.parameters import PAGED, WAIT_MS, Identifier, document, page_size, wait_ms, workspace
from ryusen_server.api.route import Answer, Call, Route, answer
from ryusen_server.api.run_documents import event_run
from ryusen_server.api.waiting import Patience
from ryusen_server.core.evolve import fold
from ryusen_server.core.rows import EventRow, RunRow

_ROOT: Final = "/v1/workspaces/{workspace}/events"
_NAME: Final = Identifier("name", "Only events of exactly this name.")
_BODY_BYTES_MAX: Final = PAYLOAD_BYTES_MAX * 4 // 3 + 4 + MIB
"""A payload in base64 beside the most metadata and names there can be, escaped as wastefully as JSON allows."""


async def _submit(context: Context, call: Call) -> Answer | Problem:
    patience_ms = wait_ms(call)
    submission = document(call, EventSubmission, bytes_max=_BODY_BYTES_MAX)
    payload = submitted_payload(submission)
    if isinstance(payload, Problem):
        return payload
    accepted = await context.to_its_end(
        context.engine.submit_event(
            workspace(call), name=submission.name, payload=payload, metadata=submission.metadata, key=submission.idempotency_key
        )
    )
    if isinstance(accepted, Problem):
        return accepted
    event = accepted.event
    receipt = EventReceipt(
        event_id=event.event_id,
        status="replayed" if accepted.replayed else "created",
        routing_generation=_routing(event),
        matched=event.matched,
        expansion=_expansion(event),
    )
    if patience_ms:
        patience = Patience(context, patience_ms)
        runs = await _ended_at_once(context, accepted.run_ids, patience)
        if runs is None:
            event, runs = await _waited(context, event, patience)
        else:
            event = msgspec.structs.replace(event, fan_out_next=None)  # runs that have ended are all there
        receipt = msgspec.structs.replace(receipt, expansion=_expansion(event), runs=runs)
    return answer(receipt, 200 if accepted.replayed else 201)


async def _ended_at_once(context: Context, run_ids: Sequence[RunId], patience: Patience) -> list[EventRun] | None:
    """An event's runs, once all have ended, from what the engine remembers; none if it cannot tell, and the store must be asked."""
    waiters = context.engine.waiters
    ends = [waiters.run_ended(run_id) for run_id in run_ids if waiters.ended(run_id) is None]
    try:
        await patience.all_done(ends)
    finally:
        for future in ends:
            waiters.forget(future)
    ended = [waiters.ended(run_id) for run_id in run_ids]
    known = [one for one in ended if one is not None]
    if not known or len(known) < len(ended):
        return None
    return [event_run(one.row, one.result, one.failure) for one in known]


async def _waited(context: Context, event: EventRow, patience: Patience) -> tuple[EventRow, list[EventRun]]:
    """The event and its runs once all have ended, or what there is when patience ends."""
    waiters = context.engine.waiters
    expanded = waiters.expanded(event.event_id)
    ends: dict[RunId, asyncio.Future[None]] = {}
    try:
        event = await context.store.event(event.event_id) or event
        if event.fan_out_next is not None:
            await patience.all_done((expanded,))
            event = await context.store.event(event.event_id) or event
        rows = await context.store.event_runs(event.event_id)
        for row in rows:
            if row.status != "ended":
                ends[row.run_id] = waiters.run_ended(row.run_id)
        if ends:
            # A run may have ended between the read and its future, so the futures are waited for behind a second read.
            rows = await context.store.event_runs(event.event_id)
            live = [ends[row.run_id] for row in rows if row.status != "ended" and row.run_id in ends]
            if live:
                await patience.all_done(live)
                rows = await context.store.event_runs(event.event_id)
    finally:
        for future in (expanded, *ends.values()):
            waiters.forget(future)
    return event, [await _event_run(context, row) for row in rows]


async def _event_run(context: Context, row: RunRow) -> EventRun:
    run = fold(await context.store.history(row.run_id)) if row.status == "ended" else None
    return event_run(row, None, None) if run is None else event_run(row, run.result, run.failure)


def _routing(event: EventRow) -> RoutingGeneration:
    return event.routing_generation or initial_routing_generation(event.workspace)


def _expansion(event: EventRow) -> Expansion:
    return "complete" if event.fan_out_next is None else "pending"


def _summary(event: EventRow) -> EventSummary:
    return EventSummary(
        event_id=event.event_id,
        name=event.name,
        metadata=event.metadata,
        received_at_ms=event.received_at_ms,
        routing_generation=_routing(event),
        matched=event.matched,
        expansion=_expansion(event),
    )


async def _list(context: Context, call: Call) -> Answer | Problem:
    last = after(call, "events")
    most = page_size(call)
    before = None if last is None else (last[0], EventId(last[1]))
    at = await context.store.position()
    rows = await context.store.events(workspace(call), name=_NAME.read(call), before=before, limit=most + 1)
    more = len(rows) > most
    del rows[most:]
    next_cursor = cursor(call, "events", rows[-1].received_at_ms, rows[-1].event_id) if more else None
    return answer(Page[EventSummary](items=[_summary(row) for row in rows], next_cursor=next_cursor, position=at))


async def _get(context: Context, call: Call) -> Answer | Problem:
    event_id = EventId(call.segments["event_id"])
    patience_ms = wait_ms(call)
    at = await context.store.position()
    event = await context.store.event(event_id)
    if event is None or event.workspace != workspace(call):
        return not_found("event", event_id)
    if not patience_ms:
        return answer(await _detail(context, event, at))
    event, runs = await _waited(context, event, Patience(context, patience_ms))
    return answer(await _detail(context, event, at, runs))


async def _detail(context: Context, event: EventRow, at: int, runs: list[EventRun] | None = None) -> EventDetail:
    detail = EventDetail(
        event_id=event.event_id,
        name=event.name,
        metadata=event.metadata,
        received_at_ms=event.received_at_ms,
        routing_generation=_routing(event),
        matched=event.matched,
        expansion=_expansion(event),
        payload_base64=base64.b64encode(event.payload).decode(),
        matches=await _matches(context, event),
        position=at,
    )
    return detail if runs is None else msgspec.structs.replace(detail, runs=runs)


async def _matches(context: Context, event: EventRow) -> list[EventMatch]:
    """The bindings of the event's own routing generation, whatever is active now."""
    routing = await context.store.routing(event.workspace, _routing(event))
    if routing is None:
        return []
    created = {row.run_id for row in await context.store.event_runs(event.event_id)}
    matches: list[EventMatch] = []
    for application, generation in sorted(routing.applications.items()):
        manifest = await context.store.manifest(event.workspace, generation)
        for trigger in () if manifest is None else context.contents(manifest).triggers:
            if trigger.event_name != event.name:
                continue
            run_id = run_id_for_event(event.event_id, application, trigger.id)
            matches.append(
                EventMatch(
                    application=application,
                    trigger_id=trigger.id,
                    function=trigger.function,
                    manifest_generation=generation,
                    run_id=run_id if run_id in created else None,
                )
            )
    return matches


ROUTES: Final = (
    Route(
        "POST",
        _ROOT,
        _submit,
        "events:send",
        says="Submit an event; the answer means that it is durable.",
        details="Exactly one of `data` (any JSON, kept as its exact text) and `payload_base64`. Under an idempotency key the same content "
        "answers the first event again, and other content is refused. With `wait_ms` the answer comes with the ended runs.",
        takes=EventSubmission,
        query=(WAIT_MS,),
        parameter_needs={"wait_ms": "events:read"},
        answers={201: EventReceipt, 200: EventReceipt},
        refuses=("idempotency_key_reused",),
    ),
    Route(
        "GET",
        _ROOT,
        _list,
        "events:read",
        says="List events, newest first, without payloads.",
        query=(_NAME, *PAGED),
        answers={200: Page[EventSummary]},
    ),
    Route(
        "GET",
        f"{_ROOT}/{{event_id}}",
        _get,
        "events:read",
        says="Read one event: payload, the triggers it matched, and the runs it started.",
        query=(WAIT_MS,),
        answers={200: EventDetail},
        refuses=("not_found",),
    ),
)
