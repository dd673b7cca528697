"""What a running server has, gathered over its API, and told: at the start in full, later only what changed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ryusen_cli.connection import Connection
from ryusen_protocol.api import ApplicationDocument, FunctionDocument, Page, RoutingDocument, ServerInfo, WorkerDocument
from ryusen_protocol.client import Api, Request

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_DEFAULT_URL = "http://127.0.0.1:7878"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One workspace of a server, at one moment."""

    workspace: str
    server: ServerInfo
    routing: RoutingDocument | None
    applications: list[ApplicationDocument]
    functions: list[FunctionDocument]
    workers: list[WorkerDocument]


def gather(url: str, workspace: str, token: str | None = None) -> Facts:
    """Ask a server for all of it. Blocks. Raises `CliError`."""
    connection = Connection(url)
    api = Api(workspace, token)
    try:
        routing = connection.ask(api.list_routing(limit=1)).document.items
        return Facts(
            workspace=workspace,
            server=connection.ask(api.server()).document,
            routing=routing[0] if routing else None,
            applications=_all(connection, lambda cursor: api.list_applications(cursor=cursor)),
            functions=_all(connection, lambda cursor: api.list_functions(cursor=cursor)),
            workers=_all(connection, lambda cursor: api.list_workers(cursor=cursor)),
        )
    finally:
        connection.close()


def report_lines(facts: Facts) -> list[str]:
    """Everything about a server that has just started."""
    server = facts.server
    place = "in memory, gone when this ends" if server.database.ephemeral else server.database.path
    lines = [f"listening   {address}" for address in server.addresses]
    lines.append(f"database    {place}")
    lines += routing_lines(facts)
    lines += worker_lines(facts)
    lines += function_lines(facts)
    lines += endpoint_lines(facts)
    return lines


def routing_lines(facts: Facts) -> list[str]:
    """The active routing generation, and the manifest each application is routed by."""
    active = "none" if facts.routing is None else facts.routing.routing_generation
    lines = [f"routing     {active}"]
    for application in facts.applications:
        counts = f"{_count(application.functions, 'function')}, {_count(application.triggers, 'trigger')}"
        lines.append(f"manifest    {application.application}: {application.manifest_generation} ({counts})")
    if not facts.applications:
        lines.append("manifest    none published yet")
    return lines


def worker_lines(facts: Facts) -> list[str]:
    """Connected workers with capacity, and how others were lost."""
    workers = [worker for worker in facts.workers if worker.transport == "connected"]
    connected = [worker for worker in workers if worker.connected]
    lines = [f"workers     {len(connected)} connected"]
    for worker in connected:
        draining = ", draining" if worker.draining else ""
        release = f", release {worker.release_id}" if worker.release_id else ""
        lines.append(f"  {worker.application}  {worker.instance_id[:12]}, capacity {worker.capacity}{release}{draining}")
    # A worker that drained and left is no failure, whatever its connection ended with.
    failed = [worker for worker in workers if worker.last_failure and not worker.draining]
    return lines + [f"  last failure of {worker.application}: {worker.last_failure}" for worker in failed]


def endpoint_lines(facts: Facts) -> list[str]:
    """HTTP endpoints with capacity, and how the last exchange with each ended if it is not the last success."""
    endpoints = [worker for worker in facts.workers if worker.transport == "http"]
    if not endpoints:
        return ["endpoints   no HTTP endpoints"]
    lines = [f"endpoints   {_count(len(endpoints), 'HTTP endpoint')}"]
    for endpoint in endpoints:
        lines.append(f"  {endpoint.application}  {endpoint.instance_id}, capacity {endpoint.capacity}")
        if is_failing(endpoint):
            lines.append(f"  last failure of {endpoint.application}: {endpoint.last_failure}")
    return lines


def is_failing(endpoint: WorkerDocument) -> bool:
    """Whether an endpoint has failed since it last answered."""
    return (endpoint.last_failure_at_ms or 0) > (endpoint.last_success_at_ms or 0)


def function_lines(facts: Facts) -> list[str]:
    """What can be started, by what, and whether anybody can run it."""
    lines: list[str] = []
    for function in facts.functions:
        started = ", ".join(trigger.event_name for trigger in function.triggers) or "invoke only"
        able = "" if function.workers else ", no worker can run it"
        lines.append(f"function    {function.application}/{function.function} on {started}{able}")
    return lines


def reachable(address: str) -> str:
    """Where a server that listens on every address of this machine is met from here."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def changed_lines(before: Facts | None, after: Facts) -> list[str]:
    """What a person should hear of when one look at the server differs from the last."""
    if before is None:
        return []
    lines: list[str] = []
    if _routing(before) != _routing(after):
        lines += routing_lines(after)
    if _fleet(before) != _fleet(after):
        lines += worker_lines(after)
    if endpoint_lines(before) != endpoint_lines(after):
        lines += endpoint_lines(after)
    if function_lines(before) != function_lines(after):
        lines += function_lines(after)
    return lines


def next_step(facts: Facts, example: str | None) -> str | None:
    """A line to type that starts something: the author's own example where a trigger waits for it, else the first trigger."""
    events = [trigger.event_name for function in facts.functions for trigger in function.triggers]
    if not events:
        return None
    line = example if example is not None and _event_of(example) in events else f"ryusen send {shlex.quote(events[0])} -d '{{}}' --wait"
    address = reachable(facts.server.addresses[0]) if facts.server.addresses else _DEFAULT_URL
    if address.rstrip("/") != _DEFAULT_URL:
        line += f" --url {address}"
    if facts.workspace != "default":
        line += f" --workspace {shlex.quote(facts.workspace)}"
    return line


def _event_of(example: str) -> str | None:
    try:
        words = shlex.split(example)
    except ValueError:
        return None
    return words[2] if len(words) > 2 else None


def _routing(facts: Facts) -> str | None:
    return None if facts.routing is None else facts.routing.routing_generation


def _fleet(facts: Facts) -> list[tuple[str, bool, str | None]]:
    return sorted(
        (worker.instance_id, worker.connected, worker.last_failure)
        for worker in facts.workers
        if worker.transport == "connected" and not worker.draining
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _all(connection: Connection, page: Callable[[str | None], Request[Page[T]]]) -> list[T]:
    items: list[T] = []
    cursor: str | None = None
    while True:
        answer = connection.ask(page(cursor)).document
        items += answer.items
        cursor = answer.next_cursor
        if cursor is None:
            return items
