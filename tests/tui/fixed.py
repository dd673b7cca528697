"""A real HTTP server that tells the same each time: runs, events and workers with fixed ids at fixed instants."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

NOW_MS = 1_780_000_000_000
W = "/v1/workspaces/default"
CONTRACT = {"protocol_version": 1, "value_codec": 1, "features": []}
LONG = "notify-the-customer-and-everybody-else-who-asked-for-it"
GENERATION = "mg_4YpT1sVbq8Lx0cNn2WdKzR"
ROUTING = "rg_8HcQ3mZt5Rw1vYp9LkJfXa"


def ago(seconds: float) -> int:
    return NOW_MS - int(seconds * 1_000)


def attempt(run: str, step: str, began: int | None, settled: int | None, state: str, **more: Any) -> dict[str, Any]:
    number = more.get("attempt", 1)
    phase = more.get("phase", "forward")
    return {
        "attempt_id": f"at_{run[3:9]}{step[:4]}{number}{phase[0]}".ljust(25, "0"), "run_id": run, "step_id": step, "phase": phase,
        "attempt": number, "attempt_generation": 1, "operation_id": f"op_{run[3:9]}{step[:4]}{phase[0]}".ljust(25, "0"),
        "request_id": None, "state": state,
        "worker": None if began is None else {
            "instance_id": "wi_shop-1", "session_id": "ws_1", "release_id": "dev-6bb00d7dea2b", "transport": "connected"},
        "out_of_contact": False, "due_at_ms": None, "authorized_at_ms": began, "unknown_at_ms": None, "settled_at_ms": settled,
        "settled_by": None, "error": None, "allowed_commands": [], "forbidden_commands": [], **more,
    }  # fmt: skip


def step(name: str, began: int, ended: int | None, *attempts: dict[str, Any], state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {
        "step_id": name, "kind": "run", "name": None, "location": {"file": "shop.py", "line": 12}, "state": state, "has_compensation": True,
        "declared_at_ms": began, "completed_at_ms": ended, "attempts": list(attempts), **more,
    }  # fmt: skip


def error(message: str, category: str = "carrier.refused") -> dict[str, Any]:
    return {"category": category, "message": message, "retryable": False}


def run(name: str, function: str, created: int, ended: int | None, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    run_id = f"rn_{name}".ljust(25, "0")
    return {
        "run_id": run_id, "status": "running" if ended is None else "ended", "stop": None,
        "outcome": None if ended is None else "succeeded", "recovery": None if ended is None else "not_required", "recovery_reason": None,
        "function": function, "application": "shop", "event_id": "ev_5RkM7qXw2Tc9hBn4ZsVdLe", "trigger_id": "order/placed",
        "manifest_generation": GENERATION, "routing_generation": ROUTING, "parent": None, "deadline": None, "attention": None,
        "attention_run_id": None, "created_at_ms": created, "ended_at_ms": ended, "steps_declared": len(steps),
        "steps_completed": sum(one["state"] == "succeeded" for one in steps), "unwind_counts": {}, "steps": list(steps),
        "input": {"payload": {"type": "string", "value": "an order"}}, "unwind": {"targets": []}, "blocker": None, "children": [],
        "position": 90, **more,
    }  # fmt: skip


def _unknown() -> dict[str, Any]:
    begun = ago(41)
    one = "rn_9aQ1".ljust(25, "0")
    lost = attempt(
        one, "ship", begun + 700, None, "unknown", unknown_at_ms=ago(10), attempt_generation=2,
        allowed_commands=["supply_success", "declare_failure"],
        forbidden_commands=[{"command": "authorize_retry", "code": "deadline_elapsed", "reason": "the run has run out of time"}],
    )  # fmt: skip
    steps = (
        step("charge", begun, begun + 300, attempt(one, "charge", begun, begun + 300, "succeeded")),
        step("ship", begun + 650, None, lost, state="pending"),
    )
    return run(
        "9aQ1", "fulfil-order", begun, None, *steps,
        attention="unknown", attention_run_id=one, deadline={"at_ms": ago(2), "source": "function"},
    )  # fmt: skip


def _failed() -> dict[str, Any]:
    at = ago(125)
    one = "rn_7Kd2".ljust(25, "0")
    tries = (
        attempt(one, "ship", at + 850, at + 1_000, "failed", error=error("no carrier")),
        attempt(one, "ship", at + 1_200, at + 1_350, "failed", attempt=2, error=error("no carrier")),
    )
    undone = [
        {
            "step_id": name, "state": "succeeded", "reason": None, "hidden_by": None, "error": None,
            "attempts": [attempt(one, name, at + began, at + ended, "succeeded", phase="compensation")],
        }
        for name, began, ended in (("reserve", 1_400, 1_560), ("charge", 1_570, 1_800))
    ]  # fmt: skip
    steps = (
        step("charge", at, at + 310, attempt(one, "charge", at + 10, at + 310, "succeeded")),
        step("reserve", at + 320, at + 740, attempt(one, "reserve", at + 330, at + 740, "succeeded")),
        step("ship", at + 760, at + 1_350, *tries, state="failed", failure=error("no carrier")),
    )
    return run(
        "7Kd2", "fulfil-order", at, at + 1_800, *steps,
        outcome="failed", recovery="fully_compensated", failure=error("no carrier"), unwind={"targets": undone},
        unwind_counts={"succeeded": 2},
    )  # fmt: skip


def _blocked() -> dict[str, Any]:
    at = ago(3_700)
    blocker = {
        "reason": "duplicate_step_id", "step_id": "same", "message": "the step id 'same' is used twice in one run",
        "first": {"file": "shop.py", "line": 41}, "duplicate": {"file": "shop.py", "line": 42}, "count": 3, "first_seen_at_ms": at,
        "last_seen_at_ms": ago(9), "release_id": "dev-6bb00d7dea2b",
    }  # fmt: skip
    one = "rn_Qt0V".ljust(25, "0")
    return run(
        "Qt0V", "twice", at, None, step("same", at, at + 5, attempt(one, "same", at, at + 5, "succeeded")),
        status="definition_blocked", attention="blocked", attention_run_id=one, blocker=blocker,
    )  # fmt: skip


def _others() -> list[dict[str, Any]]:
    at = ago(7_300)
    undone = {"succeeded": 1, "skipped": 1}
    return [
        run("2mXo", "fulfil-order", ago(5), None, deadline={"at_ms": ago(1), "source": "function"}, status="stopping",
            stop={"reason": "timed_out", "requested_at_ms": ago(1)}),
        run("3nYp", LONG, ago(65), None, status="compensating", stop={"reason": "cancelled", "requested_at_ms": ago(3)},
            outcome="cancelled", unwind_counts={"pending": 1}),
        run("4xPz", "pack-box", ago(130), ago(130) + 31, step("pack", ago(130), ago(130) + 25)),
        run("5yQa", "fulfil-order", at, at + 90_000, outcome="timed_out", recovery="partially_compensated", unwind_counts=undone),
        run("6zRb", "fulfil-order", ago(180_000), ago(179_000), outcome="failed", recovery="compensation_failed",
            unwind_counts={"succeeded": 1, "failed": 1}, failure=error("漢字 ü, a message in [b]many[/b] letters", "x")),
    ]  # fmt: skip


STEPPING, UNDOING, PACKED, LATE, BROKEN = _others()
UNKNOWN, FAILED, BLOCKED = _unknown(), _failed(), _blocked()
RUNS = [STEPPING, UNKNOWN, UNDOING, FAILED, PACKED, BLOCKED, LATE, BROKEN]
ATTEMPT = UNKNOWN["steps"][1]["attempts"][0]
EVENT = {
    "event_id": "ev_5RkM7qXw2Tc9hBn4ZsVdLe", "name": "order/placed", "metadata": {"source": "till 3"}, "received_at_ms": ago(125),
    "routing_generation": ROUTING, "matched": 2, "expansion": "complete",
}  # fmt: skip
EVENTS = [
    EVENT,
    {**EVENT, "event_id": "ev_6SlN8rYx3Ud0iCo5AtWeMf", "name": "order/[b]odd[/b] \u202ename", "matched": 0, "received_at_ms": ago(400)},
    {**EVENT, "event_id": "ev_7TmO9sZy4Ve1jDp6BuXfNg", "name": "box/packed", "matched": 1, "expansion": "pending"},
]
MATCHES = [
    {"application": "shop", "trigger_id": "order/placed", "function": "fulfil-order", "manifest_generation": GENERATION,
     "run_id": FAILED["run_id"]},
    {"application": "shop", "trigger_id": "mail/orders", "function": LONG, "manifest_generation": GENERATION, "run_id": None},
]  # fmt: skip
WORKERS = [
    {
        "instance_id": "wi_shop-1", "application": "shop", "session_id": "ws_1", "release_id": "dev-6bb00d7dea2b",
        "transport": "connected", "connected": True, "functions": ["fulfil-order", "pack-box"], "capacity": 32, "in_flight": 3,
        "draining": False, "manifest_digest": None, "contract": CONTRACT, "capabilities": [], "sdk": None, "runtime": None,
        "connected_at_ms": ago(300), "last_contact_at_ms": ago(1), "last_failure": None,
    },
]  # fmt: skip
WORKERS += [
    {**WORKERS[0], "instance_id": "wi_shop-0", "release_id": "dev-1234567890ab", "draining": True, "in_flight": 1},
    {**WORKERS[0], "instance_id": "https://mail.example/ryusen", "application": "mail", "transport": "http", "connected": False,
     "last_failure": "connection refused", "last_contact_at_ms": ago(4_000)},
]  # fmt: skip
FUNCTIONS = [
    {"application": "shop", "function": name, "timeout_ms": timeout, "triggers": [{"trigger_id": on, "event_name": on} for on in triggers],
     "manifest_generation": GENERATION, "workers": workers}
    for name, timeout, triggers, workers in (
        ("fulfil-order", 7_200_000, ["order/placed"], ["wi_shop-1", "wi_shop-0"]),
        ("pack-box", None, [], ["wi_shop-1"]),
        (LONG, 30_000, ["order/placed", "order/cancelled", "box/packed"], []),
    )
]  # fmt: skip
SERVER = {
    "product_version": "0.1.0", "protocol_version": 1, "addresses": ["http://127.0.0.1:7878", "http://[::1]:7878"],
    "database": {"path": "/srv/shop/.ryusen/ryusen.db", "schema_version": 1}, "limits": {}, "heartbeat_ms": 10_000, "lease_ms": 30_000,
    "reconnect_grace_ms": 30_000, "default_run_timeout_ms": None, "max_run_timeout_ms": None, "started_at_ms": ago(4_000),
    "counts": {"events": 3, "runs": 8, "moving": 4, "unknown": 1, "blocked": 1, "workers": 2},
}  # fmt: skip
RELEASES = [
    {"application": "shop", "release_id": release, "first_seen_position": 1, "first_seen_at_ms": ago(4_000), "contract": CONTRACT,
     "instances": instances}
    for release, instances in (("dev-1234567890ab", ["wi_shop-0"]), ("dev-6bb00d7dea2b", ["wi_shop-1"]))
]  # fmt: skip
ROUTINGS = [
    {"workspace": "default", "routing_generation": ROUTING, "expected_parent": None, "content_digest": "sha256:0", "active": True,
     "applications": {"shop": GENERATION}, "activated_at_ms": ago(4_000), "activated_position": 1},
]  # fmt: skip
HISTORY = [
    {"position": 71 + number, "at_ms": FAILED["created_at_ms"] + number * 310, "records": records}
    for number, records in enumerate((
        [{"kind": "run_created", "function": "fulfil-order", "event_id": EVENT["event_id"]}],
        [{"kind": "attempt_queued", "attempt_id": "at_1", "step_id": "charge", "phase": "forward", "attempt": 1}],
        [{"kind": "attempt_settled", "attempt_id": "at_1", "state": "succeeded"}],
        [{"kind": "outcome_decided", "outcome": "failed", "failure": error("no carrier")}],
        [{"kind": "run_ended", "recovery": "fully_compensated"}],
    ))
]  # fmt: skip
LOGS = [
    {"attempt_id": FAILED["steps"][0]["attempts"][0]["attempt_id"], "run_id": FAILED["run_id"], "step_id": "charge", "phase": "forward",
     "attempt": 1, "attempt_generation": 1, "lines": [{"at_ms": FAILED["created_at_ms"] + 20, "level": "stdout", "text": "charging 3 €"}]},
]  # fmt: skip


def page(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"items": items, "next_cursor": None, "position": 90}


def documents(*, is_empty: bool = False) -> dict[str, Any]:
    """What each path answers. An empty server has nothing but itself."""
    lists: dict[str, list[dict[str, Any]]] = {
        "runs": RUNS, "events": EVENTS, "workers": WORKERS, "functions": FUNCTIONS, "releases": RELEASES, "routing": ROUTINGS,
        "attempts": [ATTEMPT],
    }  # fmt: skip
    counts = dict.fromkeys(("events", "runs", "moving", "unknown", "blocked", "workers"), 0)
    found: dict[str, Any] = {"/v1/server": {**SERVER, "counts": counts} if is_empty else SERVER}
    found |= {f"{W}/{name}": page([] if is_empty else items) for name, items in lists.items()}
    found |= {f"{W}/runs/{one['run_id']}": one for one in RUNS}
    found |= {f"{W}/runs/{one['run_id']}/logs": page(LOGS if one is FAILED else []) for one in RUNS}
    found |= {f"{W}/runs/{one['run_id']}/history": page(HISTORY) for one in RUNS}
    found[f"{W}/attempts/{ATTEMPT['attempt_id']}"] = ATTEMPT
    payload = base64.b64encode(b'{"order": 7, "items": ["cup", "saucer"]}').decode()
    found[f"{W}/events/{EVENT['event_id']}"] = {**EVENT, "payload_base64": payload, "matches": MATCHES}
    return found


@contextlib.asynccontextmanager
async def serving(found: dict[str, Any]) -> AsyncGenerator[str]:
    """Such a server, and its address. Its change stream stays open and tells nothing."""
    is_over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not is_over.is_set():
                head = await reader.readuntil(b"\r\n\r\n")
                path = urlsplit(head.split()[1].decode()).path
                if path.endswith("/stream"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: here\n\n")
                    await is_over.wait()
                    break
                known = found.get(path)
                problem = {"type": "about:blank", "title": "none", "status": 404, "code": "not_found", "detail": path}
                body = json.dumps(problem if known is None else known).encode()
                status = b"404 Not Found" if known is None else b"200 OK"
                writer.write(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        is_over.set()
        server.close()
