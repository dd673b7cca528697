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


class ExitingText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class TextOfAnotherKind(str):
    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("no bytes")


class OddText(Exception):
    def __str__(self) -> str:
        return TextOfAnotherKind("odd \ud800")


class OddClass(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__name__", "__module__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=OddClass):
    pass


class NeverBegan(Failure):
    """Its class never calls ours."""

    def __init__(self, code: int) -> None:
        self.code = code


class EveryMemberRaises(Failure):
    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name in ("category", "message", "retryable", "details"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class OddMembers(Failure):
    def __init__(self) -> None:
        super().__init__("x")
        self.category = 5  # type: ignore[assignment]
        self.message = None  # type: ignore[assignment]
        self.details = [1]  # type: ignore[assignment]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def group_of_groups(depth: int) -> BaseException:
    error: Exception = ValueError("innermost")
    for level in range(depth):
        error = ExceptionGroup(f"level {level}", [error, KeyError(level)])
    return error


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
        Failure("x", details={"deep": nested(200)}),
        Failure("x", details={str(index): "y" * 500 for index in range(1_000)}),
        ExitingText(),
        OddText(),
        NeverBegan(5),
        EveryMemberRaises(),
        OddMembers(),
        ExceptionGroup("many", [ValueError("é" * 10_000)] * 5_000),
        group_of_groups(50),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
        GeneratorExit(),
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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unprintable(), "<this exception cannot be described>"),
        (ExitingText(), "<this exception cannot be described>"),
        (OddText(), "odd \\ud800"),
        (Surrogate(), "bad \\ud800 text"),
        (NeverBegan(5), ""),
        (Hostile("kept"), "kept"),
    ],
)
def test_what_can_be_told_of_a_hostile_exception_is_told(error: BaseException, message: str) -> None:
    record = raised(error)
    assert record.message == message
    assert record.category.endswith(type(error).__qualname__)


def test_the_members_of_a_group_are_listed_and_the_first_is_the_cause() -> None:
    record = raised(ExceptionGroup("several", [CardDeclined(1, "b"), ValueError("a")]))
    assert record.cause is not None
    assert record.cause.category == f"{__name__}.CardDeclined"
    assert record.details is not None
    told = [item["value"] for item in json.loads(bytes(record.details["exceptions"]))["value"]]
    assert told == [f"{__name__}.CardDeclined: (1, 'b')", "ValueError: a"]


def test_a_failure_of_details_too_deep_keeps_its_message() -> None:
    record = raised(Failure("no funds", details={"deep": nested(200), "ok": 1}))
    assert record.message == "no funds"
    assert record.details is not None
    assert "64 levels" in json.loads(bytes(record.details["deep"]))["value"]
    assert json.loads(bytes(record.details["ok"])) == {"type": "i64", "value": "1"}


def test_an_exception_whose_class_does_not_tell_its_name() -> None:
    record = raised(Nameless("x"))
    assert (record.category, record.message) == ("Exception", "x")


def test_a_users_class_never_has_a_category_of_the_sdk() -> None:
    kind = type("timeout", (Exception,), {"__module__": "sdk"})
    assert raised(kind("x")).category == "python.sdk.timeout"


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
