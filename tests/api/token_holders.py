"""A server that asks for tokens, and callers that hold one each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

HOLDERS: dict[str, tuple[dict[str, list[str]], dict[str, list[str]]]] = {
    "sender": ({"default": ["events:send"]}, {}),
    "observer": ({"default": ["events:read"]}, {}),
    "reader": ({"default": ["read"]}, {}),
    "operator": ({"default": ["operate"]}, {}),
    "deployer": ({}, {"default/shop": ["deploy"]}),
    "runner": ({}, {"default/shop": ["execute"]}),
    "everything": ({"default": ["events:send", "events:read", "read", "operate"]}, {"default/shop": ["deploy", "execute"]}),
    "neighbour": (
        {"other": ["events:send", "events:read", "read", "operate"]},
        {"other/shop": ["deploy", "execute"], "default/till": ["deploy", "execute"]},
    ),
}
"""Name to capabilities in workspaces and in applications."""
STRANGER = "nobody"
"""Holds a token that no file knows."""


def token(name: str) -> str:
    """The token a holder sends."""
    return f"token-of-{name}-0123456789abcdef"


def bearer(name: str) -> dict[str, str]:
    """The header a holder sends."""
    return {"authorization": f"Bearer {token(name)}"}


def write_credentials(path: Path, names: Mapping[str, tuple[dict[str, list[str]], dict[str, list[str]]]] = HOLDERS) -> Path:
    """A credentials file that knows the holders."""
    blocks = [
        "\n".join(
            [
                "[[token]]",
                f"name = {json.dumps(name)}",
                f'sha256 = "{hashlib.sha256(token(name).encode()).hexdigest()}"',
                *([f"workspaces = {_table(workspaces)}"] if workspaces else []),
                *([f"applications = {_table(applications)}"] if applications else []),
            ]
        )
        for name, (workspaces, applications) in names.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text("\n\n".join(blocks))
    fresh.replace(path)
    return path


def _table(held: dict[str, list[str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)} = {json.dumps(words)}" for name, words in held.items()) + "}"
