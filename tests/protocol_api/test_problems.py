"""Problem documents."""

import json

import msgspec
import pytest

from ryusen_protocol import problems


@pytest.mark.parametrize("code", sorted(problems.CODES))
def test_every_code_has_a_status_and_a_title(code: problems.ProblemCode):
    document = json.loads(msgspec.json.encode(problems.problem(code, "what, why, what to do")))
    assert document["code"] == code
    assert 400 <= document["status"] == problems.status_of(code) < 600
    assert document["title"]
    assert document["type"] == f"urn:ryusen:problem:{code}"
    assert set(document) == {"type", "title", "status", "detail", "code"}


def test_extras_are_members_beside_the_standard_ones():
    over = json.loads(msgspec.json.encode(problems.limit_exceeded("The payload", size=9, limit=8, path="$.data")))
    assert (over["limit"], over["path"]) == (8, "$.data")
    assert over["detail"] == "The payload is 9 bytes, over the limit of 8 bytes."
    stopped_reading = problems.limit_exceeded("The body", size=None, limit=8)
    assert stopped_reading.detail == "The body is more than the limit of 8 bytes."
    conflict = json.loads(msgspec.json.encode(problems.parent_conflict(None, "mg_1")))
    assert conflict["active_generation"] is None


def test_a_reused_key_is_not_repeated_in_the_answer():
    refusal = problems.idempotency_key_reused()
    assert refusal.status == 409
    assert "Nothing was changed" in refusal.detail


def test_not_cancellable_names_the_outcome():
    assert problems.not_cancellable("failed").outcome == "failed"
    assert "failed" in problems.not_cancellable("failed").detail


def test_a_store_fault_never_reads_as_an_acceptance():
    refusal = problems.storage_unavailable("disk full", retry_after_ms=500)
    assert (refusal.status, refusal.retry_after_ms) == (503, 500)
    assert "Nothing was accepted" in refusal.detail
