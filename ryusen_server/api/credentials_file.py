"""The text of a credentials file: TOML in, credentials out, or the line that is wrong and what to write there.

Pure. A message never repeats a value of the file: what stands in the wrong place may be a token.

```toml
[[token]]
name = "billing"                       # optional: how commands of this token are signed
sha256 = "<64 hexadecimal digits>"     # of the token's text
workspaces = {default = ["events:send", "events:read", "operate", "read"]}
applications = {"default/shop" = ["deploy", "execute"]}
```
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast, get_args

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.scope import Scope
from ryusen_protocol.submission import identifier_problem
from ryusen_protocol.words import printable
from ryusen_server.api.credentials import Credentials, Principal
from ryusen_server.api.route import ApplicationCapability, WorkspaceCapability

TOKENS_MAX: Final = 1_000
NAME_CHARACTERS_MAX: Final = 64
_WORKSPACE_WORDS: Final = cast("tuple[WorkspaceCapability, ...]", get_args(WorkspaceCapability))
_APPLICATION_WORDS: Final = cast("tuple[ApplicationCapability, ...]", get_args(ApplicationCapability))
_MEMBERS: Final = ("name", "sha256", "workspaces", "applications")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_HEADER: Final = re.compile(r"\s*\[\[\s*token\s*\]\]")
_AT_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_HASH_HINT: Final = 'write the SHA-256 of the token\'s text in 64 hexadecimal digits: printf %s "$TOKEN" | sha256sum'


class CredentialsRefused(Exception):
    """The credentials cannot be used. The message is one line for people: where, what, and what to do."""


def parse_credentials(text: str) -> Credentials:
    """Everybody the text names. Raises `CredentialsRefused`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise CredentialsRefused(_toml_error(str(broken))) from None
    for name in document:
        if name != "token":
            _refuse(_first_line(text, name), f"there is no {_shown(name)} here; begin each token with [[token]]")
    tokens: Any = document.get("token")
    if not isinstance(tokens, list) or not tokens:
        _refuse(1, "no token is named, so nobody could do anything; add a [[token]] with sha256, workspaces and applications")
    listed = cast("list[Any]", tokens)
    if len(listed) > TOKENS_MAX:
        _refuse(1, f"{len(listed)} tokens are more than the {TOKENS_MAX} that are taken; remove those that nobody uses")
    seen: dict[str, int] = {}
    principals: list[Principal] = []
    for index, table in enumerate(listed):
        block = _Block(text, index)
        principal = _principal(block, table)
        if principal.sha256 in seen:
            block.refuse("sha256", f"this token is also the one of line {seen[principal.sha256]}; write all that it may do in one place")
        seen[principal.sha256] = block.line("sha256")
        principals.append(principal)
    return Credentials(tuple(principals))


class _Block:
    """Where one `[[token]]` stands in the text."""

    def __init__(self, text: str, index: int) -> None:
        lines = text.splitlines()
        headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
        begin = headers[index] if index < len(headers) else 0  # tokens may also be written as one inline array
        end = headers[index + 1] if index + 1 < len(headers) else len(lines)
        self._lines = lines[begin:end]
        self._first = begin + 1

    def line(self, word: str) -> int:
        """The line of this token that holds the word, else the one it begins at."""
        found = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        lines = [(self._first + offset, line) for offset, line in enumerate(self._lines) if not _HEADER.match(line)]
        return next((number for number, line in lines if found.search(line)), self._first)

    def refuse(self, word: str, what: str) -> NoReturn:
        """Refuse, naming the line of the word."""
        _refuse(self.line(word), what)


def _principal(block: _Block, table: Any) -> Principal:
    if not isinstance(table, dict):
        block.refuse("token", "a token is a table; begin it with [[token]]")
    members = cast("dict[str, Any]", table)
    for member in members:
        if member == "token":
            block.refuse("token", f"a token itself does not stand in this file; {_HASH_HINT}")
        if member not in _MEMBERS:
            block.refuse(member, f"a token has no {_shown(member)}; it has {', '.join(_MEMBERS)}")
    sha256 = members.get("sha256")
    if not isinstance(sha256, str) or _SHA256.fullmatch(sha256.lower()) is None:
        block.refuse("sha256", f"sha256 is missing or is no digest; {_HASH_HINT}")
    workspaces: dict[Workspace, frozenset[WorkspaceCapability]] = {}
    for name, words in _table(block, members, "workspaces").items():
        _check_identifier(block, "workspace", name)
        workspaces[Workspace(name)] = frozenset(_words(block, name, words, _WORKSPACE_WORDS, "workspaces"))
    applications: dict[Scope, frozenset[ApplicationCapability]] = {}
    for name, words in _table(block, members, "applications").items():
        workspace, slash, application = name.partition("/")
        if not slash:
            block.refuse(name, f'{_shown(name)} names no application; write "workspace/application", such as "default/shop"')
        _check_identifier(block, "workspace", workspace)
        _check_identifier(block, "application", application)
        scope = Scope(Workspace(workspace), Application(application))
        applications[scope] = frozenset(_words(block, name, words, _APPLICATION_WORDS, "applications"))
    if not workspaces and not applications:
        block.refuse("sha256", "this token allows nothing; give it workspaces or applications, or remove it")
    return Principal(sha256.lower(), _name(block, members), workspaces, applications)


def _name(block: _Block, members: Mapping[str, Any]) -> str | None:
    name = members.get("name")
    if name is None:
        return None
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS_MAX or printable(name) != name:
        block.refuse("name", f"a name is text of 1 to {NAME_CHARACTERS_MAX} printable characters")
    return name


def _table(block: _Block, members: Mapping[str, Any], member: str) -> dict[str, Any]:
    table = members.get(member, {})
    if not isinstance(table, dict):
        block.refuse(member, f"{member} is a table of lists, such as {_EXAMPLES[member]}")
    return cast("dict[str, Any]", table)


_EXAMPLES: Final = {
    "workspaces": 'workspaces = {default = ["read"]}',
    "applications": 'applications = {"default/shop" = ["deploy", "execute"]}',
}


def _words(block: _Block, name: str, words: Any, known: tuple[Any, ...], member: str) -> list[Any]:
    if not isinstance(words, list) or not words:
        block.refuse(name, f"{_shown(name)} needs a list of capabilities, such as {_EXAMPLES[member]}")
    for word in cast("list[Any]", words):
        if word not in known:
            other = _APPLICATION_WORDS if known is _WORKSPACE_WORDS else _WORKSPACE_WORDS
            hint = f"{word} belongs to {_other(member)}" if word in other else f"known are {', '.join(known)}"
            block.refuse(name, f"the {member} {_shown(name)} hold a capability that there is not; {hint}")
    return cast("list[Any]", words)


def _other(member: str) -> str:
    return "applications" if member == "workspaces" else "workspaces"


def _check_identifier(block: _Block, what: str, name: str) -> None:
    refused = identifier_problem(what, name, "$")
    if refused is not None:
        block.refuse(name or "applications", f"{refused.detail}")


def _toml_error(told: str) -> str:
    found = _AT_LINE.search(told)
    what = _AT_LINE.sub("", told).strip()
    # The parser's own words may quote a character of the text, never more.
    return f"line {found[1]}: not TOML: {printable(what)}" if found else f"not TOML: {printable(what)}"


def _first_line(text: str, word: str) -> int:
    return next((number for number, line in enumerate(text.splitlines(), 1) if word in line), 1)


def _shown(text: str) -> str:
    return printable(text[:NAME_CHARACTERS_MAX])


def _refuse(line: int, what: str) -> NoReturn:
    raise CredentialsRefused(f"line {line}: {what}")
