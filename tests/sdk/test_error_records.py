"""Any exception becomes one bounded record, whatever it does."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import msgspec
import pytest

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.limits import ERROR_BYTES_MAX, ERROR_CAUSE_DEPTH_MAX, ERROR_MESSAGE_BYTES_MAX
from ryusen_sdk import Failure, MisuseError, RyusenError, StepFailed, Terminal
from ryusen_sdk.errors import record_of


def raised(error: BaseException) -> ErrorRecord:
    try:
        raise error  # noqa: TRY301 - a traceback is wanted
    except BaseException as caught:
        return record_of(caught)


class CardDeclined(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.lock = threading.Lock()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Surrogate(Exception):
    def __str__(self) -> str:
        return "bad \ud800 text"


class Hostile(Exception):
    __module__ = 5  # type: ignore[assignment]

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")


def cycle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def deep_stack(depth: int) -> None:
    if depth == 0:
        raise ValueError("deep")
    deep_stack(depth - 1)


@pytest.mark.req("VAL-09")
@pytest.mark.parametrize(
    "error",
    [
        CardDeclined(51, "no funds"),
        Unprintable(),
        Surrogate(),
        Hostile(),
        ExceptionGroup("several", [ValueError("a"), CardDeclined(1, "b")]),
        cycle(),
        ValueError("x" * 10_000_000),
        ValueError("é" * 1_000_000),
        ValueError(""),
        ValueError(),
        ValueError(None),
        ValueError("🎉"),
        ValueError("nul \x00 and \x1b[31m"),
        KeyError("k"),
        RecursionError("deep"),
        Failure("x", details={"a": object(), 5: 1, "ok": 1}),  # type: ignore[dict-item]
        Failure("x", details={"big": "x" * 3_000_000}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_exception_gives_a_record_within_the_limits(error: BaseException) -> None:
    record = raised(error)
    data = msgspec.json.encode(record)
    assert len(data) <= ERROR_BYTES_MAX
    assert len(record.message.encode()) <= ERROR_MESSAGE_BYTES_MAX
    assert record.category
    assert json.loads(data)["retryable"] is (not isinstance(error, Failure))


def test_the_category_is_the_qualified_name() -> None:
    assert raised(ValueError("x")).category == "ValueError"
    assert raised(CardDeclined(1, "x")).category == f"{__name__}.CardDeclined"


def test_a_stack_of_thousands_of_frames_is_cut() -> None:
    import sys

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        deep_stack(5_000)
    except ValueError as error:
        record = record_of(error)
    finally:
        sys.setrecursionlimit(limit)
    assert record.stack is not None
    assert len(record.stack) < 20_000
    assert "deep_stack" in record.stack


def test_causes_are_kept_in_order_and_bounded() -> None:
    error: BaseException = ValueError("root")
    for level in range(20):
        outer = ValueError(f"level {level}")
        outer.__cause__ = error
        error = outer
    record: ErrorRecord | None = record_of(error)
    messages: list[str] = []
    while record is not None:
        messages.append(record.message)
        record = record.cause
    assert messages[:2] == ["level 19", "level 18"]
    assert len(messages) == ERROR_CAUSE_DEPTH_MAX + 1
    assert "cut" in messages[-1]


def in_a_handler(*, suppressed: bool) -> None:
    try:
        {}["inner"]
    except KeyError:
        if suppressed:
            raise ValueError("outer") from None
        raise ValueError("outer")  # noqa: B904 - the implicit context is the point


def test_context_counts_unless_suppressed() -> None:
    with pytest.raises(ValueError, match="outer") as raised_in_context:
        in_a_handler(suppressed=False)
    cause = record_of(raised_in_context.value).cause
    assert cause is not None
    assert cause.category == "KeyError"
    with pytest.raises(ValueError, match="outer") as raised_alone:
        in_a_handler(suppressed=True)
    assert record_of(raised_alone.value).cause is None


@pytest.mark.parametrize("message", ["", None, "x" * 1_000_000, "🎉"])
@pytest.mark.parametrize("kind", [Failure, Terminal])
def test_the_flag_alone_decides_on_a_retry(kind: type[Failure], message: object) -> None:
    assert raised(kind(message)).retryable is False
    assert raised(Failure(message, retryable=True)).retryable is True


def test_a_failure_subclass_names_itself() -> None:
    class Declined(Failure):
        retryable = True

    record = raised(Declined("no funds"))
    assert record.category == f"{__name__}.{Declined.__qualname__}"
    assert record.retryable is True
    assert raised(Declined("x", retryable=False)).retryable is False


@pytest.mark.parametrize("category", ["", "sdk.timeout", 5])
def test_a_bad_category_is_refused(category: Any) -> None:
    with pytest.raises(MisuseError):
        Failure("x", category=category)


def test_details_that_are_not_portable_are_marked() -> None:
    record = raised(Failure("x", details={"bad": {1}, "good": 1}))
    assert record.details is not None
    assert json.loads(bytes(record.details["good"])) == {"type": "i64", "value": "1"}
    assert "not portable" in json.loads(bytes(record.details["bad"]))["value"]


def test_a_step_failure_gives_back_its_record() -> None:
    inner = ErrorRecord("X", "y", retryable=True)
    original = ErrorRecord("shop.Declined", "no funds", retryable=False, cause=inner)
    record = raised(StepFailed("charge", original, {}))
    assert msgspec.structs.replace(record, stack=None) == original


def test_everything_is_one_family_and_survives_pickling() -> None:
    error = StepFailed("charge", ErrorRecord("X", "y", retryable=False), {"a": 1})
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, RyusenError)
    assert (copy.step_id, copy.category, copy.details) == ("charge", "X", {"a": 1})
    assert RyusenError.__module__ == "ryusen_sdk"
