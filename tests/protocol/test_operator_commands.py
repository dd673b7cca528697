"""Operator commands: exact reading, the order of checks, fingerprints, and both answers."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest

from ryusen_protocol import operator, values
from ryusen_protocol.client import Api, ApiProblem, CommandRefused, UnreadableAnswer
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import AttemptId
from ryusen_protocol.limits import OPERATOR_RECORD_BYTES_MAX, VALUE_BYTES_MAX
from ryusen_protocol.operator import (
    Acknowledgement,
    AuthorizeRetry,
    DeclareFailure,
    RefusalEnvelope,
    ResolveCommand,
    Successor,
    SupplySuccess,
    Transition,
)
from tests.protocol.operator_mutations import ATTEMPT_ID, MUTATIONS, SECRET, malformed_envelope, spelled, valid_envelope

FIXTURES = Path(__file__).parents[2] / "fixtures" / "operator_commands"
MALFORMED = int(os.environ.get("RYUSEN_OPERATOR_MUTATIONS", "2000"))
API = Api()

Fixture = dict[str, Any]


def _cases(name: str) -> list[Any]:
    cases: dict[str, Fixture] = json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))
    return [pytest.param(fixture, id=case) for case, fixture in cases.items()]


def _body(fixture: Fixture) -> bytes:
    if "base64" in fixture:
        return base64.b64decode(fixture["base64"])
    if "parts" in fixture:
        return "".join(text * times for text, times in fixture["parts"]).encode()
    if "text" in fixture:
        return fixture["text"].encode()
    return json.dumps(fixture["document"]).encode()


def _read(body: bytes, attempt_id: str = "at_1") -> ResolveCommand:
    read = operator.parse(body, path_attempt_id=attempt_id)
    assert isinstance(read, ResolveCommand), read
    return read


def _refused(body: bytes, attempt_id: str = "at_1") -> operator.Refusal:
    """The refusal, once its envelope is checked: its members, its version and a code of the closed list."""
    read = operator.parse(body, path_attempt_id=attempt_id)
    assert isinstance(read, RefusalEnvelope), read
    document = json.loads(msgspec.json.encode(read))
    assert document.keys() == {"version", "refusal"}
    assert document["version"] == 1
    assert document["refusal"].keys() == {"code", "message"}
    assert read.refusal.code in operator.REFUSAL_CODES
    assert read.refusal.message.endswith(".")
    return read.refusal


def _envelope(command: object, **members: object) -> Fixture:
    return {"version": 1, "attempt_id": "at_1", "attempt_generation": 2, "idempotency_key": "key-1", "command": command, **members}


def _command(command: operator.Command, key: str = "key-1", attempt_generation: int = 2) -> ResolveCommand:
    return ResolveCommand(attempt_id=AttemptId("at_1"), attempt_generation=attempt_generation, idempotency_key=key, command=command)


def _supply(value: values.Value) -> SupplySuccess:
    return SupplySuccess(msgspec.Raw(values.encode(value)))


# --- Fixtures --------------------------------------------------------------------------------------------------------


@pytest.mark.req("OPR-02", "OPR-03", "OPR-06")
@pytest.mark.parametrize("fixture", _cases("accepted"))
def test_a_command_is_read(fixture: Fixture) -> None:
    assert "sha256:" + hashlib.sha256(fixture["content"].encode()).hexdigest() == fixture["fingerprint"]  # it agrees with itself

    command = _read(_body(fixture))
    assert operator.fingerprint(command) == fixture["fingerprint"]
    kinds = {"supply_success": SupplySuccess, "declare_failure": DeclareFailure, "authorize_retry": AuthorizeRetry}
    assert type(command.command) is kinds[fixture["variant"]]
    sent = json.loads(operator.encode_command(command))
    assert {name: sent[name] for name in ("attempt_generation", "attempt_id", "command")} == json.loads(fixture["content"])
    assert operator.fingerprint(_read(operator.encode_command(command))) == fixture["fingerprint"]


@pytest.mark.req("OPR-02", "OPR-03", "OPR-04", "OPR-05", "OPR-06", "OPR-07", "OPR-12", "OPR-13")
@pytest.mark.parametrize("fixture", _cases("refused"))
def test_a_command_is_refused(fixture: Fixture) -> None:
    assert _refused(_body(fixture)).code == fixture["code"]


# --- Everything that can be wrong ------------------------------------------------------------------------------------


@pytest.mark.req("OPR-02", "OPR-03", "OPR-04", "OPR-05", "OPR-06", "OPR-07", "OPR-10", "OPR-11", "OPR-12")
def test_generated_envelopes_are_refused_with_their_code_and_nothing_of_theirs() -> None:
    """`RYUSEN_OPERATOR_MUTATIONS` says how many; every class has its share."""
    rng = Random(20_300)
    mutations = list(MUTATIONS)
    codes: set[str] = set()
    for index in range(MALFORMED):
        case = malformed_envelope(rng, mutations[index % len(mutations)])
        refusal = _refused(case.body, ATTEMPT_ID)
        shown = f"{case.mutation}: {refusal} for {case.body[:2_000]!r}"
        assert refusal.code == case.code, shown
        assert SECRET.lower() not in refusal.message.lower(), shown
        assert "sha256:" not in refusal.message, shown
        assert len(refusal.message) < 1_500, shown
        codes.add(refusal.code)
    assert codes == {"invalid", "unsupported_version", "limit_exceeded"}


@pytest.mark.req("OPR-06")
def test_generated_envelopes_read_the_same_however_they_are_spelled() -> None:
    rng = Random(7)
    for _ in range(300):
        document = valid_envelope(rng)
        first, again = _read(spelled(rng, document), ATTEMPT_ID), _read(spelled(rng, document), ATTEMPT_ID)
        assert operator.encode_command(first) == operator.encode_command(again)
        assert json.loads(operator.encode_command(first)) == _without_empty_details(document)


def _without_empty_details(document: Any) -> Any:
    """Only a failure has details beside a category: an object value of that shape does not come up."""
    if isinstance(document, dict):
        return {name: _without_empty_details(item) for name, item in document.items() if not ("category" in document and item == {})}
    return [_without_empty_details(item) for item in document] if isinstance(document, list) else document


@pytest.mark.req("OPR-08")
def test_the_worker_codec_takes_what_the_envelope_does_not() -> None:
    extra = b'{"type":"object","value":{"a":{"type":"i64","value":"1","unit":"kg"}},"schema":1}'
    assert values.decode(extra) == {"a": 1}
    body = json.dumps(_envelope({"supply_success": {"result": json.loads(extra)}})).encode()
    assert _refused(body).code == "invalid"


@pytest.mark.req("OPR-11")
def test_a_refusal_leads_to_the_place_without_naming_what_is_there() -> None:
    value = {"type": "object", "value": {"a.b": {"type": "array", "value": [{"type": "null"}, {"type": "i64", "value": "01"}]}}}
    message = _refused(json.dumps(_envelope({"supply_success": {"result": value}})).encode()).message
    assert message.startswith("$.command.supply_success.result.*[1] is no portable value: an i64 is a decimal string")
    value["value"]["a.b"]["value"][1]["note"] = ""
    message = _refused(json.dumps(_envelope({"supply_success": {"result": value}})).encode()).message
    assert "$.command.supply_success.result.*[1] is not read" in message
    cause = {"category": "c", "message": "m", "retryable": True, "details": {"secret": value}}
    failure = {"category": "c", "message": "m", "retryable": True, "cause": cause}
    message = _refused(json.dumps(_envelope({"declare_failure": {"failure": failure}})).encode()).message
    assert "$.command.declare_failure.failure.cause.details.*.*[1] is not read" in message


# --- Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("OPR-13")
def test_the_record_bound_counts_what_stands_around_the_value() -> None:
    largest = values.encode("x" * (VALUE_BYTES_MAX - len(values.encode(""))))
    assert len(largest) == VALUE_BYTES_MAX
    around = len(operator.encode_command(_command(SupplySuccess(msgspec.Raw(largest)), key=""))) - VALUE_BYTES_MAX
    escaped = (OPERATOR_RECORD_BYTES_MAX - VALUE_BYTES_MAX - around) // 6
    fits = operator.encode_command(_command(SupplySuccess(msgspec.Raw(largest)), key="\x01" * escaped))
    assert operator.encode_command(_read(fits)) == fits
    over = operator.encode_command(_command(SupplySuccess(msgspec.Raw(largest)), key="\x01" * (escaped + 1)))
    refusal = _refused(over)
    assert (refusal.code, str(OPERATOR_RECORD_BYTES_MAX) in refusal.message) == ("limit_exceeded", True)


@pytest.mark.req("OPR-12")
def test_a_failure_at_its_limits_is_kept_whole() -> None:
    record = ErrorRecord("c" * 256, "é" * 4_096, retryable=True)
    read = _read(operator.encode_command(_command(DeclareFailure(record)))).command
    assert isinstance(read, DeclareFailure)
    assert read.failure == record


@pytest.mark.req("OPR-12")
def test_details_are_measured_in_canonical_form() -> None:
    room = 64 * 1024 - len('{"d":{"type":"string","value":""}}')
    for length, code in ((room, None), (room + 1, "limit_exceeded")):
        detail = msgspec.Raw(b' {"value" : "' + b"x" * length + b'",  "type":"string"}')
        body = operator.encode_command(_command(DeclareFailure(ErrorRecord("c", "m", retryable=True, details={"d": detail}))))
        read = operator.parse(body, path_attempt_id="at_1")
        assert (read.refusal.code if isinstance(read, RefusalEnvelope) else None) == code


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def test_everything_but_the_key_makes_another_command() -> None:
    failure = ErrorRecord("c", "m", retryable=True)
    same = operator.fingerprint(_command(_supply(1)))
    others = [
        _command(_supply(1), attempt_generation=3),
        msgspec.structs.replace(_command(_supply(1)), attempt_id=AttemptId("at_2")),
        _command(_supply(1.0)),
        _command(_supply([1])),
        _command(AuthorizeRetry()),
        *(
            _command(DeclareFailure(record))
            for record in (
                failure,
                msgspec.structs.replace(failure, category="d"),
                msgspec.structs.replace(failure, message=""),
                msgspec.structs.replace(failure, retryable=False),
                msgspec.structs.replace(failure, cause=failure),
                msgspec.structs.replace(failure, details={"n": msgspec.Raw(values.encode(None))}),
            )
        ),
    ]
    assert operator.fingerprint(_command(_supply(1), key="another")) == same
    assert len({same, *map(operator.fingerprint, others)}) == len(others) + 1


# --- Answers ---------------------------------------------------------------------------------------------------------

APPLIED = Acknowledgement(
    status="applied",
    attempt_id=AttemptId("at_1"),
    attempt_generation=2,
    transition=Transition(attempt="retry_authorized", step="pending", run="running"),
    successor=Successor(attempt_generation=3, work_id="at_2", attempt_id=AttemptId("at_2"), attempt=3),
)


@pytest.mark.req("OPR-03")
def test_a_stored_acknowledgement_is_replayed_word_for_word() -> None:
    document = {
        "version": 1,
        "status": "applied",
        "attempt_id": "at_1",
        "attempt_generation": 2,
        "transition": {"attempt": "retry_authorized", "step": "pending", "run": "running"},
        "successor": {"attempt_generation": 3, "work_id": "at_2", "attempt_id": "at_2", "attempt": 3},
    }
    stored = operator.encode_acknowledgement(APPLIED)
    assert json.loads(stored) == document
    assert json.loads(operator.replayed(stored)) == document | {"status": "replayed"}
    assert operator.replayed(operator.replayed(stored)) == operator.replayed(stored)
    settled = operator.encode_acknowledgement(msgspec.structs.replace(APPLIED, successor=msgspec.UNSET))
    assert "successor" not in json.loads(operator.replayed(settled))


@pytest.mark.req("OPR-03", "OPR-10")
def test_the_codes_of_a_refusal_are_a_closed_list_with_their_statuses() -> None:
    listed = get_args(operator.RefusalCode)
    assert set(listed) == operator.REFUSAL_CODES
    assert {code: operator.status_of(code) for code in listed} == {
        "stale": 409,
        "idempotency_key_reused": 409,
        "retry_forbidden": 409,
        "deadline_elapsed": 409,
        "unsupported_version": 400,
        "invalid": 400,
        "limit_exceeded": 413,
        "server": 500,
    }
    assert json.loads(msgspec.json.encode(operator.refuse("stale", "Gone."))) == {
        "version": 1,
        "refusal": {"code": "stale", "message": "Gone."},
    }


# --- The client ------------------------------------------------------------------------------------------------------


def test_the_client_sends_what_the_server_reads() -> None:
    request = API.resolve_attempt(_command(_supply({"b": 1, "a": 2})))
    assert (request.method, request.target) == ("POST", "/v1/workspaces/default/attempts/at_1/resolve")
    assert request.headers["content-type"] == "application/json"
    assert request.body is not None
    assert _read(request.body) == _command(_supply({"a": 2, "b": 1}))


@pytest.mark.parametrize(
    "command",
    [
        _command(SupplySuccess(msgspec.Raw(b'{"orderId":1}'))),
        _command(SupplySuccess(msgspec.Raw(b'{"type":"null"}},"authorize_retry":{"":{}'))),
        _command(DeclareFailure(ErrorRecord("sdk.timeout", "m", retryable=True))),
        _command(DeclareFailure(ErrorRecord("c", "m", retryable=True, stack="s"))),
        _command(AuthorizeRetry(), key=""),
        _command(AuthorizeRetry(), attempt_generation=0),
    ],
)
def test_a_command_that_no_server_reads_is_not_sent(command: ResolveCommand) -> None:
    with pytest.raises(ValueError, match=r"\$\.(attempt_generation|command|idempotency_key)"):
        API.resolve_attempt(command)


def test_the_client_reads_acknowledgement_refusal_and_problem() -> None:
    request = API.resolve_attempt(_command(AuthorizeRetry()))
    assert request.read(200, operator.encode_acknowledgement(APPLIED)) == APPLIED
    with pytest.raises(CommandRefused, match="Ended") as refused:
        request.read(409, msgspec.json.encode(operator.refuse("stale", "Ended meanwhile.")))
    assert (refused.value.code, refused.value.status) == ("stale", 409)
    with pytest.raises(CommandRefused) as newer:
        request.read(409, b'{"version":1,"refusal":{"code":"brand_new","message":"m","more":1}}')
    assert newer.value.code == "brand_new"
    with pytest.raises(ApiProblem) as problem:
        request.read(401, b'{"type":"urn:x","title":"t","status":401,"detail":"d","code":"unauthorized"}')
    assert problem.value.code == "unauthorized"
    for status, body in ((502, b"<html>"), (200, b"{}"), (409, b"{}")):
        with pytest.raises(UnreadableAnswer):
            request.read(status, body)


def test_the_client_asks_a_blocked_run_again() -> None:
    request = API.rediscover("rn_1")
    assert (request.method, request.target, request.body) == ("POST", "/v1/workspaces/default/runs/rn_1/rediscover", b"{}")
