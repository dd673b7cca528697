"""What of a worker's answer is recorded: canonical values, clipped errors, a bounded replay."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.errors import SDK_INVALID_RESULT, ErrorRecord
from ryusen_protocol.limits import ERROR_BYTES_MAX, KIB, MIB, NESTING_MAX, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.outcome import CallbackFailed, Succeeded
from ryusen_server.core.outcomes import ENTRY_OVERHEAD_BYTES, NULL_VALUE, portable, recordable, replayable
from tests.core.driving import Driver, error, raw


def test_a_value_is_kept_in_its_canonical_form() -> None:
    assert portable(msgspec.Raw(b' { "value": "1" , "type": "i64" } ')) == raw(1)


def test_the_null_that_stands_for_an_unportable_value_is_canonical() -> None:
    assert raw(None) == NULL_VALUE


def nested(levels: int) -> msgspec.Raw:
    return msgspec.Raw(b'{"type":"array","value":[' * levels + b'{"type":"null"}' + b"]}" * levels)


@pytest.mark.parametrize(
    "value",
    [
        msgspec.Raw(b"7"),
        msgspec.Raw(b"{}"),
        msgspec.Raw(b'{"type":"i64","value":7}'),
        msgspec.Raw(b'{"type":"f64","value":NaN}'),
        msgspec.Raw(b"not json"),
        msgspec.Raw(b""),
        nested(NESTING_MAX + 1),
        nested(100_000),
        msgspec.Raw(b'{"type":"string","value":"' + b"x" * (2 * MIB) + b'"}'),
    ],
    ids=["bare", "empty object", "number for decimal", "NaN", "no JSON", "nothing", "nested", "nested deeply", "too large"],
)
def test_what_is_no_portable_value_becomes_a_failure_that_is_not_retried(value: msgspec.Raw) -> None:
    failure = portable(value)
    assert isinstance(failure, ErrorRecord)
    assert (failure.category, failure.retryable) == (SDK_INVALID_RESULT, False)
    assert len(failure.message) < 1_000


def test_the_largest_value_fits() -> None:
    room = 2 * MIB - len(bytes(raw("")))
    assert portable(raw("x" * room)) == raw("x" * room)


def full(left: int) -> Driver:
    """A run whose replay budget has that many bytes left."""
    driver = Driver(checked=False)
    driver.run.replay_bytes = REPLAY_BUDGET_BYTES_MAX - left
    return driver


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_a_result_is_counted_against_the_budget_and_leaves_the_reserve(spare: int, fits: bool) -> None:
    value = raw("x" * 1_000)
    run = full(REPLAY_RESERVE_BYTES + len(bytes(value)) + ENTRY_OVERHEAD_BYTES + spare).run
    outcome = replayable(run, value)
    assert (outcome == value) is fits
    if isinstance(outcome, ErrorRecord):
        assert outcome.category == SDK_INVALID_RESULT
        assert f"{REPLAY_BUDGET_BYTES_MAX:,}" in outcome.message


def test_results_that_together_pass_the_budget_fail_one_step_and_the_run_goes_on() -> None:
    driver = Driver(checked=False)
    index = 0
    while True:
        driver.declare(f"s{index}", assign=True)
        driver.succeed("x" * MIB)
        if driver.step(f"s{index}").state == "failed":
            break
        index += 1
        assert index < 9
    failure = driver.step(f"s{index}").failure
    assert failure is not None
    assert (failure.category, driver.run.status) == (SDK_INVALID_RESULT, "running")
    assert len(driver.step(f"s{index}").attempts) == 1
    assert driver.run.replay_bytes <= REPLAY_BUDGET_BYTES_MAX
    driver.run_step("small", "ok")
    driver.complete("done")
    assert driver.run.outcome == "succeeded"


def test_an_error_within_the_limits_is_kept_whole() -> None:
    failure = ErrorRecord("shop.declined", "no", retryable=True, details={"code": raw(7)}, cause=error("why"), stack="at line 1")
    assert recordable(Driver().run, failure) is failure


@pytest.mark.parametrize("left", [REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES + ENTRY_OVERHEAD_BYTES])
def test_an_error_over_the_limits_is_cut_visibly(left: int) -> None:
    deep: ErrorRecord = error("root")
    for _ in range(50):
        deep = ErrorRecord("x", "y" * 100, retryable=True, cause=deep)
    huge = ErrorRecord("shop.down", "z" * 10 * MIB, retryable=True, details={"big": raw("d" * MIB)}, cause=deep, stack="s" * MIB)
    cut = recordable(full(left).run, huge)
    assert (cut.category, cut.retryable) == ("shop.down", True)
    assert "cut" in cut.message
    size = len(msgspec.json.encode(cut))
    assert size <= (ERROR_BYTES_MAX if left == REPLAY_BUDGET_BYTES_MAX else REPLAY_RESERVE_BYTES)


def test_an_error_that_the_budget_has_no_room_for_keeps_its_message_only() -> None:
    failure = ErrorRecord("shop.down", "no", retryable=False, details={"big": raw("d" * 32 * KIB)}, cause=error())
    cut = recordable(full(REPLAY_RESERVE_BYTES + ENTRY_OVERHEAD_BYTES).run, failure)
    assert (cut.details, cut.cause, cut.retryable) == (None, None, False)
    assert cut.message.startswith("no")
    assert "cut" in cut.message


def test_whatever_a_step_reports_it_completes_and_the_run_moves_on() -> None:
    for outcome in (CallbackFailed(error("x" * 10 * MIB)), Succeeded(nested(100_000))):
        driver = Driver(checked=False)
        driver.declare("a", assign=True)
        driver.answer(outcome)
        assert driver.step("a").state == "failed"
        assert driver.run.replay_bytes <= ERROR_BYTES_MAX + ENTRY_OVERHEAD_BYTES
        driver.complete()
        assert driver.run.outcome == "succeeded"
