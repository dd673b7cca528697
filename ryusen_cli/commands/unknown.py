"""`ryusen unknown …`: effects whose outcome nobody could establish. Find them, read all that is known, and settle them."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from ryusen_cli.exits import CliError, Exit, usage
from ryusen_cli.options import Client, CursorOption, LimitOption, client_command, fresh_key, read_argument

if TYPE_CHECKING:
    import msgspec

    from ryusen_protocol.api import AttemptDocument, WorkerDocument
    from ryusen_protocol.operator import Acknowledgement, Command, ResolveCommand

AttemptArgument = Annotated[str, typer.Argument(metavar="ATTEMPT", help="The attempt's id.")]

_WAYS: Final = "give exactly one of --result, --fail and --retry"
_RESULT_HELP: Final = (
    "It happened, with this result: plain JSON, @file, or - for standard input. Bytes, instants, durations and blobs need --tagged."
)
_TAGGED_HELP: Final = (
    'The --result is a portable value with its types, such as {"type": "bytes", "value": "aGk="} '
    'or {"type": "instant", "value": {"seconds": "0", "nanos": 0}}.'
)
_KEY_HELP: Final = "Idempotency key: the same command under the same key is carried out once, and answered again."


@client_command
def ls(client: Client, limit: LimitOption = None, cursor: CursorOption = None) -> None:
    """List Unknown attempts, oldest first, with what is allowed."""
    from ryusen_cli.views.unknown import UNKNOWN_HEADERS, unknown_row

    reply = client.ask(client.api.list_attempts(state="unknown", cursor=cursor, limit=limit))
    items = reply.document.items
    client.page(reply, UNKNOWN_HEADERS, [unknown_row(one, now_ms=_now_ms()) for one in items], empty="nothing is Unknown")
    if items and not client.output.json:
        client.output.note(f"next: {client.typed('unknown', 'show', items[0].attempt_id)}")


@client_command
def show(client: Client, attempt: AttemptArgument) -> None:
    """Show all that is known of one attempt, what it printed, what is allowed and why not the rest, and what to type next."""
    import msgspec

    from ryusen_cli.commands.runs import logs_of
    from ryusen_cli.views.logs import log_lines
    from ryusen_cli.views.unknown import allowance_lines, attempt_lines, next_lines, surrounding_lines

    reply = client.ask(client.api.get_attempt(attempt))
    one = reply.document
    run = client.ask(client.api.get_run(one.run_id))
    logs = logs_of(client, one.run_id, attempt)
    if client.output.json:
        client.output.encoded({"attempt": msgspec.Raw(reply.text), "run": msgspec.Raw(run.text), "logs": logs})
        return
    now_ms = _now_ms()
    client.output.lines(attempt_lines(one, client.output, now_ms=now_ms))
    client.output.lines(surrounding_lines(one, run.document, _worker(client, one), client.output, now_ms=now_ms))
    client.output.lines(log_lines(logs))
    if logs:
        client.output.line()
    client.output.lines(allowance_lines(one))
    client.output.lines(next_lines(one, client.typed))


@client_command
def resolve(
    client: Client,
    attempt: AttemptArgument,
    *,
    generation: Annotated[int | None, typer.Option("--generation", metavar="N", help="The generation you looked at.")] = None,
    result: Annotated[str | None, typer.Option("--result", metavar="JSON", help=_RESULT_HELP)] = None,
    tagged: Annotated[bool, typer.Option("--tagged", help=_TAGGED_HELP)] = False,
    fail: Annotated[str | None, typer.Option("--fail", metavar="CATEGORY:MESSAGE", help="It failed, for this reason.")] = None,
    retryable: Annotated[bool, typer.Option("--retryable", help="With --fail: the step's retry policy may run it again.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run it once more; the effect may then happen twice.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help=_KEY_HELP)] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Settle an Unknown attempt: say what happened, or have it run once more. Without a terminal it needs --yes."""
    if (result is not None) + (fail is not None) + retry != 1:
        raise usage("an attempt is resolved in exactly one way", _WAYS)
    if tagged and result is None:
        raise usage("--tagged goes with --result", "leave it out")
    if retryable and fail is None:
        raise usage("--retryable goes with --fail", "leave it out")
    if generation is None:
        raise _without_generation(client, attempt)
    if generation < 1:
        raise usage(f"--generation {generation} is none; generations start at 1", client.typed("unknown", "show", attempt))
    if not yes and not _can_ask():
        raise usage("this changes a run for good, and there is no terminal to ask on", "pass --yes")
    command = _command(attempt, generation, _what(result, fail, tagged=tagged, retryable=retryable), key)
    if not yes:
        _confirm(client, command)
    _send(client, command)


def _send(client: Client, command: ResolveCommand) -> None:
    key = command.idempotency_key
    repeat = f"repeat the same command with {_key_flag(key)}; it is carried out once, whatever happened"
    try:
        request = client.api.resolve_attempt(command)
    except ValueError as error:
        raise usage(f"{error}") from error
    try:
        reply = client.connection.change(request, repeat=repeat, key=key)
    except CliError as error:
        if error.exit_code is Exit.REFUSED and error.hint is None:
            error.hint = _after(client, error.code, command)
        raise
    if client.output.json:
        client.output.document(reply.text)
    else:
        _print(client, reply.document)


def _print(client: Client, done: Acknowledgement) -> None:
    from ryusen_protocol import words

    output, after = client.output, done.transition
    again = " (done before with this key)" if done.status == "replayed" else ""
    output.line(f"{done.attempt_id}  generation {done.attempt_generation}  ", output.word(words.ATTEMPTS[after.attempt]), again)
    step = words.TARGETS["skipped"] if after.step == "skipped" else words.STEPS[after.step]
    output.line("step       ", output.word(step))
    output.line("run        ", output.word(words.run_word(after.run, None, None)) if after.run != "ended" else "ended")
    if done.successor:
        one = done.successor
        output.line("runs again ", f"as {one.attempt_id}, attempt {one.attempt}, generation {one.attempt_generation}")
        output.note(f"look with: {client.typed('attempts', 'show', one.attempt_id)}")


def _what(result: str | None, fail: str | None, *, tagged: bool, retryable: bool) -> Command:
    from ryusen_protocol.errors import ErrorRecord
    from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, SupplySuccess

    if result is not None:
        return SupplySuccess(_value(read_argument(result, "the result"), tagged=tagged))
    if fail is None:
        return AuthorizeRetry()
    category, colon, message = fail.partition(":")
    if not colon or not category.strip() or not message.strip():
        raise usage(f"--fail {fail!r} is not CATEGORY:MESSAGE", "write --fail 'carrier.refused:no carrier took the parcel'")
    return DeclareFailure(ErrorRecord(category.strip(), message.strip(), retryable))


def _value(text: bytes, *, tagged: bool) -> msgspec.Raw:
    """Plain JSON as the portable value that an SDK would have made of it, or a tagged one as it is."""
    import msgspec

    from ryusen_protocol import strict_json, values
    from ryusen_protocol.limits import NESTING_MAX, VALUE_BYTES_MAX

    # A tagged value has two levels of JSON for each of its own, and as many bytes more as its spelling takes.
    bytes_max, nesting_max = (2 * VALUE_BYTES_MAX, 2 * NESTING_MAX + 2) if tagged else (VALUE_BYTES_MAX, NESTING_MAX)
    try:
        document = strict_json.loads(text, bytes_max=bytes_max, nesting_max=nesting_max)
        return msgspec.Raw(text if tagged else values.encode(cast("values.Value", document)))
    except strict_json.JsonRefused as error:
        if error.code == "limit_exceeded":
            raise CliError(f"the result is over a limit: {error.why}", exit_code=Exit.REFUSED, code=error.code) from error
        raise usage(f"the result is not JSON: {error.why}", 'quote the whole document: --result \'{"charge": "ch_7"}\'') from error
    except values.ValueTooLarge as error:
        raise CliError(f"the result is over a limit: {error}", exit_code=Exit.REFUSED, code="limit_exceeded") from error
    except values.InvalidValue as error:
        raise usage(f"the result is no portable value: {error}") from error


def _command(attempt: str, generation: int, what: Command, key: str | None) -> ResolveCommand:
    """The command, if a server would read it; else the refusal that it would answer."""
    from ryusen_cli.connection import command_refused
    from ryusen_protocol import operator
    from ryusen_protocol.ids import AttemptId

    command = operator.ResolveCommand(
        attempt_id=AttemptId(attempt), attempt_generation=generation, idempotency_key=fresh_key() if key is None else key, command=what
    )
    read = operator.parse(operator.encode_command(command), path_attempt_id=attempt)
    if isinstance(read, operator.RefusalEnvelope):
        raise command_refused(read)
    return read


def _without_generation(client: Client, attempt: str) -> CliError:
    """A usage error that tells the generation, if the server can be asked. It is not filled in: whoever resolves must have looked."""
    look = client.typed("unknown", "show", attempt)
    try:
        one = client.ask(client.api.get_attempt(attempt)).document
    except (CliError, ValueError):
        return usage("--generation is missing: name the generation that you looked at", look)
    stands = "Unknown" if one.state == "unknown" else f"{one.state}, not Unknown"
    error = usage(f"--generation is missing: {attempt} is of generation {one.attempt_generation} now, and {stands}", look)
    error.extra = {"attempt_generation": one.attempt_generation, "state": one.state}
    return error


def _confirm(client: Client, command: ResolveCommand) -> None:
    """Says what is about to be done and what it risks; anything but the word that is asked for leaves everything as it is."""
    from ryusen_cli.output import Painted
    from ryusen_cli.views.unknown import risk_lines, what_it_is
    from ryusen_protocol.operator import AuthorizeRetry

    one = client.ask(client.api.get_attempt(command.attempt_id)).document
    output = client.output
    output.note(f"{one.attempt_id}: step {what_it_is(one)}, of run {one.run_id}")
    output.note(f"operation {one.operation_id}")
    if one.state != "unknown" or one.attempt_generation != command.attempt_generation:
        said = f"it is {one.state} in generation {one.attempt_generation} now; only a repeat of an earlier command will be answered"
        output.warn(said)
    for line in risk_lines(command.command, compensation=one.phase == "compensation"):
        output.note(Painted("  "), line)
    word = "retry" if isinstance(command.command, AuthorizeRetry) else "yes"
    output.note(f"Type {word} to go on; anything else changes nothing.")
    if sys.stdin.readline().strip() != word:
        raise CliError("not confirmed, so nothing was sent")


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _after(client: Client, code: str | None, command: ResolveCommand) -> str | None:
    """What to type after a refusal."""
    match code:
        case "stale":
            return client.typed("unknown", "show", command.attempt_id)
        case "retry_forbidden" | "deadline_elapsed":
            return "resolve it with --result or --fail"
        case "idempotency_key_reused":
            return "leave --key out, unless this repeats the very command that the key was made for"
        case "server":
            return f"repeat the same command with {_key_flag(command.idempotency_key)}"
        case _:
            return None


def _key_flag(key: str) -> str:
    import shlex

    return f"--key {shlex.quote(key)}"


def _worker(client: Client, attempt: AttemptDocument) -> WorkerDocument | None:
    """The worker that had the attempt, if the server still knows it. A detail beside the attempt, so not being told is no error."""
    if attempt.worker is None:
        return None
    cursor: str | None = None
    try:
        while True:
            page = client.ask(client.api.list_workers(cursor=cursor)).document
            for one in page.items:
                if one.instance_id == attempt.worker.instance_id:
                    return one
            cursor = page.next_cursor
            if cursor is None:
                return None
    except CliError:
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
