"""`ryusen unknown` and the commands that stop or wake a run: exit codes, what is sent, what is asked on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ryusen_protocol import operator
from tests.cli.told import COMMAND, Answer, problem, ryusen, told

W = "/v1/workspaces/default"
RESOLVE = ("unknown", "resolve", "at_1", "--generation", "2")


def attempt(**more: Any) -> dict[str, Any]:
    return {
        "attempt_id": "at_1", "run_id": "rn_1", "step_id": "charge", "phase": "forward", "attempt": 1, "attempt_generation": 2,
        "operation_id": "op_1", "request_id": "rq", "state": "unknown", "out_of_contact": False, "due_at_ms": None,
        "worker": {"instance_id": "wi_1", "session_id": "s", "release_id": "dev-1", "transport": "connected"},
        "authorized_at_ms": 10, "unknown_at_ms": 1_000, "settled_at_ms": None, "settled_by": None, "error": None,
        "unknown_reason": "its worker was out of contact for its whole lease",
        "allowed_commands": ["supply_success", "declare_failure"],
        "forbidden_commands": [{"command": "authorize_retry", "code": "retry_forbidden", "reason": "The run is cancelled."}], **more,
    }  # fmt: skip


def run(**more: Any) -> dict[str, Any]:
    before = attempt(attempt_generation=1, state="retry_authorized", settled_at_ms=5, settled_by="operator")
    step = {
        "step_id": "charge", "kind": "run", "name": None, "location": None, "state": "pending", "has_compensation": True,
        "declared_at_ms": 1, "completed_at_ms": None, "attempts": [before, attempt()],
    }  # fmt: skip
    return {
        "run_id": "rn_1", "status": "stopping", "stop": {"reason": "cancelled", "requested_at_ms": 7}, "outcome": None, "recovery": None,
        "recovery_reason": None, "function": "fulfil", "application": "shop", "event_id": None, "trigger_id": None,
        "manifest_generation": None, "routing_generation": None, "parent": None, "deadline": {"at_ms": 99, "source": "function"},
        "attention": "unknown", "attention_run_id": "rn_1", "created_at_ms": 1, "ended_at_ms": None, "steps_declared": 1,
        "steps_completed": 0, "unwind_counts": {}, "steps": [step], "children": [], "input": {"order": 7}, "unwind": {"targets": []},
        "blocker": None, "position": 3, **more,
    }  # fmt: skip


def worker() -> dict[str, Any]:
    contract = {"protocol_version": 1, "value_codec": 1}
    return {
        "instance_id": "wi_1", "application": "shop", "session_id": None, "release_id": "dev-1", "transport": "connected",
        "connected": False, "functions": [], "capacity": 1, "in_flight": 0, "draining": False, "manifest_digest": None,
        "contract": contract, "capabilities": [], "sdk": None, "runtime": None, "connected_at_ms": None, "last_contact_at_ms": 900,
        "last_failure": None,
    }  # fmt: skip


def acknowledged(status: str = "applied", **more: Any) -> dict[str, Any]:
    transition = {"attempt": "succeeded", "step": "succeeded", "run": "running"}
    return {"version": 1, "status": status, "attempt_id": "at_1", "attempt_generation": 2, "transition": transition, **more}


def refusal(status: int, code: str) -> Answer:
    return status, {"version": 1, "refusal": {"code": code, "message": "said why"}}


def server(resolve: Answer = None, **more: Any) -> Callable[[str, str, Any], Answer]:
    one = attempt(**more)

    def answer(method: str, path: str, _body: Any) -> Answer:
        if method == "POST":
            return resolve
        documents = {
            f"{W}/attempts?state=unknown": {"items": [one], "next_cursor": None},
            f"{W}/attempts/at_1": one,
            f"{W}/runs/rn_1": run(),
            f"{W}/workers": {"items": [worker()], "next_cursor": None},
        }
        return (200, documents[path]) if path in documents else problem(404, "not_found")

    return answer


def sent(asked: list[tuple[str, str, Any]]) -> list[Any]:
    return [body for method, _, body in asked if method == "POST"]


def test_the_list_tells_what_each_attempt_allows() -> None:
    with told(server()) as one:
        shown = ryusen("unknown", "ls", "--url", one.url)
        document = json.loads(ryusen("unknown", "ls", "--json", "--url", one.url).stdout)
    head, row = shown.stdout.decode().splitlines()
    assert head.split() == ["ATTEMPT", "RUN", "STEP", "PHASE", "TRY", "GENERATION", "AGE", "ALLOWED"]
    assert row.split()[:6] == ["at_1", "rn_1", "charge", "forward", "1", "2"]
    assert row.endswith("--result, --fail")
    assert f"ryusen unknown show at_1 --url {one.url}".encode() in shown.stderr
    assert document["items"][0]["attempt_id"] == "at_1"


def test_nothing_unknown_is_said_beside_the_data() -> None:
    with told(lambda *_: (200, {"items": [], "next_cursor": None})) as one:
        done = ryusen("unknown", "ls", "--url", one.url)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"nothing is Unknown" in done.stderr


def test_show_tells_everything_an_operator_needs_and_what_to_type() -> None:
    with told(server()) as one:
        text = ryusen("unknown", "show", "at_1", "--url", one.url).stdout.decode()
        document = json.loads(ryusen("unknown", "show", "at_1", "--json", "--url", one.url).stdout)
    for part in (
        "? Unknown", "rn_1", "fulfil (shop)", "Cancelling", "charge (forward), attempt 1, generation 2", "op_1",
        "wi_1, transport connected", "dev-1", ":01.000+0000: its worker was out of contact",
        "away; last at", '{"order": 7}', "attempt 1, generation 1", "Settled by operator",
        "--result (supply_success), --fail (declare_failure)", "--retry (authorize_retry): The run is cancelled. [retry_forbidden]",
        f"ryusen unknown resolve at_1 --generation 2 --result 'RESULT AS JSON' --url {one.url}",
        f"ryusen unknown resolve at_1 --generation 2 --fail CATEGORY:MESSAGE --url {one.url}",
    ):  # fmt: skip
        assert part in text, part
    assert "--generation 2 --retry" not in text
    assert document["attempt"]["operation_id"] == "op_1"
    assert document["run"]["status"] == "stopping"


@pytest.mark.req("OPR-01", "OPR-02", "OPR-03")
@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ("--result", '{"n": 1, "f": 1.0, "none": null}'),
            {
                "supply_success": {
                    "result": {
                        "type": "object",
                        "value": {"f": {"type": "f64", "value": 1}, "n": {"type": "i64", "value": "1"}, "none": {"type": "null"}},
                    }
                }
            },
        ),
        (
            ("--result", '{"type": "bytes", "value": "aGk="}', "--tagged"),
            {"supply_success": {"result": {"type": "bytes", "value": "aGk="}}},
        ),
        (
            ("--fail", "card: no: money", "--retryable"),
            {"declare_failure": {"failure": {"category": "card", "message": "no: money", "retryable": True}}},
        ),
        (("--fail", "card:no"), {"declare_failure": {"failure": {"category": "card", "message": "no", "retryable": False}}}),
        (("--retry",), {"authorize_retry": {}}),
    ],
)
def test_each_way_sends_one_exact_command(arguments: tuple[str, ...], command: dict[str, Any]) -> None:
    with told(server((200, acknowledged()))) as one:
        done = ryusen(*RESOLVE, *arguments, "--yes", "--url", one.url)
    assert done.returncode == 0, done.stderr
    [body] = sent(one.asked)
    assert one.asked == [("POST", f"{W}/attempts/at_1/resolve", body)]
    key = body.pop("idempotency_key")
    assert body == {"version": 1, "attempt_id": "at_1", "attempt_generation": 2, "command": command}
    assert key.encode() not in done.stdout + done.stderr
    assert b"Succeeded" in done.stdout


def test_a_result_comes_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("[1]")
    with told(server((200, acknowledged()))) as one:
        assert ryusen(*RESOLVE, "--result", f"@{file}", "--yes", "--url", one.url).returncode == 0
        assert ryusen(*RESOLVE, "--result", "-", "--yes", "--url", one.url, stdin=b"[1]").returncode == 0
    first, second = (body["command"]["supply_success"]["result"]["value"] for body in sent(one.asked))
    assert first == second == [{"type": "i64", "value": "1"}]


@pytest.mark.req("OPR-09")
def test_an_authorized_retry_tells_its_successor() -> None:
    successor = {"attempt_generation": 3, "work_id": "wk", "attempt_id": "at_2", "attempt": 2}
    transition = {"attempt": "retry_authorized", "step": "pending", "run": "running"}
    with told(server((200, acknowledged("replayed", transition=transition, successor=successor)))) as one:
        done = ryusen(*RESOLVE, "--retry", "--yes", "--key", "k", "--url", one.url)
        document = json.loads(ryusen(*RESOLVE, "--retry", "--yes", "--key", "k", "--json", "--url", one.url).stdout)
    assert b"done before with this key" in done.stdout
    assert b"at_2, attempt 2, generation 3" in done.stdout
    assert document["successor"] == successor
    assert [body["idempotency_key"] for body in sent(one.asked)] == ["k", "k"]


@pytest.mark.req("OPR-10")
@pytest.mark.parametrize("code", sorted(operator.REFUSAL_CODES))
def test_every_refusal_ends_with_5_and_its_code(code: operator.RefusalCode) -> None:
    with told(server(refusal(operator.status_of(code), code))) as one:
        done = ryusen(*RESOLVE, "--retry", "--yes", "--json", "--url", one.url)
        text = ryusen(*RESOLVE, "--retry", "--yes", "--url", one.url)
    document = json.loads(done.stdout)
    assert (done.returncode, text.returncode) == (5, 5)
    assert (document["code"], document["exit_code"], document["detail"]) == (code, 5, "said why")
    assert document["refusal"] == {"code": code, "message": "said why"}
    assert text.stdout == b""
    assert b"said why" in text.stderr


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((200, acknowledged()), 0),
        (problem(401, "unauthorized"), 5),
        (problem(429, "busy"), 5),
        (problem(404, "not_found"), 4),
        (problem(500, "internal"), 8),
        ((200, b"<html>"), 8),
        ((502, b"<html>"), 8),
        (None, 8),
    ],
)
def test_resolve_ends_as_its_answer_says(answer: Answer, code: int) -> None:
    with told(server(answer)) as one:
        done = ryusen(*RESOLVE, "--retry", "--yes", "--json", "--url", one.url)
    document = json.loads(done.stdout)
    assert done.returncode == code
    keys = {body["idempotency_key"] for body in sent(one.asked)}
    assert len(keys) == 1
    if code == 8:
        assert document["idempotency_key"] == keys.pop()


@pytest.mark.req("OPR-22")
def test_a_lost_answer_prints_the_key_and_a_repeat_under_it_gets_the_replay() -> None:
    with told(server(None)) as one:
        lost = ryusen(*RESOLVE, "--fail", "a:b", "--yes", "--url", one.url)
    assert (lost.returncode, lost.stdout) == (8, b"")
    bodies = sent(one.asked)
    assert len(bodies) > 1
    assert all(body == bodies[0] for body in bodies)
    key = bodies[0]["idempotency_key"]
    assert f"--key {key};".encode() in lost.stderr
    with told(server((200, acknowledged("replayed")))) as one:
        again = ryusen(*RESOLVE, "--fail", "a:b", "--yes", "--key", key, "--url", one.url)
    assert again.returncode == 0
    assert sent(one.asked) == bodies[:1]
    assert b"done before" in again.stdout


@pytest.mark.parametrize("after", [refusal(500, "server"), problem(503, "unavailable"), problem(429, "busy")])
def test_a_refusal_to_look_does_not_hide_that_an_earlier_answer_was_lost(after: Answer) -> None:
    answers = iter([None])
    with told(lambda *_: next(answers, after)) as one:
        done = ryusen(*RESOLVE, "--retry", "--yes", "--url", one.url)
    assert done.returncode == 8
    with told(lambda *_: after) as one:
        assert ryusen(*RESOLVE, "--retry", "--yes", "--url", one.url).returncode == 5


def test_a_decision_after_a_lost_answer_is_the_answer() -> None:
    answers = iter([None, refusal(409, "stale")])
    with told(lambda *_: next(answers)) as one:
        done = ryusen(*RESOLVE, "--retry", "--yes", "--url", one.url)
    assert done.returncode == 5
    assert b"ryusen unknown show at_1" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (*RESOLVE, "--yes"),
        (*RESOLVE, "--yes", "--result", "1", "--retry"),
        (*RESOLVE, "--yes", "--result", "1", "--fail", "a:b"),
        (*RESOLVE, "--yes", "--retry", "--tagged"),
        (*RESOLVE, "--yes", "--retry", "--retryable"),
        (*RESOLVE, "--yes", "--fail", "message"),
        (*RESOLVE, "--yes", "--fail", ":message"),
        (*RESOLVE, "--yes", "--fail", "category:"),
        (*RESOLVE, "--yes", "--result", "{'a': 1}"),
        (*RESOLVE, "--yes", "--result", '{"a": 1, "a": 2}'),
        (*RESOLVE, "--yes", "--result", "NaN"),
        (*RESOLVE, "--yes", "--result", ""),
        (*RESOLVE, "--yes", "--result", str(2**64)),
        (*RESOLVE, "--yes", "--result", "@missing.json"),
        (*RESOLVE, "--retry"),
        ("unknown", "resolve", "at_1", "--generation", "0", "--retry", "--yes"),
        ("unknown", "resolve", "at_1", "--generation", "x", "--retry", "--yes"),
        ("unknown", "resolve", "--generation", "1", "--retry", "--yes"),
        ("unknown", "show"),
        ("unknown",),
    ],
)
def test_what_makes_no_sense_ends_with_2_and_sends_nothing(arguments: tuple[str, ...]) -> None:
    with told(server((200, acknowledged()))) as one:
        done = ryusen(*arguments, RYUSEN_URL=one.url)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr
    assert one.asked == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--result", '{"type": "bytes"}', "--tagged"), "invalid"),
        (("--result", '{"type": "null", "more": 1}', "--tagged"), "invalid"),
        (("--fail", "sdk.timeout:mine"), "invalid"),
        (("--fail", "a:" + "m" * 9_000), "limit_exceeded"),
        (("--retry", "--key", ""), "invalid"),
        (("--result", "[" * 70 + "]" * 70), "limit_exceeded"),
    ],
)
def test_what_no_server_would_take_is_refused_before_it_is_sent(arguments: tuple[str, ...], code: str) -> None:
    with told(server((200, acknowledged()))) as one:
        done = ryusen(*RESOLVE, *arguments, "--yes", "--json", RYUSEN_URL=one.url)
    assert done.returncode == 5, done.stdout
    assert json.loads(done.stdout)["code"] == code
    assert one.asked == []


def test_without_a_generation_the_current_one_is_told_and_not_used() -> None:
    arguments = ("unknown", "resolve", "at_1", "--retry", "--yes")
    with told(server((200, acknowledged()))) as one:
        done = ryusen(*arguments, "--json", "--url", one.url)
        gone = one.url
    document = json.loads(done.stdout)
    assert (done.returncode, document["code"], document["attempt_generation"]) == (2, "usage", 2)
    assert "generation 2" in document["detail"]
    assert sent(one.asked) == []
    unreachable = ryusen(*arguments, "--url", gone)
    assert unreachable.returncode == 2
    assert b"--generation is missing" in unreachable.stderr


def test_without_a_terminal_it_needs_yes() -> None:
    with told(server((200, acknowledged()))) as one:
        done = ryusen(*RESOLVE, "--retry", "--json", "--url", one.url)
    assert done.returncode == 2
    assert json.loads(done.stdout)["hint"] == "pass --yes"
    assert one.asked == []


def on_terminal(arguments: list[str], typed: bytes | None, **environment: str) -> tuple[int, str]:
    """One command with a terminal for all of its streams, and what it wrote there. Nothing typed is an interrupt."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=follower, stdout=follower, stderr=follower, env={**os.environ, "TERM": "xterm", **environment}
    )
    os.close(follower)
    text = b""
    try:
        while piece := os.read(leader, 4096):
            if b"to go on" not in text and b"to go on" in text + piece:
                process.send_signal(signal.SIGINT) if typed is None else os.write(leader, typed)
            text += piece
    except OSError:
        pass  # how Linux says that the other end is closed
    os.close(leader)
    return process.wait(), text.decode()


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "risk"),
    [
        (["--retry"], b"retry\n", 0, "THE EFFECT MAY HAPPEN TWICE"),
        (["--retry"], b"yes\n", 1, "THE EFFECT MAY HAPPEN TWICE"),
        (["--result", '{"charge": "ch_7"}'], b"yes\n", 0, '{"charge": "ch_7"}'),
        (["--result", "null"], b"\n", 1, "nothing will make it happen"),
        (["--result", "null"], b"\x04", 1, "nothing will make it happen"),
        (["--fail", "a:b"], b"yes\n", 0, "nothing undoes it"),
        (["--fail", "a:b", "--retryable"], b"n\n", 1, "THE EFFECT MAY HAPPEN TWICE"),
        (["--retry"], None, 130, "op_1"),
    ],
)
def test_a_terminal_is_asked_with_the_risk_in_words(arguments: list[str], typed: bytes | None, code: int, risk: str) -> None:
    with told(server((200, acknowledged()))) as one:
        ended, text = on_terminal([*RESOLVE, *arguments, "--url", one.url], typed)
    assert ended == code, text
    assert risk in text
    assert "charge (forward), attempt 1, generation 2" in text
    assert len(sent(one.asked)) == (code == 0)


def test_the_prompt_says_when_the_attempt_is_another_by_now() -> None:
    with told(server(refusal(409, "stale"), state="succeeded", attempt_generation=3)) as one:
        ended, text = on_terminal([*RESOLVE, "--retry", "--url", one.url], b"retry\n")
    assert "it is succeeded in generation 3 now" in text
    assert ended == 5


def test_a_dumb_terminal_is_not_asked() -> None:
    with told(server((200, acknowledged()))) as one:
        ended, text = on_terminal([*RESOLVE, "--retry", "--url", one.url], b"", TERM="dumb")
    assert ended == 2
    assert "pass --yes" in text


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((202, {"status": "applied", "run": run(status="definition_blocked", stop=None)}), 0),
        (problem(409, "not_blocked"), 5),
        (problem(404, "not_found"), 4),
        (None, 8),
    ],
)
def test_rediscover_ends_as_its_answer_says(answer: Answer, code: int) -> None:
    with told(lambda *_: answer) as one:
        done = ryusen("runs", "rediscover", "rn_1", "--json", "--url", one.url)
        text = ryusen("runs", "rediscover", "rn_1", "--url", one.url)
    assert done.returncode == text.returncode == code
    assert json.loads(done.stdout).get("exit_code", 0) == code
    if code == 0:
        assert "■ Blocked  its current code is asked again" in text.stdout.decode()


def test_cancel_says_what_the_run_still_waits_for() -> None:
    receipt = {"status": "applied", "run": run()}
    with told(lambda method, path, _: (202, receipt) if method == "POST" else (200, run()) if path == f"{W}/runs/rn_1" else None) as one:
        done = ryusen("runs", "cancel", "rn_1", "--url", one.url)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "Cancelling" in text
    assert f"ryusen unknown show at_1 --url {one.url}" in text
    assert b"has not ended" in done.stderr
    assert b"Cancelled" not in done.stdout + done.stderr
