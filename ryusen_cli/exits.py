"""Exit codes, and the one exception that carries an error to the person: what went wrong, why, and what to type next.

Owns the mapping from problems to exit codes. Prints nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ryusen_protocol.problems import Problem


class Exit(IntEnum):
    """What the process ends with. Scripts branch on these; they never change their meaning."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    REFUSED = 5
    NOT_SUCCEEDED = 6
    TIMED_OUT = 7
    NOT_KNOWN = 8
    INTERRUPTED = 130
    TERMINATED = 143


_TITLES = {
    Exit.ERROR: ("error", "The command failed"),
    Exit.USAGE: ("usage", "The command was not understood"),
    Exit.UNREACHABLE: ("unreachable", "The server cannot be reached"),
    Exit.NOT_FOUND: ("not_found", "There is no such thing"),
    Exit.REFUSED: ("refused", "The server refused"),
    Exit.NOT_SUCCEEDED: ("not_succeeded", "The run did not succeed"),
    Exit.TIMED_OUT: ("wait_timed_out", "The wait is over before the run"),
    Exit.NOT_KNOWN: ("not_known", "Whether it happened is not known"),
}


class CliError(Exception):
    """Ends the command. `message` says what and why, `hint` what to type next; `document` is what `--json` prints instead.

    `code` is the stable word a script branches on beside the exit code.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: Exit = Exit.ERROR,
        hint: str | None = None,
        code: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
        self.code = code
        self.extra = extra or {}

    def document(self) -> dict[str, Any]:
        """The error as a problem document, with `exit_code` and `hint` beside the usual members."""
        default_code, title = _TITLES.get(self.exit_code, _TITLES[Exit.ERROR])
        code = self.code or default_code
        document: dict[str, Any] = {"type": f"urn:ryusen:cli:{code}", "title": title, "detail": self.message, "code": code}
        document.update(self.extra)
        document["exit_code"] = int(self.exit_code)
        if self.hint is not None:
            document["hint"] = self.hint
        return document


def usage(message: str, hint: str | None = None) -> CliError:
    """The arguments or settings make no sense."""
    return CliError(message, exit_code=Exit.USAGE, hint=hint)


def exit_of(problem: Problem, *, mutation: bool) -> Exit:
    """How a command ends that the server answered with a problem.

    A mutation that made the server fail may or may not have happened; every other code says that nothing did.
    """
    if problem.code == "not_found":
        return Exit.NOT_FOUND
    if problem.code == "internal":
        return Exit.NOT_KNOWN if mutation else Exit.ERROR
    return Exit.REFUSED
