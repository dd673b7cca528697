"""`ryusen conformance worker|http|server`: hold an implementation, in whatever language, to the fixtures this installation carries.

Owns how the cases are told and how the command ends: 0 when every case passed, 1 when one did not, and 3 when there is nothing to try them
on. What the cases are belongs to `ryusen_conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ryusen_cli.exits import CliError, Exit, usage
from ryusen_cli.options import JsonOption, TokenOption
from ryusen_cli.output import Output, Painted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ryusen_conformance.report import Result

PatienceOption = Annotated[
    str | None, typer.Option("--patience", metavar="DURATION", help="How long to wait for a connection or an answer [default: 20s].")
]
SecretOption = Annotated[
    str | None,
    typer.Option("--secret", metavar="SECRET", envvar="RYUSEN_HTTP_SECRET", help="Sign the calls and check the answers."),
]
CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- CMD…", help="What starts the worker. {url} in it, and RYUSEN_URL, are the address it must connect to."),
]
UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="Where it is.")]


def worker(command: CommandArgument = None, *, patience: PatienceOption = None, json_: JsonOption = False) -> int:
    """Start a connected worker that registers the contract registry, and drive it with a fake server."""
    if not command:
        raise usage("there is no command that starts a worker", "ryusen conformance worker -- ryusen worker ryusen_conformance.registry")
    from ryusen_conformance import worker_suite

    return _tell(worker_suite.run(command, _seconds(patience)), Output(json=json_))


def http(url: UrlArgument, *, secret: SecretOption = None, patience: PatienceOption = None, json_: JsonOption = False) -> int:
    """Drive an HTTP handler that serves the contract registry."""
    from ryusen_conformance import http_suite

    return _tell(http_suite.run(url, secret, _seconds(patience)), Output(json=json_))


def server(url: UrlArgument, *, token: TokenOption = None, patience: PatienceOption = None, json_: JsonOption = False) -> int:
    """Drive a server with a fake worker. It publishes applications and starts runs there: give it a server to try things on."""
    from ryusen_conformance import server_suite

    return _tell(server_suite.run(url, token, _seconds(patience)), Output(json=json_))


def _tell(results: AsyncIterator[Result], output: Output) -> int:
    import asyncio

    from ryusen_conformance.fixtures import FixturesMissing
    from ryusen_conformance.report import Impossible

    try:
        told = asyncio.run(_collected(results, output))
    except Impossible as failed:
        raise CliError(str(failed), exit_code=Exit.UNREACHABLE, code="no_subject") from failed
    except FixturesMissing as failed:
        raise CliError(str(failed)) from failed
    failures = [result for result in told if not result.passed]
    if output.json:
        output.encoded({"passed": len(told) - len(failures), "failed": len(failures), "results": [result.document() for result in told]})
    else:
        output.line(f"{len(told) - len(failures)} passed, ", Painted(f"{len(failures)} failed", "bad" if failures else "good"))
    return int(Exit.ERROR if failures else Exit.OK)


async def _collected(results: AsyncIterator[Result], output: Output) -> list[Result]:
    told: list[Result] = []
    async for result in results:
        told.append(result)
        if not output.json:
            _line(result, output)
    return told


def _line(result: Result, output: Output) -> None:
    if result.passed:
        output.line(Painted("pass", "good"), f"  {result.suite} {result.case}")
        return
    output.line(Painted("FAIL", "bad"), f"  {result.suite} {result.case}: {result.exercises}")
    output.line("      ", result.why or "")


def _seconds(patience: str | None) -> float:
    from ryusen_protocol.durations import InvalidDuration, to_ms

    try:
        waited_ms = to_ms("20s" if patience is None else patience)
    except InvalidDuration as refused:
        raise usage(f"--patience: {refused}") from refused
    if waited_ms < 1:
        raise usage(f"--patience {patience}: longer than nothing")
    return waited_ms / 1000
