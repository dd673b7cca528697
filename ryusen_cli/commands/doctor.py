"""`ryusen doctor`: everything that is wrong, each with what, why and what to do. Changes nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ryusen_cli.exits import CliError, Exit
from ryusen_cli.options import Client, client_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from ryusen_cli.checkup import Finding
    from ryusen_cli.target_probe import Found
    from ryusen_protocol.api import Page
    from ryusen_protocol.client import Request

T = TypeVar("T")


@client_command
def doctor(
    client: Client,
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[TARGET]…", help="What to import; without, what `ryusen dev` would.")
    ] = None,
    db: Annotated[str | None, typer.Option("--db", metavar="FILE", help="The database to look at [default: .ryusen/ryusen.db].")] = None,
) -> None:
    """Look for what is wrong with the server, the database, the targets and the workers. Ends with 1 if something is."""
    from ryusen_cli import checkup
    from ryusen_cli.commands.about import product_version

    findings = _examine_database(client, db)
    found = _targets(client, targets or [], findings)
    began = time.monotonic()
    try:
        client.ask(client.api.health())
        answered_in_ms = int((time.monotonic() - began) * 1_000)
        server = client.ask(client.api.server()).document
    except CliError as error:
        code = error.code or "unreachable"
        findings.append(checkup.problem("server", code, "the server cannot be asked", error.message, error.hint or "check --url"))
        findings += [checkup.skipped(check, "it takes a server") for check in ("application", "workers", "releases", "loops")]
        _tell(client, findings)
        return
    findings += checkup.check_server(server, client.connection.url, product_version())
    applications = _all(client, client.api.list_applications)
    for target, one in found.items():
        active = next((head for head in applications if head.application == one.application), None)
        if one.problem is None:
            findings += checkup.check_application(one, active, client.typed("apps", "publish", target))
    workers = _all(client, client.api.list_workers)
    serving = client.typed("worker", next(iter(found), "TARGET"))
    findings += checkup.check_functions(_all(client, client.api.list_functions), serving)
    digests: dict[str, str] = {head.application: head.digest for head in applications}
    findings += checkup.check_releases(workers, _all(client, client.api.list_releases), digests)
    findings += checkup.check_loops(answered_in_ms, workers, server.heartbeat_ms, time.time_ns() // 1_000_000)
    _tell(client, findings)


def _examine_database(client: Client, db: str | None) -> list[Finding]:
    from ryusen_cli import checkup
    from ryusen_cli.settings import load
    from ryusen_server.bootstrap.checkup import examine

    path = Path(load("dev", client.config).text("db", db))
    faults = [checkup.problem("database", fault.code, fault.what, fault.why, fault.fix) for fault in examine(path)]
    if db is not None and not path.exists():
        missing = checkup.problem("database", "database_missing", f"there is no file {path}", "nothing was made there yet", "check --db")
        return [*faults, missing]
    state = "can be used" if path.exists() else "can be made"
    return faults or [checkup.ok("database", f"{path} {state}")]


def _targets(client: Client, named: list[str], findings: list[Finding]) -> dict[str, Found]:
    """What stands at each target, and what is to be said of it."""
    from ryusen_cli import checkup
    from ryusen_cli.settings import load
    from ryusen_cli.target_probe import probe

    chosen = load("dev", client.config).many("targets", named)
    if not chosen:
        from ryusen_cli.dev.targets import find_target

        try:
            chosen = [find_target(Path.cwd())]
        except CliError as error:
            findings.append(checkup.skipped("target", error.message))
            return {}
    found: dict[str, Found] = {}
    for target in chosen:
        client.output.progress(f"importing {target}")
        found[target] = probe(target)
        findings += checkup.check_target(target, found[target])
    return found


def _all(client: Client, listing: Callable[..., Request[Page[T]]]) -> list[T]:
    items: list[T] = []
    cursor: str | None = None
    while True:
        page: Any = client.ask(listing(cursor=cursor)).document
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items


def _tell(client: Client, findings: list[Finding]) -> None:
    import msgspec

    from ryusen_cli.output import Painted

    output = client.output
    problems = sum(finding.status == "problem" for finding in findings)
    if output.json:
        output.document(msgspec.json.encode({"items": findings, "next_cursor": None, "problems": problems}))
    else:
        marks = {"ok": Painted("ok       ", "good"), "problem": Painted("PROBLEM  ", "bad"), "skipped": Painted("skipped  ", "muted")}
        for finding in findings:
            output.line(marks[finding.status], finding.what)
            for title, text in (("why", finding.why), ("fix", finding.fix)):
                if text is not None:
                    output.line(Painted(f"         {title}: ", "muted"), text)
        output.line()
        output.line("nothing is wrong" if not problems else f"{problems} problem{'' if problems == 1 else 's'}")
    if problems:
        raise typer.Exit(Exit.ERROR)
