"""Invocations as a server makes them, for tests that post them to a handler."""

from __future__ import annotations

import base64
import itertools
import json
import time
from typing import Any

import httpx

from ryusen_protocol.exchange import signed_headers

_requests = itertools.count(1)


def invocation(
    function: str = "fulfil-order",
    *,
    steps: dict[str, Any] | None = None,
    step_id: str | None = None,
    compensate: Any = None,
    data: Any = None,
    application: str = "shop",
    **changes: Any,
) -> dict[str, Any]:
    """A discovery, or with `step_id` an effect: its compensation where `compensate` is the forward result."""
    number = next(_requests)
    target: dict[str, Any] = {"mode": "discovery", "pass": 1}
    if step_id is not None:
        target = {"mode": "forward", "step_id": step_id, "operation_id": f"op_{number}", "attempt": 1, "attempt_generation": 1}
    if compensate is not None:
        target |= {"mode": "compensation", "forward_result": compensate}
    done = [{"step_id": name, "kind": "run", "outcome": {"success": value}} for name, value in (steps or {}).items()]
    return {
        "protocol_version": 1,
        "type": "invocation",
        "request_id": f"rq_{number}",
        "scope": {"workspace": "default", "application": application},
        "run": {"run_id": f"rn_{number}", "function": function, "created_at_ms": 0},
        "input": {
            "kind": "event",
            "event_id": f"ev_{number}",
            "name": "order/placed",
            "payload": {"type": "bytes", "value": base64.b64encode(json.dumps(data).encode()).decode()},
            "metadata": {},
            "received_at_ms": 0,
        },
        "history": {"mode": "full", "digest": "sha256:0", "steps": done},
        "target": target,
        **changes,
    }


def post(url: str, document: Any, *, secret: str | None = None, at_s: int | None = None, **headers: str) -> httpx.Response:
    """The answer to a posted document, signed with the secret if there is one."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    signed = signed_headers(None if secret is None else secret.encode(), body, int(time.time()) if at_s is None else at_s)
    with httpx.Client(trust_env=False, timeout=20) as client:
        return client.post(url, content=body, headers={"Content-Type": "application/json", **signed, **headers})
