"""The session of a connected worker, fed frame by frame without a socket."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ryusen_protocol.frames import Draining, Heartbeat, Register, Registered, RegistrationRejected
from ryusen_protocol.ids import SessionId
from ryusen_protocol.limits import Limits
from ryusen_protocol.outcome import Outcome
from ryusen_server.transports.connected.session import (
    Action,
    Begin,
    Close,
    Ended,
    Opened,
    Reported,
    Send,
    Session,
    Unreadable,
)
from tests.gateway.worker_peer import register_frame

SESSION = SessionId("ses_1")
REGISTERED = Registered(1, SESSION, [], Limits(), 10_000, 30_000, [])
HEARTBEAT = b'{"protocol_version":1,"type":"heartbeat","request_ids":["rq_1"]}'
OUTCOME = (
    b'{"protocol_version":1,"type":"outcome","request_id":"rq_1","run_id":"rn_1","outcome":{"type":"completed","result":{"type":"null"}}}'
)


def encoded(frame: dict[str, Any]) -> bytes:
    return msgspec.json.encode(frame)


def sent(action: Action) -> dict[str, Any]:
    assert isinstance(action, Send)
    return msgspec.json.decode(action.frame)


def registering() -> Session:
    session = Session()
    (begin,) = session.frame_received(encoded(register_frame("wk_1")))
    assert isinstance(begin, Begin)
    return session


def opened() -> Session:
    session = registering()
    session.registration_answered(REGISTERED)
    return session


@pytest.mark.req("CON-01")
def test_a_register_frame_asks_for_a_registration_and_its_answer_opens_the_session() -> None:
    session = Session()
    (begin,) = session.frame_received(encoded(register_frame("wk_7", capacity=3)))
    assert isinstance(begin, Begin)
    assert isinstance(begin.frame, Register)
    assert (begin.frame.instance_id, begin.frame.capacity) == ("wk_7", 3)
    answer, begun = session.registration_answered(REGISTERED)
    assert sent(answer)["type"] == "registered"
    assert begun == Opened(SESSION)
    assert session.phase == "open"


def test_frames_that_come_while_the_registration_is_decided_follow_it_in_order() -> None:
    session = registering()
    assert session.frame_received(HEARTBEAT) == []
    assert session.frame_received(OUTCOME) == []
    assert session.frame_received(b"{") == []
    _, _, heartbeat, outcome, malformed = session.registration_answered(REGISTERED)
    assert isinstance(heartbeat, Heartbeat)
    assert isinstance(outcome, Outcome)
    assert sent(malformed)["code"] == "malformed_frame"


def test_every_kind_of_frame_goes_to_the_engine_as_it_is() -> None:
    session = opened()
    (heartbeat,) = session.frame_received(HEARTBEAT)
    assert heartbeat == Heartbeat(1, ["rq_1"])  # type: ignore[list-item]
    (draining,) = session.frame_received(b'{"protocol_version":1,"type":"draining"}')
    assert isinstance(draining, Draining)
    (reported,) = session.frame_received(b'{"protocol_version":1,"type":"error","code":"bad\\u001b[2J","message":"x\\ny"}')
    assert reported == Reported("a worker reports bad\\x1b[2J: x\\x0ay")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b'{"protocol_version":1,"type":"telemetry","x":1}', "unknown_frame"),
        (b'{"protocol_version":1,"type":"heartbeat","request_ids":5}', "malformed_frame"),
        (b'{"protocol_version":2,"type":"heartbeat","request_ids":[]}', "unsupported_version"),
        (b"[]", "malformed_frame"),
        (b"", "malformed_frame"),
        (b"\xff\xfe", "malformed_frame"),
        (b'{"protocol_version":1,"type":"heartbeat","request_ids":["\\ud800"]}', "malformed_frame"),
        (b"[" * 100_000, "malformed_frame"),
        (b'{"protocol_version":1,"type":"outcome"}', "malformed_frame"),
        (b'{"protocol_version":1,"type":"outcome","request_id":""}', "malformed_frame"),
    ],
)
def test_a_frame_that_cannot_be_read_is_answered_and_the_session_goes_on(frame: bytes, code: str) -> None:
    session = opened()
    (answer,) = session.frame_received(frame)
    error = sent(answer)
    assert (error["type"], error["code"]) == ("error", code)
    assert error["message"]
    assert session.phase == "open"
    assert isinstance(session.frame_received(HEARTBEAT)[0], Heartbeat)


def test_a_binary_frame_is_answered_and_the_session_goes_on() -> None:
    session = opened()
    (answer,) = session.binary_received()
    assert sent(answer)["code"] == "malformed_frame"
    assert session.phase == "open"


@pytest.mark.parametrize(
    "frame",
    [
        b'{"protocol_version":1,"type":"outcome","request_id":"rq_9","run_id":"rn_1","outcome":{"type":"invented"}}',
        b'{"protocol_version":1,"type":"outcome","request_id":"rq_9","run_id":"rn_1","outcome":{"type":"succeeded"}}',
        b'{"protocol_version":1,"type":"outcome","request_id":"rq_9"}',
        b'{"protocol_version":9,"type":"outcome","request_id":"rq_9","run_id":"rn_1","outcome":null}',
        b'{"protocol_version":1,"type":"outcome","request_id":"rq_9","run_id":"rn_1","outcome":{"type":"completed","result":"\xff"}}',
    ],
)
def test_an_outcome_whose_request_can_be_read_is_told_to_the_engine(frame: bytes) -> None:
    (unreadable,) = opened().frame_received(frame)
    assert isinstance(unreadable, Unreadable)
    assert unreadable.request_id == "rq_9"
    assert unreadable.why


def test_repeated_members_are_taken_leniently() -> None:
    (heartbeat,) = opened().frame_received(b'{"protocol_version":1,"type":"heartbeat","request_ids":["a"],"request_ids":["b"]}')
    assert heartbeat == Heartbeat(1, ["b"])  # type: ignore[list-item]


@pytest.mark.parametrize("frame", [HEARTBEAT, OUTCOME, b'{"type":"telemetry"}', b'{"type":"outcome","request_id":"rq_1"}'])
def test_the_first_frame_must_be_register(frame: bytes) -> None:
    session = Session()
    error, close = session.frame_received(frame)
    assert sent(error)["code"] == "not_registered"
    assert isinstance(close, Close)
    assert close.code == 1008
    assert session.frame_received(HEARTBEAT) == []
    assert session.lost("gone") == []


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b'{"protocol_version":1,"type":"register"}', "malformed"),
        (encoded(register_frame("wk_1", functions="all")), "malformed"),
        (encoded(register_frame("wk_1", protocol_version=2)), "unsupported_version"),
        (b"not json", "malformed"),
    ],
)
def test_a_register_frame_that_cannot_be_read_is_rejected_for_good(frame: bytes, code: str) -> None:
    reported, answer, close = Session().frame_received(frame)
    assert isinstance(reported, Reported)
    assert (sent(answer)["type"], sent(answer)["code"]) == ("registration_rejected", code)
    assert isinstance(close, Close)
    assert close.code == 1008


@pytest.mark.req("CON-03")
@pytest.mark.parametrize(("code", "close_code"), [("unavailable", 1013), ("contract_conflict", 1008)])
def test_a_rejection_is_sent_and_closes_the_connection(code: str, close_code: int) -> None:
    session = registering()
    session.frame_received(HEARTBEAT)
    reported, answer, close = session.registration_answered(RegistrationRejected(1, code, "why"))
    assert isinstance(reported, Reported)
    assert sent(answer)["message"] == "why"
    assert isinstance(close, Close)
    assert close.code == close_code
    assert session.lost("gone") == []


def test_a_second_register_is_answered_and_changes_nothing() -> None:
    session = opened()
    (answer,) = session.frame_received(encoded(register_frame("wk_1")))
    assert sent(answer)["code"] == "already_registered"
    assert session.phase == "open"


def test_the_end_is_told_once() -> None:
    session = opened()
    assert session.lost("the socket broke") == [Ended(SESSION, "the socket broke")]
    assert session.lost("again") == []
    assert session.frame_received(HEARTBEAT) == []


def test_a_session_lost_while_it_is_registered_ends_as_soon_as_it_has_a_name() -> None:
    session = registering()
    assert session.lost("gone") == []
    assert session.registration_answered(REGISTERED) == [Ended(SESSION, "gone")]
    assert session.lost("gone") == []


def test_a_session_closed_here_while_it_is_registered_never_opens_and_ends_with_its_socket() -> None:
    session = registering()
    session.frame_received(OUTCOME)
    session.closed_here()
    assert session.registration_answered(REGISTERED) == []
    assert session.frame_received(OUTCOME) == []
    assert session.lost("replaced") == [Ended(SESSION, "replaced")]


def test_a_rejection_of_a_lost_connection_says_nothing() -> None:
    session = registering()
    session.lost("gone")
    assert session.registration_answered(RegistrationRejected(1, "unavailable", "why")) == []


def test_only_a_connection_without_a_register_frame_runs_out_of_time() -> None:
    assert registering().unregistered() == []
    assert opened().unregistered() == []
    (close,) = Session().unregistered()
    assert isinstance(close, Close)
    assert close.code == 1008
