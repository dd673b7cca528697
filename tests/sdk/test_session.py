"""The session without sockets: frames in, frames and actions out, time as a number."""

from __future__ import annotations

import json

import pytest

from ryusen_protocol.frames import Software
from ryusen_protocol.ids import Application, FunctionId, InstanceId, Workspace
from ryusen_protocol.invocation import Invocation
from ryusen_protocol.scope import Scope
from ryusen_sdk.session import RESEND_MS, Action, Begin, Note, Opened, Refused, Replaced, Send, Session, WorkerFacts
from tests.sdk.peer import JsonDict, discovery, forward


def session(capacity: int = 4) -> Session:
    return Session(
        WorkerFacts(
            scope=Scope(Workspace("default"), Application("shop")),
            instance_id=InstanceId("wi_1"),
            release_id=None,
            manifest_digest="sha256:0",
            functions=[FunctionId("fulfil")],
            capacity=capacity,
            sdk=Software("test", "1"),
            runtime=Software("cpython", "3"),
        )
    )


def feed(driven: Session, now_ms: int = 0, **frame: object) -> list[Action]:
    return driven.received(json.dumps({"protocol_version": 1, **frame}).encode(), now_ms)


def register(driven: Session, session_id: str = "ss_1", now_ms: int = 0, heartbeat_ms: int = 10_000) -> tuple[JsonDict, list[Action]]:
    sent = json.loads(driven.opening())
    actions = feed(
        driven,
        now_ms,
        type="registered",
        session_id=session_id,
        capabilities=[],
        limits={},
        heartbeat_ms=heartbeat_ms,
        lease_ms=30_000,
        wanted=[],
    )
    return sent, actions


def begin(driven: Session, document: JsonDict, now_ms: int = 0) -> Invocation:
    (action,) = feed(driven, now_ms, type="invoke", invocation=document)
    assert isinstance(action, Begin)
    return action.invocation


def sent(actions: list[Action]) -> list[JsonDict]:
    return [json.loads(action.frame) for action in actions if isinstance(action, Send)]


def rejection(driven: Session, document: JsonDict) -> JsonDict:
    (frame,) = sent(feed(driven, type="invoke", invocation=document))
    return frame["outcome"]


def ack(driven: Session, request_id: str, disposition: str = "accepted", message: str | None = None) -> list[Action]:
    return feed(driven, type="outcome_ack", request_id=request_id, disposition=disposition, message=message)


@pytest.mark.req("REG-01")
def test_registration_tells_everything_and_numbers_connections() -> None:
    driven = session()
    first, actions = register(driven)
    assert first["connection"] == 1
    assert first["previous_session"] is None
    assert first["held"] == []
    assert first["contract"] == {"protocol_version": 1, "value_codec": 1, "features": []}
    assert actions == [Opened("ss_1", 10_000, 30_000)]
    driven.closed()
    second, _ = register(driven, "ss_2")
    assert (second["connection"], second["previous_session"], second["instance_id"]) == (2, "ss_1", "wi_1")


@pytest.mark.req("CON-05")
def test_an_effects_outcome_is_kept_until_its_acknowledgement() -> None:
    driven = session()
    register(driven)
    invocation = begin(driven, forward("a", request_id="rq_a"))
    assert driven.finished(invocation, b"outcome", 100) == [b"outcome"]
    assert b"outcome" not in driven.tick(100 + RESEND_MS - 1)
    assert b"outcome" in driven.tick(100 + RESEND_MS)
    assert b"outcome" not in driven.tick(100 + RESEND_MS + 1)
    driven.closed()
    again, actions = register(driven, "ss_2", 30_000)
    assert again["held"] == [{"request_id": "rq_a", "run_id": "rn_1", "attempt": 1, "attempt_generation": 1}]
    assert Send(b"outcome") in actions
    assert ack(driven, "rq_a") == []
    assert driven.unacknowledged == 0
    assert b"outcome" not in driven.tick(90_000)


@pytest.mark.parametrize("disposition", ["stale", "discarded", "malformed"])
def test_every_disposition_is_final_and_a_bad_one_is_shown(disposition: str) -> None:
    driven = session()
    register(driven)
    driven.finished(begin(driven, forward("a", request_id="rq_a")), b"outcome", 0)
    (note,) = ack(driven, "rq_a", disposition, "because")
    assert isinstance(note, Note)
    assert disposition in note.text
    assert "because" in note.text
    assert driven.unacknowledged == 0


def test_a_discovery_outcome_is_sent_once() -> None:
    driven = session()
    register(driven)
    assert driven.finished(begin(driven, discovery()), b"outcome", 0) == [b"outcome"]
    assert driven.unacknowledged == 0
    driven.closed()
    again, actions = register(driven, "ss_2", 50_000)
    assert again["held"] == []
    assert sent(actions) == []


def test_what_ends_between_two_connections_is_held_and_sent_on_the_next() -> None:
    driven = session()
    register(driven)
    body = begin(driven, discovery(request_id="rq_d"))
    effect = begin(driven, forward("a", request_id="rq_a"))
    driven.closed()
    assert driven.finished(body, b"body", 0) == []
    assert driven.finished(effect, b"effect", 0) == []
    again, actions = register(driven, "ss_2")
    assert [held["request_id"] for held in again["held"]] == ["rq_a", "rq_d"]
    assert [action for action in actions if isinstance(action, Send)] == [Send(b"effect"), Send(b"body")]
    _, actions = register(driven, "ss_3")
    assert Send(b"body") not in actions
    assert Send(b"effect") in actions


def test_what_still_runs_is_held_too() -> None:
    driven = session()
    register(driven)
    begin(driven, forward("a", request_id="rq_a"))
    begin(driven, discovery(request_id="rq_d"))
    driven.closed()
    again, _ = register(driven, "ss_2")
    assert {held["request_id"]: held["attempt"] for held in again["held"]} == {"rq_a": 1, "rq_d": None}


def test_heartbeats_name_everything_held() -> None:
    driven = session()
    register(driven, heartbeat_ms=1_000)
    begin(driven, discovery(request_id="rq_d"))
    begin(driven, forward("a", request_id="rq_a"))
    assert driven.due_ms == 1_000
    assert driven.tick(999) == []
    (beat,) = [json.loads(frame) for frame in driven.tick(1_000)]
    assert beat == {"type": "heartbeat", "protocol_version": 1, "request_ids": ["rq_d", "rq_a"]}
    assert driven.due_ms == 2_000
    driven.closed()
    assert driven.tick(9_000) == []


@pytest.mark.req("CON-07", "PRO-16")
def test_work_over_the_capacity_is_rejected_before_it_starts() -> None:
    driven = session(capacity=1)
    register(driven)
    running = begin(driven, discovery())
    assert rejection(driven, forward("a", attempt=2)) == {
        "type": "rejected_before_start",
        "reason": "busy",
        "attempt": 2,
        "attempt_generation": 2,
    }
    assert rejection(driven, discovery()) == {"type": "rejected_before_start", "reason": "busy"}
    driven.finished(running, b"outcome", 0)
    begin(driven, forward("a"))


@pytest.mark.req("CON-06")
def test_draining_takes_nothing_new_over_reconnects_and_ends_when_all_is_acknowledged() -> None:
    driven = session()
    register(driven)
    running = begin(driven, forward("a", request_id="rq_a"))
    assert [json.loads(frame)["type"] for frame in driven.drain()] == ["draining"]
    assert driven.drain() == []
    assert rejection(driven, discovery()) == {"type": "rejected_before_start", "reason": "draining"}
    driven.closed()
    again, _ = register(driven, "ss_2")
    assert again["draining"] is True
    driven.finished(running, b"outcome", 0)
    assert not driven.is_drained
    ack(driven, "rq_a")
    assert driven.is_drained


def test_a_rejected_effect_is_kept_until_acknowledged_too() -> None:
    driven = session()
    register(driven)
    driven.drain()
    rejection(driven, forward("a", request_id="rq_a"))
    assert not driven.is_drained
    ack(driven, "rq_a")
    assert driven.is_drained


def test_work_of_another_application_is_never_run() -> None:
    driven = session()
    register(driven)
    assert rejection(driven, discovery(application="other"))["reason"] == "unsupported_target"


def test_an_invocation_that_comes_twice_runs_once() -> None:
    driven = session()
    register(driven)
    document = forward("a", request_id="rq_a")
    invocation = begin(driven, document)
    assert feed(driven, type="invoke", invocation=document) == []
    driven.finished(invocation, b"outcome", 0)
    assert feed(driven, type="invoke", invocation=document) == [Send(b"outcome")]


@pytest.mark.req("CON-03")
@pytest.mark.parametrize(("code", "is_final"), [("unauthorized", True), ("release_conflict", True), ("unavailable", False)])
def test_every_rejection_but_unavailable_is_final(code: str, is_final: bool) -> None:
    driven = session()
    driven.opening()
    assert feed(driven, type="registration_rejected", code=code, message="no") == [Refused(code, "no", is_final)]


def test_replaced_ends_the_worker_and_any_other_error_does_not() -> None:
    driven = session()
    register(driven)
    assert feed(driven, type="error", code="replaced", message="newer") == [Replaced("newer")]
    (note,) = feed(driven, type="error", code="malformed", message="what")
    assert isinstance(note, Note)


@pytest.mark.req("PRO-20", "PRO-22")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{broken", "malformed"),
        (b"[]", "malformed"),
        (b'{"protocol_version": 1, "type": "surprise"}', "unknown_frame"),
        (b'{"protocol_version": 1, "type": "registered"}', "malformed"),
        (b'{"type": "drain"}', "malformed"),
        (b'{"protocol_version": 2, "type": "drain"}', "malformed"),
        (b"\xff\xff", "malformed"),
        (b"[" * 100_000, "malformed"),
    ],
)
def test_a_frame_that_cannot_be_read_is_answered_and_not_fatal(data: bytes, code: str) -> None:
    driven = session()
    register(driven)
    actions = driven.received(data, 0)
    (frame,) = sent(actions)
    assert (frame["type"], frame["code"]) == ("error", code)
    assert any(isinstance(action, Note) for action in actions)


@pytest.mark.req("PRO-22")
def test_an_invocation_of_an_unknown_mode_is_rejected_by_its_request() -> None:
    driven = session()
    register(driven)
    document = forward("a", request_id="rq_a", attempt=3)
    document["target"]["mode"] = "sideways"
    (frame,) = sent(feed(driven, type="invoke", invocation=document))
    assert frame["request_id"] == "rq_a"
    assert frame["outcome"] == {"type": "rejected_before_start", "reason": "unsupported_target", "attempt": 3, "attempt_generation": 3}


def test_unknown_members_are_ignored() -> None:
    driven = session()
    register(driven)
    document = discovery()
    document["surprise"] = {"a": 1}
    document["target"]["more"] = 2
    begin(driven, document)


def test_an_abandoned_invocation_is_no_longer_held() -> None:
    driven = session()
    register(driven)
    invocation = begin(driven, forward("a"))
    driven.abandoned(invocation)
    driven.drain()
    assert driven.is_drained
    assert driven.finished(invocation, b"outcome", 0) == []
