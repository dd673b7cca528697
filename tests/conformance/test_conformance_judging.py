"""A case that is answered wrongly fails, and says where."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from ryusen_conformance import executions, fixtures
from ryusen_conformance.expectation import JsonDict, difference, mismatch, outcome_body
from ryusen_conformance.http_suite import HttpPeer
from ryusen_conformance.registry import app
from ryusen_conformance.report import Result
from ryusen_conformance.transcript import StageFailed, play
from tests.http.hosting import AsgiServer

Tamper = Callable[[JsonDict], JsonDict]


def body_of(answer: JsonDict, **members: Any) -> JsonDict:
    return {**answer, "outcome": {**answer["outcome"], **members}}


def changed(answer: JsonDict, kind: str, **members: Any) -> JsonDict:
    return body_of(answer, **members) if answer["outcome"]["type"] == kind else answer


WRONG: dict[str, tuple[Tamper, str]] = {
    "another generation": (lambda answer: changed(answer, "succeeded", attempt_generation=9), "/attempt_generation is 9, not 1"),
    "another result": (lambda answer: changed(answer, "completed", result={"type": "i64", "value": "0"}), "/result"),
    "no name": (lambda answer: changed(answer, "declared", declaration={"kind": "run", "step_id": "first"}), "/declaration"),
    "another category": (
        lambda answer: changed(answer, "callback_failed", failure={"category": "x", "message": "no funds", "retryable": False}),
        '/failure/category is "x", not "contract.declined"',
    ),
    "another run": (lambda answer: {**answer, "run_id": "rn_other"}, "the answer's run_id is 'rn_other'"),
    "another request": (lambda answer: {**answer, "request_id": "rq_other"}, "the answer's request_id is 'rq_other'"),
    "no outcome": (lambda answer: {**answer, "outcome": {"type": "fine"}}, "the answer is no outcome: unknown variant 'fine'"),
    "a rejection": (lambda answer: {**answer, "outcome": {"type": "rejected_before_start", "reason": "busy"}}, '/reason is "busy"'),
}  # fmt: skip


async def judged(tamper: Tamper, names: set[str]) -> AsyncIterator[Result]:
    async with AsgiServer(app.asgi()).serving() as server, aiohttp.ClientSession() as client:
        peer = HttpPeer(client, server.url, None)

        async def ask(invocation: JsonDict) -> JsonDict:
            answer = await peer.ask(invocation)
            return answer if invocation["run"]["function"] == "call-log" else tamper(copy.deepcopy(answer))

        for execution in executions.executions("t"):
            if execution.name in names and execution.suite == executions.SUITE:
                yield Result(execution.suite, execution.name, "", await executions.judged(ask, execution))


SOME = {"first-step-declared", "replay-to-the-end", "forward-first", "forward-failed", "repeated-id"}


async def test_the_chosen_cases_pass_untouched() -> None:
    assert {result.case: result.why async for result in judged(lambda answer: answer, SOME)} == dict.fromkeys(SOME)


@pytest.mark.req("CNF-03")
@pytest.mark.parametrize("how", WRONG)
async def test_a_wrong_answer_fails_and_says_where(how: str) -> None:
    tamper, told = WRONG[how]
    whys = [result.why async for result in judged(tamper, SOME) if result.why is not None]
    assert any(told in why for why in whys), whys


@pytest.mark.req("CNF-04")
async def test_a_callback_that_should_not_run_fails_its_case() -> None:
    async with AsgiServer(app.asgi()).serving() as server, aiohttp.ClientSession() as client:
        peer = HttpPeer(client, server.url, None)
        (execution,) = (one for one in executions.executions("u") if one.name == "forward-first")
        assert "callbacks ran: ['forward first op_first 1 1'], not []" in str(
            await executions.judged(peer.ask, execution._replace(calls=[]))
        )


def test_source_metadata_is_no_part_of_an_answer() -> None:
    def blocked(**members: Any) -> JsonDict:
        body = {"type": "definition_blocked", "reason": "duplicate_step_id", "step_id": "a", **members}
        return outcome_body({"protocol_version": 1, "type": "outcome", "request_id": "rq", "run_id": "rn", "outcome": body})

    expected = {"type": "definition_blocked", "reason": "duplicate_step_id", "step_id": "a"}
    assert difference(blocked(first={"file": "a.rs", "line": 1}), expected, (), "rn") is None
    assert difference(blocked(step_id="b"), expected, (), "rn") == '/step_id is "b", not "a"'


@pytest.mark.parametrize(
    ("actual", "pattern", "wrong"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, None),
        ({"a": 1}, {"a": True}, "/a is 1, not true"),
        ({"a": {}}, {"a": {"b": 1}}, "/a/b is null, not 1"),
        ({"a": [1]}, {"a": []}, "/a has 1 items, not 0: [1]"),
        ({"a": [2, 1]}, {"a": {"$any_order": [1, 2]}}, None),
        ({"a": [2]}, {"a": {"$any_order": [1, 2]}}, "/a is [2], not [1, 2] in any order"),
        ({"a": "x", "b": "y"}, {"a": "$one", "b": "$one"}, '/b is "y", not "x"'),
        ({}, {"a": "$one"}, "/a is missing"),
        ({"a": 1}, {"b": None}, None),
    ],
)
def test_patterns(actual: Any, pattern: Any, wrong: str | None) -> None:
    assert mismatch(actual, pattern, {}) == wrong


class Script:
    """A subject that says what it is told to."""

    def __init__(self, *frames: JsonDict) -> None:
        self.frames = list(frames)
        self.sent: list[JsonDict] = []

    async def receive(self) -> JsonDict:
        if not self.frames:
            raise StageFailed("no frame")
        return self.frames.pop(0)

    async def send(self, frame: JsonDict) -> None:
        self.sent.append(frame)


@pytest.mark.parametrize(
    ("steps", "frames", "wrong"),
    [
        ([{"hear": {"type": "a", "x": "$x"}}, {"say": {"x": "$x"}}], [{"type": "a", "x": 5}], None),
        ([{"hear": {"type": "a"}}], [{"type": "heartbeat"}, {"type": "log"}, {"type": "a"}], None),
        ([{"hear": {"type": "heartbeat", "request_ids": ["r"]}}], [{"type": "heartbeat", "request_ids": []}], "step 1 (hear): no frame"),
        ([{"hear": {"type": "a"}}], [{"type": "b"}], 'step 1 (hear): /type is "b", not "a"'),
        ([{"hear_all": [{"type": "a"}, {"type": "b"}]}], [{"type": "b"}, {"type": "a"}], None),
        ([{"hear_all": [{"type": "a"}, {"type": "b"}]}], [{"type": "a"}, {"type": "a"}], "step 1 (hear_all): an unexpected 'a' frame"),
        ([{"say": {}}, {"hear": {"type": "a"}}], [], "step 2 (hear): no frame"),
    ],
)
async def test_transcripts(steps: list[JsonDict], frames: list[JsonDict], wrong: str | None) -> None:
    told = await play(steps, Script(*frames), {})  # type: ignore[arg-type]
    assert told == wrong or (wrong is not None and str(told).startswith(wrong))


@pytest.mark.req("CNF-01", "CNF-09")
def test_the_matrix_has_cases_for_every_topic() -> None:
    index = fixtures.index()
    areas = ("executions", "exchanges", "worker_sessions", "server_sessions")
    cases = [entry for entry in index["cases"] if entry["area"] in areas]
    assert all(entry["topics"] for entry in cases)
    assert {topic for entry in index["cases"] for topic in entry.get("topics", ())} == index["topics"].keys()


@pytest.mark.req("CNF-06")
def test_the_registry_is_what_the_contract_describes() -> None:
    contract = (fixtures.folder() / "contract.md").read_text()
    described = {line.split("`")[1] for line in contract.splitlines() if line.startswith("| `")}
    assert described == {function.id for function in app.manifest().functions}
    assert {entry["invocation"]["run"]["function"] for entry in (case.document for case in fixtures.cases("executions"))} - described == {
        "no-such-function"
    }
