"""`ryusen runs …`: find runs, read one, follow it, wait for it, stop it, wake it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from ryusen_cli.exits import CliError, Exit
from ryusen_cli.options import Client, CursorOption, LimitOption, TimeoutOption, check_choice, client_command
from ryusen_cli.settings import span_ms

if TYPE_CHECKING:
    from ryusen_cli.views.history import Teller
    from ryusen_protocol.api import AttemptLogDocument, RunDetail

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]

_PAUSE_S: Final = 0.02
_POLL_MS: Final = 60_000
_CHOICES: Final = {
    "status": ("running", "definition_blocked", "stopping", "compensating", "ended"),
    "outcome": ("succeeded", "failed", "cancelled", "timed_out"),
    "recovery": ("not_required", "fully_compensated", "partially_compensated", "compensation_failed"),
    "attention": ("unknown", "blocked", "no_worker"),
}


@client_command
def ls(
    client: Client,
    status: Annotated[str | None, typer.Option("--status", metavar="STATUS", help=" | ".join(_CHOICES["status"]))] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", metavar="OUTCOME", help=" | ".join(_CHOICES["outcome"]))] = None,
    recovery: Annotated[str | None, typer.Option("--recovery", metavar="RECOVERY", help=" | ".join(_CHOICES["recovery"]))] = None,
    attention: Annotated[str | None, typer.Option("--attention", metavar="KIND", help=" | ".join(_CHOICES["attention"]))] = None,
    function: Annotated[str | None, typer.Option("--function", metavar="ID", help="Only runs of this function.")] = None,
    application: Annotated[str | None, typer.Option("--application", metavar="ID", help="Only runs of this application.")] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="ID", help="Only runs of this event.")] = None,
    q: Annotated[str | None, typer.Option("--q", metavar="TEXT", help="Only runs this text is found in.")] = None,
    limit: LimitOption = None,
    cursor: CursorOption = None,
) -> None:
    """List runs, newest first."""
    from ryusen_cli.views.run import RUN_HEADERS, run_row

    filters = {"status": status, "outcome": outcome, "recovery": recovery, "attention": attention}
    for name, value in filters.items():
        check_choice(f"--{name}", value, _CHOICES[name])
    request = client.api.list_runs(
        **cast("dict[str, Any]", filters), function=function, application=application, event=event, q=q, cursor=cursor, limit=limit
    )
    reply = client.ask(request)
    now_ms = _now_ms()
    client.page(reply, RUN_HEADERS, [run_row(run, client.output, now_ms=now_ms) for run in reply.document.items], empty="no runs")


@client_command
def show(client: Client, run: RunArgument) -> None:
    """Show one run: steps, attempts, what was undone and why, and what its callbacks printed."""
    reply = client.ask(client.api.get_run(run))
    logs = logs_of(client, run)
    if client.output.json:
        import msgspec

        members = msgspec.json.decode(reply.text, type=dict[str, msgspec.Raw])
        client.output.document(msgspec.json.encode({**members, "logs": logs}))
        return
    from ryusen_cli.views.logs import log_lines

    _print_run(client, reply.document)
    client.output.lines(log_lines(logs))


def logs_of(client: Client, run: str, attempt: str | None = None) -> list[AttemptLogDocument]:
    """What the run's callbacks printed, by attempt. A server that keeps none of it, an older one, is no reason to show nothing."""
    logs: list[AttemptLogDocument] = []
    cursor = None
    while True:
        try:
            page = client.ask(client.api.logs(run, attempt=attempt, cursor=cursor)).document
        except CliError as error:
            if error.exit_code is Exit.NOT_FOUND:
                return logs
            raise
        logs += page.items
        cursor = page.next_cursor
        if cursor is None:
            return logs


@client_command
def history(
    client: Client,
    run: RunArgument,
    after: Annotated[int | None, typer.Option("--after", metavar="POSITION", help="Only what was committed after this position.")] = None,
    limit: LimitOption = None,
) -> None:
    """Print the committed history of a run, transaction by transaction."""
    from ryusen_cli.views.history import Teller

    reply = client.ask(client.api.history(run, after=after, limit=limit))
    if client.output.json:
        client.output.document(reply.text)
        return
    teller = Teller(client.output)
    page = reply.document
    seen = 0
    while True:
        for entry in page.items:
            seen += 1
            client.output.lines(teller.tell(entry))
        if page.next_cursor is None or not page.items or (limit is not None and seen >= limit):
            break
        page = client.ask(client.api.history(run, after=page.items[-1].position, limit=limit)).document


@client_command
def tail(
    client: Client,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's id; without one, everything of the workspace.")] = None,
    after: Annotated[int | None, typer.Option("--after", metavar="POSITION", help="Only what was committed after this position.")] = None,
) -> None:
    """Follow what commits, over restarts of the server: a run until it has ended, or the workspace; with --json a document a line."""
    from ryusen_protocol.changes import Change, Resync

    if run is not None:
        _tail_run(client, run, after)
        return
    from ryusen_cli.following import follow
    from ryusen_cli.views.change import change_line, encoded

    for told in follow(client, after):
        if isinstance(told, Resync):
            look = client.typed("runs", "ls")
            client.output.warn(f"changes up to position {told.position} are not told ({told.reason}); look with: {look}")
        elif isinstance(told, Change):
            if client.output.json:
                client.output.record(encoded(told))
            else:
                client.output.line(*change_line(told))


def _tail_run(client: Client, run: str, after: int | None) -> None:
    """The run's history, read again whenever the stream says that there is more of it."""
    from ryusen_cli.following import comes_back, follow
    from ryusen_cli.views.history import Teller
    from ryusen_protocol.changes import Change

    teller = Teller(client.output)
    after = _tell_history(client, teller, run, after)
    if teller.ended:
        return
    for told in follow(client, begun=True):
        if isinstance(told, Change) and not any(record.run_id == run for record in told.records):
            continue
        try:
            after = _tell_history(client, teller, run, after)
        except CliError as error:
            if not comes_back(error):
                raise
        if teller.ended:
            return


def _tell_history(client: Client, teller: Teller, run: str, after: int | None) -> int | None:
    """Print what was committed after a position; the position that it ends at."""
    import msgspec

    while True:
        page = client.ask(client.api.history(run, after=after)).document
        for entry in page.items:
            lines = teller.tell(entry)
            if client.output.json:
                client.output.record(msgspec.json.encode(entry))
            else:
                client.output.lines(lines)
            after = entry.position
        if page.next_cursor is None:
            return after


@client_command
def wait(client: Client, run: RunArgument, timeout: TimeoutOption = None) -> None:
    """Wait until a run has ended. Ends with 6 if it did not succeed, 7 if the time is over first."""
    from ryusen_cli.following import Patience, ask_until, comes_back

    limit_ms = None if timeout is None else span_ms(timeout, "--timeout")
    deadline = None if limit_ms is None else time.monotonic() + limit_ms / 1_000
    client.ask(client.api.get_run(run))  # a server or a run that is not there is told at once
    patience = Patience(client, deadline)
    while True:
        left_ms = _POLL_MS if deadline is None else max(0, int((deadline - time.monotonic()) * 1_000))
        request = client.api.get_run(run, wait_ms=left_ms)
        try:
            reply = ask_until(client, request, wait_ms=min(left_ms, _POLL_MS), patience=patience)
        except CliError as error:
            if deadline is None or not comes_back(error):
                raise
            raise CliError(f"the time is over, and the server is away: {error.message}", exit_code=Exit.TIMED_OUT) from error
        detail = reply.document
        if detail.status == "ended" or (deadline is not None and time.monotonic() >= deadline):
            break
        time.sleep(_PAUSE_S)  # a server that does not hold the answer must not be asked without a pause
    if client.output.json:
        client.output.document(reply.text)
    else:
        _print_run(client, detail)
    if detail.status != "ended":
        client.output.note(f"the run has not ended; look again with: {client.typed('runs', 'show', run)}")
        raise typer.Exit(Exit.TIMED_OUT)
    if detail.outcome != "succeeded":
        raise typer.Exit(Exit.NOT_SUCCEEDED)


@client_command
def cancel(client: Client, run: RunArgument) -> None:
    """Ask a run to stop: nothing new begins, and what was done is undone. A callback that has begun is not interrupted."""
    repeat = f"run it again, that is safe: {client.typed('runs', 'cancel', run)}"
    reply = client.connection.change(client.api.cancel(run), repeat=repeat)
    if client.output.json:
        client.output.document(reply.text)
        return
    from ryusen_cli.views.run import outcome_cells, waiting_lines

    summary = reply.document.run
    already = " (asked for before)" if reply.document.status == "replayed" else ""
    client.output.line(run, "  ", *outcome_cells(summary, client.output), already)
    if summary.status == "ended":
        return
    client.output.note("the stop is recorded and nothing new begins; the run has not ended")
    try:
        detail = client.ask(client.api.get_run(run)).document
    except CliError:
        return  # the stop is durable, and this was only to tell more
    client.output.lines(waiting_lines(detail, client.output, client.typed, now_ms=_now_ms()))
    client.output.note(f"follow it with: {client.typed('runs', 'tail', run)}")


@client_command
def rediscover(client: Client, run: RunArgument) -> None:
    """Have a blocked run ask its current code again, without waiting for new code to announce itself."""
    repeat = f"run it again, that is safe: {client.typed('runs', 'rediscover', run)}"
    reply = client.connection.change(client.api.rediscover(run), repeat=repeat)
    if client.output.json:
        client.output.document(reply.text)
        return
    from ryusen_cli.views.run import outcome_cells

    done = "it was about to be asked already" if reply.document.status == "replayed" else "its current code is asked again"
    client.output.line(run, "  ", *outcome_cells(reply.document.run, client.output), f"  {done}")
    client.output.note(f"it stays Blocked until the code answers something else; look with: {client.typed('runs', 'show', run)}")


def _print_run(client: Client, detail: RunDetail) -> None:
    from ryusen_cli.views.run import run_lines

    client.output.lines(run_lines(detail, client.output, client.typed, now_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
