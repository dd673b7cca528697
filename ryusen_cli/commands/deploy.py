"""Commands that deploy: `apps publish`, the deliberate way to activate a manifest. Workers of a guarded server need none of its power."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ryusen_cli.exits import CliError, Exit
from ryusen_cli.options import Client, client_command

if TYPE_CHECKING:
    from ryusen_protocol.api import ApplicationDocument
    from ryusen_protocol.client import Api
    from ryusen_sdk.app import Ryusen


@client_command
def apps_publish(
    client: Client, target: Annotated[str, typer.Argument(metavar="TARGET", help="package.module, package.module:name or path/file.py.")]
) -> None:
    """Publish a target's manifest and activate it; what is active already is left as it is."""
    app = _load(target)
    api = client.api_of(app.workspace, target)
    manifest = app.manifest()
    head = _head(client, api, app.application)
    if head is not None and head.digest == manifest.digest:
        told = {"manifest_generation": head.manifest_generation, "routing_generation": head.routing_generation, "digest": head.digest}
        _tell(client, app, "current", told)
        return
    publication = manifest.publication(None if head is None else head.manifest_generation)
    repeat = f"run it again, that is safe: {client.typed('apps', 'publish', target)}"
    receipt = client.connection.change(api.publish_manifest(app.application, publication), repeat=repeat).document
    told = {
        "manifest_generation": receipt.manifest_generation,
        "routing_generation": receipt.routing_generation,
        "digest": receipt.digest,
    }
    _tell(client, app, receipt.status, told)


def _load(target: str) -> Ryusen:
    from ryusen_sdk.errors import TargetError
    from ryusen_sdk.target import load_target

    try:
        return load_target(target)
    except TargetError as error:
        raise CliError(str(error), exit_code=Exit.ERROR, code="target") from error


def _head(client: Client, api: Api, application: str) -> ApplicationDocument | None:
    try:
        return client.ask(api.get_application(application)).document
    except CliError as error:
        if error.exit_code is Exit.NOT_FOUND:
            return None
        raise


def _tell(client: Client, app: Ryusen, status: str, told: dict[str, str]) -> None:
    if client.output.json:
        client.output.encoded({"status": status, "workspace": app.workspace, "application": app.application, **told})
        return
    words = {"created": "published", "replayed": "published before", "current": "current already, nothing published"}
    client.output.line(app.application, "  ", words.get(status, status))
    client.output.line("manifest  ", f"{told['manifest_generation']} ({told['digest']})")
    client.output.line("routing   ", told["routing_generation"])
