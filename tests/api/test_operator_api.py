"""The operator's command over HTTP: what it does, that it does it once, and that a refusal leaves the whole database as it was."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ryusen_protocol.limits import ERROR_MESSAGE_BYTES_MAX, NESTING_MAX, VALUE_BYTES_MAX
from ryusen_server.ports.store import OperatorWrite, Unit
from ryusen_server.store.sqlite import NoHooks, SqliteStore
from tests.api.api_harness import JSON_BODY, W
from tests.api.operating import FAIL, KEY, RETRY, SUPPLY, Case, Desk, desk, end, undone
from tests.gateway.worker_peer import string
from tests.protocol.operator_mutations import ATTEMPT_ID, MUTATIONS, malformed_envelope

HTTP_MALFORMED = 200


@pytest.fixture
async def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Desk]:
    async with desk(tmp_path, monkeypatch) as opened:
        yield opened


# what it does


@pytest.mark.req("ACC-43", "OPR-01", "OPR-09", "OPR-23", "OPR-03")
async def test_a_supplied_success_is_the_steps_result(at: Desk) -> None:
    case = await at.lost()
    assert "could not be read" in (await case.attempt())["unknown_reason"]
    assert await case.applied(SUPPLY) == {
        "version": 1,
        "status": "applied",
        "attempt_id": case.attempt_id,
        "attempt_generation": 1,
        "transition": {"attempt": "succeeded", "step": "succeeded", "run": "running"},
    }
    passed = await at.invoked()
    assert passed["invocation"]["target"]["mode"] == "discovery"
    assert passed["invocation"]["history"]["steps"][-1]["outcome"]["success"] == string("supplied")
    await at.peer.answer(passed, {"type": "completed", "result": string("done")})
    run = (await at.api.get(f"{W}/runs/{case.run_id}", wait_ms=5_000))["steps"][-1]
    assert (run["state"], run["result"], run["attempts"][0]["settled_by"]) == ("succeeded", string("supplied"), "operator")


@pytest.mark.req("ACC-43", "OPR-01", "OPR-09", "OPR-23", "OPR-03")
async def test_a_declared_failure_is_a_failure_as_if_the_worker_had_told_it(at: Desk) -> None:
    case = await at.lost(retry={"max_attempts": 2, "initial_ms": 1, "jitter": 0.0})
    document = await case.applied(FAIL)
    assert document["transition"] == {"attempt": "failed", "step": "pending", "run": "running"}
    assert "successor" not in document, "what the policy grants is no authorization of the operator"
    again = await at.invoked()
    target = again["invocation"]["target"]
    assert (target["attempt"], target["operation_id"]) == (2, case.target["operation_id"])
    second = Case(at, again)
    await second.lose()
    assert (await second.applied(FAIL, "S3cr3t-2"))["transition"] == {"attempt": "failed", "step": "failed", "run": "running"}
    history = (await at.invoked())["invocation"]["history"]["steps"]
    assert history[-1]["outcome"]["failure"] == FAIL["declare_failure"]["failure"]


@pytest.mark.req("ACC-43", "OPR-01", "OPR-09", "OPR-15", "UNK-04", "UNK-09", "OPR-03")
async def test_an_authorized_retry_names_its_one_successor(at: Desk) -> None:
    case = await at.lost()
    document = await case.applied(RETRY)
    successor = document["successor"]
    assert successor.keys() == {"attempt_generation", "work_id", "attempt_id", "attempt"}
    assert (successor["attempt_generation"], successor["attempt"]) == (2, 2)
    assert document["transition"] == {"attempt": "retry_authorized", "step": "pending", "run": "running"}
    target = (await at.invoked())["invocation"]["target"]
    assert (target["attempt_generation"], target["attempt"], target["operation_id"]) == (2, 2, case.target["operation_id"])
    shown = await at.api.get(f"{W}/attempts/{successor['attempt_id']}")
    assert (shown["run_id"], shown["attempt_generation"], shown["state"]) == (case.run_id, 2, "authorized")
    assert successor["work_id"] in {record.get("attempt_id") for record in await case.records() if record["kind"] == "attempt_queued"}


@pytest.mark.req("OPR-15", "OPR-23", "CMP-12")
async def test_a_compensation_is_settled_by_the_same_three_commands(at: Desk) -> None:
    await at.api.send()
    for step_id in ("a", "b", "c"):
        await at.step(step_id, has_compensation=True, compensation={"retry": {"max_attempts": 1}})
    failure = FAIL["declare_failure"]["failure"]
    await at.peer.answer(await at.invoked(), {"type": "uncaught", "failure": failure})
    case = Case(at, await at.invoked())
    await case.lose()
    assert (await case.applied(RETRY, "S3cr3t-1"))["transition"] == {
        "attempt": "retry_authorized",
        "step": "pending",
        "run": "compensating",
    }
    case = Case(at, await at.invoked())
    assert (case.target["mode"], case.target["step_id"], case.target["attempt_generation"]) == ("compensation", "c", 2)
    await case.lose()
    assert (await case.applied(FAIL, "S3cr3t-2"))["transition"] == {"attempt": "failed", "step": "failed", "run": "compensating"}
    case = Case(at, await at.invoked())
    await case.lose()
    assert (await case.applied(SUPPLY, "S3cr3t-3"))["transition"] == {
        "attempt": "succeeded",
        "step": "succeeded",
        "run": "compensating",
    }
    run = await case.unwound()
    assert end(run) == ("failed", "compensation_failed", None)
    assert undone(run) == [("c", "failed"), ("b", "succeeded"), ("a", "succeeded")]


# once


@pytest.mark.req("ACC-44", "OPR-22")
@pytest.mark.parametrize("command", [SUPPLY, FAIL, RETRY], ids=["supply_success", "declare_failure", "authorize_retry"])
async def test_the_same_command_gets_its_first_answer_whatever_became_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: dict[str, Any]
) -> None:
    async with desk(tmp_path, monkeypatch) as at:
        case = await at.lost(retry={"max_attempts": 1})
        first = await case.applied(command)
        await case.replayed(command, first)
        await case.cancel()
        await case.replayed(command, first)
    async with desk(tmp_path, monkeypatch) as at:
        case.desk = at
        await case.replayed(command, first)
        respelled = json.dumps(dict(reversed(case.envelope(command).items())), indent=3).replace("a", "\\u0061").encode()
        with at.data.unchanged():
            assert await at.resolve(case.attempt_id, respelled) == (200, {**first, "status": "replayed"})


@pytest.mark.req("OPR-22", "UNK-08")
async def test_commands_at_once_are_one_command(at: Desk) -> None:
    case = await at.lost()
    answers = await asyncio.gather(*(case.resolve(SUPPLY) for _ in range(6)))
    assert sorted(document["status"] for _, document in answers) == ["applied"] + ["replayed"] * 5
    await at.invoked()
    other = await at.lost("other", before=())
    keys = [f"S3cr3t-{index}" for index in range(6)]
    answers = await asyncio.gather(*(other.resolve(command, key) for command, key in zip([SUPPLY, RETRY] * 3, keys, strict=True)))
    assert sorted(document["refusal"]["code"] for status, document in answers if status != 200) == ["stale"] * 5
    assert (await other.kinds()).count("attempt_settled") == 1


# refused


def nested(levels: int) -> Any:
    value: Any = {"type": "null"}
    for _ in range(levels):
        value = {"type": "array", "value": [value]}
    return value


def supplied(value: object) -> dict[str, Any]:
    return {"supply_success": {"result": value}}


def declared(**members: object) -> dict[str, Any]:
    return {"declare_failure": {"failure": {"category": "c", "message": "m", "retryable": False, **members}}}


SPOILT: dict[str, tuple[object, str]] = {
    "a mixture of two variants": ({**SUPPLY, **RETRY}, "invalid"),
    "a retry with a result": ({"authorize_retry": {"result": string("x")}}, "invalid"),
    "a field at the value's own level": (supplied({**string("x"), "S3cr3t": 1}), "invalid"),
    "a field inside a nested member": (supplied({"type": "object", "value": {"a": {**string("x"), "S3cr3t": 1}}}), "invalid"),
    "an over-limit value": (supplied(string("x" * VALUE_BYTES_MAX)), "limit_exceeded"),
    "an over-nested value": (supplied(nested(NESTING_MAX + 1)), "limit_exceeded"),
    "a value that cannot be persisted": (supplied({"type": "i64", "value": "S3cr3t"}), "invalid"),
    "a lone surrogate": (supplied({"type": "string", "value": "\ud800"}), "invalid"),
    "a failure that cannot be persisted": (declared(message="S3cr3t" * ERROR_MESSAGE_BYTES_MAX), "limit_exceeded"),
    "a failure with a NUL": (declared(category="S3cr3t\x00"), "invalid"),
    "a failure with a further field": (declared(S3cr3t=1), "invalid"),
}


@pytest.mark.req("ACC-49", "ACC-50", "ACC-51", "ACC-52", "ACC-53", "ACC-54", "ACC-56", "OPR-04", "OPR-05", "OPR-06", "OPR-12", "OPR-11")
@pytest.mark.parametrize("what", SPOILT)
async def test_a_command_that_cannot_be_is_refused_before_anything_is_looked_at(at: Desk, what: str) -> None:
    case = await at.lost()
    command, code = SPOILT[what]
    await case.refused(command, code)
    existing, missing = case.envelope(command), case.envelope(command, attempt_id="at_none")
    status, document = await at.resolve(case.attempt_id, existing)
    assert await at.resolve("at_none", missing) == (status, document), "it does not tell whether there is such an attempt"
    await case.applied(SUPPLY, "S3cr3t-other")


@pytest.mark.req("ACC-45", "ACC-46", "ACC-47", "ACC-48", "ACC-56", "OPR-10", "OPR-11", "OPR-02")
async def test_a_command_that_may_not_be_is_refused_and_leaves_the_database_as_it_was(at: Desk) -> None:
    done = await at.lost("done", before=())
    await done.applied(SUPPLY)
    await at.invoked()
    case = await at.lost(before=())
    for command in (RETRY, FAIL, supplied(string("other"))):
        await done.refused(command, "idempotency_key_reused", KEY)
    await case.refused(SUPPLY, "idempotency_key_reused", KEY)
    await done.refused(SUPPLY, "stale")
    for generation in (2, 2**53 - 1):
        with at.data.unchanged():
            status, document = await case.resolve(SUPPLY, "S3cr3t-2", attempt_generation=generation)
            assert (status, document["refusal"]["code"]) == (409, "stale")
    for version in (0, 2, 99):
        with at.data.unchanged():
            status, document = await case.resolve(SUPPLY, "S3cr3t-2", version=version)
            assert (status, document["refusal"]["code"]) == (400, "unsupported_version")
    for malformed in (b"", b"{", b"null", b"[]", b'{"version":1,"version":1}', b'{"version":1}', b"\xff"):
        with at.data.unchanged():
            status, document = await at.resolve(case.attempt_id, malformed)
            assert (status, document["refusal"]["code"]) == (400, "invalid")
    with at.data.unchanged():
        status, document = await at.resolve(done.attempt_id, case.envelope(SUPPLY, "S3cr3t-2"))
        assert (status, document["refusal"]["code"]) == (400, "invalid"), "the path names another attempt than the body"
    await case.applied(SUPPLY, "S3cr3t-2")


@pytest.mark.req("OPR-11", "ACC-46")
async def test_an_attempt_of_another_workspace_is_as_good_as_none(at: Desk) -> None:
    case = await at.lost()
    answers: list[tuple[int, bytes]] = []
    for attempt_id in (case.attempt_id, "at_none"):
        body = json.dumps(case.envelope(SUPPLY, attempt_id=attempt_id))
        with at.data.unchanged():
            answer = await at.api.client.post(f"/v1/workspaces/other/attempts/{attempt_id}/resolve", content=body, headers=JSON_BODY)
        answers.append((answer.status_code, answer.content))
    assert answers[0] == answers[1]
    assert answers[0][0] == 409
    assert (await case.attempt())["state"] == "unknown"
    ours = await case.applied(SUPPLY)
    theirs = case.envelope(SUPPLY)
    answer = await at.api.client.post(f"/v1/workspaces/other/attempts/{case.attempt_id}/resolve", json=theirs)
    assert answer.json()["refusal"]["code"] == "stale", "the key is known in its own workspace only"
    await case.replayed(SUPPLY, ours)


@pytest.mark.req("OPR-10", "OPR-11", "OPR-12", "ACC-56", "OPR-07")
async def test_generated_envelopes_change_nothing_and_learn_nothing(at: Desk) -> None:
    case = await at.lost()
    rng = Random(5)
    mutations = list(MUTATIONS)
    rounds = HTTP_MALFORMED // len(mutations) + 1
    for mutation in mutations:
        with at.data.unchanged():
            for _ in range(rounds):
                malformed = malformed_envelope(rng, mutation)
                body = malformed.body.replace(ATTEMPT_ID.encode(), case.attempt_id.encode())
                _, document = await at.resolve(case.attempt_id, body)
                assert document["refusal"]["code"] == malformed.code, (mutation, document, malformed.body[:1_000])
    assert (await case.attempt())["state"] == "unknown"


class FailingOperatorCommits(NoHooks):
    """The disk is full for commits that hold an operator command. Runs on the writer's thread."""

    failing = False

    def before_commit(self, units: Sequence[Unit], /) -> None:
        if self.failing and any(isinstance(write, OperatorWrite) for unit in units for write in unit.writes):
            raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.req("OPR-10", "OPR-22", "UNK-05")
async def test_a_command_that_could_not_be_stored_was_not_obeyed_and_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingOperatorCommits()

    async def open_store(path: Path | None, on_fatal: Callable[[str], None]) -> SqliteStore:
        return await SqliteStore.open(path, on_fatal=on_fatal, hooks=disk)

    async with desk(tmp_path, monkeypatch, store_factory=open_store) as at:
        case = await at.lost()
        disk.failing = True
        for _ in range(2):
            with at.data.unchanged():
                status, document = await case.resolve(RETRY)
                assert (status, document["refusal"]["code"]) == (500, "server")
        disk.failing = False
        assert (await case.attempt())["state"] == "unknown"
        first = await case.applied(RETRY)
        await case.replayed(RETRY, first)
        assert await case.attempts() == [(1, "retry_authorized"), (2, "authorized")]


# the retry and its two generations


@pytest.mark.req("ACC-40", "ACC-41", "ACC-42", "UNK-06", "UNK-07", "UNK-08", "OPR-22")
@pytest.mark.parametrize("late_first", [True, False])
async def test_of_two_generations_the_successor_alone_counts_also_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_first: bool
) -> None:
    async with desk(tmp_path, monkeypatch) as at:
        old = await at.lost()
        await at.leave()
        first = await old.applied(RETRY)
    async with desk(tmp_path, monkeypatch) as at:
        old.desk = at
        assert (await old.attempts())[0] == (1, "retry_authorized")
        assert [generation for generation, _ in await old.attempts()] == [1, 2]
        new = Case(at, await at.invoked())
        await old.replayed(RETRY, first)
        assert new.target["attempt_generation"] == 2
        new.attempt_id = first["successor"]["attempt_id"]
        if late_first:
            assert await at.succeed(old.invoke, "late") == "stale"
            assert await at.succeed(new.invoke, "current") == "accepted"
        else:
            assert await at.succeed(new.invoke, "current") == "accepted"
            assert await at.succeed(old.invoke, "late") == "stale"
        assert (await at.invoked())["invocation"]["history"]["steps"][-1]["outcome"]["success"] == string("current")
        with at.data.unchanged():
            assert await at.succeed(old.invoke, "late") == "stale", "its prior disposition, recorded once"
            assert await at.succeed(new.invoke, "current") == "replayed"
        assert await at.succeed(new.invoke, "another") == "stale"
        assert await at.fail(old.invoke) == "stale"
        for case in (old, new):
            await case.refused(SUPPLY, "stale")
        run = await old.run()
        assert run["steps"][-1]["result"] == string("current")
        assert await old.attempts() == [(1, "retry_authorized"), (2, "succeeded")]
        stale = [record["attempt_id"] for record in await old.records() if record["kind"] == "submission_stale"]
        assert sorted(stale) == sorted([old.attempt_id, old.attempt_id, new.attempt_id])
