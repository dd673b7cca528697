"""Commands that run something here: `dev`, `serve`, `worker`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ryusen_cli.exits import CliError, Exit, usage
from ryusen_cli.options import ConfigOption, JsonOption, TokenOption, UrlOption, WorkspaceOption

if TYPE_CHECKING:
    from ryusen_cli.dev import messages
    from ryusen_cli.dev.supervisor import Plan
    from ryusen_cli.output import Output
    from ryusen_cli.settings import Settings

DbOption = Annotated[str | None, typer.Option("--db", metavar="PATH", help="The database file [default: .ryusen/ryusen.db].")]
HostOption = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Where to listen [default: 127.0.0.1].")]
PortOption = Annotated[int | None, typer.Option("--port", metavar="N", help="The port; 0 takes a free one [default: 7878].")]
AllowHostOption = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A further name the server answers to; give it several times.")
]
CredentialsOption = Annotated[
    str | None, typer.Option("--credentials", metavar="FILE", help="Ask every caller for a token; who may do what stands in FILE (0600).")
]
LeaseOption = Annotated[
    str | None, typer.Option("--lease", metavar="DURATION", help="How long a worker may be silent; heartbeats are a third [default: 30s].")
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="How the server logs: text or json [default: text].")
]
GraceOption = Annotated[
    str | None, typer.Option("--reconnect-grace", metavar="DURATION", help="How long a lost worker may come back [default: 30s].")
]
MaxTimeoutOption = Annotated[str | None, typer.Option("--max-run-timeout", metavar="DURATION", help="No run may take longer.")]
DefaultTimeoutOption = Annotated[
    str | None, typer.Option("--default-run-timeout", metavar="DURATION", help="For functions that set no timeout.")
]
EndpointOption = Annotated[
    list[str] | None,
    typer.Option("--http-endpoint", metavar="APP=URL", help="Send an application's work to its handler at a URL; give it several times."),
]
HttpCapacityOption = Annotated[
    int | None, typer.Option("--http-capacity", metavar="N", help="Invocations at a time at each endpoint [default: 32].")
]
CapacityOption = Annotated[int | None, typer.Option("--capacity", metavar="N", help="Invocations at a time [default: 32].")]


def serve(
    *,
    db: DbOption = None,
    host: HostOption = None,
    port: PortOption = None,
    allow_host: AllowHostOption = None,
    credentials: CredentialsOption = None,
    lease: LeaseOption = None,
    reconnect_grace: GraceOption = None,
    log_format: LogFormatOption = None,
    max_run_timeout: MaxTimeoutOption = None,
    default_run_timeout: DefaultTimeoutOption = None,
    http_endpoint: EndpointOption = None,
    http_capacity: HttpCapacityOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Run the server in this process until Ctrl+C or SIGTERM."""
    from ryusen_cli.output import Output
    from ryusen_cli.settings import load

    output = Output(json=json_)
    settings = load("serve", config)
    order = _server_order(
        settings,
        db=db,
        host=host,
        port=port,
        allow_host=allow_host,
        credentials=credentials,
        lease=lease,
        reconnect_grace=reconnect_grace,
        log_format=log_format,
        max_run_timeout=max_run_timeout,
        default_run_timeout=default_run_timeout,
        http_endpoint=http_endpoint,
        http_capacity=http_capacity,
    )
    from ryusen_cli.dev import messages
    from ryusen_cli.server_process import run_server

    failure: messages.Failed | None = None

    def told(fact: messages.Fact) -> None:
        nonlocal failure
        match fact:
            case messages.Listening(addresses, database) if output.json:
                output.encoded({"status": "ready", "addresses": addresses, "database": {"path": database}})
            case messages.Listening(addresses, database):
                for address in addresses:
                    output.line(f"listening   {address}")
                output.line(f"database    {database}")
            case messages.Failed():
                failure = fact
            case messages.Noted(text, _):
                output.note(text)
            case _:
                pass

    code = run_server(order, told)
    if failure is not None:
        raise CliError(failure.message, hint=failure.hint, exit_code=Exit(code) if code in iter(Exit) else Exit.ERROR, code="server_failed")
    raise typer.Exit(code)


def worker(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="package.module, package.module:name or path/file.py.")],
    *,
    release: Annotated[str | None, typer.Option("--release", metavar="ID", help="What this worker's code is called.")] = None,
    capacity: CapacityOption = None,
    reload: Annotated[bool | None, typer.Option("--reload/--no-reload", help="Start the code anew when it is saved.")] = None,
    publish: Annotated[bool | None, typer.Option("--publish/--no-publish", help="Publish the manifest at the start.")] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Run a worker for one target until Ctrl+C or SIGTERM; it finishes its steps first."""
    from ryusen_cli.connection import Connection
    from ryusen_cli.dev import messages
    from ryusen_cli.output import Output
    from ryusen_cli.settings import load

    output = Output(json=json_)
    settings = load("worker", config)
    capacity_given = settings.number("capacity", capacity)
    if capacity_given < 1:
        raise usage(f"a capacity of {capacity_given} runs nothing", "give at least 1")
    server = Connection(settings.text("url", url)).url  # refuses what is no URL
    order = messages.RunWorker(
        target=target,
        url=server,
        token=settings.optional("token", token),
        workspace=settings.optional_given("workspace", workspace),
        release=settings.optional("release", release),
        capacity=capacity_given,
        publish=settings.switch("publish", flag=publish),
    )
    if settings.switch("reload", flag=reload):
        from ryusen_cli.dev.supervisor import Plan

        raise typer.Exit(_supervise(Plan(targets=[target], worker=order), output))
    raise typer.Exit(_work(order, server, output))


def dev(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[TARGET]...", help="What to run; without it, the one module here.")
    ] = None,
    *,
    tui: Annotated[bool | None, typer.Option("--tui/--no-tui", help="The dashboard in front.")] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep nothing: the database goes with the server.")] = False,
    no_reload: Annotated[bool, typer.Option("--no-reload", help="Do not watch the sources.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the pages in the browser.")] = False,
    capacity: CapacityOption = None,
    db: DbOption = None,
    host: HostOption = None,
    port: PortOption = None,
    allow_host: AllowHostOption = None,
    credentials: CredentialsOption = None,
    lease: LeaseOption = None,
    reconnect_grace: GraceOption = None,
    log_format: LogFormatOption = None,
    max_run_timeout: MaxTimeoutOption = None,
    default_run_timeout: DefaultTimeoutOption = None,
    http_endpoint: EndpointOption = None,
    http_capacity: HttpCapacityOption = None,
    token: TokenOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Run a server and a worker for every target, and take up changed code when it is saved."""
    from ryusen_cli.output import Output
    from ryusen_cli.settings import load

    output = Output(json=json_)
    settings = load("dev", config)
    is_ephemeral = settings.switch("ephemeral", flag=ephemeral or None)
    if is_ephemeral and db is not None:
        raise usage("--ephemeral keeps no database, and --db names one", "give one of them")
    server = _server_order(
        settings,
        db=db,
        host=host,
        port=port,
        allow_host=allow_host,
        credentials=credentials,
        lease=lease,
        reconnect_grace=reconnect_grace,
        log_format=log_format,
        max_run_timeout=max_run_timeout,
        default_run_timeout=default_run_timeout,
        http_endpoint=http_endpoint,
        http_capacity=http_capacity,
        ephemeral=is_ephemeral,
        supervised=True,
    )
    chosen = settings.many("targets", targets or [])
    if not chosen:
        from ryusen_cli.dev.targets import find_target

        chosen = [find_target(Path.cwd())]
    if len(set(chosen)) != len(chosen):
        raise usage("a target is named twice", "name each once; capacity is set with --capacity")
    from ryusen_cli.dev import messages
    from ryusen_cli.dev.supervisor import Plan

    worker_order = messages.RunWorker(
        target="", url=None, token=settings.optional("token", token), capacity=settings.number("capacity", capacity)
    )
    plan = Plan(targets=chosen, worker=worker_order, server=server, reload=not no_reload, browse=open_)
    if _wants_dashboard(output, asked=settings.switch("tui", flag=tui), by_flag=tui is not None):
        from ryusen_cli.dev.front import supervise

        raise typer.Exit(supervise(plan, f"http://127.0.0.1:{server.port}", output, Path(server.db).parent))
    raise typer.Exit(_supervise(plan, output))


def _wants_dashboard(output: Output, *, asked: bool, by_flag: bool) -> bool:
    """Whether the dashboard is wanted and can be shown; who may not know of it is told."""
    from ryusen_cli.commands.tui import has_terminal
    from ryusen_cli.output import Painted

    if asked and (output.json or not has_terminal()):
        output.note("the dashboard needs a terminal; logging in plain lines")
        return False
    if not asked and not by_flag and not output.json and has_terminal():
        output.note(Painted("--tui shows all this as a dashboard", "muted"))
    return asked


def _server_order(
    settings: Settings,
    *,
    db: str | None,
    host: str | None,
    port: int | None,
    allow_host: list[str] | None,
    credentials: str | None,
    lease: str | None,
    reconnect_grace: str | None,
    log_format: str | None,
    max_run_timeout: str | None,
    default_run_timeout: str | None,
    http_endpoint: list[str] | None,
    http_capacity: int | None,
    ephemeral: bool = False,
    supervised: bool = False,
) -> messages.RunServer:
    from ryusen_cli.dev.messages import RunServer

    port_number = settings.number("port", port)
    if not 0 <= port_number <= 65_535:
        raise usage(f"{port_number} is not a port", "give a number from 1 to 65535, or 0 for a free one")
    lease_ms = settings.span_ms("lease", lease)
    if not lease_ms:
        raise usage("the lease is empty; a worker could never be in contact", "give a duration, such as --lease 30s")
    address = settings.text("host", host)
    return RunServer(
        db=settings.text("db", db),
        host=address,
        port=port_number,
        # Whoever binds an address by name means to be asked for by that name.
        allow_hosts=[*settings.many("allow-host", allow_host), *_own_name(address)],
        credentials=settings.optional("credentials", credentials),
        lease_ms=lease_ms,
        reconnect_grace_ms=settings.span_ms("reconnect-grace", reconnect_grace) or 0,
        max_run_timeout_ms=settings.span_ms("max-run-timeout", max_run_timeout),
        default_run_timeout_ms=settings.span_ms("default-run-timeout", default_run_timeout),
        http_endpoints=_endpoints(settings.many("http-endpoint", http_endpoint)),
        http_capacity=_http_capacity(settings.number("http-capacity", http_capacity)),
        http_secret=_http_secret(settings),
        ephemeral=ephemeral,
        # A supervisor tells of the server's life itself; from the server's own log it needs what is wrong.
        log_level="WARNING" if supervised else "INFO",
        log_format=_log_format(settings.text("log-format", log_format)),
    )


def _log_format(given: str) -> Literal["text", "json"]:
    match given:
        case "text" | "json":
            return given
        case _:
            raise usage(f"the log format {given!r} is none of text, json", "give --log-format text or --log-format json")


def _endpoints(given: list[str]) -> list[str]:
    from ryusen_server.bootstrap.settings import StartRefused, http_endpoint

    try:
        endpoints = [http_endpoint(text) for text in given]
    except StartRefused as refused:
        raise usage(str(refused)) from None
    if len(set(endpoints)) != len(endpoints):
        raise usage("an HTTP endpoint is given twice", "give each once; --http-capacity sets how much it does at a time")
    return given


def _http_capacity(given: int) -> int:
    from ryusen_server.bootstrap.settings import HTTP_CAPACITY_MAX

    if not 1 <= given <= HTTP_CAPACITY_MAX:
        raise usage(f"an HTTP capacity of {given} is not between 1 and {HTTP_CAPACITY_MAX}")
    return given


def _http_secret(settings: Settings) -> str | None:
    """From the environment or a settings file only: a flag would stand in the list of processes."""
    resolved = settings.resolve("http-secret")
    if resolved.value == "":
        raise usage(f"{resolved.source} is empty", "give it a long random value, or unset it to leave calls unsigned")
    return None if resolved.value is None else str(resolved.value)


def _own_name(address: str) -> list[str]:
    if address in {"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"}:  # noqa: S104 - only compared
        return []
    return [f"[{address}]" if ":" in address else address]


def _supervise(plan: Plan, output: Output) -> int:
    import asyncio

    from ryusen_cli.dev.hangup import watch_terminal
    from ryusen_cli.dev.supervisor import Supervisor

    async def run() -> int:
        supervisor = Supervisor(plan, output)
        if sys.stderr.isatty():
            watch_terminal(sys.stderr.fileno(), lambda: supervisor.finish(Exit.TERMINATED))
        return await supervisor.run()

    return asyncio.run(run())


def _work(order: messages.RunWorker, url: str, output: Output) -> int:
    """One worker in this very process; what it says of itself goes to stderr, its user's prints where they go."""
    from ryusen_cli.dev import messages
    from ryusen_cli.output import Painted
    from ryusen_cli.worker_process import run_worker

    failure: messages.Failed | None = None

    def told(fact: messages.Fact) -> None:
        nonlocal failure
        match fact:
            case messages.Registered(functions, capacity) if output.json:
                output.encoded({"status": "registered", "url": url, "functions": functions, "capacity": capacity})
            case messages.Registered(functions, capacity):
                output.note(f"registered at {url}: {', '.join(functions) or 'no functions'}; capacity {capacity}")
            case messages.Away(reason, retry_in_ms):
                output.note(Painted("no connection: ", "warn"), f"{reason}; trying again in {retry_in_ms / 1_000:.1f} s")
            case messages.Noted(text, _):
                output.note(text)
            case messages.Failed():
                failure = fact
            case _:
                pass

    code = run_worker(order, told, lambda: url)
    sys.stdout.flush()
    if failure is not None:
        raise CliError(failure.message, hint=failure.hint, exit_code=Exit(code))
    return code
