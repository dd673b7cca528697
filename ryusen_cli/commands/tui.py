"""`ryusen tui`: the dashboard of any server. Without a terminal, what commits as plain lines."""

from __future__ import annotations

import os
import sys

import typer

from ryusen_cli.options import Client, ConfigOption, TokenOption, UrlOption, WorkspaceOption


def tui(
    *,
    url: UrlOption = None,
    token: TokenOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the dashboard of a server: runs, timelines, what is Unknown, and how to settle it. q leaves."""
    from ryusen_cli.connection import Connection
    from ryusen_cli.output import Output
    from ryusen_cli.settings import load

    output = Output()
    settings = load("client", config)
    address = Connection(settings.text("url", url)).url  # refuses what is no URL
    if not has_terminal():
        output.note("no terminal here; following what commits as plain lines")
        _follow(url, token, workspace, config)
        return
    from ryusen_cli.dev.front import attach

    code, wants_plain = attach(address, workspace=settings.text("workspace", workspace), token=settings.optional("token", token))
    if wants_plain:
        output.note("following what commits as plain lines; Ctrl+C ends it, `ryusen tui` comes back")
        _follow(url, token, workspace, config)
        return
    raise typer.Exit(code)


def has_terminal() -> bool:
    """Whether a dashboard can be shown: every way leads to a terminal that moves its cursor. It is drawn by way of stderr."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


def _follow(url: str | None, token: str | None, workspace: str | None, config: str | None) -> None:
    from ryusen_cli.following import follow
    from ryusen_cli.output import Output
    from ryusen_cli.settings import load
    from ryusen_cli.views.change import change_line
    from ryusen_protocol.changes import Change

    client = Client(Output(), load("client", config), url=url, token=token, workspace=workspace, config=config)
    try:
        for told in follow(client):
            if isinstance(told, Change):
                client.output.line(*change_line(told))
    finally:
        client.close()
