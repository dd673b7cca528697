"""History deltas in a worker: built on exactly what is held, or answered `history_missing` before any callback."""

from __future__ import annotations

import json

import pytest

from ryusen_protocol.codec import decode_invocation
from ryusen_protocol.invocation import FullHistory, Invocation
from ryusen_sdk.histories import Histories
from ryusen_sdk.session import Begin, Send, Session, WorkerFacts
from tests.sdk.peer import JsonDict, discovery, forward
from tests.sdk.test_session import begin, feed, register, rejection, session


def entry(number: int) -> JsonDict:
    return {"step_id": f"s{number}", "kind": "run", "outcome": {"success": {"type": "i64", "value": str(number)}}}


def full(count: int, request_id: str = "rq_1", **run: object) -> JsonDict:
    document = discovery(**run)
    history = {"mode": "full", "digest": f"sha256:{count}", "steps": [entry(number) for number in range(count)]}
    return {**document, "request_id": request_id, "history": history}


def delta(base: int, count: int, request_id: str, digest: str | None = None) -> JsonDict:
    document = full(count, request_id)
    del document["input"]
    document["history"] = {
        "mode": "delta",
        "digest": f"sha256:{count}",
        "base": {"count": base, "digest": digest or f"sha256:{base}"},
        "steps": [entry(number) for number in range(base, count)],
    }
    return document


def ids(invocation: Invocation) -> list[str]:
    assert isinstance(invocation.history, FullHistory)
    return [step.step_id for step in invocation.history.steps]


@pytest.mark.req("PRO-21")
def test_a_worker_says_that_it_takes_deltas_and_begins_them_whole() -> None:
    driven = session()
    sent, _ = register(driven)
    assert sent["capabilities"] == ["history_delta"]
    first = begin(driven, full(1, "rq_1"))
    second = begin(driven, delta(1, 3, "rq_2"))
    third = begin(driven, delta(3, 3, "rq_3"))
    assert ids(first) == ["s0"], "an invocation that is out keeps its own history"
    assert ids(second) == ids(third) == ["s0", "s1", "s2"]
    assert second.input == third.input == first.input
    assert second.history.digest == "sha256:3"


@pytest.mark.parametrize(
    "built_on",
    [delta(2, 3, "rq_2"), delta(0, 3, "rq_2"), delta(1, 3, "rq_2", digest="sha256:other")],
    ids=["more than is held", "less than is held", "another history of that length"],
)
def test_a_delta_on_anything_else_is_history_missing_and_nothing_runs(built_on: JsonDict) -> None:
    driven = session()
    register(driven)
    begin(driven, full(1, "rq_1"))
    assert rejection(driven, built_on) == {"type": "rejected_before_start", "reason": "history_missing"}
    assert ids(begin(driven, full(3, "rq_3"))) == ["s0", "s1", "s2"]


def test_an_effect_whose_base_is_missing_is_rejected_under_its_fence() -> None:
    driven = session()
    register(driven)
    document = {**delta(1, 2, "rq_2"), "target": forward("s1")["target"]}
    (answer,) = [json.loads(action.frame) for action in feed(driven, type="invoke", invocation=document) if isinstance(action, Send)]
    target = document["target"]
    assert answer["outcome"] == {
        "type": "rejected_before_start",
        "reason": "history_missing",
        "attempt": target["attempt"],
        "attempt_generation": target["attempt_generation"],
    }


def test_what_is_held_outlives_a_reconnect_and_is_one_copy_a_run() -> None:
    driven = session()
    register(driven)
    begin(driven, full(1, "rq_1"))
    driven.closed()
    register(driven, "ss_2")
    assert ids(begin(driven, delta(1, 2, "rq_2"))) == ["s0", "s1"]


def test_the_copies_are_bounded_and_the_run_not_heard_of_for_longest_gives_way() -> None:
    histories = Histories(bytes_max=1_000)

    def held(document: JsonDict) -> Invocation | None:
        data = json.dumps(document).encode()
        return histories.completed(decode_invocation(data), 300)

    documents = {name: full(1, "rq_1") | {"run": {**full(1)["run"], "run_id": f"rn_{name}"}} for name in "abcd"}
    for name in "abc":
        assert held(documents[name]) is not None
    again = {**delta(1, 1, "rq_2"), "run": documents["a"]["run"]}
    assert held(again) is not None, "a is used again"
    assert held(documents["d"]) is not None
    assert histories.held_bytes <= 1_000
    assert held({**delta(1, 1, "rq_3"), "run": documents["b"]["run"]}) is None, "b gave way"
    assert held({**delta(1, 1, "rq_3"), "run": documents["a"]["run"]}) is not None


def test_a_busy_worker_holds_nothing_of_what_it_refused() -> None:
    facts = session()._facts
    driven = Session(WorkerFacts(**{**{name: getattr(facts, name) for name in facts.__slots__}, "capacity": 1}))
    register(driven)
    assert isinstance(feed(driven, type="invoke", invocation=full(1, "rq_1"))[0], Begin)
    assert rejection(driven, full(2, "rq_2"))["reason"] == "busy"
    driven.finished(decode_invocation(json.dumps(full(1, "rq_1"))), b"{}", 0)
    assert rejection(driven, delta(2, 3, "rq_3"))["reason"] == "history_missing"
    assert ids(begin(driven, delta(1, 3, "rq_4"))) == ["s0", "s1", "s2"]
