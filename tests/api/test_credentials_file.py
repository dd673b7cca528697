"""The credentials file: what it may say, and what is told of a file that says something else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.scope import Scope
from ryusen_server.api.credentials import Principal
from ryusen_server.api.credentials_file import CredentialsRefused, parse_credentials
from ryusen_server.bootstrap.credentials import read_credentials

SECRET = "a-secret-that-nobody-may-see"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
GOOD = f"""
[[token]]
name = "billing"
sha256 = "{DIGEST}"
workspaces = {{default = ["events:send", "read"], other = ["operate"]}}
applications = {{"default/shop" = ["deploy", "execute"], "default/a/b" = ["execute"]}}

[[token]]
sha256 = "{"AB" * 32}"
[token.workspaces]
default = ["events:read"]
"""


def refused(text: str) -> str:
    with pytest.raises(CredentialsRefused) as caught:
        parse_credentials(text)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_a_file_says_who_may_do_what() -> None:
    first, second = parse_credentials(GOOD).principals
    assert first == Principal(
        sha256=DIGEST,
        name="billing",
        workspaces={Workspace("default"): frozenset(("events:send", "read")), Workspace("other"): frozenset(("operate",))},
        applications={
            Scope(Workspace("default"), Application("shop")): frozenset(("deploy", "execute")),
            Scope(Workspace("default"), Application("a/b")): frozenset(("execute",)),
        },
    )
    assert second.sha256 == "ab" * 32
    assert parse_credentials(GOOD).workspaces == {"default", "other"}


TOKEN = f'[[token]]\nsha256 = "{DIGEST}"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: no token is named"),
        ("[[token]\n", "line 1: not TOML"),
        ('[[token]]\nsha256 = "x\n', "line 2: not TOML"),
        ("\n\nport = 3\n", "line 3: there is no port here"),
        (f'[[token]]\ntoken = "{SECRET}"\n', "line 2: a token itself does not stand in this file"),
        (f'[[token]]\nsha256 = "{SECRET}"\nworkspaces = {{default = ["read"]}}\n', "line 2: sha256 is missing or is no digest"),
        ("[[token]]\nworkspaces = {default = ['read']}\n", "line 1: sha256 is missing"),
        (f"{TOKEN}\n", "line 2: this token allows nothing"),
        (f"{TOKEN}worskpaces = {{default = ['read']}}\n", "line 3: a token has no worskpaces"),
        (f"{TOKEN}workspaces = ['read']\n", "line 3: workspaces is a table of lists"),
        (f"{TOKEN}workspaces = {{default = 'read'}}\n", "line 3: default needs a list"),
        (f"{TOKEN}workspaces = {{default = []}}\n", "line 3: default needs a list"),
        (f"{TOKEN}workspaces = {{default = ['write']}}\n", "known are events:send, events:read, read, operate"),
        (f"{TOKEN}workspaces = {{default = ['deploy']}}\n", "deploy belongs to applications"),
        (f"{TOKEN}workspaces = {{default = [['read']]}}\n", "line 3: the workspaces default hold a capability that there is not"),
        (f"{TOKEN}workspaces = {{'' = ['read']}}\n", "The workspace is empty"),
        (f"{TOKEN}applications = {{shop = ['deploy']}}\n", 'line 3: shop names no application; write "workspace/application"'),
        (f"{TOKEN}applications = {{'default/' = ['deploy']}}\n", "The application is empty"),
        (f"{TOKEN}applications = {{'default/shop' = ['read']}}\n", "read belongs to workspaces"),
        (f"{TOKEN}name = 7\nworkspaces = {{default = ['read']}}\n", "line 3: a name is text"),
        (f"{TOKEN}name = '\u202e'\nworkspaces = {{default = ['read']}}\n", "line 3: a name is text"),
        (
            f"{TOKEN}workspaces = {{default = ['read']}}\n\n{TOKEN}workspaces = {{default = ['read']}}\n",
            "line 6: this token is also the one of line 2",
        ),
    ],
)
def test_a_bad_file_is_told_by_its_line_and_never_by_its_values(text: str, told: str) -> None:
    assert told in refused(text)


def test_more_tokens_than_are_taken_are_refused() -> None:
    assert "more than the 1000" in refused("".join(f'[[token]]\nsha256 = "{number:064x}"\n' for number in range(1001)))


def test_a_file_that_others_may_use_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text(GOOD)
    for mode in (0o640, 0o604, 0o620, 0o602, 0o610):
        path.chmod(mode)
        with pytest.raises(CredentialsRefused, match=f"mode {mode:04o}.*chmod 600"):
            read_credentials(path)
    path.chmod(0o600)
    assert read_credentials(path) == parse_credentials(GOOD)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(CredentialsRefused, match=r"No such file.*--credentials"):
        read_credentials(tmp_path / "missing")
    tmp_path.chmod(0o700)
    with pytest.raises(CredentialsRefused, match=r"cannot be (used|read)"):
        read_credentials(tmp_path)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\xff")
    broken.chmod(0o600)
    with pytest.raises(CredentialsRefused, match="not UTF-8 at byte 0"):
        read_credentials(broken)
