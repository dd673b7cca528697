"""Operator commands on an attempt whose outcome is unknown: the request, its exact reading, and both answers.

Owns what a command says, when it is refused for what it says alone, what makes two commands the same, and the envelopes of both
answers. Knows no attempt, no permission and no clock: a command that reads well may still be refused by the state it meets.

The reading is exact. What a lenient decoder passes over would make another command than the one that was sent: a retry that
also carries a result, a value with a field gone. And no answer repeats what was sent: answers are logged and shown, so they name
places and bounds, never an idempotency key, a value, or the name of a member that is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NoReturn, TypeAlias, assert_never, cast

import msgspec

from ryusen_protocol import canonical, exact_values, strict_json, values
from ryusen_protocol.api import AttemptState, CommandStatus, RunStatus, StepState, TargetState
from ryusen_protocol.errors import RESERVED_PREFIX, ErrorRecord
from ryusen_protocol.ids import AttemptId
from ryusen_protocol.limits import (
    ERROR_BYTES_MAX,
    ERROR_CAUSE_DEPTH_MAX,
    ERROR_DETAILS_BYTES_MAX,
    ERROR_MESSAGE_BYTES_MAX,
    ID_BYTES_MAX,
    NESTING_MAX,
    OPERATOR_COMMAND_BYTES_MAX,
    OPERATOR_RECORD_BYTES_MAX,
)

ENVELOPE_VERSION: Final = 1
"""The version of the request, the acknowledgement and the refusal. Not the protocol's: operators are no workers."""

RefusalCode = Literal[
    "stale",
    "idempotency_key_reused",
    "retry_forbidden",
    "deadline_elapsed",
    "unsupported_version",
    "invalid",
    "limit_exceeded",
    "server",
]

_STATUS: Final[dict[RefusalCode, int]] = {
    "stale": 409,
    "idempotency_key_reused": 409,
    "retry_forbidden": 409,
    "deadline_elapsed": 409,
    "unsupported_version": 400,
    "invalid": 400,
    "limit_exceeded": 413,
    "server": 500,
}

REFUSAL_CODES: Final[frozenset[RefusalCode]] = frozenset(_STATUS)
APPLIED_STATUS: Final = 200
"""The HTTP status of every acknowledgement, applied or replayed."""

_GENERATION_MAX: Final = 2**53 - 1
_VALUE_NESTING_MAX: Final = 2 * NESTING_MAX + 2
"""Levels of JSON in one value: two for each of its own, and two for an instant inside the innermost."""
_NESTING_MAX: Final = len(("envelope", "command", "variant", "failure", "details")) + ERROR_CAUSE_DEPTH_MAX + _VALUE_NESTING_MAX

_ENVELOPE: Final = frozenset(("version", "attempt_id", "attempt_generation", "idempotency_key", "command"))
_VARIANTS: Final = ("supply_success", "declare_failure", "authorize_retry")
_RESULT: Final = "$.command.supply_success.result"
_FAILURE: Final = "$.command.declare_failure.failure"
_KINDS: Final[dict[type, str]] = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}


class SupplySuccess(msgspec.Struct, frozen=True):
    """The effect happened. `result` is the canonical tagged text of what it returned."""

    result: msgspec.Raw


class DeclareFailure(msgspec.Struct, frozen=True):
    """The effect failed. The record has no stack, and every detail is canonical."""

    failure: ErrorRecord


class AuthorizeRetry(msgspec.Struct, frozen=True):
    """Run the effect once more and accept that it may then have happened twice."""


Command: TypeAlias = SupplySuccess | DeclareFailure | AuthorizeRetry


class ResolveCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command on exactly one generation of one attempt. `idempotency_key` has 1 to 256 bytes and is a secret of its sender."""

    attempt_id: AttemptId
    attempt_generation: int
    idempotency_key: str
    command: Command


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """What the command committed: the states afterwards. `step` is the unwind target's state for a compensation."""

    attempt: AttemptState
    step: StepState | TargetState
    run: RunStatus


class Successor(msgspec.Struct, frozen=True, kw_only=True):
    """What an authorized retry created: `attempt` is the ordinal of the physical attempt."""

    attempt_generation: int
    work_id: str
    attempt_id: AttemptId
    attempt: int


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """The command is durable. `replayed`: it was before, and this is its first answer again."""

    version: int = ENVELOPE_VERSION
    status: CommandStatus
    attempt_id: AttemptId
    attempt_generation: int
    transition: Transition
    successor: Successor | msgspec.UnsetType = msgspec.UNSET


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Branch on `code`, one of `REFUSAL_CODES`; it is plain text, so that a client reads the codes of a newer server too."""

    code: str
    message: str


class RefusalEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was changed, and the idempotency key is not used up."""

    version: int = ENVELOPE_VERSION
    refusal: Refusal


# --- Answers ---------------------------------------------------------------------------------------------------------


def refuse(code: RefusalCode, message: str) -> RefusalEnvelope:
    """The envelope of a refusal. The message says what, why and what to do, and repeats neither key nor content."""
    return RefusalEnvelope(refusal=Refusal(code=code, message=message))


def status_of(code: RefusalCode) -> int:
    """The HTTP status a refusal is answered with."""
    return _STATUS[code]


def encode_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """The text that is sent, and stored to be sent again."""
    return msgspec.json.encode(acknowledgement)


def replayed(stored: bytes) -> bytes:
    """A stored acknowledgement as the answer to the same command sent again: the same content, marked as replayed."""
    first = msgspec.json.decode(stored, type=Acknowledgement)
    return encode_acknowledgement(msgspec.structs.replace(first, status="replayed"))


# --- What a command is, as bytes -------------------------------------------------------------------------------------


def encode_command(command: ResolveCommand) -> bytes:
    """The canonical envelope: what a client sends, and the durable record that `OPERATOR_RECORD_BYTES_MAX` bounds."""
    return canonical.write(
        {
            "attempt_generation": command.attempt_generation,
            "attempt_id": command.attempt_id,
            "command": _command_document(command.command),
            "idempotency_key": command.idempotency_key,
            "version": ENVELOPE_VERSION,
        }
    )


def fingerprint(command: ResolveCommand) -> str:
    """What makes two commands the same: attempt, generation and command, however they were spelled; not the key.

    `sha256:` and hex of the canonical text of `{"attempt_generation", "attempt_id", "command"}`.
    """
    content = {
        "attempt_generation": command.attempt_generation,
        "attempt_id": command.attempt_id,
        "command": _command_document(command.command),
    }
    return canonical.sha256_digest(canonical.write(content))


def _command_document(command: Command) -> dict[str, object]:
    match command:
        case SupplySuccess(result):
            return {"supply_success": {"result": result}}
        case DeclareFailure(failure):
            return {"declare_failure": {"failure": _failure_document(failure)}}
        case AuthorizeRetry():
            return {"authorize_retry": {}}
        case _:
            assert_never(command)


def _failure_document(record: ErrorRecord) -> dict[str, object]:
    """Members in canonical order; absent ones are absent."""
    document: dict[str, object] = {"category": record.category}
    if record.cause is not None:
        document["cause"] = _failure_document(record.cause)
    if record.details:
        document["details"] = _in_order(record.details)
    document |= {"message": record.message, "retryable": record.retryable}
    return document if record.stack is None else document | {"stack": record.stack}


def _in_order(details: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {name: details[name] for name in canonical.member_order(details)}


# --- Reading ---------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        self.message = message


class _SuppliedText(msgspec.Struct):
    result: msgspec.Raw


class _DeclaredText(msgspec.Struct):
    failure: ErrorRecord


class _CommandText(msgspec.Struct):
    """Values as their text, once the shape is known to be right: parsed data no longer tells every spelling apart."""

    supply_success: _SuppliedText | None = None
    declare_failure: _DeclaredText | None = None


class _EnvelopeText(msgspec.Struct):
    attempt_id: AttemptId
    attempt_generation: int
    idempotency_key: str
    command: _CommandText


_TEXTS: Final = msgspec.json.Decoder(_EnvelopeText)


def parse(body: bytes, *, path_attempt_id: str) -> ResolveCommand | RefusalEnvelope:
    """The command of a request body, or why it is refused for what it says, with the first check that fails:

    1. size and nesting (`limit_exceeded`); JSON without repeated members (`invalid`); the version (`unsupported_version`, or
       `invalid` for what is no integer); members and their types at every level, and the attempt that the path names (`invalid`)
    2. portable values (`invalid`, `limit_exceeded`), the limits of the failure and of the durable record (`limit_exceeded`)

    A failure is never cut down to its limits: it is an operator's word, not a report that must not be lost.
    """
    try:
        document = _document(body)
        _check_version(document)
        _check_envelope(document, path_attempt_id)
        command = _contents(_TEXTS.decode(body))
        _within(
            "the command with its ids", len(encode_command(command)), OPERATOR_RECORD_BYTES_MAX, "Shorten the idempotency key or the value."
        )
    except _Refused as refused:
        return refuse(refused.code, refused.message)
    return command


def _document(body: bytes) -> object:
    try:
        return strict_json.loads(body, bytes_max=OPERATOR_COMMAND_BYTES_MAX, nesting_max=_NESTING_MAX)
    except strict_json.MemberRepeated:
        _invalid("the body names a member of one object twice, so it is not known which one counts. Send each member once.")
    except strict_json.JsonRefused as refused:
        raise _Refused(refused.code, f"The command was not read: {refused.why}.") from None


def _check_version(document: object) -> None:
    """Before the shape, since another version may have another."""
    if type(document) is not dict:
        _invalid(f"the body is {_kind(document)}; send an object with {_listed(_ENVELOPE)}.")
    version = cast("dict[str, object]", document).get("version")
    if type(version) is not int:
        _invalid(f"$.version must be the integer {ENVELOPE_VERSION}; it is missing or no integer. Send it as a plain number.")
    if version != ENVELOPE_VERSION:
        raise _Refused(
            "unsupported_version",
            f"This server reads operator commands of version {ENVELOPE_VERSION} only, and $.version names another. "
            f"Send version {ENVELOPE_VERSION}, or use a client that matches this server.",
        )


def _check_envelope(document: object, path_attempt_id: str) -> None:
    envelope = _members(document, "$", _ENVELOPE)
    _identifier(envelope["attempt_id"], "$.attempt_id")
    generation = envelope["attempt_generation"]
    if type(generation) is not int or not 1 <= generation <= _GENERATION_MAX:
        _invalid(f"$.attempt_generation must be an integer from 1 to {_GENERATION_MAX}. Send the generation that the attempt shows.")
    _identifier(envelope["idempotency_key"], "$.idempotency_key")
    _check_command(envelope["command"])
    if envelope["attempt_id"] != path_attempt_id:
        _invalid("$.attempt_id is another attempt than the path names. Name the same attempt in both.")


def _check_command(node: object) -> None:
    if type(node) is not dict:
        _invalid(f"$.command must be an object that holds one of {_listed(_VARIANTS)}; it is {_kind(node)}.")
    command = cast("dict[str, object]", node)
    if len(command) != 1:
        _invalid(f"$.command must hold exactly one of {_listed(_VARIANTS)}; it has {len(command)} members. Send one command a request.")
    [(variant, content)] = command.items()
    match variant:
        case "supply_success":
            _check_value(_members(content, "$.command.supply_success", frozenset(("result",)))["result"], _RESULT)
        case "declare_failure":
            _check_failure(_members(content, "$.command.declare_failure", frozenset(("failure",)))["failure"])
        case "authorize_retry":
            _members(content, "$.command.authorize_retry", frozenset())
        case _:
            _invalid(f"$.command names no command that is known here; it holds one of {_listed(_VARIANTS)}.")


def _check_failure(node: object) -> None:
    """The shape of the record and its causes. Told by a loop: causes may go as deep as the body's nesting."""
    place = _FAILURE
    while True:
        record = _members(node, place, frozenset(("category", "message", "retryable")), frozenset(("details", "cause")))
        for name, kind, wanted in (("category", str, "text"), ("message", str, "text"), ("retryable", bool, "true or false")):
            if type(record[name]) is not kind:
                _invalid(f"{place}.{name} must be {wanted}, not {_kind(record[name])}.")
        category = cast("str", record["category"])
        if not category or "\x00" in category:
            _invalid(f"{place}.category must be at least one character and hold no NUL: it is what a function branches on.")
        if place == _FAILURE and category.startswith(RESERVED_PREFIX):
            _invalid(
                f"{place}.category begins with {RESERVED_PREFIX!r}, which is kept for what Ryusen itself establishes. "
                "Choose a category of your own; a cause may keep the reserved one."
            )
        if "details" in record:
            details = record["details"]
            if type(details) is not dict:
                _invalid(f"{place}.details must be an object of portable values, not {_kind(details)}. Leave it out if there are none.")
            for detail in cast("dict[str, object]", details).values():
                _check_value(detail, f"{place}.details.*")
        if "cause" not in record:
            return
        node = record["cause"]
        place += ".cause"


def _check_value(node: object, place: str) -> None:
    try:
        exact_values.check_members(node)
    except exact_values.InexactValue as refused:
        _invalid(f"{place}{refused.place} is not read: {refused.why}.")


def _contents(envelope: _EnvelopeText) -> ResolveCommand:
    """The second check: what the values and the failure hold."""
    supplied, declared = envelope.command.supply_success, envelope.command.declare_failure
    if supplied is not None:
        command: Command = SupplySuccess(_canonical(supplied.result, _RESULT))
    elif declared is not None:
        command = DeclareFailure(_failure(declared.failure))
    else:
        command = AuthorizeRetry()
    return ResolveCommand(
        attempt_id=envelope.attempt_id,
        attempt_generation=envelope.attempt_generation,
        idempotency_key=envelope.idempotency_key,
        command=command,
    )


def _canonical(text: msgspec.Raw, place: str) -> msgspec.Raw:
    try:
        return msgspec.Raw(values.canonicalize(text))
    except values.InvalidValue as refused:
        code: RefusalCode = "limit_exceeded" if isinstance(refused, values.ValueTooLarge) else "invalid"
        raise _Refused(code, f"{place}{exact_values.place_of(refused)} is no portable value: {refused.why}.") from None


def _failure(record: ErrorRecord) -> ErrorRecord:
    """The record within every limit, with canonical details."""
    links = [record]
    while (cause := links[-1].cause) is not None:
        links.append(cause)
    causes = len(links) - 1
    if causes > ERROR_CAUSE_DEPTH_MAX:
        raise _Refused(
            "limit_exceeded", f"{_FAILURE} has {causes} causes, over the limit of {ERROR_CAUSE_DEPTH_MAX}. Leave the innermost ones out."
        )
    checked = _failure_link(links[causes], None, _FAILURE + ".cause" * causes)
    for depth in range(causes - 1, -1, -1):
        checked = _failure_link(links[depth], checked, _FAILURE + ".cause" * depth)
    _within(_FAILURE, len(canonical.write(_failure_document(checked))), ERROR_BYTES_MAX, "Shorten its details and causes.")
    return checked


def _failure_link(link: ErrorRecord, cause: ErrorRecord | None, place: str) -> ErrorRecord:
    _within(f"{place}.category", len(link.category.encode()), ID_BYTES_MAX, "Shorten it.")
    _within(f"{place}.message", len(link.message.encode()), ERROR_MESSAGE_BYTES_MAX, "Shorten it; details hold data.")
    details = {name: _canonical(detail, f"{place}.details.*") for name, detail in (link.details or {}).items()}
    _within(f"{place}.details", len(canonical.write(details)), ERROR_DETAILS_BYTES_MAX, "Send fewer or smaller ones.")
    return ErrorRecord(link.category, link.message, link.retryable, _in_order(details) or None, cause)


def _members(node: object, place: str, required: frozenset[str], optional: frozenset[str] = frozenset()) -> dict[str, object]:
    """The members of an object that has all of the required and none but the known ones."""
    if type(node) is not dict:
        _invalid(f"{place} must be an object written with its members; it is {_kind(node)}.")
    members = cast("dict[str, object]", node)
    missing = required - members.keys()
    if missing:
        _invalid(f"{place} lacks {_listed(missing)}. Send every member that is required.")
    if members.keys() - required - optional:
        takes = f"takes {_listed(required | optional)} and nothing else" if required else "takes no members"
        _invalid(f"{place} has a member that is not known there, and none is passed over; it {takes}. Remove the others.")
    return members


def _identifier(node: object, place: str) -> None:
    if type(node) is not str or not 1 <= len(node.encode()) <= ID_BYTES_MAX or "\x00" in node:
        _invalid(f"{place} must be text of 1 to {ID_BYTES_MAX} bytes of UTF-8 without NUL.")


def _within(what: str, size: int, limit: int, advice: str) -> None:
    if size > limit:
        raise _Refused("limit_exceeded", f"{what[0].upper()}{what[1:]} has {size} bytes, over the limit of {limit} bytes. {advice}")


def _invalid(why: str) -> NoReturn:
    raise _Refused("invalid", f"The command is not valid: {why}")


def _kind(node: object) -> str:
    return _KINDS.get(type(node), "null")


def _listed(names: frozenset[str] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names))
