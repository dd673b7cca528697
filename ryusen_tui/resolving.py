"""What becomes of settling one Unknown attempt, from opening the dialog to the last answer. Pure: every transition is a function.

The identity is what stood there when the dialog opened. One intent, a command with its content, has one idempotency key for good: lost
answers are asked for again under it, and another command gets another key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from ryusen_protocol import operator, strict_json, values
from ryusen_protocol.api import AttemptDocument, OperatorCommand
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.limits import NESTING_MAX, VALUE_BYTES_MAX
from ryusen_protocol.operator import AuthorizeRetry, Command, DeclareFailure, ResolveCommand, SupplySuccess

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_protocol.operator import Acknowledgement

RETRY_WORD: Final = "retry"

Phase = Literal["choosing", "sending", "unsure", "refused", "done", "overtaken"]
"""`unsure`: an answer was lost. `overtaken`: somebody else settled it, a worker's late result or another operator."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has entered. `text` is a JSON result, `category: message`, or the word that a retry asks for."""

    choice: OperatorCommand | None = None
    text: str = ""
    retryable: bool = False


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Where one dialog stands. `keys` are the idempotency keys by what is asked for."""

    attempt: AttemptDocument
    phase: Phase = "choosing"
    sent: ResolveCommand | None = None
    tries: int = 0
    code: str | None = None
    said: str = ""
    acknowledgement: Acknowledgement | None = None
    keys: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        """Whether a command can still be given."""
        return self.phase in {"choosing", "refused"}


class NotYet(ValueError):
    """The draft is no command yet. The text says what is missing."""


def command_of(draft: Draft) -> Command:
    """The command of a draft. Raises `NotYet`."""
    match draft.choice:
        case None:
            raise NotYet("choose 1, 2 or 3")
        case "supply_success":
            return SupplySuccess(_value(draft.text))
        case "declare_failure":
            category, colon, message = draft.text.partition(":")
            if not colon or not category.strip() or not message.strip():
                raise NotYet("write it as category: message, such as carrier.refused: no carrier took the parcel")
            return DeclareFailure(ErrorRecord(category.strip(), message.strip(), draft.retryable))
        case "authorize_retry":
            if draft.text.strip() != RETRY_WORD:
                raise NotYet(f"type {RETRY_WORD}: the effect may then happen twice")
            return AuthorizeRetry()


def _value(text: str) -> msgspec.Raw:
    """Plain JSON as the portable value that it stands for."""
    if not text.strip():
        raise NotYet('write the result as JSON, such as {"charge": "ch_7"} or null')
    try:
        encoded = text.encode("utf-8")
        document = strict_json.loads(encoded, bytes_max=VALUE_BYTES_MAX, nesting_max=NESTING_MAX)
        return msgspec.Raw(values.encode(cast("values.Value", document)))
    except strict_json.JsonRefused as error:
        raise NotYet(f"not JSON: {error.why}") from error
    except UnicodeEncodeError as error:
        raise NotYet("not Unicode text: it has half of a surrogate pair") from error
    except (values.InvalidValue, values.ValueTooLarge) as error:
        raise NotYet(f"no portable value: {error}") from error


def intend(state: Resolution, command: Command, mint: Callable[[], str]) -> Resolution:
    """The command is about to be sent, under the key of its intent. Raises `NotYet` with the server's words if none would read it."""
    attempt = state.attempt
    wanted = ResolveCommand(
        attempt_id=attempt.attempt_id, attempt_generation=attempt.attempt_generation, idempotency_key="-", command=command
    )
    intent = operator.fingerprint(wanted)
    key = state.keys.get(intent) or mint()
    wanted = msgspec.structs.replace(wanted, idempotency_key=key)
    read = operator.parse(operator.encode_command(wanted), path_attempt_id=attempt.attempt_id)
    if isinstance(read, operator.RefusalEnvelope):
        raise NotYet(f"{read.refusal.code}: {read.refusal.message}")
    return msgspec.structs.replace(state, phase="sending", sent=wanted, tries=1, code=None, said="", keys={**state.keys, intent: key})


def lost(state: Resolution, why: str) -> Resolution:
    """No answer came. What the command did is not known until it is sent again under the same key."""
    said = f"The answer was lost ({why}); whether it happened is not known. Sending it again under the same key."
    return msgspec.structs.replace(state, phase="unsure", tries=state.tries + 1, said=said)


def unreached(state: Resolution, why: str) -> Resolution:
    """Nobody answered, so nothing was sent this time. What an earlier try did stays unknown."""
    if state.phase == "unsure":
        return lost(state, why)
    return msgspec.structs.replace(state, tries=state.tries + 1, said=f"Not sent yet: {why}. Trying again.")


def refused(state: Resolution, code: str, message: str) -> Resolution:
    """The server changed nothing."""
    return msgspec.structs.replace(state, phase="refused", code=code, said=message)


def done(state: Resolution, acknowledgement: Acknowledgement) -> Resolution:
    """The command is durable."""
    after = acknowledgement.transition
    said = f"attempt {after.attempt.replace('_', ' ')}, step {after.step}, run {after.run.replace('_', ' ')}"
    if acknowledgement.successor:
        one = acknowledgement.successor
        said += f"; it runs again as attempt {one.attempt}, generation {one.attempt_generation}"
    if acknowledgement.status == "replayed":
        said += " (it had happened; this is its first answer again)"
    return msgspec.structs.replace(state, phase="done", code=None, said=said, acknowledgement=acknowledgement)


def seen(state: Resolution, now: AttemptDocument) -> Resolution:
    """The attempt as it is now. One that was settled meanwhile takes no command; its identity stays what it was."""
    if not state.is_open or (now.state == "unknown" and now.attempt_generation == state.attempt.attempt_generation):
        return state
    by = {"operator": "another operator", "server": "the server"}.get(now.settled_by or "", "a late result of its worker")
    said = f"Settled meanwhile by {by}: {now.state.replace('_', ' ')}. Nothing is left to do here."
    if state.phase == "refused" and state.code is not None:
        said = f"{state.code}: {state.said} {said}"
    return msgspec.structs.replace(state, phase="overtaken", said=said)
