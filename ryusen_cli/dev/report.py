"""Keeps looking at a supervised server, and prints: everything once it is ready, later whatever is different.

Owns the rhythm and where lines go. What is said stands in `facts`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from ryusen_cli.dev.facts import Facts, changed_lines, gather, next_step, report_lines
from ryusen_cli.exits import CliError
from ryusen_cli.output import Output, Painted

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S: Final = 1.0
_NOT_ALLOWED: Final = frozenset(("unauthorized", "forbidden"))
_WHOSE: Final = "Its workers and this report use --token (or RYUSEN_TOKEN)."


class Standing(msgspec.Struct, frozen=True):
    """What the supervisor knows and the server does not, at one moment."""

    url: str
    workspace: str
    example: str | None
    """A line its author starts the application with."""
    without_worker: list[str]
    """Targets that no worker runs for."""
    token: str | None = None


async def report(standing: Callable[[], Standing], output: Output, say: Callable[[str], None]) -> None:
    """Look and tell until cancelled. `say` gets what changed after the first report."""
    before: Facts | None = None
    refusal: str | None = None
    while True:
        now = standing()
        try:
            facts = await asyncio.to_thread(gather, now.url, now.workspace, now.token)
        except CliError as error:
            facts = None  # a server that is down is told of by its process
            if error.code in _NOT_ALLOWED and error.message != refusal:
                refusal = error.message
                say(f"what the server has cannot be shown: {error.message} {_WHOSE}")
        if facts is not None:
            if before is None:
                _print_ready(facts, now, output)
            for line in changed_lines(before, facts):
                say(line)
            before = facts
        await asyncio.sleep(_LOOK_S)


def _print_ready(facts: Facts, now: Standing, output: Output) -> None:
    step = next_step(facts, now.example)
    if output.json:
        output.encoded({"status": "ready", **msgspec.to_builtins(facts), "next_step": step})
        return
    for line in report_lines(facts):
        output.line(line)
    for name in now.without_worker:
        output.line(Painted(f"no worker   {name} did not start; see above", "warn"))
    output.line(Painted("ready", "good"))
    if step is not None:
        output.line("next step   ", step)
