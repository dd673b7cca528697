"""Starts a child process with its pipes, on nothing but what every interpreter has at hand.

Owns how a child is started, and the one that is started before anybody knows the whole command line: imports are most of the time until a
server answers, so it makes them while this process reads its command. Knows no loop; `process` hears what is started here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import ryusen_cli

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Role = Literal["server", "worker"]
"""What a child imports while it waits for its order."""

_BOOT: Final = "import sys; sys.path.append({root!r}); from ryusen_cli.dev.child import main; sys.exit(main(sys.argv[1:]))"
_ASK_FOR_HELP: Final = frozenset(("-h", "--help"))


class Spawned(NamedTuple):
    """A process that waits for its order, and this end of its pipes."""

    process: subprocess.Popen[bytes]
    control_fd: int
    """Its order goes here; closed, it ends."""
    facts_fd: int


def child_command(role: str, control_fd: int, facts_fd: int) -> list[str]:
    """The command of a child: this interpreter and this very code, wherever it was imported from.

    `-P` keeps the current folder out of the child's own imports; a target finds it by its own rule.
    """
    root = str(Path(ryusen_cli.__file__).parent.parent)
    return [sys.executable, "-P", "-c", _BOOT.format(root=root), role, str(control_fd), str(facts_fd)]


def spawn(role: Role, command: Callable[[str, int, int], list[str]] = child_command) -> Spawned:
    """Starts a process in a session of its own: Ctrl+C reaches only the parent, and no child can draw on its terminal. Raises `OSError`."""
    control_read, control_write = os.pipe()
    facts_read, facts_write = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and words of our own
            command(role, control_read, facts_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=(control_read, facts_write),
            start_new_session=True,
        )
    except BaseException:
        os.close(control_write)
        os.close(facts_read)
        raise
    finally:
        os.close(control_read)
        os.close(facts_write)
    return Spawned(process, control_write, facts_read)


class HeadStart:
    """At most one server that is started ahead of its order."""

    def __init__(self) -> None:
        self._server: Spawned | None = None

    def begin(self, words: Sequence[str]) -> None:
        """Start a server if this command line is going to want one. Whatever stands in the way is met again, and told, by who orders it."""
        if self._server is None and words[:1] == ["dev"] and _ASK_FOR_HELP.isdisjoint(words):
            try:
                self._server = spawn("server")
            except OSError:
                return

    def take(self) -> Spawned | None:
        """The server that was started, to whoever has its order; only once."""
        server, self._server = self._server, None
        return server

    def drop(self) -> None:
        """End what nobody took."""
        server = self.take()
        if server is not None:
            os.close(server.control_fd)
            os.close(server.facts_fd)
            server.process.kill()
            if server.process.stdout is not None:
                server.process.stdout.close()
            server.process.wait()


head_start: Final = HeadStart()
"""Of this process."""
