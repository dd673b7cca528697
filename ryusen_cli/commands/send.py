"""`ryusen send`: one event in, and with `--wait` the end of every run it started."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ryusen_cli.exits import CliError, Exit, usage
from ryusen_cli.options import Client, TimeoutOption, client_command, fresh_key, read_argument, read_file, read_stdin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ryusen_cli.connection import Reply
    from ryusen_protocol.api import EventDetail, EventReceipt, EventRun
    from ryusen_protocol.client import Request

_WAIT_MS: Final = 30_000
_PAUSE_S: Final = 0.05


@client_command
def send(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name, such as order/placed.")],
    *,
    data: Annotated[str | None, typer.Option("--data", "-d", metavar="JSON", help="JSON, @file, or - for standard input.")] = None,
    bytes_: Annotated[str | None, typer.Option("--bytes", metavar="FILE", help="Raw bytes from a file, or - for standard input.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Idempotency key: the same key is the same event.")] = None,
    meta: Annotated[list[str] | None, typer.Option("--meta", metavar="K=V", help="Metadata; give it several times.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every run of the event has ended.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Send an event. Without -d or --bytes its data is null."""
    from ryusen_cli.settings import span_ms

    if timeout is not None and not wait:
        raise usage("--timeout goes with --wait", "add --wait")
    limit_ms = span_ms(timeout, "--timeout") if timeout is not None else _WAIT_MS
    text, payload = _payload(data, bytes_)
    metadata = _metadata(meta or [])
    idempotency_key = key if key is not None else fresh_key()
    deadline = time.monotonic() + limit_ms / 1_000
    try:
        request = client.api.send_event(
            name, data=text, payload=payload, metadata=metadata, key=idempotency_key, wait_ms=limit_ms if wait else None
        )
    except ValueError as error:
        raise _no_json(str(error), data or "") from error
    _check(name, text, payload, metadata, idempotency_key, data or "")
    idle = _without_worker(client, name)
    if idle and wait:
        _warn_idle(client, idle)
    reply = _submit(client, request, idempotency_key, wait_ms=limit_ms if wait else 0, deadline=deadline if wait else None)
    receipt = reply.document
    if receipt.matched == 0:
        client.output.warn(f"no trigger matches {name!r}, so nothing runs; `ryusen functions ls` shows what starts what")
    elif idle and not wait:
        _warn_idle(client, idle)
    if not wait:
        if client.output.json:
            client.output.document(reply.text)
        else:
            _print_receipt(client, receipt)
        return
    _finish(client, receipt, reply.text, deadline)


def _submit(client: Client, request: Request[EventReceipt], key: str, *, wait_ms: int, deadline: float | None) -> Reply[EventReceipt]:
    """The acknowledgement. Who waits has patience with a server that goes away meanwhile: the key makes a repeat the same event."""
    from ryusen_cli.following import Patience

    patience = None if deadline is None else Patience(client, deadline)
    lost: CliError | None = None
    while True:
        try:
            return client.connection.change(
                request,
                wait_ms=wait_ms,
                repeat=f"send the same again with --key {shlex.quote(key)}; it is accepted once, whatever happened",
                key=key,
            )
        except CliError as error:
            if error.exit_code is Exit.NOT_KNOWN:
                lost = lost or error
            if lost is None or error.exit_code not in (Exit.NOT_KNOWN, Exit.UNREACHABLE):
                raise
            if patience is None or not patience.wait("no answer came"):
                raise lost from error


def _finish(client: Client, receipt: EventReceipt, text: bytes, deadline: float) -> None:
    """Waits on for what one long poll did not bring, then prints and ends as the runs did."""
    import msgspec

    from ryusen_cli.following import Patience, ask_until, comes_back

    patience = Patience(client, deadline)
    answer: EventReceipt | EventDetail = receipt
    runs = [] if receipt.runs is msgspec.UNSET else receipt.runs
    while not _all_ended(answer, runs) and (left_ms := int((deadline - time.monotonic()) * 1_000)) > 0:
        asked_at = time.monotonic()
        try:
            reply = ask_until(client, client.api.get_event(receipt.event_id, wait_ms=left_ms), wait_ms=left_ms, patience=patience)
        except CliError as error:
            if not comes_back(error):
                raise
            break  # the server is not back in time: the event is accepted, and what became of it is not known yet
        # A server that does not hold the answer must not be asked without a pause.
        time.sleep(max(0.0, _PAUSE_S - (time.monotonic() - asked_at)))
        answer, text = reply.document, reply.text
        runs = [] if answer.runs is msgspec.UNSET else answer.runs
    exit_code = _exit(answer, runs)
    if client.output.json:
        client.output.document(text)
    else:
        _print_receipt(client, receipt)
        _print_runs(client, runs)
        if exit_code is Exit.TIMED_OUT:
            client.output.note(f"not all runs have ended; look again with: {client.typed('events', 'show', receipt.event_id)}")
    raise typer.Exit(exit_code)


def _all_ended(answer: EventReceipt | EventDetail, runs: Sequence[EventRun]) -> bool:
    return answer.expansion == "complete" and len(runs) >= answer.matched and all(run.status == "ended" for run in runs)


def _exit(answer: EventReceipt | EventDetail, runs: Sequence[EventRun]) -> Exit:
    if answer.matched == 0:
        return Exit.NOT_FOUND
    if not _all_ended(answer, runs):
        return Exit.TIMED_OUT
    return Exit.OK if all(run.outcome == "succeeded" for run in runs) else Exit.NOT_SUCCEEDED


def _print_receipt(client: Client, receipt: EventReceipt) -> None:
    again = " (sent before with this key)" if receipt.status == "replayed" else ""
    runs = "1 run" if receipt.matched == 1 else f"{receipt.matched} runs"
    client.output.line(f"{receipt.event_id}  accepted{again}: {runs}, routing generation {receipt.routing_generation}")


def _print_runs(client: Client, runs: Sequence[EventRun]) -> None:
    from ryusen_cli.views.run import ended_run_line

    for run in runs:
        client.output.line(*ended_run_line(run, client.output))


def _without_worker(client: Client, name: str) -> list[str]:
    """Functions the event starts that no connected worker can run now. A hint, so what cannot be read is no error."""
    idle: list[str] = []
    cursor: str | None = None
    try:
        while True:
            page = client.ask(client.api.list_functions(cursor=cursor)).document
            idle += [
                f"{function.application}/{function.function}"
                for function in page.items
                if not function.workers and any(trigger.event_name == name for trigger in function.triggers)
            ]
            cursor = page.next_cursor
            if cursor is None:
                return idle
    except CliError as error:
        if error.exit_code is Exit.UNREACHABLE:
            raise
        return []


def _warn_idle(client: Client, idle: list[str]) -> None:
    client.output.warn(f"no connected worker can run {', '.join(idle)}; it waits until one does: ryusen worker TARGET")


def _payload(data: str | None, bytes_: str | None) -> tuple[bytes | None, bytes | None]:
    if data is not None and bytes_ is not None:
        raise usage("an event has either -d or --bytes", "give one of them")
    if bytes_ is not None:
        return None, read_stdin("the payload") if bytes_ == "-" else read_file(bytes_)
    if data is None:
        return b"null", None
    return read_argument(data, "the data"), None


def _metadata(pairs: list[str]) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise usage(f"--meta {pair!r} is not key=value", "write --meta customer=42")
        if name in metadata:
            raise usage(f"--meta {name} is given twice; metadata has one value a key")
        metadata[name] = value
    return metadata


def _check(name: str, text: bytes | None, payload: bytes | None, metadata: dict[str, str], key: str, data: str) -> None:
    """Hears of a bad event before it is sent, in the server's own words."""
    import base64

    import msgspec

    from ryusen_protocol import strict_json
    from ryusen_protocol.api import EventSubmission
    from ryusen_protocol.limits import PAYLOAD_BYTES_MAX
    from ryusen_protocol.problems import Problem
    from ryusen_protocol.submission import submitted_payload

    submission = EventSubmission(
        name=name,
        data=msgspec.UNSET if text is None else msgspec.Raw(text),
        payload_base64=None if payload is None else base64.b64encode(payload).decode(),
        metadata=metadata,
        idempotency_key=key,
    )
    checked = submitted_payload(submission)
    if isinstance(checked, Problem):
        raise CliError(checked.detail, exit_code=Exit.REFUSED, code=checked.code, extra=msgspec.to_builtins(checked))
    if text is not None:
        try:
            strict_json.loads(text, bytes_max=PAYLOAD_BYTES_MAX)
        except strict_json.JsonRefused as error:
            raise _no_json(f"the data is not JSON: {error.why}", data) from error


def _no_json(message: str, data: str) -> CliError:
    """What to do depends on where the text came from: the command line, a file, standard input."""
    if data.startswith("@"):
        return usage(f"{data[1:]}: {message}", f"mend the file, or send it as it is: --bytes {shlex.quote(data[1:])}")
    if data == "-":
        return usage(f"standard input: {message}", "mend it, or send it as it is: --bytes -")
    return usage(message, "quote the whole document: -d '{\"order\": 7}'")
