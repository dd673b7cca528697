"""Tables of the decision machine, driven directly: invocation documents and boundaries in, reactions and outcome documents out."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from ryusen_protocol.codec import decode_invocation
from ryusen_protocol.declarations import Declaration, RunDeclaration, TimerDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import StepId
from ryusen_protocol.invocation import StepKind
from ryusen_sdk.machine import CallSite, Execute, Machine, PassOver, Raise, Reaction, Replay, Stop
from tests.sdk.peer import JsonDict, compensation, discovery, done, failed, forward, text


class Met:
    """A boundary as a test writes it."""

    def __init__(self, step_id: str, *, kind: StepKind = "run", undo: bool = False, line: int = 1, name: str | None = None) -> None:
        self.step_id = step_id
        self.kind: StepKind = kind
        self.has_compensator = undo
        self.call_site = CallSite("shop.py", line, "fulfil")
        self.display_name = name
        self.declared = 0

    def declare(self) -> Declaration:
        self.declared += 1
        if self.kind == "timer":
            return TimerDeclaration(StepId(self.step_id), delay_ms="1")
        return RunDeclaration(StepId(self.step_id), has_compensation=self.has_compensator)


def machine(document: JsonDict) -> Machine:
    return Machine(decode_invocation(json.dumps(document)))


def wire(outcome: Any) -> JsonDict:
    return json.loads(msgspec.json.encode(outcome))


def shown(reaction: Reaction) -> Any:
    """A reaction as plain data."""
    match reaction:
        case Replay(value):
            return ("replay", json.loads(bytes(value)))
        case PassOver(value):
            return ("pass over", json.loads(bytes(value)))
        case Raise(failure):
            return ("raise", failure.category)
        case Execute(phase, result):
            return ("execute", phase, None if result is None else json.loads(bytes(result)))
        case Stop(outcome):
            return wire(outcome)


def boom(category: str = "Boom", message: str = "went wrong", *, retryable: bool = True) -> ErrorRecord:
    return ErrorRecord(category, message, retryable)


EFFECT = {"attempt": 1, "attempt_generation": 1}
NOT_MET = {"type": "target_not_found", "reason": "not_met", **EFFECT}


def hidden(step_id: str) -> JsonDict:
    return {"type": "target_not_found", "reason": "hidden", "hidden_by": step_id, **EFFECT}


@pytest.mark.req("PRO-05", "PRO-06", "SDK-06")
def test_discovery_replays_then_declares_the_first_unresolved_step() -> None:
    driven = machine(discovery(done("a", text("A")), failed("b")))
    assert shown(driven.meet(Met("a"))) == ("replay", text("A"))
    assert shown(driven.meet(Met("b"))) == ("raise", "Boom")
    stopped = shown(driven.meet(Met("c", undo=True)))
    assert stopped["type"] == "declared"
    assert stopped["declaration"]["step_id"] == "c"
    assert stopped["declaration"]["has_compensation"] is True


@pytest.mark.req("PRO-07")
def test_discovery_has_its_four_answers() -> None:
    value = msgspec.Raw(b'{"type":"null"}')
    assert wire(machine(discovery()).returned(value)) == {"type": "completed", "result": {"type": "null"}}
    assert wire(machine(discovery()).escaped(boom(), is_replayed=False))["type"] == "uncaught"
    assert shown(machine(discovery()).meet(Met("a")))["type"] == "declared"
    driven = machine(discovery(done("a", text("A"))))
    driven.meet(Met("a"))
    assert shown(driven.meet(Met("a")))["type"] == "definition_blocked"


@pytest.mark.req("BLK-01", "BLK-12")
def test_a_second_use_is_blocked_even_after_the_first_suspended_the_pass() -> None:
    driven = machine(discovery())
    assert shown(driven.meet(Met("a", line=3)))["type"] == "declared"
    assert shown(driven.meet(Met("a", line=9))) == {
        "type": "definition_blocked",
        "reason": "duplicate_step_id",
        "step_id": "a",
        "first": {"file": "shop.py", "line": 3, "name": "fulfil"},
        "duplicate": {"file": "shop.py", "line": 9, "name": "fulfil"},
    }


@pytest.mark.req("BLK-03")
def test_a_blocker_names_its_places_as_people_name_the_step_if_they_do() -> None:
    driven = machine(discovery())
    driven.meet(Met("a", line=3, name="charge 1"))
    stopped = shown(driven.meet(Met("a", line=3, name="charge 2")))
    assert [stopped[place]["name"] for place in ("first", "duplicate")] == ["charge 1", "charge 2"]


@pytest.mark.req("PRO-23")
def test_another_id_after_the_stop_cannot_replace_the_answer() -> None:
    driven = machine(discovery())
    first = driven.meet(Met("a"))
    later = Met("b")
    assert driven.meet(later) == first
    assert later.declared == 0


def test_a_completed_id_as_another_kind_is_a_conflict_in_discovery() -> None:
    stopped = shown(machine(discovery(done("a", text("A")))).meet(Met("a", kind="timer", line=4)))
    assert stopped["reason"] == "declaration_conflict"
    assert stopped["duplicate"]["line"] == 4


@pytest.mark.req("PRO-12", "PRO-13")
def test_forward_runs_only_the_target() -> None:
    driven = machine(forward("b", done("a", text("A"))))
    assert shown(driven.meet(Met("a", undo=True))) == ("replay", text("A"))
    assert shown(driven.meet(Met("b"))) == ("execute", "forward", None)
    assert wire(driven.succeeded(msgspec.Raw(b'{"type":"null"}'))) == {"type": "succeeded", "result": {"type": "null"}, **EFFECT}
    assert wire(driven.failed(boom()))["type"] == "callback_failed"


@pytest.mark.req("PRO-14")
@pytest.mark.parametrize(
    ("history", "met", "answer"),
    [
        pytest.param([], [Met("new")], hidden("new"), id="a new step before it"),
        pytest.param([], [Met("b", kind="timer")], NOT_MET, id="its id as another kind"),
        pytest.param([done("a", text("A"))], [Met("a"), Met("a")], hidden("a"), id="a repeated id before it"),
        pytest.param([done("a", text("A"))], [Met("a", kind="timer")], hidden("a"), id="a completed id as another kind"),
        pytest.param([], [], NOT_MET, id="the end before it"),
    ],
)
def test_forward_target_not_found(history: list[JsonDict], met: list[Met], answer: JsonDict) -> None:
    driven = machine(forward("b", *history))
    reactions = [driven.meet(boundary) for boundary in met]
    last = shown(reactions[-1]) if reactions else wire(driven.returned(msgspec.Raw(b'{"type":"null"}')))
    assert last == answer


@pytest.mark.req("PRO-14")
@pytest.mark.parametrize("is_replayed", [True, False])
def test_an_exception_before_a_forward_target_is_not_a_failed_attempt(is_replayed: bool) -> None:
    assert wire(machine(forward("b")).escaped(boom(), is_replayed=is_replayed)) == NOT_MET


def test_a_forward_target_that_is_complete_already_does_not_run_again() -> None:
    assert shown(machine(forward("a", done("a", text("A")))).meet(Met("a"))) == ("replay", text("A"))


@pytest.mark.req("CMP-02", "CMP-16")
def test_compensation_runs_the_current_compensator_with_the_recorded_result() -> None:
    driven = machine(compensation("a", done("a", text("A")), failed("b"), result=text("A")))
    assert shown(driven.meet(Met("a", undo=True))) == ("execute", "compensation", text("A"))


@pytest.mark.req("CMP-16", "PRO-14")
@pytest.mark.parametrize(
    ("history", "met", "answer"),
    [
        pytest.param([done("a", text("A"))], [Met("a")], {**NOT_MET, "reason": "no_compensator"}, id="no compensator"),
        pytest.param([], [Met("a", undo=True)], NOT_MET, id="no accepted result on record"),
        pytest.param([done("a", text("A"))], [Met("new"), Met("a", undo=True)], hidden("new"), id="a new step before it"),
        pytest.param([done("a", text("A"))], [Met("b", kind="timer")], hidden("b"), id="a new timer before it"),
    ],
)
def test_compensation_target_not_found(history: list[JsonDict], met: list[Met], answer: JsonDict) -> None:
    driven = machine(compensation("a", *history, result=text("A")))
    assert shown(driven.meet(met[0])) == answer


def test_compensation_passes_over_repeated_ids_and_other_kinds() -> None:
    driven = machine(compensation("b", done("a", text("A")), done("t", text("T")), done("b", text("B")), result=text("B")))
    assert shown(driven.meet(Met("a", undo=True))) == ("replay", text("A"))
    assert shown(driven.meet(Met("a", undo=True))) == ("replay", text("A"))
    assert shown(driven.meet(Met("t", kind="timer"))) == ("pass over", text("T"))
    assert shown(driven.meet(Met("b", undo=True))) == ("execute", "compensation", text("B"))


def test_a_target_met_as_another_kind_is_passed_over_too() -> None:
    driven = machine(compensation("a", done("a", text("A")), result=text("A")))
    assert shown(driven.meet(Met("a", kind="child", undo=True))) == ("pass over", text("A"))
    assert wire(driven.returned(msgspec.Raw(b'{"type":"null"}'))) == NOT_MET


def test_a_failed_step_is_never_compensated() -> None:
    driven = machine(compensation("a", failed("a"), result=text("A")))
    assert shown(driven.meet(Met("a", undo=True))) == ("raise", "Boom")


@pytest.mark.parametrize(
    ("error", "is_replayed", "kind"),
    [
        pytest.param(boom("Other"), True, "target_not_found", id="a replayed step failure"),
        pytest.param(boom("Boom", "why"), False, "target_not_found", id="the failure of the run"),
        pytest.param(boom("Boom", "another"), False, "callback_failed", id="same category, another message"),
        pytest.param(boom("Other", retryable=False), False, "callback_failed", id="another failure"),
    ],
)
def test_an_exception_before_a_compensation_target(error: ErrorRecord, is_replayed: bool, kind: str) -> None:
    driven = machine(compensation("a", failure={"category": "Boom", "message": "why"}))
    outcome = wire(driven.escaped(error, is_replayed=is_replayed))
    assert outcome["type"] == kind
    if kind == "callback_failed":
        assert outcome["failure"]["retryable"] is True


def test_an_unportable_result() -> None:
    error = boom("sdk.invalid_result", retryable=False)
    assert wire(machine(discovery()).unportable(error))["type"] == "uncaught"
    assert wire(machine(forward("a")).unportable(error))["type"] == "callback_failed"
    assert wire(machine(compensation("a")).unportable(error)) == {"type": "succeeded", "result": {"type": "null"}, **EFFECT}


def test_it_knows_when_a_body_is_beyond_what_was_recorded() -> None:
    driven = machine(discovery(done("a", text("A")), done("b", text("B"))))
    assert not driven.is_beyond_history
    driven.meet(Met("a"))
    assert not driven.is_beyond_history
    driven.meet(Met("b"))
    assert driven.is_beyond_history


@pytest.mark.parametrize("mode", ["discovery", "forward", "compensation"])
def test_the_short_way_of_a_replay_answers_what_the_whole_way_does(mode: str) -> None:
    chance = random.Random(mode)
    kinds: list[StepKind] = ["run", "timer"]
    ids = ["a", "b", "c", "d"]
    shortened = 0
    for _ in range(400):
        history = [
            {**(done(step_id, text(step_id)) if chance.random() < 0.7 else failed(step_id)), "kind": chance.choice(kinds)}
            for step_id in chance.sample(ids, chance.randrange(5))
        ]
        if mode == "discovery":
            document = discovery(*history)
        else:
            target = chance.choice(ids)
            document = forward(target, *history) if mode == "forward" else compensation(target, *history, result=text("was"))
        one, other = machine(document), machine(document)
        for _ in range(6):
            boundary = Met(chance.choice(ids), kind=chance.choice(kinds), undo=chance.random() < 0.5)
            recorded = one.replayed(boundary)
            whole = shown(other.meet(boundary))
            if recorded is not None:
                shortened += 1
                assert whole == ("replay", json.loads(bytes(recorded)))
            else:
                assert shown(one.meet(boundary)) == whole
            assert one.is_beyond_history == other.is_beyond_history
    assert (shortened > 100) == (mode != "compensation")
