"""Requests the client builds and answers it reads."""

import json
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol.api import JSON_NULL, EventReceipt, EventSubmission, Page, RunDetail, RunSummary, UnwindCounts
from ryusen_protocol.client import Api, ApiProblem, UnreadableAnswer, segment
from ryusen_protocol.ids import ManifestGeneration
from ryusen_protocol.manifest import Publication
from ryusen_protocol.problems import parent_conflict

API = Api()
SUMMARY: dict[str, Any] = {
    "run_id": "rn_1",
    "status": "ended",
    "stop": None,
    "outcome": "succeeded",
    "recovery": "not_required",
    "recovery_reason": "succeeded",
    "function": "fulfil-order",
    "application": "shop",
    "event_id": "ev_1",
    "trigger_id": "t",
    "manifest_generation": "mg_1",
    "routing_generation": "rg_1",
    "parent": None,
    "deadline": {"at_ms": 5, "source": "function"},
    "attention": None,
    "attention_run_id": None,
    "created_at_ms": 1,
    "ended_at_ms": 2,
    "steps_declared": 3,
    "steps_completed": 3,
    "unwind_counts": {"pending": 0, "succeeded": 0, "failed": 0, "skipped": 0},
}
DETAIL: dict[str, Any] = SUMMARY | {
    "input": {"kind": "event"},
    "result": {"type": "i64", "value": "7"},
    "failure": None,
    "steps": [],
    "unwind": {"targets": []},
    "blocker": None,
    "children": [],
    "no_worker_reason": None,
    "position": 9,
}


def test_data_travels_as_its_exact_text():
    request = API.send_event("order/placed", data=b'{"id":  1e2, "b": null}', metadata={"k": "v"}, key="once")
    assert (request.method, request.path) == ("POST", "/v1/workspaces/default/events")
    assert request.headers["content-type"] == "application/json"
    assert request.body is not None
    submission = msgspec.json.decode(request.body, type=EventSubmission)
    assert submission.data is not msgspec.UNSET
    assert bytes(submission.data) == b'{"id":  1e2, "b": null}'
    assert (submission.name, submission.metadata, submission.idempotency_key) == ("order/placed", {"k": "v"}, "once")


def test_null_data_is_data_and_absent_data_is_not():
    null = API.send_event("e", data=b"null").body
    raw = API.send_event("e", payload=b"\x00\xff").body
    assert null is not None
    assert raw is not None
    assert json.loads(null) == {"name": "e", "data": None}
    assert json.loads(raw) == {"name": "e", "payload_base64": "AP8="}


@pytest.mark.parametrize("text", [b'1,"idempotency_key":"x"', b"", b"{", b"nul", b"\xff", b"[" * 100_000])
def test_data_that_is_not_one_json_text_never_enters_the_body(text: bytes):
    with pytest.raises(ValueError, match="not JSON"):
        API.send_event("e", data=text)


@pytest.mark.parametrize(
    ("text", "why"), [(b" ", "is empty"), (b'"\\ud800"', "lone surrogate"), (b"[NaN]", "NaN is not"), (b"{bad", "line 1, column 2")]
)
def test_data_that_is_not_json_is_told_with_what_is_wrong(text: bytes, why: str):
    with pytest.raises(ValueError, match=why):
        API.send_event("e", data=text)


def test_an_event_has_exactly_one_payload():
    with pytest.raises(ValueError, match="exactly one"):
        API.send_event("e")
    with pytest.raises(ValueError, match="exactly one"):
        API.send_event("e", data=b"1", payload=b"1")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_an_id_stays_one_path_segment(identity: str):
    encoded = segment(identity)
    assert unquote(encoded) == identity
    assert encoded.isascii()
    assert not set(encoded) & set("/?#\\ ")
    assert encoded not in {".", ".."}


def test_the_empty_id_is_refused_before_it_becomes_another_route():
    with pytest.raises(ValueError, match="empty id"):
        API.get_run("")


def test_workspace_and_token_go_with_every_request():
    api = Api("teams/red", token="s3cret")
    for request in (api.health(), api.list_runs(), api.cancel("rn_1")):
        assert request.headers["authorization"] == "Bearer s3cret"
    assert api.get_run("rn_1").path == "/v1/workspaces/teams%2Fred/runs/rn_1"
    assert "authorization" not in API.health().headers
    with pytest.raises(ValueError, match="printable ASCII"):
        Api(token="s3cret\nhost: elsewhere")


def test_routes_and_their_queries():
    assert API.health().target == "/v1/health"
    assert API.server().target == "/v1/server"
    assert API.list_runs().target == "/v1/workspaces/default/runs"
    filtered = API.list_runs(status="ended", outcome="failed", q="a b&c", cursor="x=", limit=5).target
    assert dict(parse_qsl(filtered.split("?")[1])) == {
        "status": "ended",
        "outcome": "failed",
        "q": "a b&c",
        "cursor": "x=",
        "limit": "5",
    }
    assert API.get_run("rn_1", wait_ms=0).target == "/v1/workspaces/default/runs/rn_1?wait_ms=0"
    assert API.get_event("ev_1", wait_ms=10**9).target == "/v1/workspaces/default/events/ev_1?wait_ms=60000"
    assert API.history("rn_1", after=0).target == "/v1/workspaces/default/runs/rn_1/history?after=0"
    assert API.list_attempts(state="unknown").target == "/v1/workspaces/default/attempts?state=unknown"
    assert API.get_manifest("shop", "mg_1").target == "/v1/workspaces/default/applications/shop/manifests/mg_1"
    assert API.get_routing("rg_1").target == "/v1/workspaces/default/routing/rg_1"
    cancel = API.cancel("rn_1")
    assert (cancel.method, cancel.target, cancel.body) == ("POST", "/v1/workspaces/default/runs/rn_1/cancel", b"{}")


def test_publication_names_its_missing_parent():
    body = API.publish_manifest("shop", Publication(1, None, [], [], "")).body
    assert body is not None
    assert json.loads(body) == {
        "protocol_version": 1,
        "expected_parent": None,
        "functions": [],
        "triggers": [],
        "contents": "",
    }


def test_reading_a_page_and_a_run():
    page = API.list_runs().read(200, json.dumps({"items": [SUMMARY], "next_cursor": "c"}).encode())
    assert page.items[0].unwind_counts == UnwindCounts()
    assert page.next_cursor == "c"
    run = API.get_run("rn_1").read(200, json.dumps(DETAIL | {"later": "field"}).encode())
    assert json.loads(bytes(run.result)) == {"type": "i64", "value": "7"}
    assert run.position == 9


def test_what_a_run_does_not_have_is_an_explicit_null():
    run = msgspec.convert(SUMMARY, RunSummary)
    assert json.loads(msgspec.json.encode(run)) == SUMMARY
    detail = msgspec.json.decode(json.dumps(DETAIL | {"result": None}).encode(), type=RunDetail)
    assert bytes(detail.result) == bytes(JSON_NULL)
    assert json.loads(msgspec.json.encode(detail)) == DETAIL | {"result": None}
    assert msgspec.json.encode(Page[RunSummary](items=[])) == b'{"items":[],"next_cursor":null}'


def test_a_receipt_shows_runs_only_to_a_caller_that_waited():
    plain = {"event_id": "ev_1", "status": "created", "routing_generation": "rg_1", "matched": 0, "expansion": "complete"}
    receipt = msgspec.convert(plain, EventReceipt)
    assert receipt.runs is msgspec.UNSET
    assert json.loads(msgspec.json.encode(receipt)) == plain
    assert API.send_event("e", data=b"1").read(201, json.dumps(plain | {"runs": []}).encode()).runs == []


def test_a_problem_is_raised_with_its_code_and_document():
    document = parent_conflict(None, "mg_1")
    with pytest.raises(ApiProblem, match="no manifest is active") as raised:
        API.get_application("shop").read(409, msgspec.json.encode(document))
    assert (raised.value.code, raised.value.status) == ("parent_conflict", 409)
    assert raised.value.document == document
    assert raised.value.document.active_generation is None


def test_a_problem_code_of_a_newer_server_is_still_a_problem():
    body = b'{"type":"urn:x","title":"t","status":409,"detail":"d","code":"brand_new","more":[]}'
    with pytest.raises(ApiProblem) as raised:
        API.cancel("rn_1").read(409, body)
    assert raised.value.code == "brand_new"


@pytest.mark.parametrize(
    ("status", "body"),
    [(502, b"<html>bad gateway</html>"), (200, b"<html>"), (200, b"{}"), (404, b"\xff"), (302, b""), (200, b"[" * 99_999)],
)
def test_any_other_answer_is_unreadable_not_empty(status: int, body: bytes):
    with pytest.raises(UnreadableAnswer) as raised:
        API.list_runs().read(status, body)
    assert raised.value.status == status


def test_a_publication_may_build_on_a_generation():
    body = API.publish_manifest("shop", Publication(1, ManifestGeneration("mg_1"), [], [], "")).body
    assert body is not None
    assert json.loads(body)["expected_parent"] == "mg_1"
