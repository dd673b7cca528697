"""The entry point: which commands there are, and how a command ends.

Owns the command tree and the one place where exceptions become output and exit codes. Imports no command's machinery: modules of
commands import theirs when they run, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from ryusen_cli.commands import (
    about,
    backup,
    conformance,
    deploy,
    doctor,
    functions,
    inspect,
    keeping,
    local,
    runs,
    scaffold,
    send,
    tui,
    unknown,
)
from ryusen_cli.exits import CliError, Exit
from ryusen_cli.options import wants_json
from ryusen_cli.output import Output
from ryusen_cli.parsing import LeanCommand, LeanGroup


def build() -> typer.Typer:
    """The whole command tree."""
    root = _group("Ryusen runs durable workflows written as ordinary Python functions.")
    _add(root, "dev", local.dev)
    _add(root, "serve", local.serve)
    _add(root, "worker", local.worker)
    _add(root, "tui", tui.tui)
    _add(root, "send", send.send)
    _add_group(root, "runs", "Find runs, read one, follow it, wait for it, stop it, wake it.", {
        "ls": runs.ls, "show": runs.show, "history": runs.history, "tail": runs.tail, "wait": runs.wait,
        "cancel": runs.cancel, "rediscover": runs.rediscover,
    })  # fmt: skip
    _add_group(root, "unknown", "Find effects whose outcome nobody could establish, and settle them.", {
        "ls": unknown.ls, "show": unknown.show, "resolve": unknown.resolve,
    })  # fmt: skip
    _add_group(root, "attempts", "Read attempts.", {"ls": inspect.attempts_ls, "show": inspect.attempts_show})
    _add_group(root, "events", "Read events and what they started.", {"ls": inspect.events_ls, "show": inspect.events_show})
    _add_group(root, "functions", "Read functions and who can run them.", {"ls": inspect.functions_ls, "show": functions.show})
    _add_group(root, "apps", "Read applications and their manifests, and publish one.", {
        "ls": inspect.apps_ls, "show": inspect.apps_show, "publish": deploy.apps_publish,
    })  # fmt: skip
    _add_group(root, "workers", "Read connected workers.", {"ls": inspect.workers_ls})
    _add_group(root, "routing", "Read routing generations.", {"ls": inspect.routing_ls, "show": inspect.routing_show})
    _add_group(root, "conformance", "Hold an SDK or a server of any language to the fixtures of the protocol.", {
        "worker": conformance.worker, "http": conformance.http, "server": conformance.server,
    })  # fmt: skip
    _add(root, "backup", backup.backup)
    _add(root, "prune", keeping.prune)
    _add(root, "init", scaffold.init)
    _add(root, "doctor", doctor.doctor)
    _add_group(root, "config", "See where settings come from.", {"show": about.config_show})
    _add(root, "completion", about.completion)
    _add(root, "version", about.version)
    return root


def run() -> None:
    """Run the command line of this process, and end it."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: list[str]) -> int:
    """Run one command line. Returns its exit code; whatever goes wrong is said before."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        result: Any = build()(args=arguments, prog_name="ryusen", standalone_mode=False)
    except CliError as error:
        Output(json=wants_json(arguments)).error(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone. Nothing may be written when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.ERROR)
    except Exception as error:  # noqa: BLE001 - the parser's own errors have no public type in every version
        return _parser_error(error, arguments)
    return result if isinstance(result, int) else 0


def _parser_error(error: Exception, arguments: list[str]) -> int:
    """A command line the parser refuses. Anything that is not the parser's is a defect, and keeps its traceback."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        raise error
    context: Any = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else "ryusen --help"
    # Asking a group for nothing prints its help, which says it all.
    message = str(format_message()).strip() or "a command is missing"
    if context is not None and message.startswith("Usage:"):
        sys.stderr.write(message + "\n")
        return int(Exit.USAGE)
    Output(json=wants_json(arguments)).error(CliError(message, exit_code=Exit.USAGE, hint=hint))
    return int(Exit.USAGE)


def _group(text: str) -> typer.Typer:
    return typer.Typer(
        cls=LeanGroup,
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add(parent: typer.Typer, name: str, command: Any) -> None:
    parent.command(name, cls=LeanCommand)(command)


def _add_group(parent: typer.Typer, name: str, text: str, commands: dict[str, Any]) -> None:
    group = _group(text)
    for command_name, command in commands.items():
        _add(group, command_name, command)
    parent.add_typer(group, name=name)
