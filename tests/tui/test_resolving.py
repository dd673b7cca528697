"""Settling an Unknown attempt, transition by transition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import pytest

from ryusen_protocol import operator
from ryusen_protocol.api import AttemptDocument
from ryusen_tui import resolving
from ryusen_tui.resolving import Draft, NotYet, Resolution

ATTEMPT = msgspec.convert(
    {
        "attempt_id": "at_1", "run_id": "rn_1", "step_id": "ship", "phase": "forward", "attempt": 1, "attempt_generation": 3,
        "operation_id": "op_1", "request_id": None, "state": "unknown", "worker": None, "out_of_contact": False, "due_at_ms": None,
        "authorized_at_ms": 1, "unknown_at_ms": 2, "settled_at_ms": None, "settled_by": None, "error": None,
        "allowed_commands": ["supply_success", "declare_failure", "authorize_retry"], "forbidden_commands": [],
    },
    AttemptDocument,
)  # fmt: skip
SUPPLY = Draft(choice="supply_success", text='{"parcel": 7}')
FAIL = Draft(choice="declare_failure", text="carrier.refused: no")
RETRY = Draft(choice="authorize_retry", text="retry")


def minted() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"key-{next(numbers)}"


def acknowledged(status: str = "applied") -> operator.Acknowledgement:
    transition = {"attempt": "succeeded", "step": "succeeded", "run": "running"}
    return msgspec.convert(
        {"version": 1, "status": status, "attempt_id": "at_1", "attempt_generation": 3, "transition": transition}, operator.Acknowledgement
    )


@pytest.mark.parametrize(
    ("draft", "missing"),
    [
        (Draft(), "choose"),
        (Draft(choice="supply_success"), "JSON"),
        (Draft(choice="supply_success", text="{"), "not JSON"),
        (Draft(choice="supply_success", text='{"a": 1, "a": 2}'), "not JSON"),
        (Draft(choice="supply_success", text='"\ud800"'), "surrogate"),
        (Draft(choice="declare_failure", text="no category"), "category: message"),
        (Draft(choice="declare_failure", text="lost: "), "category: message"),
        (Draft(choice="authorize_retry", text="Retry"), "type retry"),
    ],
)
@pytest.mark.req("OPR-12")
def test_a_draft_that_is_no_command_says_what_is_missing(draft: Draft, missing: str) -> None:
    with pytest.raises(NotYet, match=missing):
        resolving.command_of(draft)


@pytest.mark.parametrize("draft", [SUPPLY, FAIL, RETRY])
@pytest.mark.req("OPR-02")
def test_a_command_names_attempt_and_generation_that_stood_there_when_the_dialog_opened(draft: Draft) -> None:
    state = resolving.intend(Resolution(attempt=ATTEMPT), resolving.command_of(draft), minted())
    assert state.phase == "sending"
    assert state.sent is not None
    assert (state.sent.attempt_id, state.sent.attempt_generation) == ("at_1", 3)
    assert operator.parse(operator.encode_command(state.sent), path_attempt_id="at_1") == state.sent


@pytest.mark.req("OPR-22")
def test_one_intent_has_one_key_and_another_has_another() -> None:
    mint = minted()
    first = resolving.intend(Resolution(attempt=ATTEMPT), resolving.command_of(SUPPLY), mint)
    refused = resolving.refused(first, "deadline_elapsed", "too late")
    again = resolving.intend(refused, resolving.command_of(SUPPLY), mint)
    other = resolving.intend(resolving.refused(again, "stale", "no"), resolving.command_of(FAIL), mint)
    back = resolving.intend(resolving.refused(other, "stale", "no"), resolving.command_of(SUPPLY), mint)
    assert [state.sent.idempotency_key for state in (first, again, other, back) if state.sent] == ["key-1", "key-1", "key-2", "key-1"]


def test_a_lost_answer_says_so_and_keeps_the_command() -> None:
    sent = resolving.intend(Resolution(attempt=ATTEMPT), resolving.command_of(SUPPLY), minted())
    lost = resolving.lost(sent, "the line broke")
    assert (lost.phase, lost.tries, lost.sent) == ("unsure", 2, sent.sent)
    assert "not known" in lost.said
    assert "same key" in lost.said
    assert not lost.is_open
    assert resolving.unreached(lost, "refused").phase == "unsure", "what the first try did is still not known"
    assert resolving.done(lost, acknowledged("replayed")).said.endswith("first answer again)")


def test_what_never_left_is_not_called_unknown() -> None:
    sent = resolving.intend(Resolution(attempt=ATTEMPT), resolving.command_of(SUPPLY), minted())
    assert resolving.unreached(sent, "connection refused").said.startswith("Not sent yet")


@pytest.mark.parametrize(
    ("now", "is_over"),
    [
        ({}, False),
        ({"state": "succeeded", "settled_by": "worker"}, True),
        ({"state": "failed", "settled_by": "operator"}, True),
        ({"attempt_generation": 4}, True),
    ],
)
def test_a_late_result_that_wins_closes_the_dialog_and_its_identity_stays(now: dict[str, object], is_over: bool) -> None:
    state = Resolution(attempt=ATTEMPT)
    seen = resolving.seen(state, msgspec.structs.replace(ATTEMPT, **now))
    assert (seen.phase == "overtaken") is is_over
    assert seen.attempt == ATTEMPT
    assert seen.is_open is not is_over
    settled = resolving.done(resolving.intend(state, resolving.command_of(SUPPLY), minted()), acknowledged())
    assert resolving.seen(settled, msgspec.structs.replace(ATTEMPT, **now)) == settled, "an acknowledgement stays readable"


def test_a_refusal_that_a_late_result_explains_keeps_its_code() -> None:
    state = resolving.refused(
        resolving.intend(Resolution(attempt=ATTEMPT), resolving.command_of(SUPPLY), minted()), "stale", "It is settled."
    )
    late = resolving.seen(state, msgspec.structs.replace(ATTEMPT, state="succeeded", settled_by="worker"))
    assert late.phase == "overtaken"
    assert late.said.startswith("stale: It is settled.")
    assert "late result" in late.said
