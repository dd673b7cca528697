"""A run in words: every fact that a person has to act on, and nothing that a terminal acts on."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from ryusen_cli.output import Output, Painted
from ryusen_cli.views.history import Teller
from ryusen_cli.views.run import ended_run_line, run_lines, run_row
from ryusen_protocol import values
from ryusen_protocol.api import EventRun, HistoryEntryDocument, RunDetail
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import RunId
from ryusen_protocol.plain import error_lines, input_text, value_text

FAILURE = {
    "category": "carrier",
    "message": "no carrier",
    "retryable": False,
    "cause": {"category": "io", "message": "timeout", "retryable": True},
}


def attempt(number: int, state: str = "failed", **more: Any) -> dict[str, Any]:
    return {
        "attempt_id": f"at_{number}", "run_id": "rn_1", "step_id": "ship", "phase": "forward", "attempt": number, "attempt_generation": 1,
        "operation_id": "op", "request_id": None, "state": state, "worker": None, "out_of_contact": False, "due_at_ms": None,
        "authorized_at_ms": 10, "unknown_at_ms": None, "settled_at_ms": 25, "settled_by": "worker", "error": FAILURE,
        "allowed_commands": [], "forbidden_commands": [], **more,
    }  # fmt: skip


def step(step_id: str, state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {
        "step_id": step_id, "kind": "run", "name": None, "location": None, "state": state, "has_compensation": True, "declared_at_ms": 1,
        "completed_at_ms": 311, **more,
    }  # fmt: skip


def target(step_id: str, state: str, **more: Any) -> dict[str, Any]:
    return {"step_id": step_id, "state": state, "reason": None, "hidden_by": None, "error": None, "attempts": [], **more}


def run(**more: Any) -> RunDetail:
    payload = msgspec.json.decode(values.encode(b'{"order": 7}'))
    document = {
        "run_id": "rn_1", "status": "ended", "stop": None, "outcome": "failed", "recovery": "partially_compensated",
        "recovery_reason": None, "function": "fulfil", "application": "shop",
        "event_id": "ev_1", "trigger_id": "t", "manifest_generation": "mg", "parent": None,
        "routing_generation": "rg", "deadline": None, "attention": None, "attention_run_id": None, "created_at_ms": 1, "ended_at_ms": 1_801,
        "steps_declared": 2, "steps_completed": 2, "unwind_counts": {"succeeded": 1, "skipped": 1}, "steps": [], "children": [],
        "input": {"kind": "event", "event_id": "ev_1", "name": "order/placed", "payload": payload, "metadata": {}, "received_at_ms": 1},
        "unwind": {"targets": []}, "blocker": None, "position": 9, **more,
    }  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(document), type=RunDetail)


def typed(*words: str) -> str:
    return " ".join(("ryusen", *words))


def shown(detail: RunDetail) -> str:
    out = io.StringIO()
    output = Output(stdout=out, stderr=out)
    output.unicode = True
    output.lines(run_lines(detail, output, typed, now_ms=2_000))
    return out.getvalue()


def test_a_failed_run_tells_its_attempts_its_unwind_in_order_and_why() -> None:
    text = shown(
        run(
            steps=[step("charge"), step("ship", "failed", failure=FAILURE, attempts=[attempt(1), attempt(2)])],
            unwind={"targets": [target("reserve", "skipped", reason="no_compensator"), target("charge", "succeeded")]},
            failure=FAILURE,
        )
    )
    assert "✗ Failed" in text
    assert "Partially compensated (1 undone, 1 had nothing to undo)" in text
    assert "took 1.8s" in text
    assert text.count("  attempt ") == 2
    unwind = text[text.index("undone, in this order") :]
    assert unwind.index("reserve") < unwind.index("charge")
    assert "no compensator" in unwind
    assert "failure  carrier: no carrier" in text
    assert "cause  io: timeout" in text
    assert '{"order": 7}' in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_blocked_run_names_both_places_and_what_to_do() -> None:
    place = {"file": "shop.py", "line": 3}
    blocker = {
        "reason": "duplicate_step", "step_id": "charge", "message": "two steps are called charge", "first": place,
        "duplicate": {**place, "line": 9}, "count": 2, "first_seen_at_ms": 1, "last_seen_at_ms": 2, "release_id": "dev-1",
    }  # fmt: skip
    text = shown(run(status="definition_blocked", outcome=None, recovery=None, ended_at_ms=None, attention="blocked", blocker=blocker))
    assert "Blocked" in text
    assert "shop.py:3" in text
    assert "shop.py:9" in text
    assert "two steps are called charge" in text
    assert "2 times" in text
    assert "dev-1" in text
    assert "Change the code" in text
    assert "ryusen runs rediscover rn_1" in text


def test_an_unknown_attempt_shows_what_an_operator_has_to_name() -> None:
    unknown = attempt(1, "unknown", settled_at_ms=None, settled_by=None, error=None, attempt_generation=3)
    text = shown(
        run(
            status="running",
            outcome=None,
            recovery=None,
            ended_at_ms=None,
            attention="unknown",
            steps=[step("ship", "pending", attempts=[unknown])],
        )
    )
    assert "? Unknown" in text
    assert "at_1, generation 3" in text
    assert "ryusen unknown show at_1" in text


def test_what_waits_tells_for_what_and_until_when() -> None:
    waiting = run(
        status="running", outcome=None, recovery=None, ended_at_ms=None,
        steps=[
            step("nap", "pending", kind="timer", completed_at_ms=None, due_at_ms=62_000),
            step("paid", "pending", kind="event_wait", completed_at_ms=None, due_at_ms=62_000, event_name="order/paid"),
            step("part", "pending", kind="child", completed_at_ms=None, child_run_id="rn_2"),
            step("ship", "pending", completed_at_ms=None, attempts=[
                attempt(1), attempt(2, "queued", due_at_ms=32_000, authorized_at_ms=None, settled_at_ms=None, settled_by=None, error=None),
            ]),
        ],
    )  # fmt: skip
    text = shown(waiting)
    for part in ("until 1970-01-01 00:01:02.000+0000, in 1m", "for an event order/paid, until", "until rn_2 has ended", "○ Queued"):
        assert part in text, text
    assert "goes in 30s" in text, text


def test_who_settled_an_attempt_is_told_though_it_went_as_its_step_did() -> None:
    assert "attempt 1  ◆ Settled by operator" in shown(run(steps=[step("ship", attempts=[attempt(1, "succeeded", settled_by="operator")])]))
    assert "attempt 1" not in shown(run(steps=[step("ship", attempts=[attempt(1, "succeeded")])]))


def test_a_stopping_run_tells_what_it_waits_for_and_claims_no_interrupted_callback() -> None:
    worker = {"instance_id": "wi_9", "session_id": None, "release_id": None, "transport": "connected"}
    going = attempt(2, "authorized", settled_at_ms=None, settled_by=None, error=None, worker=worker)
    stopping: dict[str, Any] = {
        "status": "stopping", "stop": {"reason": "cancelled", "requested_at_ms": 5}, "outcome": None, "recovery": None, "ended_at_ms": None,
    }  # fmt: skip
    text = shown(run(**stopping, steps=[step("ship", "pending", attempts=[going])]))
    assert "Cancelling" in text
    assert "cancel asked for" in text
    assert "for step ship, attempt 2: ● Executing" in text
    assert "wi_9. A stop does not interrupt a callback" in text
    away = {**going, "out_of_contact": True, "unknown_at_ms": 2_000 + 17_500}
    assert "Out of contact, Unknown in 18s" in shown(run(**stopping, steps=[step("ship", "pending", attempts=[away])]))


def test_an_unwind_that_halts_names_the_attempt_to_settle() -> None:
    undoing = attempt(1, "unknown", phase="compensation", settled_at_ms=None, settled_by=None, error=None, unknown_at_ms=1_000)
    text = shown(
        run(status="compensating", recovery=None, ended_at_ms=None, unwind={"targets": [target("charge", "pending", attempts=[undoing])]})
    )
    assert "? Unknown for 1s: undoing step ship" in text
    assert "ryusen unknown show at_1" in text
    assert "outcome  ✗ Failed" in text


def test_recovery_stands_beside_every_outcome_that_is_no_success() -> None:
    for recovery, word in (("not_required", "–"), ("compensation_failed", "✗ Compensation failed")):  # noqa: RUF001 - the glyph
        ended = EventRun(run_id=RunId("rn"), status="ended", outcome="failed", recovery=recovery)
        output = Output(stdout=io.StringIO())
        output.unicode = True
        texts = [cell.text for cell in ended_run_line(ended, output) if isinstance(cell, Painted)]
        assert texts == ["✗ Failed", word]


@pytest.mark.parametrize("hostile", ["[/", "[@click=app.quit]x[/]", "a\x1b[2J\x9bb\u202ec"])
def test_foreign_text_is_shown_and_never_acted_on(hostile: str) -> None:
    failure = {**FAILURE, "message": hostile, "cause": None}
    detail = run(function=hostile, steps=[step(hostile, "failed", failure=failure, attempts=[attempt(1), attempt(2)])], failure=failure)
    out = io.StringIO()
    output = Output(stdout=out, stderr=out)
    text = shown(detail)
    output.table(("A",) * 8, [run_row(detail, output, now_ms=1)])
    record = {"kind": "attempt_queued", "attempt_id": "a", "step_id": hostile, "phase": "forward", "attempt": 1, "attempt_generation": 1}
    entry = HistoryEntryDocument(position=1, at_ms=1, records=[msgspec.Raw(msgspec.json.encode(record))])
    output.lines(Teller(output).tell(entry))
    assert not {"\x1b", "\x9b", "\u202e"} & set(text + out.getvalue())
    if hostile.isprintable():
        assert text.count(hostile) >= 4
        assert hostile in out.getvalue()


def test_every_value_has_a_text() -> None:
    everything: values.Value = {
        "a": [None, True, 1.5, 2**60, "ü"],
        "b": b"\xff",
        "i": values.Instant(1, 5),
        "d": values.Duration(-1, 500_000_000),
    }
    text = value_text(msgspec.Raw(values.encode(everything)))
    for part in ('"ü"', "1152921504606846976", "1.5", "/w==", "1.000000005"):
        assert part in text
    assert value_text(msgspec.Raw(b'{"type":"of_the_future"}')) == '{"type":"of_the_future"}'


def test_an_input_of_bytes_and_of_a_parent() -> None:
    tagged = msgspec.json.decode(values.encode(b"\xff"))
    assert "base64 /w==" in input_text(msgspec.Raw(msgspec.json.encode({"kind": "event", "payload": tagged})))
    value = msgspec.json.decode(values.encode({"n": 1}))
    assert input_text(msgspec.Raw(msgspec.json.encode({"kind": "child", "value": value}))) == '{"n": 1}'


def test_a_terminal_without_utf8_gets_plain_glyphs() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    output = Output(stdout=out, stderr=out)
    output.lines(run_lines(run(), output, typed, now_ms=1))
    out.flush()
    assert b"x Failed" in out.buffer.getvalue()  # type: ignore[attr-defined]


def test_an_error_names_the_place_in_the_authors_own_code_where_it_was_raised() -> None:
    own = '  File "/srv/my shop/orders.py", line 41, in charge_card\n    return cards[order]\n           ~~~~~^^^^^^^\n'
    theirs = '  File "/srv/.venv/lib/python3.11/site-packages/cards/api.py", line 7, in __getitem__\n    raise KeyError(name)\n'

    def told(stack: str | None, message: str = "'card'") -> list[str]:
        cause = ErrorRecord("KeyError", message, retryable=True, stack=stack)
        return error_lines(ErrorRecord("step_failed", "charge failed", retryable=False, cause=cause))

    assert told(own + theirs) == [
        "failure  step_failed: charge failed",
        "  cause  KeyError: 'card'",
        "  at /srv/my shop/orders.py:41 in charge_card",
    ]
    assert told(theirs)[-1] == "  at /srv/.venv/lib/python3.11/site-packages/cards/api.py:7 in __getitem__"
    assert told(own, "see /srv/my shop/orders.py:41 in charge_card") == told(None, "see /srv/my shop/orders.py:41 in charge_card")
    assert told("Error: no\n    at charge (orders.js:4:2)") == told(None)
    failed = step("charge", "failed", attempts=[], result=None, due_at_ms=None, failure={**FAILURE, "stack": own + theirs})
    assert "carrier: no carrier  at /srv/my shop/orders.py:41 in charge_card\n" in shown(run(steps=[failed]))
