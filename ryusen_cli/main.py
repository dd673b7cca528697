"""The entry point: what a process does first, and how a command ends.

Owns the one place where exceptions become output and exit codes. Imports next to nothing, so that `dev` has its server on the way before
the command line is parsed. Which commands there are stands in `tree`.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from ryusen_cli.dev.spawn import head_start
from ryusen_cli.exits import CliError, Exit


def run() -> None:
    """Run the command line of this process, and end it."""
    gc.disable()  # what imports make stays
    _open_closed_streams()
    head_start.begin(sys.argv[1:])
    try:
        code = main(sys.argv[1:])
    finally:
        head_start.drop()
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run one command line. Returns its exit code; whatever goes wrong is said before."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        from ryusen_cli.tree import build

        command = build()
        gc.enable()
        result: Any = command.main(args=arguments, prog_name="ryusen", standalone_mode=False)
    except CliError as error:
        return _said(error, arguments)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone. Nothing may be written when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.ERROR)
    except Exception as error:  # noqa: BLE001 - the parser's own errors have no public type in every version
        return _parser_error(error, arguments)
    return result if isinstance(result, int) else 0


def _open_closed_streams() -> None:
    """A standard stream that was closed leads nowhere. Else the next pipe takes its number, and in a child the stream takes it back."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the one of this stream
            os.set_inheritable(fd, True)  # noqa: FBT003 - the standard library's spelling
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - a descriptor, open to the end


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
    return _said(CliError(message, exit_code=Exit.USAGE, hint=hint), arguments)


def _said(error: CliError, arguments: list[str]) -> int:
    from ryusen_cli.options import wants_json
    from ryusen_cli.output import Output

    Output(json=wants_json(arguments)).error(error)
    return int(error.exit_code)
