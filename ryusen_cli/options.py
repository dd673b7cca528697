"""Arguments that many commands share, and the door through which a client command gets its connection.

Owns how flags are spelled. A client command is written with a `Client` as its first parameter; `client_command` gives it the flags
that every client command takes.
"""

from __future__ import annotations

import inspect
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ryusen_cli.exits import usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ryusen_cli.connection import Connection, Reply
    from ryusen_cli.output import Cell, Output
    from ryusen_cli.settings import Settings
    from ryusen_protocol.api import Page
    from ryusen_protocol.client import Api, Request

T = TypeVar("T")

UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help="The server to talk to [default: http://127.0.0.1:7878].")]
TokenOption = Annotated[str | None, typer.Option("--token", metavar="TOKEN", help="Bearer token, for a server that asks for one.")]
WorkspaceOption = Annotated[str | None, typer.Option("--workspace", metavar="NAME", help="The workspace [default: default].")]
ConfigOption = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings file in place of ryusen.toml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", help="How many at most.")]
CursorOption = Annotated[str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on where another page ended.")]
TimeoutOption = Annotated[str | None, typer.Option("--timeout", metavar="DURATION", help="How long to wait, such as 30s.")]


class Client:
    """What a client command works with: its output, settings, the requests of its workspace, and the connection."""

    def __init__(
        self, output: Output, settings: Settings, *, url: str | None, token: str | None, workspace: str | None, config: str | None = None
    ) -> None:
        self.output = output
        self.settings = settings
        self.config = config
        """The settings file that was named in place of the usual one."""
        self._url = settings.text("url", url)
        self._token = settings.optional("token", token)
        self._workspace = settings.text("workspace", workspace)
        self._workspace_given = settings.optional_given("workspace", workspace)
        given = {"--url": url, "--workspace": workspace, "--config": config}
        self._flags = [word for name, value in given.items() if value is not None for word in (name, value)]
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The one connection of this command, opened when first used."""
        from ryusen_cli.connection import Connection

        if self._connection is None:
            self._connection = Connection(self._url, self.typed)
        return self._connection

    @property
    def api(self) -> Api:
        """Requests of the workspace."""
        from ryusen_protocol.client import Api

        try:
            return Api(self._workspace, self._token)
        except ValueError as error:
            raise usage(str(error)) from error

    def api_of(self, workspace: str, target: str) -> Api:
        """Requests of the workspace that a target names for itself, unless another one was asked for."""
        from ryusen_protocol.client import Api

        if self._workspace_given is not None and self._workspace_given != workspace:
            raise usage(f"{target} belongs to workspace {workspace!r}, not {self._workspace_given!r}", "leave --workspace out")
        try:
            return Api(workspace, self._token)
        except ValueError as error:
            raise usage(str(error)) from error

    def typed(self, *words: str) -> str:
        """A command line to show to a person: it reaches the same server and workspace as this command. A token is never repeated."""
        import shlex

        return shlex.join(["ryusen", *words, *self._flags])

    def close(self) -> None:
        """Let go of the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()

    def ask(self, request: Request[T], *, wait_ms: int = 0) -> Reply[T]:
        """The answer to a reading request."""
        return self.connection.ask(request, wait_ms=wait_ms)

    def page(self, reply: Reply[Page[Any]], headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, empty: str) -> None:
        """One page of a list: the document, or a table. `empty` is said, beside the data, when there is nothing."""
        if self.output.json:
            self.output.document(reply.text)
        elif rows:
            self.output.table(headers, rows)
        else:
            self.output.note(empty)
        if reply.document.next_cursor is not None and not self.output.json:
            self.output.note(f"there is more: --cursor {reply.document.next_cursor}")


def client_command(command: Callable[..., None]) -> Callable[..., None]:
    """`command(client, …)` as a command that takes `--url --token --workspace --config --json` too."""

    @wraps(command)
    def run(*args: Any, url: str | None, token: str | None, workspace: str | None, config: str | None, json_: bool, **kwargs: Any) -> None:
        from ryusen_cli.output import Output
        from ryusen_cli.settings import load

        client = Client(Output(json=json_), load("client", config), url=url, token=token, workspace=workspace, config=config)
        try:
            command(client, *args, **kwargs)
        finally:
            client.close()

    shared = {"url": UrlOption, "token": TokenOption, "workspace": WorkspaceOption, "config": ConfigOption, "json_": JsonOption}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [*own, *(_keyword(name, annotation) for name, annotation in shared.items())]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def wants_json(arguments: list[str]) -> bool:
    """Whether a command line that could not be understood asked for a document."""
    return "--json" in arguments


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Refuses a value that is none of those there are, and says which was probably meant."""
    if value is None or value in choices:
        return
    import difflib

    meant = difflib.get_close_matches(value, choices, n=1, cutoff=0.4)
    raise usage(f"{option} {value!r} is none of {', '.join(choices)}", f"give one of them, such as {option} {(meant or choices)[0]}")


def read_stdin(what: str) -> bytes:
    """All of standard input. Refuses a terminal: nobody would know that it is being waited for."""
    if sys.stdin.isatty():
        raise usage(f"{what} is read from standard input, but that is a terminal", "pipe it in, or write @file")
    return sys.stdin.buffer.read()


def read_argument(argument: str, what: str) -> bytes:
    """What an argument stands for: its own text, the file behind `@`, or standard input for `-`."""
    if argument == "-":
        return read_stdin(what)
    return read_file(argument[1:]) if argument.startswith("@") else argument.encode("utf-8", "surrogateescape")


def read_file(path: str) -> bytes:
    """A file that the command line names, byte for byte."""
    if not path:
        raise usage("no file is named", "write its path, such as @order.json")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}", f"check the path; it is looked for in {Path.cwd()}") from error


def fresh_key() -> str:
    """An idempotency key of our own."""
    import secrets

    return f"cli-{secrets.token_hex(16)}"


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    default = False if name == "json_" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
