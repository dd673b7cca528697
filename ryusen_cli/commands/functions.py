"""`ryusen functions show`: one function, what starts it, and who can run it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ryusen_cli.exits import CliError, Exit, usage
from ryusen_cli.options import Client, client_command

if TYPE_CHECKING:
    from ryusen_protocol.api import FunctionDocument


@client_command
def show(
    client: Client, function: Annotated[str, typer.Argument(metavar="FUNCTION", help="The function's id, or APPLICATION/ID.")]
) -> None:
    """Show one function: triggers, timeout, manifest, and the workers that can run it."""
    import msgspec

    from ryusen_protocol.durations import format_ms

    found = [one for one in _all(client) if function in {one.function, f"{one.application}/{one.function}"}]
    if not found:
        raise CliError(f"no active manifest has a function {function!r}", exit_code=Exit.NOT_FOUND, hint=client.typed("functions", "ls"))
    if len(found) > 1:
        named = ", ".join(f"{one.application}/{one.function}" for one in found)
        raise usage(f"{function!r} is a function of several applications: {named}", "name one of them with its application")
    (one,) = found
    output = client.output
    if output.json:
        output.document(msgspec.json.encode(one))
        return
    output.line(f"{one.application}/{one.function}")
    output.line("manifest  ", one.manifest_generation)
    output.line("timeout   ", "none" if one.timeout_ms is None else format_ms(one.timeout_ms))
    output.line("workers   ", ", ".join(one.workers) or "none")
    for trigger in one.triggers:
        output.line("starts on ", f"{trigger.event_name}  ({trigger.trigger_id})")
    if not one.triggers:
        output.line("starts on ", "nothing: invoke only")
    if not one.workers:
        output.note("no connected worker can run it; its runs wait: ryusen worker TARGET")


def _all(client: Client) -> list[FunctionDocument]:
    functions: list[FunctionDocument] = []
    cursor: str | None = None
    while True:
        page = client.ask(client.api.list_functions(cursor=cursor)).document
        functions += page.items
        cursor = page.next_cursor
        if cursor is None:
            return functions
