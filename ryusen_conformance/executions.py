"""Message conformance: invocations of the contract registry, and what must come of them, whatever carries them.

Owns how a case becomes an invocation of this run of the suite (fresh run and request ids, so that a suite may be run again on one worker),
how its answer and its calls are judged, and the cases that follow from the fixtures of values: each accepted value is kept through a
replay or refused, never changed, and each refused one is refused. Sends nothing itself: `Ask` does.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from ryusen_conformance import fixtures
from ryusen_conformance.expectation import JsonDict, Unreadable, difference, outcome_body
from ryusen_conformance.report import Result
from ryusen_protocol import values

Ask = Callable[[JsonDict], Awaitable[JsonDict]]
"""Sends an invocation document and gives the outcome document. Raises `NoAnswer`."""

SUITE: Final = "executions"
VALUES_SUITE: Final = "values"


class NoAnswer(Exception):
    """No outcome came back, and why."""


class Unread(NoAnswer):
    """The subject says that it could not read the invocation, so nothing was run."""


class Allowed(NamedTuple):
    """One outcome that a case accepts, and the members of it that may say anything."""

    outcome: JsonDict
    open_members: tuple[str, ...]


class Execution(NamedTuple):
    """One invocation with the outcomes it may have and the calls it may make."""

    suite: str
    name: str
    exercises: str
    invocation: JsonDict
    allowed: list[Allowed]
    calls: list[str]


_REFUSED: Final = Allowed(
    {"type": "uncaught", "failure": {"category": "conversion", "message": "refused", "retryable": True}},
    ("/failure/category", "/failure/message", "/failure/retryable"),
)
"""A value the language cannot hold, or that is none: an error in the function, told in the language's own words."""


def executions(token: str) -> list[Execution]:
    """Every execution; `token` makes the ids of this run of the suite its own."""
    return [*_written(token), *_kept_values(token), *_refused_values(token)]


async def run(ask: Ask, token: str) -> AsyncIterator[Result]:
    """Asks everything, one after the other."""
    for execution in executions(token):
        yield Result(execution.suite, execution.name, execution.exercises, await judged(ask, execution))


async def judged(ask: Ask, execution: Execution) -> str | None:
    """What is wrong with the answer to one invocation, or with the callbacks that ran for it; `None` if nothing is."""
    try:
        answer = await ask(execution.invocation)
        wrong = _wrong(answer, execution)
        return wrong if wrong is not None else await _wrong_calls(ask, execution)
    except Unread as refused:
        return None if _REFUSED in execution.allowed else str(refused)
    except (NoAnswer, Unreadable) as refused:
        return str(refused)


def _wrong(answer: JsonDict, execution: Execution) -> str | None:
    asked = execution.invocation
    for name, expected in (("request_id", asked["request_id"]), ("run_id", asked["run"]["run_id"])):
        if answer.get(name) != expected:
            return f"the answer's {name} is {answer.get(name)!r}, not {expected!r}"
    body = outcome_body(answer)
    found = [difference(body, allowed.outcome, allowed.open_members, asked["run"]["run_id"]) for allowed in execution.allowed]
    return None if None in found else "; or: ".join(dict.fromkeys(str(one) for one in found))


async def _wrong_calls(ask: Ask, execution: Execution) -> str | None:
    """The calls that the registry has noted for the run, beside the expected ones."""
    asked = execution.invocation
    noted = await calls_of(ask, asked["run"]["run_id"], asked["request_id"] + "_calls")
    return None if noted == execution.calls else f"callbacks ran: {noted}, not {execution.calls}"


async def calls_of(ask: Ask, run_id: str, request_id: str) -> list[str]:
    """The calls noted for a run. Raises `NoAnswer` where the registry does not tell."""
    answer = await ask(invocation("call-log", request_id, {"run_id": run_id}))
    body = outcome_body(answer)
    if body.get("type") != "completed":
        raise NoAnswer(f"`call-log` does not complete: {json.dumps(body)[:300]}")
    told = values.decode(json.dumps(body["result"]).encode())
    if not isinstance(told, list):
        raise NoAnswer("`call-log` does not give an array")
    return [str(call) for call in told]


def invocation(function: str, request_id: str, data: object, steps: list[JsonDict] | None = None) -> JsonDict:
    """A discovery of a function of the registry."""
    payload = base64.b64encode(json.dumps(data).encode()).decode()
    return {
        "protocol_version": 1,
        "type": "invocation",
        "request_id": request_id,
        "scope": {"workspace": "default", "application": "conformance"},
        "run": {"run_id": "rn_" + request_id, "function": function, "deadline_at_ms": None, "created_at_ms": 0, "failure": None},
        "input": {
            "kind": "event",
            "event_id": "ev_1",
            "name": "conformance/started",
            "payload": {"type": "bytes", "value": payload},
            "metadata": {},
            "received_at_ms": 0,
        },
        "history": {"mode": "full", "digest": "sha256:" + "0" * 64, "steps": steps or []},
        "target": {"mode": "discovery", "pass": 1},
    }


def _written(token: str) -> list[Execution]:
    found: list[Execution] = []
    for case in fixtures.cases(SUITE):
        asked = copy.deepcopy(case.document["invocation"])
        asked["request_id"] += "_" + token
        asked["run"]["run_id"] += "_" + token
        open_members = tuple(case.document.get("open", ()))
        allowed = [Allowed(outcome, open_members) for outcome in case.document.get("any_of") or [case.document["outcome"]]]
        found.append(Execution(SUITE, case.name, case.exercises, asked, allowed, case.document["calls"]))
    return found


def _kept_values(token: str) -> list[Execution]:
    """Each accepted value as the recorded result of a step that the function returns."""
    found: list[Execution] = []
    for case in fixtures.cases("values"):
        text = _text(case.document)
        if case.file != "values/accepted.json" or text is None:
            continue
        expected = json.loads(case.document.get("canonical", text))
        # A language that cannot hold a value exactly refuses it; one that gives back another value is wrong.
        found.append(_kept(token, case, text, [Allowed({"type": "completed", "result": expected}, ()), _REFUSED]))
    return found


def _refused_values(token: str) -> list[Execution]:
    """Each refused value, as far as it is JSON at all: it never reaches the code as a value."""
    found: list[Execution] = []
    for case in fixtures.cases("values"):
        text = _text(case.document)
        if case.file != "values/refused.json" or text is None or not _is_json(text):
            continue
        found.append(_kept(token, case, text, [_REFUSED]))
    return found


def _kept(token: str, case: fixtures.Case, text: str, allowed: list[Allowed]) -> Execution:
    # The text stands in the document exactly as the case has it.
    step = {"step_id": "value", "kind": "run", "outcome": {"success": msgspec.Raw(text.encode())}}
    return Execution(VALUES_SUITE, case.name, case.exercises, invocation("kept", f"rq_{case.name}_{token}", {}, [step]), allowed, [])


def _text(document: JsonDict) -> str | None:
    if "document" in document:
        return json.dumps(document["document"])
    try:
        return document["text"] if "text" in document else base64.b64decode(document.get("base64", "")).decode() or None
    except (UnicodeDecodeError, binascii.Error):
        return None


def _is_json(text: str) -> bool:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        text.encode()
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True
