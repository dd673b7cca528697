"""Derived and minted identities, and the fingerprint of a submission."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol import identity
from ryusen_protocol.ids import Application, EventId, RunId, StepId, TriggerId, Workspace
from ryusen_protocol.scope import Scope

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SHOP = Scope(Workspace("default"), Application("shop"))


@given(st.lists(TEXT, max_size=4), st.lists(TEXT, max_size=4))
def test_two_tuples_never_frame_alike(left: list[str], right: list[str]):
    assert (identity.framed(*left) == identity.framed(*right)) == (left == right)


def test_letters_are_letters_and_digits_in_nearly_equal_shares():
    every = identity.letters(bytes(range(256)))
    assert re.fullmatch(r"[0-9A-Za-z]{256}", every)
    shares = {digit: every.count(digit) for digit in every}
    assert len(shares) == 62
    assert set(shares.values()) == {4, 5}


def test_derived_ids_are_stable_over_releases():
    # A restart and an upgrade have to find the runs and attempts they made before: these never change.
    run = identity.run_id_for_event(EventId("ev_1"), Application("shop"), TriggerId("t"))
    assert run == "rn_9zAe8OtR7B5gbNiIn8KUn2"
    assert identity.run_id_for_child(SHOP, RunId("rn_1"), StepId("s")) == "rn_dKqcqyf4XW5kFvDAIJtx4A"
    assert identity.operation_id(RunId("rn_1"), StepId("s"), "forward") == "op_bO95cEVy5URzQzPg83T5a3"
    assert identity.attempt_id(RunId("rn_1"), StepId("s"), "forward", 1) == "at_5Tfex6DIBgcUSs1JJuoKYS"
    assert identity.emitted_event_id(SHOP, RunId("rn_1"), StepId("s")) == "ev_AgcB4v7Z40hyel7YJVtFBQ"


def test_every_part_counts_and_kinds_never_meet():
    run, step = RunId("rn_1"), StepId("s")
    made = [
        identity.run_id_for_event(EventId("ev_1"), Application("shop"), TriggerId("t")),
        identity.run_id_for_event(EventId("ev_2"), Application("shop"), TriggerId("t")),
        identity.run_id_for_event(EventId("ev_1"), Application("mail"), TriggerId("t")),
        identity.run_id_for_event(EventId("ev_1"), Application("shop"), TriggerId("u")),
        identity.run_id_for_event(EventId("ev_1"), Application("shopt"), TriggerId("")),
        identity.run_id_for_child(SHOP, run, step),
        identity.operation_id(run, step, "forward"),
        identity.operation_id(run, step, "compensation"),
        identity.attempt_id(run, step, "forward", 1),
        identity.attempt_id(run, step, "forward", 11),
        identity.attempt_id(run, step, "compensation", 1),
        identity.emitted_event_id(SHOP, run, step),
    ]
    assert len({text.split("_", 1)[1] for text in made}) == len(made)
    assert all(re.fullmatch(r"(rn|op|at|ev)_[0-9A-Za-z]{22}", text) for text in made)


def test_every_generation_of_an_attempt_has_an_id_of_its_own():
    run, step = RunId("rn_1"), StepId("charge")
    attempts = {identity.attempt_id(run, step, "forward", number) for number in range(1, 50)}
    assert len(attempts) == 49


def test_minting_takes_the_callers_entropy_and_only_all_of_it():
    assert identity.mint("ev", bytes(22)) == "ev_" + "0" * 22
    assert identity.mint("rq", b"\xff" * 22) != identity.mint("rq", b"\xff" * 21 + b"\xfe")
    with pytest.raises(ValueError, match="22 random bytes, not 8"):
        identity.mint("wk", bytes(8))


def test_fingerprint_covers_name_payload_and_metadata_in_any_order():
    reference = identity.event_fingerprint("order/placed", b'{"id": 1}', {"a": "1", "b": "2"})
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", reference)
    assert identity.event_fingerprint("order/placed", b'{"id": 1}', {"b": "2", "a": "1"}) == reference
    changed = [
        identity.event_fingerprint("order/Placed", b'{"id": 1}', {"a": "1", "b": "2"}),
        identity.event_fingerprint("order/placed", b'{"id":1}', {"a": "1", "b": "2"}),
        identity.event_fingerprint("order/placed", b'{"id": 1}', {"a": "1", "b": "3"}),
        identity.event_fingerprint("order/placed", b'{"id": 1}', {"a": "1b2", "": ""}),
        identity.event_fingerprint("order/placed", b'{"id": 1}', {}),
        identity.event_fingerprint("order/placed", b"", {}),
    ]
    assert len({reference, *changed}) == 7
