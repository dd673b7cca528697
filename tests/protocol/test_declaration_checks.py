"""Domains of declarations: both ends of every number, the members a kind does not take, names, sizes."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.declaration_checks import (
    InvalidDeclaration,
    check_declaration,
    child_input,
    emitted_payload,
    timeout_of,
    timer_deadline_ms,
    timer_delay_ms,
)
from ryusen_protocol.declarations import (
    ChildDeclaration,
    Declaration,
    EmissionDeclaration,
    EventWaitDeclaration,
    RetryPolicy,
    RunDeclaration,
    TimerDeclaration,
)
from ryusen_protocol.limits import METADATA_BYTES_MAX, METADATA_PAIRS_MAX, MIB
from ryusen_protocol.values import Value, encode

_decode = msgspec.json.Decoder(Declaration).decode


def raw(value: Value) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def timer(**members: str | None) -> TimerDeclaration:
    return TimerDeclaration("t", **members)  # type: ignore[arg-type]


def wait(timeout_ms: str = "0", name: str = "paid", **correlation: str) -> EventWaitDeclaration:
    return EventWaitDeclaration("w", name, correlation, timeout_ms)  # type: ignore[arg-type]


def child(value: Value = None, timeout_ms: str | None = None, function: str = "pack") -> ChildDeclaration:
    return ChildDeclaration("c", function, raw(value), timeout_ms)  # type: ignore[arg-type]


def emission(payload: Value = b"", name: str = "shipped", metadata: dict[str, str] | None = None) -> EmissionDeclaration:
    return EmissionDeclaration("e", name, raw(payload), metadata or {})  # type: ignore[arg-type]


@pytest.mark.req("TMR-01", "TMR-02")
def test_a_timer_has_exactly_one_number_within_its_domain() -> None:
    for text, number in (("0", 0), ("1", 1), ("18446744073709551615", 2**64 - 1)):
        check_declaration(timer(delay_ms=text))
        assert (timer_delay_ms(timer(delay_ms=text)), timer_deadline_ms(timer(delay_ms=text))) == (number, None)
    for text, number in (("-9223372036854775808", -(2**63)), ("-1", -1), ("0", 0), ("9223372036854775807", 2**63 - 1)):
        check_declaration(timer(deadline_ms=text))
        assert (timer_deadline_ms(timer(deadline_ms=text)), timer_delay_ms(timer(deadline_ms=text))) == (number, None)
    for members in ({}, {"delay_ms": "1", "deadline_ms": "1"}, {"delay_ms": None, "deadline_ms": None}):
        with pytest.raises(InvalidDeclaration, match="exactly one"):
            check_declaration(timer(**members))


NO_DELAY = ["-1", "18446744073709551616", "", "+1", "01", "-0", "1.0", "1e3", " 1", "1 ", "0x1", "\u0661", "1" * 10_000]
NO_INSTANT = ["-9223372036854775809", "9223372036854775808", "", "-0", "00", "now"]


@pytest.mark.req("TMR-02")
@pytest.mark.parametrize("text", NO_DELAY, ids=range(len(NO_DELAY)))
def test_no_other_text_is_a_delay_or_a_timeout(text: str) -> None:
    for declaration in (timer(delay_ms=text), wait(text), child(timeout_ms=text)):
        with pytest.raises(InvalidDeclaration) as refused:
            check_declaration(declaration)
        assert len(str(refused.value)) < 300


@pytest.mark.req("TMR-02")
@pytest.mark.parametrize("text", NO_INSTANT)
def test_no_other_text_is_an_instant(text: str) -> None:
    with pytest.raises(InvalidDeclaration, match="deadline_ms"):
        check_declaration(timer(deadline_ms=text))


def test_waits_and_children_have_their_timeouts() -> None:
    assert timeout_of(wait("18446744073709551615")) == 2**64 - 1
    assert timeout_of(child()) is None
    assert timeout_of(child(timeout_ms="0")) == 0


@pytest.mark.req("EMT-02", "EMT-03")
def test_a_payload_is_exactly_its_bytes_and_nothing_but_bytes() -> None:
    for payload in (b"", b'{"a": 1}', b"\x00\xff", b"x" * MIB):
        check_declaration(emission(payload))
        assert emitted_payload(emission(payload)) == payload
    others: list[Value] = [{"type": "bytes", "value": "e30="}, "text", None, [b""], b"x" * (MIB + 1)]
    for payload in others:
        with pytest.raises(InvalidDeclaration, match="payload"):
            check_declaration(emission(payload))
    for text in (b'{"type":"bytes","value":"e30"}', b'{"a":1}', b'"e30="', b'{"type":"bytes","value":"e30=", "type":"string"}'):
        with pytest.raises(InvalidDeclaration, match="payload"):
            check_declaration(msgspec.structs.replace(emission(), payload=msgspec.Raw(text)))


def test_an_input_is_a_portable_value_within_its_limit_in_canonical_form() -> None:
    spelled = ChildDeclaration("c", "pack", msgspec.Raw(b'{ "value":"7", "type":"i64" }'))  # type: ignore[arg-type]
    assert child_input(spelled) == raw(7)
    check_declaration(child(b"x" * MIB))
    too_large: list[Value] = [b"x" * (MIB + 1), "x" * MIB, ["x" * 1_000 for _ in range(1_100)]]
    for value in too_large:
        with pytest.raises(InvalidDeclaration, match="input"):
            check_declaration(child(value))
    with pytest.raises(InvalidDeclaration, match="portable"):
        check_declaration(msgspec.structs.replace(child(), input=msgspec.Raw(b"7")))


PAIRS = {f"k{index}": "v" for index in range(METADATA_PAIRS_MAX + 1)}


@pytest.mark.parametrize("pairs", [PAIRS, {"k": "é" * METADATA_BYTES_MAX}, {"k" * (METADATA_BYTES_MAX + 1): ""}, {"k": "\ud800"}])
def test_pairs_are_bounded(pairs: dict[str, str]) -> None:
    for declaration in (wait(**pairs), emission(metadata=pairs)):
        with pytest.raises(InvalidDeclaration, match=r"metadata|correlation"):
            check_declaration(declaration)


@pytest.mark.parametrize("name", ["", "x" * 257, "a\x00b", "\ud800"])
def test_names_are_identifiers(name: str) -> None:
    for declaration in (
        wait(name=name),
        emission(name=name),
        child(function=name),
        msgspec.structs.replace(timer(delay_ms="0"), step_id=name),
    ):
        with pytest.raises(InvalidDeclaration):
            check_declaration(declaration)


OTHERS = [timer(delay_ms="1"), wait(), child(), emission()]


@pytest.mark.req("TMR-08", "EVW-10", "INV-08", "EMT-11")
@pytest.mark.parametrize("declaration", OTHERS, ids=lambda declaration: type(declaration).__name__)
def test_what_only_a_run_step_takes_is_kept_in_reading_and_refused_by_name(declaration: Declaration) -> None:
    written = msgspec.json.encode(declaration)
    assert _decode(written) == declaration
    document = msgspec.json.decode(written)
    assert not {"has_compensation", "retry", "compensation", "attempt_timeout_ms"} & set(document)
    of_retry = "max_attempts" if isinstance(declaration, EmissionDeclaration) else "retry"
    refused: dict[str, tuple[object, str]] = {
        "has_compensation": (True, "compensator"),
        "compensation": ({"retry": {}}, "compensator"),
        "attempt_timeout_ms": (5, "attempt timeout"),
        "retry": ({"max_attempts": 2}, of_retry),
    }
    for member, (content, why) in refused.items():
        with pytest.raises(InvalidDeclaration, match=why):
            check_declaration(_decode(msgspec.json.encode({**document, member: content})))
    for member in ("compensation", "attempt_timeout_ms", "retry"):
        check_declaration(_decode(msgspec.json.encode({**document, member: None})))
    check_declaration(_decode(msgspec.json.encode({**document, "has_compensation": False})))


def test_one_attempt_is_all_an_emission_may_ask_for() -> None:
    check_declaration(msgspec.structs.replace(emission(), retry=RetryPolicy(max_attempts=1)))


@pytest.mark.req("EMT-05")
def test_metadata_may_be_missing_when_read_and_is_always_written() -> None:
    read = _decode(b'{"kind":"emission","step_id":"e","event_name":"shipped","payload":{"type":"bytes","value":""}}')
    assert isinstance(read, EmissionDeclaration)
    assert read.metadata == {}
    assert msgspec.json.decode(msgspec.json.encode(read))["metadata"] == {}


def test_the_policies_of_a_run_step_are_checked_too() -> None:
    check_declaration(RunDeclaration("r"))  # type: ignore[arg-type]
    with pytest.raises(InvalidDeclaration, match="max_attempts 0"):
        check_declaration(RunDeclaration("r", retry=RetryPolicy(max_attempts=0)))  # type: ignore[arg-type]
