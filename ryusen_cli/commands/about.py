"""`ryusen version`, `completion` and `config show`: what this program is, what it takes, and where its settings come from."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ryusen_cli.exits import usage
from ryusen_cli.options import ConfigOption, JsonOption

_SECRET = frozenset({"token", "http-secret"})
"""Whoever looks at settings, or over a shoulder, is told that these are set and no more."""


def version(*, json_: JsonOption = False) -> None:
    """Print the version of Ryusen, of its protocol, and of Python."""
    import platform

    from ryusen_cli.output import Output
    from ryusen_protocol import PROTOCOL_VERSION

    output = Output(json=json_)
    product = product_version()
    if output.json:
        output.encoded(
            {"version": product, "protocol_version": PROTOCOL_VERSION, "python": platform.python_version(), "executable": sys.executable}
        )
        return
    output.line(f"ryusen {product}, protocol {PROTOCOL_VERSION}, Python {platform.python_version()}")


def config_show(*, config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Print every setting with its value and where it stands."""
    from ryusen_cli.output import Output
    from ryusen_cli.settings import SETTINGS, load

    output = Output(json=json_)
    shown: list[dict[str, Any]] = []
    for setting in SETTINGS:
        command = setting.section
        resolved = load(command, config).resolve(setting.name)
        value = "(set)" if setting.name in _SECRET and resolved.value is not None else resolved.value
        shown.append({"name": setting.name, "command": command, "value": value, "source": resolved.source})
    if output.json:
        output.encoded({"items": shown, "next_cursor": None})
        return
    output.table(("SETTING", "VALUE", "SOURCE"), [[one["name"], _text(one["value"]), one["source"]] for one in shown])


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    *,
    json_: JsonOption = False,
) -> None:
    """Print the completion script of a shell: `source <(ryusen completion bash)` in its startup file."""
    from ryusen_cli.completion import SHELLS, script, tree_of
    from ryusen_cli.output import Output, Painted
    from ryusen_cli.tree import build

    if shell not in SHELLS:
        raise usage(f"there is no completion for {shell!r}", f"ryusen completion {'|'.join(SHELLS)}")
    output = Output(json=json_)
    text = script(shell, tree_of(build()))
    if output.json:
        output.encoded({"shell": shell, "script": text})
    else:
        output.line(Painted(text.rstrip("\n")))


def product_version() -> str:
    """The version of the installed distribution, or of this source tree."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("ryusen")
    except PackageNotFoundError:
        return "0.0.0+source"


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "on" if value else "off"
        case list():
            return ", ".join(str(item) for item in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return str(value)
