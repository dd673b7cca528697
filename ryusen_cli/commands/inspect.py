"""Reading commands beside runs: attempts, events, functions, applications, workers, routing."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from ryusen_cli.options import Client, CursorOption, LimitOption, check_choice, client_command

if TYPE_CHECKING:
    from ryusen_cli.output import Cell
    from ryusen_protocol.api import RoutingDocument, WorkerDocument

_ATTEMPT_STATES: Final = (
    "queued", "authorized", "unknown", "succeeded", "failed", "retry_authorized", "fenced", "obsolete", "skipped",
)  # fmt: skip


@client_command
def attempts_ls(
    client: Client,
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help=" | ".join(_ATTEMPT_STATES))] = None,
    limit: LimitOption = None,
    cursor: CursorOption = None,
) -> None:
    """List attempts, oldest first."""
    from ryusen_cli.views.run import attempt_cell

    check_choice("--state", state, _ATTEMPT_STATES)
    reply = client.ask(client.api.list_attempts(state=cast("Any", state), cursor=cursor, limit=limit))
    rows: list[list[Cell]] = [
        [
            one.attempt_id,
            attempt_cell(one, client.output, now_ms=_now_ms()),
            one.run_id,
            one.step_id,
            one.phase,
            f"{one.attempt}",
            f"{one.attempt_generation}",
        ]
        for one in reply.document.items
    ]
    client.page(reply, ("ATTEMPT", "STATE", "RUN", "STEP", "PHASE", "ATTEMPT", "GENERATION"), rows, empty="no attempts")


@client_command
def attempts_show(client: Client, attempt: Annotated[str, typer.Argument(metavar="ATTEMPT", help="The attempt's id.")]) -> None:
    """Show one attempt and what may be done with it."""
    from ryusen_cli.views.unknown import allowance_lines, attempt_lines

    reply = client.ask(client.api.get_attempt(attempt))
    if client.output.json:
        client.output.document(reply.text)
        return
    client.output.lines(attempt_lines(reply.document, client.output, now_ms=_now_ms()))
    client.output.lines(allowance_lines(reply.document))
    if reply.document.state == "unknown":
        client.output.note(f"next: {client.typed('unknown', 'show', attempt)}")


@client_command
def events_ls(client: Client, limit: LimitOption = None, cursor: CursorOption = None) -> None:
    """List events, newest first."""
    from ryusen_protocol import words
    from ryusen_protocol.plain import instant_text

    reply = client.ask(client.api.list_events(cursor=cursor, limit=limit))
    rows: list[list[Cell]] = [
        [one.event_id, one.name, f"{one.matched}", client.output.word(words.EXPANSIONS[one.expansion]), instant_text(one.received_at_ms)]
        for one in reply.document.items
    ]
    client.page(reply, ("EVENT", "NAME", "RUNS", "FAN-OUT", "RECEIVED"), rows, empty="no events")


@client_command
def events_show(client: Client, event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")]) -> None:
    """Show one event: payload, the triggers it matched, the runs it started."""
    from ryusen_protocol import words
    from ryusen_protocol.plain import instant_text, payload_text

    reply = client.ask(client.api.get_event(event))
    if client.output.json:
        client.output.document(reply.text)
        return
    one, output = reply.document, client.output
    output.line(one.event_id, "  ", one.name)
    output.line("received ", instant_text(one.received_at_ms))
    output.line("routing  ", one.routing_generation)
    output.line("fan-out  ", output.word(words.EXPANSIONS[one.expansion]))
    for name, value in one.metadata.items():
        output.line("metadata ", f"{name} = {value}")
    output.line("payload  ", payload_text(base64.b64decode(one.payload_base64)))
    if one.matches:
        output.line()
        rows: list[list[Cell]] = [
            [match.application, match.function, match.trigger_id, match.manifest_generation, match.run_id or "not yet"]
            for match in one.matches
        ]
        output.table(("APPLICATION", "FUNCTION", "TRIGGER", "MANIFEST", "RUN"), rows)


@client_command
def functions_ls(client: Client, limit: LimitOption = None, cursor: CursorOption = None) -> None:
    """List functions, what starts them, and who can run them now."""
    from ryusen_protocol.durations import format_ms

    reply = client.ask(client.api.list_functions(cursor=cursor, limit=limit))
    rows: list[list[Cell]] = [
        [
            f"{one.application}/{one.function}",
            ", ".join(trigger.event_name for trigger in one.triggers) or "invoke only",
            "" if one.timeout_ms is None else format_ms(one.timeout_ms),
            f"{len(one.workers)}" if one.workers else "none",
            one.manifest_generation,
        ]
        for one in reply.document.items
    ]
    client.page(reply, ("FUNCTION", "STARTED BY", "TIMEOUT", "WORKERS", "MANIFEST"), rows, empty="no functions: no manifest is published")


@client_command
def apps_ls(client: Client, limit: LimitOption = None, cursor: CursorOption = None) -> None:
    """List applications and their active manifests."""
    from ryusen_protocol.plain import instant_text

    reply = client.ask(client.api.list_applications(cursor=cursor, limit=limit))
    rows: list[list[Cell]] = [
        [one.application, one.manifest_generation, f"{one.functions}", f"{one.triggers}", instant_text(one.activated_at_ms)]
        for one in reply.document.items
    ]
    client.page(reply, ("APPLICATION", "MANIFEST", "FUNCTIONS", "TRIGGERS", "ACTIVATED"), rows, empty="no applications")


@client_command
def apps_show(client: Client, application: Annotated[str, typer.Argument(metavar="APP", help="The application's id.")]) -> None:
    """Show one application: its active manifest, functions and triggers."""
    from ryusen_protocol.plain import instant_text

    head = client.ask(client.api.get_application(application))
    if client.output.json:
        client.output.document(head.text)
        return
    one, output = head.document, client.output
    manifest = client.ask(client.api.get_manifest(application, one.manifest_generation)).document
    output.line(one.application)
    output.line("manifest  ", f"{one.manifest_generation} ({one.digest})")
    output.line("routing   ", one.routing_generation)
    output.line("activated ", instant_text(one.activated_at_ms))
    started: dict[str, list[str]] = {}
    for trigger in manifest.triggers:
        started.setdefault(trigger.function, []).append(trigger.event_name)
    output.line()
    output.table(
        ("FUNCTION", "STARTED BY"),
        [[function.id, ", ".join(started.get(function.id, [])) or "invoke only"] for function in manifest.functions],
    )


@client_command
def workers_ls(client: Client, limit: LimitOption = None, cursor: CursorOption = None) -> None:
    """List worker instances: release, capacity, what they run, last contact."""
    from ryusen_protocol.durations import format_ms

    reply = client.ask(client.api.list_workers(cursor=cursor, limit=limit))
    now_ms = _now_ms()
    rows: list[list[Cell]] = [
        [
            one.instance_id,
            one.application,
            one.release_id or "",
            one.transport,
            _state(one),
            f"{one.in_flight}/{one.capacity}",
            f"{format_ms(max(0, now_ms - one.last_contact_at_ms))} ago",
            one.last_failure or "",
        ]
        for one in reply.document.items
    ]
    headers = ("INSTANCE", "APPLICATION", "RELEASE", "TRANSPORT", "STATE", "BUSY", "CONTACT", "LAST FAILURE")
    client.page(reply, headers, rows, empty="no workers; start one with: ryusen worker TARGET")


def _state(worker: WorkerDocument) -> str:
    if worker.transport == "http":
        return "configured" if worker.connected else "unreachable"
    if worker.connected:
        return "draining" if worker.draining else "connected"
    return "drained" if worker.draining else "away"


@client_command
def routing_ls(client: Client, limit: LimitOption = None, cursor: CursorOption = None) -> None:
    """List routing generations, newest first."""
    reply = client.ask(client.api.list_routing(cursor=cursor, limit=limit))
    rows: list[list[Cell]] = [
        [one.routing_generation, "active" if one.active else "", f"{len(one.applications)}", _activated(one)]
        for one in reply.document.items
    ]
    client.page(reply, ("ROUTING", "", "APPLICATIONS", "ACTIVATED"), rows, empty="no routing generations")


@client_command
def routing_show(client: Client, generation: Annotated[str, typer.Argument(metavar="GENERATION", help="The routing generation.")]) -> None:
    """Show one routing generation: the manifest each application is routed by."""
    reply = client.ask(client.api.get_routing(generation))
    if client.output.json:
        client.output.document(reply.text)
        return
    one, output = reply.document, client.output
    output.line(one.routing_generation, "  active" if one.active else "")
    output.line("parent    ", one.expected_parent or "none")
    output.line("activated ", _activated(one))
    if one.applications:
        output.line()
        output.table(("APPLICATION", "MANIFEST"), [[name, manifest] for name, manifest in one.applications.items()])


def _activated(one: RoutingDocument) -> str:
    from ryusen_protocol.plain import instant_text

    return "from the start" if one.activated_at_ms is None else instant_text(one.activated_at_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
