"""`ryusen backup`: the database as a file of its own, while the server goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ryusen_cli.exits import CliError
from ryusen_cli.options import ConfigOption, JsonOption


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The new file; nothing is overwritten.")],
    *,
    db: Annotated[str | None, typer.Option("--db", metavar="PATH", help="The database to copy [default: .ryusen/ryusen.db].")] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Copy the database to FILE, whole as of one moment. The server may run. To go back: `ryusen serve --db FILE`."""
    import msgspec

    from ryusen_cli.output import Output
    from ryusen_cli.settings import load
    from ryusen_server.bootstrap.backup import BackupRefused, back_up

    output = Output(json=json_)
    source = Path(load("dev", config).text("db", db))
    output.progress(f"copying {source}")
    try:
        copied = back_up(source, Path(file))
    except BackupRefused as refused:
        raise CliError(str(refused), hint=refused.hint, code="backup_failed") from refused
    if output.json:
        output.document(msgspec.json.encode(copied))
        return
    output.line(f"wrote {copied.path} ({copied.bytes} bytes)")
