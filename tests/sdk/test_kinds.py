"""The steps that the server carries out, as bodies of both kinds meet them: what is declared, what a recorded outcome gives."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ryusen_sdk import ConversionError, Event, EventPayload, Ryusen, Step, StepFailed, SyncStep
from ryusen_sdk.payload import payload_of
from tests.sdk.hosted import Body, outcome, outcome_of
from tests.sdk.peer import NULL, JsonDict, compensation, discovery, done, failed, forward, number, text

Call = Callable[[Any], Any]


def body_of(call: Call, kind: str) -> Body:
    """A body that returns what one step gives."""

    async def async_body(event: Event, step: Step) -> Any:
        return await call(step)

    def sync_body(event: Event, step: SyncStep) -> Any:
        return call(step)

    return async_body if kind == "async" else sync_body


async def declared(call: Call, kind: str = "sync") -> JsonDict:
    """What a first pass declares, without the place of the call."""
    given = await outcome(body_of(call, kind), discovery())
    assert given["type"] == "declared", given
    declaration = given["declaration"]
    assert declaration.pop("location")["file"] == __file__
    assert declaration.pop("name") == declaration["step_id"]
    return declaration


async def refused(call: Call) -> tuple[str, str]:
    """The category and message of the failure that a first pass ends with."""
    given = await outcome(body_of(call, "sync"), discovery())
    assert given["type"] == "uncaught", given
    return given["failure"]["category"], given["failure"]["message"]


def octets(data: bytes) -> JsonDict:
    return {"type": "bytes", "value": base64.b64encode(data).decode()}


KINDS: dict[str, tuple[Call, JsonDict]] = {
    "timer": (lambda step: step.sleep("x", "1.5s"), {"kind": "timer", "step_id": "x", "delay_ms": "1500"}),
    "absolute timer": (
        lambda step: step.sleep_until("x", datetime(2030, 1, 1, tzinfo=UTC)),
        {"kind": "timer", "step_id": "x", "deadline_ms": "1893456000000"},
    ),
    "event_wait": (
        lambda step: step.wait_for_event("x", "order/approved", match={"order": "7"}, timeout="2h"),
        {"kind": "event_wait", "step_id": "x", "event_name": "order/approved", "correlation": {"order": "7"}, "timeout_ms": "7200000"},
    ),
    "child": (
        lambda step: step.invoke("x", "pack-box", {"id": 7}, timeout="1m"),
        {
            "kind": "child",
            "step_id": "x",
            "function": "pack-box",
            "input": {"type": "object", "value": {"id": number(7)}},
            "timeout_ms": "60000",
        },
    ),
    "emission": (
        lambda step: step.send_event("x", "order/shipped", {"id": 7}, metadata={"order": "7"}),
        {"kind": "emission", "step_id": "x", "event_name": "order/shipped", "payload": octets(b'{"id":7}'), "metadata": {"order": "7"}},
    ),
}


@pytest.mark.req("TMR-01", "EVW-01", "INV-01", "EMT-01")
@pytest.mark.parametrize("body_kind", ["async", "sync"])
@pytest.mark.parametrize("name", KINDS)
async def test_a_step_without_an_outcome_is_declared(name: str, body_kind: str) -> None:
    call, declaration = KINDS[name]
    assert await declared(call, body_kind) == declaration


RECORDED: dict[str, tuple[JsonDict, JsonDict]] = {
    "timer": (done("x", NULL, "timer"), NULL),
    "absolute timer": (done("x", NULL, "timer"), NULL),
    "child": (done("x", number(5), "child"), number(5)),
    "emission": (done("x", text("ev_2"), "emission"), text("ev_2")),
}
"""A recorded success, and what the body is given."""


@pytest.mark.req("TMR-07", "INV-05")
@pytest.mark.parametrize("body_kind", ["async", "sync"])
@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_outcome_is_replayed_and_nothing_is_declared_again(name: str, body_kind: str) -> None:
    entry, given = RECORDED[name]
    body = body_of(KINDS[name][0], body_kind)
    assert await outcome(body, discovery(entry)) == {"type": "completed", "result": given}


@pytest.mark.req("EVW-06")
@pytest.mark.parametrize("payload", [b'{"id": 7}', b"\x00\xff", b""])
async def test_a_wait_gives_the_exact_bytes_and_their_json_view(payload: bytes) -> None:
    seen: list[EventPayload] = []

    async def body(event: Event, step: Step) -> None:
        seen.append(await step.wait_for_event("ok", "order/approved", timeout=60))

    assert (await outcome(body, discovery(done("ok", octets(payload), "event_wait"))))["type"] == "completed"
    (received,) = seen
    assert received.payload == bytes(received) == payload
    if payload.startswith(b"{"):
        assert received.data == {"id": 7}
    else:
        with pytest.raises(ConversionError, match="not JSON"):
            _ = received.data


@pytest.mark.req("EVW-07", "INV-05")
@pytest.mark.parametrize("body_kind", ["async", "sync"])
@pytest.mark.parametrize(
    ("name", "category"), [("event_wait", "sdk.timeout"), ("child", "sdk.child_failed"), ("child", "sdk.child_cancelled")]
)
async def test_a_recorded_failure_is_raised_at_its_call(name: str, category: str, body_kind: str) -> None:
    seen: list[StepFailed] = []

    def note(error: StepFailed) -> str:
        seen.append(error)
        return "handled"

    async def async_body(event: Event, step: Step) -> str:
        try:
            return await KINDS[name][0](step)
        except StepFailed as error:
            return note(error)

    def sync_body(event: Event, step: SyncStep) -> str:
        try:
            return KINDS[name][0](step)
        except StepFailed as error:
            return note(error)

    kind = KINDS[name][1]["kind"]
    entry = failed("x", category, "no answer", kind=kind, details={"run_id": text("rn_2")})
    assert (await outcome(async_body if body_kind == "async" else sync_body, discovery(entry)))["result"] == text("handled")
    (error,) = seen
    assert (error.step_id, error.category, error.message, error.details) == ("x", category, "no answer", {"run_id": "rn_2"})


# Durations and instants.


@pytest.mark.req("TMR-02", "TMR-09", "TMR-10", "EVW-11", "INV-07")
@pytest.mark.parametrize(
    ("span", "ms"),
    [
        ("200ms", "200"),
        ("2h30m", "9000000"),
        (timedelta(days=25), "2160000000"),
        (1.5, "1500"),
        ("0.0004s", "1"),
        (timedelta(microseconds=1), "1"),
        (0, "0"),
        ("0s", "0"),
        (-5, "0"),
        (timedelta(seconds=-1), "0"),
        (2**63 / 1000 * 1.0, "9223372036854776000"),
        (f"{2**64 - 1}ms", "18446744073709551615"),
    ],
)
async def test_durations_cross_as_whole_milliseconds(span: Any, ms: str) -> None:
    assert (await declared(lambda step: step.sleep("x", span)))["delay_ms"] == ms
    assert (await declared(lambda step: step.wait_for_event("x", "e", timeout=span)))["timeout_ms"] == ms
    assert (await declared(lambda step: step.invoke("x", "f", None, timeout=span)))["timeout_ms"] == ms


@pytest.mark.req("TMR-11", "EVW-11")
@pytest.mark.parametrize("span", ["soon", "", "1.5", "5 m", f"{2**64}ms", 2**64, float("inf"), float("nan"), True, None, b"1s"])
async def test_what_is_no_duration_is_refused_before_it_is_declared(span: Any) -> None:
    calls: list[Call] = [lambda step: step.sleep("x", span), lambda step: step.wait_for_event("x", "e", timeout=span)]
    if span is not None:
        calls.append(lambda step: step.invoke("x", "f", None, timeout=span))
    for call in calls:
        category, message = await refused(call)
        assert category == "ryusen_sdk.MisuseError"
        assert "step 'x'" in message


@pytest.mark.req("TMR-12")
@pytest.mark.parametrize(
    ("when", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), "0"),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "1"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "0"),
        (datetime(1969, 12, 31, 23, 59, 59, 998_999, tzinfo=UTC), "-1"),
        (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=timezone(timedelta(hours=5, minutes=45))), "1729975500000"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), "-62135647200000"),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-12))), "253402344000000"),
    ],
)
async def test_an_instant_stays_absolute_and_rounds_up(when: datetime, ms: str) -> None:
    assert await declared(lambda step: step.sleep_until("x", when)) == {"kind": "timer", "step_id": "x", "deadline_ms": ms}


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), datetime(2030, 1, 1).date(), 1_893_456_000, "2030-01-01", timedelta(1), None])  # noqa: DTZ001
async def test_what_names_no_instant_is_refused(when: Any) -> None:
    category, message = await refused(lambda step: step.sleep_until("x", when))
    assert category == "ryusen_sdk.MisuseError"
    assert "the instant of step 'x'" in message
    assert "time zone" in message


# Waits and emissions.


@pytest.mark.parametrize(
    "metadata", [{"a": 1}, {1: "a"}, {"a": None}, ["a"], {"a": "x" * 1025}, {str(n): "" for n in range(65)}, {"\ud800": ""}]
)
async def test_metadata_that_is_no_bounded_text_is_refused(metadata: Any) -> None:
    for call in (
        lambda step: step.wait_for_event("x", "e", match=metadata, timeout=1),
        lambda step: step.send_event("x", "e", None, metadata=metadata),
    ):
        category, message = await refused(call)
        assert category == "ryusen_sdk.MisuseError"
        assert message.startswith("step 'x'")


@pytest.mark.parametrize("name", ["", "x" * 257, "a\x00b", "\ud800", 5, None])
async def test_a_bad_event_name_is_refused(name: Any) -> None:
    for call in (lambda step: step.wait_for_event("x", name, timeout=1), lambda step: step.send_event("x", name)):
        category, message = await refused(call)
        assert category == "ryusen_sdk.MisuseError"
        assert message.startswith("step 'x'")


@pytest.mark.req("EVW-01")
async def test_a_wait_names_its_timeout() -> None:
    category, message = await refused(lambda step: step.wait_for_event("x", "e"))
    assert category == "TypeError"
    assert "timeout" in message


@pytest.mark.req("EMT-02")
@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"{"), b"{"),
        (memoryview(b"xy")[1:], b"y"),
        ({"b": 1, "a": [True, None, "ü"]}, '{"b":1,"a":[true,null,"ü"]}'.encode()),
        ("text", b'"text"'),
        (None, b"null"),
    ],
)
async def test_a_payload_is_bytes_as_they_are_or_json(data: Any, payload: bytes) -> None:
    assert (await declared(lambda step: step.send_event("x", "e", data)))["payload"] == octets(payload)
    assert payload_of(data) == payload, "the client submits the same bytes"


@pytest.mark.req("EMT-04")
async def test_an_emission_inherits_no_metadata() -> None:
    assert discovery()["input"]["metadata"] == {"k": "v"}
    assert (await declared(lambda step: step.send_event("x", "e")))["metadata"] == {}


async def test_data_without_a_json_form_is_refused() -> None:
    category, message = await refused(lambda step: step.send_event("x", "e", {"price": float("nan")}))
    assert category == "ryusen_sdk.ConversionError"
    assert "$.price" in message
    assert "the data of step 'x'" in message
    category, message = await refused(lambda step: step.send_event("x", "e", b"x" * (1024 * 1024 + 1)))
    assert category == "ryusen_sdk.MisuseError"
    assert "1 MiB" in message


# Children.


@dataclass
class Box:
    id: int
    label: str | None = None


def packing() -> Ryusen:
    app = Ryusen("shop")

    @app.function(id="pack-box")
    async def pack(event: Event[Box], step: Step) -> dict[str, int]:
        assert isinstance(event.data, Box)
        return {"id": event.data.id}

    @functools.wraps(pack)
    async def traced(event: Any, step: Any) -> Any:
        return await pack(event, step)

    def twice(event: Event, step: SyncStep) -> None: ...

    app.function(id="one")(twice)
    app.function(id="two")(twice)

    class Shelf:
        def put(self, event: Event, step: SyncStep) -> None: ...

    shelf = Shelf()
    app.function(id="shelve")(shelf.put)

    @app.function()
    async def fulfil(event: Event, step: Step) -> Any:
        which = {"pack": pack, "traced": traced, "twice": twice, "method": shelf.put, "lambda": lambda e, s: None, "number": 5}
        if event.data["call"] in which:
            return await step.invoke("x", which[event.data["call"]], Box(7))  # type: ignore[call-overload]
        return await step.invoke("x", "pack-box", Box(7))

    return app


def asking(call: str) -> JsonDict:
    return discovery(data=b'{"call": "%s"}' % call.encode())


@pytest.mark.req("INV-01")
@pytest.mark.parametrize("call", ["pack", "traced"])
async def test_a_function_stands_for_its_id_and_says_what_it_takes(call: str) -> None:
    declaration = (await outcome_of(packing(), asking(call)))["declaration"]
    assert declaration["function"] == "pack-box"
    assert declaration["input"] == {"type": "object", "value": {"id": number(7), "label": NULL}}
    assert "timeout_ms" not in declaration


async def test_a_function_of_a_file_that_was_executed_twice_stands_for_its_id_still() -> None:
    app = Ryusen("shop")
    source = "async def pack(event, step): ...\n"
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for module in (first, second):
        exec(compile(source, "shop.py", "exec"), module)
        app.function(id="pack-box")(module["pack"])

    @app.function()
    async def fulfil(event: Event, step: Step) -> None:
        await step.invoke("x", first["pack"], None)

    assert (await outcome_of(app, discovery()))["declaration"]["function"] == "pack-box"


async def test_functions_that_one_factory_made_are_told_apart() -> None:
    app = Ryusen("shop")

    def made(name: str) -> Any:
        async def body(event: Event, step: Step) -> str:
            return name

        return body

    one, two, none = made("one"), made("two"), made("none")
    app.function(id="one")(one)
    app.function(id="two")(two)

    @app.function()
    async def fulfil(event: Event, step: Step) -> None:
        await step.invoke("x", none if event.data == "none" else two, None)

    assert (await outcome_of(app, discovery(data=b'"two"')))["declaration"]["function"] == "two"
    assert (await outcome_of(app, discovery(data=b'"none"')))["failure"]["category"] == "ryusen_sdk.MisuseError"


async def test_an_input_that_is_not_portable_and_of_no_declared_type_is_refused() -> None:
    for call in ("id", "method"):
        failure = (await outcome_of(packing(), asking(call)))["failure"]
        assert failure["category"] == "ryusen_sdk.ConversionError"
        assert "the input of step 'x'" in failure["message"]


@pytest.mark.parametrize(
    ("call", "told"), [("twice", "several ids ('one', 'two')"), ("lambda", "no function of this application"), ("number", "not 5 (int)")]
)
async def test_what_is_no_function_of_the_application_is_refused(call: str, told: str) -> None:
    failure = (await outcome_of(packing(), asking(call)))["failure"]
    assert failure["category"] == "ryusen_sdk.MisuseError"
    assert told in failure["message"]


async def test_a_child_finds_its_input_and_its_parent() -> None:
    seen: list[Event[Any]] = []

    async def body(event: Event[Box], step: Step) -> int:
        seen.append(event)
        return event.data.id

    document = discovery()
    value = {"type": "object", "value": {"id": number(7), "label": NULL}}
    document["input"] = {"kind": "child", "parent_run_id": "rn_0", "parent_step_id": "pack", "value": value}
    assert (await outcome(body, document))["result"] == number(7)
    (event,) = seen
    assert event.parent is not None
    assert (event.parent.run_id, event.parent.step_id) == ("rn_0", "pack")
    assert (event.id, event.name, event.payload, event.metadata) == ("", "", b"", {})
    assert event.received_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


async def test_a_childs_result_is_given_as_the_type_asked_for() -> None:
    async def body(event: Event, step: Step) -> str:
        return repr(await step.invoke("x", "pack-box", None, returns=Box))

    given = {"type": "object", "value": {"id": number(7)}}
    assert (await outcome(body, discovery(done("x", given, "child"))))["result"] == text(
        "Box(id=7, label=None)".replace("Box", Box.__qualname__)
    )
    misfit = (await outcome(body, discovery(done("x", text("none"), "child"))))["failure"]
    assert misfit["category"] == "ryusen_sdk.ConversionError"


# Beside the targets of a run.


@pytest.mark.parametrize("name", KINDS)
async def test_no_kind_but_run_is_a_target(name: str) -> None:
    call, declaration = KINDS[name]
    entry = done("x", octets(b"1") if name == "event_wait" else NULL, declaration["kind"])
    body = body_of(call, "async")
    assert (await outcome(body, forward("x")))["reason"] == "not_met"
    assert (await outcome(body, compensation("x", entry)))["reason"] == "not_met"
    assert await outcome(body, forward("later")) == {
        "type": "target_not_found",
        "reason": "hidden",
        "hidden_by": "x",
        "attempt": 1,
        "attempt_generation": 1,
    }


@pytest.mark.parametrize("name", KINDS)
async def test_a_completed_id_met_as_another_kind(name: str) -> None:
    async def body(event: Event, step: Step) -> str:
        await KINDS[name][0](step)
        return await step.run("later", lambda: "ran", compensate=lambda _: "undone")

    entry = done("x", {"type": "object", "value": {"charge": text("ch_7")}}, "run")
    blocked = await outcome(body, discovery(entry))
    assert (blocked["type"], blocked["reason"], blocked["step_id"]) == ("definition_blocked", "declaration_conflict", "x")
    assert blocked["duplicate"]["file"] == __file__
    assert (await outcome(body, forward("later", entry)))["hidden_by"] == "x"
    assert (await outcome(body, compensation("later", entry, done("later", text("ran")))))["result"] == text("undone")


async def test_the_same_id_as_two_kinds_in_one_pass_is_a_duplicate() -> None:
    async def body(event: Event, step: Step) -> None:
        await step.sleep("x", 1)
        await step.send_event("x", "e")

    blocked = await outcome(body, discovery(done("x", NULL, "timer")))
    assert (blocked["reason"], blocked["step_id"]) == ("duplicate_step_id", "x")
    assert blocked["duplicate"]["line"] == blocked["first"]["line"] + 1
