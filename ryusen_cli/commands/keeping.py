"""`ryusen prune`: how long what has ended is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ryusen_cli.options import Client, client_command

if TYPE_CHECKING:
    from ryusen_protocol.api import PruneReceipt

_ANSWER_MS = 60_000


@client_command
def prune(
    client: Client,
    older_than: Annotated[str, typer.Option("--older-than", metavar="DURATION", help="The age from which on it goes, such as 30d.")],
) -> None:
    """Remove ended runs, and their events, that are older than that. Keys, manifests and whatever lives stay."""
    import msgspec

    from ryusen_cli.settings import span_ms

    request = client.api.prune(span_ms(older_than, "--older-than"))
    repeat = f"run it again, that is safe: {client.typed('prune', '--older-than', older_than)}"
    removed: PruneReceipt | None = None
    while removed is None or not removed.complete:
        receipt = client.connection.change(request, wait_ms=_ANSWER_MS, repeat=repeat).document
        removed = receipt if removed is None else _together(removed, receipt)
        if not receipt.complete and not client.output.json:
            client.output.note(f"{removed.runs} runs and {removed.events} events are gone, and there is more")
    if client.output.json:
        client.output.document(msgspec.json.encode(removed))
        return
    client.output.line(f"removed {removed.runs} runs and {removed.events} events; the database is {removed.freed_bytes} bytes smaller")


def _together(one: PruneReceipt, other: PruneReceipt) -> PruneReceipt:
    import msgspec

    return msgspec.structs.replace(
        other, runs=one.runs + other.runs, events=one.events + other.events, freed_bytes=one.freed_bytes + other.freed_bytes
    )
