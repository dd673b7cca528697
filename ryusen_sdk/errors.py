"""What goes wrong, as Python exceptions and as the error record of the wire.

    RyusenError
    ├── DefinitionError        a function, trigger or setting that cannot be registered
    │   └── DuplicateFunction  two functions with one id; names both places
    ├── MisuseError            a call of the SDK that cannot mean anything: no await, nothing callable, a bad duration
    ├── ConversionError        a value that is not portable, or cannot become the asked type; `path` leads to it
    ├── StepFailed             a step's recorded failure, raised again at its call
    ├── Failure                raised by user code to choose the record
    │   └── Terminal           the short form for "do not retry"
    ├── TargetError            a TARGET that leads to no `Ryusen` object
    ├── WorkerError            a connected worker that must stop
    │   ├── RegistrationRejected
    │   └── WorkerReplaced
    └── ClientError            a call of the HTTP API that did not succeed
        ├── ServerUnreachable  no answer; a mutation may have happened
        └── RequestRefused     the server said no and why

Owns the mapping from any exception to an `ErrorRecord` and back; it never raises, whatever the exception does. Knows nothing of
runs or transports.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final, cast

import msgspec

from ryusen_protocol.clipping import clip_error
from ryusen_protocol.errors import (
    RESERVED_PREFIX,
    SDK_ATTEMPT_TIMEOUT,
    SDK_INVALID_RESULT,
    ErrorRecord,
)
from ryusen_protocol.limits import ERROR_CAUSE_DEPTH_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN_FOLDER: Final = __file__.removesuffix("errors.py")
_STACK_FRAMES_MAX: Final = 40
_STACK_CHARACTERS_MAX: Final = 16 * 1024
_UNTOLD: Final = "<this exception cannot be described>"
_MEMBERS_MAX: Final = 32
_MEMBER_CHARACTERS_MAX: Final = 200
_CHAIN_MAX: Final = ERROR_CAUSE_DEPTH_MAX + 2
"""The record, its causes, and one more than the limit, so that clipping sees that there was more and marks the cut."""


class RyusenError(Exception):
    """Everything the SDK raises by itself."""


class DefinitionError(RyusenError):
    """A function, trigger or setting that cannot be registered."""


class DuplicateFunction(DefinitionError):
    """Two functions with one id. The message names both places."""


class MisuseError(RyusenError):
    """A call of the SDK that cannot mean anything; the message says what to write instead."""


class ConversionError(RyusenError):
    """A value that is not portable, or cannot become the asked type. `path` (`$.items[3].price`) leads to the place, `why` explains."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why

    def __reduce__(self) -> tuple[type[ConversionError], tuple[str, str]]:
        return type(self), (self.path, self.why)


class Failure(RyusenError):
    """Raised in a callback or a function to choose the failure that is recorded.

    `category` is stable text to branch on, by default the type's qualified name; `sdk.*` is reserved. `retryable` alone decides
    whether the retry policy applies. `details` are portable values.
    """

    retryable: bool = False

    def __init__(
        self,
        message: object = "",
        *,
        category: str | None = None,
        retryable: bool | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        if category is not None:
            _check_category(category)
        self.message = "" if message is None else _text(message)
        self.category = category if category is not None else qualified_name(type(self))
        if retryable is not None:
            self.retryable = retryable
        self.details: dict[str, object] = dict(details) if details else {}

    def __str__(self) -> str:
        return self.message


class Terminal(Failure):
    """A failure that is not retried."""

    def __init__(self, message: object = "", *, category: str | None = None, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message, category=category, retryable=False, details=details)


class StepFailed(RyusenError):
    """A step's recorded failure, raised at its call without running the callback again.

    `details` holds plain Python values, `cause` the recorded cause. Letting it escape the function keeps the record as it is.
    """

    def __init__(self, step_id: str, record: ErrorRecord, details: dict[str, object]) -> None:
        super().__init__(f"step {step_id!r} failed: {record.category}: {record.message}")
        self.step_id = step_id
        self.category = record.category
        self.message = record.message
        self.retryable = record.retryable
        self.details = details
        self.cause = record.cause
        self.record = record

    def __reduce__(self) -> tuple[type[StepFailed], tuple[str, ErrorRecord, dict[str, object]]]:
        return type(self), (self.step_id, self.record, self.details)


class TargetError(RyusenError):
    """A TARGET that leads to no `Ryusen` object. The message names the place and the fix.

    `at_import`: the code was found, and raised while it was imported.
    """

    def __init__(self, message: str, *, at_import: bool = False) -> None:
        super().__init__(message)
        self.at_import = at_import


class WorkerError(RyusenError):
    """A connected worker that must stop."""


class RegistrationRejected(WorkerError):
    """The server refused the registration; trying again would not help. `code` is stable text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"the server rejected this worker ({code}): {message}")
        self.code = code
        self.message = message


class WorkerReplaced(WorkerError):
    """Another process registered under this worker's instance id."""


class ClientError(RyusenError):
    """A call of the HTTP API that did not succeed."""


class ServerUnreachable(ClientError):
    """No usable answer came. What a mutation did is not known; an event with a key may be sent again."""


class RequestRefused(ClientError):
    """The server refused the request. `code` is stable, `status` the HTTP status, `detail` says what to do."""

    def __init__(self, code: str, status: int, detail: str) -> None:
        super().__init__(f"{detail} ({code})")
        self.code = code
        self.status = status
        self.detail = detail


for _public in (
    RyusenError,
    DefinitionError,
    DuplicateFunction,
    MisuseError,
    ConversionError,
    Failure,
    Terminal,
    StepFailed,
    TargetError,
    WorkerError,
    RegistrationRejected,
    WorkerReplaced,
    ClientError,
    ServerUnreachable,
    RequestRefused,
):
    # The public name is what a category records and a traceback shows; the file it stands in may move.
    _public.__module__ = "ryusen_sdk"
del _public


def qualified_name(kind: type) -> str:
    """The category of an exception type: its qualified name, without `builtins`."""
    module = cast("object", kind.__module__)
    return kind.__qualname__ if module == "builtins" or not isinstance(module, str) else f"{module}.{kind.__qualname__}"


def record_of(error: BaseException) -> ErrorRecord:
    """The record of any exception, within every limit. Never raises.

    An ordinary exception is retryable; a `Failure` says for itself; a `StepFailed` gives back the record it was raised from. Of a
    group the first member is the cause, and the detail `exceptions` lists them all.
    """
    try:
        return clip_error(_chain(error))
    except BaseException:  # noqa: BLE001 - a record must come whatever the user's exception does
        return ErrorRecord(category=_safe_name(error), message=_UNTOLD, retryable=not isinstance(error, Failure))


def attempt_timeout(timeout_ms: int, error: BaseException | None) -> ErrorRecord:
    """The record of an async callback that was cancelled at its timeout and has unwound, with what it raised on the way."""
    cause = None if error is None else record_of(error)
    return clip_error(
        ErrorRecord(SDK_ATTEMPT_TIMEOUT, f"the callback was cancelled after its timeout of {timeout_ms} ms", retryable=True, cause=cause)
    )


def invalid_result(what: str, error: ConversionError) -> ErrorRecord:
    """The record of a result that cannot be kept: the effect happened, so it is never retried."""
    return clip_error(ErrorRecord(SDK_INVALID_RESULT, f"{what} cannot be recorded: {error}", retryable=False))


def _chain(error: BaseException) -> ErrorRecord:
    links: list[BaseException] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(links) < _CHAIN_MAX:
        links.append(link)
        seen.add(id(link))
        link = None if isinstance(link, StepFailed) else _cause_of(link)
    record: ErrorRecord | None = None
    for link in reversed(links):
        record = _one(link, record)
    return cast("ErrorRecord", record)


def _cause_of(error: BaseException) -> BaseException | None:
    """What it came from. One that does not tell has no cause."""
    try:
        if error.__cause__ is not None:
            return error.__cause__
        if error.__context__ is not None and not error.__suppress_context__:
            return error.__context__
        members = _members(error)
        # A group tells little by itself; its first member is what a reader looks for.
        return members[0] if members else None
    except BaseException:  # noqa: BLE001 - user code runs here
        return None


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return cast("BaseExceptionGroup[BaseException]", error).exceptions if isinstance(error, BaseExceptionGroup) else ()


def _one(error: BaseException, cause: ErrorRecord | None) -> ErrorRecord:
    stack = _stack(error)
    if isinstance(error, StepFailed):
        return msgspec.structs.replace(error.record, stack=stack)
    if isinstance(error, Failure):
        return ErrorRecord(
            category=_unreserved(_text(_own(error, "category", None) or qualified_name(type(error)))),
            message=_text(_own(error, "message", "")),
            retryable=bool(_own(error, "retryable", False)),  # noqa: FBT003 - the default, for one that does not tell
            details=_details(_own(error, "details", None)),
            cause=cause,
            stack=stack,
        )
    return ErrorRecord(
        category=_safe_name(error), message=_text(error), retryable=True, details=_listed(_members(error)), cause=cause, stack=stack
    )


def _own(failure: Failure, name: str, default: object) -> object:
    """A member of a user's failure, whose class may never have called ours, or may have made it a property that raises."""
    try:
        return cast("object", getattr(failure, name, default))
    except BaseException:  # noqa: BLE001 - user code runs here
        return default


def _listed(members: tuple[BaseException, ...]) -> dict[str, msgspec.Raw] | None:
    """The members of a group in one line each."""
    if not members:
        return None
    told = [f"{_safe_name(member)}: {_text(member)}"[:_MEMBER_CHARACTERS_MAX] for member in members[:_MEMBERS_MAX]]
    if len(members) > _MEMBERS_MAX:
        told.append(f"… {len(members) - _MEMBERS_MAX} more")
    return _details({"exceptions": told})


def _details(details: object) -> dict[str, msgspec.Raw] | None:
    from ryusen_sdk.convert import to_wire  # convert raises this module's ConversionError, so it is met only when needed

    if not details:
        return None
    kept: dict[str, msgspec.Raw] = {}
    if not isinstance(details, dict):
        return {"details": to_wire(f"<not a dict: {_text(type(details).__name__)}>")}
    for key, value in cast("dict[object, object]", details).items():
        name = _text(key)
        try:
            kept[name] = to_wire(value)
        except ConversionError as refused:
            kept[name] = to_wire(f"<not portable: {_unicode(str(refused))[:200]}>")
    return kept or None


def _stack(error: BaseException) -> str | None:
    try:
        where = error.__traceback__
        own = where
        while own is not None and own.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
            own = own.tb_next
        where = own or where  # from the user's first frame on: how the SDK got there helps nobody
        if where is None:
            return None
        text = "".join(traceback.format_tb(where, limit=-_STACK_FRAMES_MAX))
        return _unicode(text[-_STACK_CHARACTERS_MAX:])
    except BaseException:  # noqa: BLE001 - it is diagnostic only: a source that cannot be read costs no record
        return None


def _check_category(category: object) -> None:
    if not isinstance(category, str) or not category:
        raise MisuseError(f"a failure's category is non-empty text, not {category!r}")
    if category.startswith(RESERVED_PREFIX):
        raise MisuseError(f"the category {category!r} is reserved: names that begin with {RESERVED_PREFIX!r} belong to the SDK")


def _safe_name(error: BaseException) -> str:
    try:
        return _unreserved(_unicode(qualified_name(type(error)))) or "Exception"
    except BaseException:  # noqa: BLE001 - a metaclass may do anything
        return "Exception"


def _unreserved(category: str) -> str:
    """A class of a user's own module `sdk` is not one of the SDK's failures."""
    return f"python.{category}" if category.startswith(RESERVED_PREFIX) else category


def _text(value: object) -> str:
    """Its text, whatever `__str__` does."""
    try:
        return _unicode(value if type(value) is str else str(value))
    except BaseException:  # noqa: BLE001 - user code runs here
        return _UNTOLD


def _unicode(text: str) -> str:
    """Exactly `str`, and valid Unicode: a lone surrogate becomes its escape."""
    return str.encode(text, "utf-8", "backslashreplace").decode()
