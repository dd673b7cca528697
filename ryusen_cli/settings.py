"""Where a setting comes from: flag, then environment, then project file, then user file, then default.

Owns names, sections and precedence. The result always tells its source, so that an error names the place to change. Reads files
and the environment; knows nothing of what a setting does.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from ryusen_cli.exits import usage

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["text", "number", "span", "switch", "many"]
Value = str | int | bool | list[str]


class Setting(msgspec.Struct, frozen=True):
    """One setting: its flag without dashes, which commands it belongs to, and how it is written. A span is written `30s`."""

    name: str
    section: Literal["client", "serve", "worker", "dev"]
    kind: Kind
    default: Value | None

    @property
    def key(self) -> str:
        """How files spell it."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """How the environment spells it."""
        return f"RYUSEN_{self.key.upper()}"


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("url", "client", "text", "http://127.0.0.1:7878"),
    Setting("token", "client", "text", None),
    Setting("workspace", "client", "text", "default"),
    Setting("db", "serve", "text", ".ryusen/ryusen.db"),
    Setting("host", "serve", "text", "127.0.0.1"),
    Setting("port", "serve", "number", 7878),
    Setting("allow-host", "serve", "many", []),
    Setting("credentials", "serve", "text", None),
    Setting("lease", "serve", "span", "30s"),
    Setting("reconnect-grace", "serve", "span", "30s"),
    Setting("max-run-timeout", "serve", "span", None),
    Setting("default-run-timeout", "serve", "span", None),
    Setting("http-endpoint", "serve", "many", []),
    Setting("http-capacity", "serve", "number", 32),
    Setting("http-secret", "serve", "text", None),
    Setting("log-format", "serve", "text", "text"),
    Setting("release", "worker", "text", None),
    Setting("capacity", "worker", "number", 32),
    Setting("publish", "worker", "switch", default=True),
    Setting("reload", "worker", "switch", default=False),
    Setting("ephemeral", "dev", "switch", default=False),
    Setting("tui", "dev", "switch", default=False),
    Setting("targets", "dev", "many", []),
)
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_SECTIONS: Final = ("dev", "serve", "worker")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class Resolved(msgspec.Struct, frozen=True):
    """A value and where it stands: `flag --url`, `RYUSEN_URL`, a file with its section, or `default`."""

    value: Value | None
    source: str


class Layer(msgspec.Struct, frozen=True):
    """One file's settings: section name (empty for the top level) to key to value."""

    source: str
    sections: dict[str, dict[str, Any]]


class Settings:
    """Resolves settings for one command. `command` decides which section of a file goes before the top level."""

    def __init__(self, command: str, layers: list[Layer], environment: Mapping[str, str]) -> None:
        self._sections = {"dev": ("dev", "serve", "worker", ""), "serve": ("serve", ""), "worker": ("worker", "")}.get(command, ("",))
        self._layers = layers
        self._environment = environment

    def resolve(self, name: str, flag: Value | None = None) -> Resolved:
        """The value that counts. `flag` is what the command line says, `None` or an empty list for nothing."""
        setting = _BY_NAME[name]
        if flag is not None and flag != []:
            return Resolved(flag, f"flag --{name}")
        text = self._environment.get(setting.variable)
        if text is not None:
            return Resolved(_from_text(setting, text, setting.variable), setting.variable)
        for layer in self._layers:
            for section in self._sections:
                found = layer.sections.get(section, {})
                if setting.key in found:
                    where = f"{layer.source} [{section}]" if section else layer.source
                    return Resolved(_from_file(setting, found[setting.key], where), where)
        return Resolved(setting.default, "default")

    def text(self, name: str, flag: str | None = None) -> str:
        """A text that has a default."""
        return cast("str", self.resolve(name, flag).value)

    def optional(self, name: str, flag: str | None = None) -> str | None:
        """A text that may be missing."""
        return cast("str | None", self.resolve(name, flag).value)

    def optional_given(self, name: str, flag: str | None = None) -> str | None:
        """A text that somebody gave; its default does not count."""
        resolved = self.resolve(name, flag)
        return None if resolved.source == "default" else cast("str | None", resolved.value)

    def number(self, name: str, flag: int | None = None) -> int:
        """A whole number."""
        return cast("int", self.resolve(name, flag).value)

    def switch(self, name: str, *, flag: bool | None = None) -> bool:
        """On or off."""
        return bool(self.resolve(name, flag).value)

    def many(self, name: str, flag: list[str] | None = None) -> list[str]:
        """A list; commas separate its items in the environment."""
        return cast("list[str]", self.resolve(name, flag).value)

    def span_ms(self, name: str, flag: str | None = None) -> int | None:
        """A duration in milliseconds, or `None` where there is none."""
        resolved = self.resolve(name, flag)
        return None if resolved.value is None else span_ms(str(resolved.value), resolved.source)


def load(command: str, config: str | None, *, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings of a command started in `folder`. `config` names a file to read in place of the project's own."""
    environment = os.environ if environment is None else environment
    folder = folder or Path.cwd()
    return Settings(command, layers(config or environment.get("RYUSEN_CONFIG"), folder, environment), environment)


def layers(config: str | None, folder: Path, environment: Mapping[str, str]) -> list[Layer]:
    """The files that count, the strongest first."""
    found: list[Layer] = []
    if config is not None:
        found.append(_layer(Path(config), config, required=True))
    else:
        found.append(_layer(folder / "ryusen.toml", "ryusen.toml"))
        found.append(_layer(folder / "pyproject.toml", "pyproject.toml [tool.ryusen]", table=("tool", "ryusen")))
    home = environment.get("XDG_CONFIG_HOME") or (f"{environment['HOME']}/.config" if environment.get("HOME") else None)
    if home is not None:
        user = Path(home) / "ryusen" / "config.toml"
        found.append(_layer(user, str(user)))
    return found


def span_ms(text: str, source: str) -> int:
    """A duration as people write it, in milliseconds. A bare number is seconds."""
    from ryusen_protocol.durations import InvalidDuration, to_ms

    try:
        return to_ms(float(text) if text.replace(".", "", 1).isdigit() else text)
    except InvalidDuration as error:
        raise usage(f"{source}: {error}") from error


def _layer(path: Path, source: str, *, table: tuple[str, ...] = (), required: bool = False) -> Layer:
    try:
        document: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise usage(f"the settings file {path} does not exist", "check --config (or RYUSEN_CONFIG)") from None
        return Layer(source, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise usage(f"{path} cannot be read as settings: {error}") from error
    for name in table:
        document = cast("dict[str, Any]", document).get(name, {}) if isinstance(document, dict) else {}
    if not isinstance(document, dict):
        raise usage(f"{source} is not a table of settings")
    return Layer(source, _sections_of(cast("dict[str, Any]", document), source))


def _sections_of(document: dict[str, Any], source: str) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {"": {}}
    for name, value in document.items():
        if isinstance(value, dict):
            if name not in _SECTIONS:
                raise usage(f"{source}: there is no section [{name}]; there are {', '.join(f'[{known}]' for known in _SECTIONS)}")
            sections[name] = cast("dict[str, Any]", value)
        else:
            sections[""][name] = value
    known = [setting.key for setting in SETTINGS]
    for keys in sections.values():
        for key in keys:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise usage(f"{source}: there is no setting {key!r}", f"write {near[0]!r}" if near else f"known are {', '.join(known)}")
    return sections


def _from_text(setting: Setting, text: str, source: str) -> Value:
    match setting.kind:
        case "number":
            return _number(setting, text, source)
        case "switch":
            word = text.strip().lower()
            if word not in _TRUE | _FALSE:
                raise usage(f"{source} is {text!r}; {setting.name} is on or off: write 1 or 0")
            return word in _TRUE
        case "many":
            return [item.strip() for item in text.split(",") if item.strip()]
        case "text" | "span":
            return text


def _from_file(setting: Setting, value: Any, source: str) -> Value:
    match setting.kind, value:
        case "number", int() if not isinstance(value, bool):
            return value
        case "switch", bool():
            return value
        case "many", [*items] if all(isinstance(item, str) for item in items):
            return items
        case "span", int() | float() | str() if not isinstance(value, bool):
            return str(value)
        case "text", str():
            return value
        case _:
            wanted = {"number": "a whole number", "switch": "true or false", "many": "a list of texts", "span": 'a duration such as "30s"'}
            raise usage(f"{source}: {setting.key} is {value!r}; it takes {wanted.get(setting.kind, 'a text')}")


def _number(setting: Setting, text: str, source: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise usage(f"{source} is {text!r}; {setting.name} is a whole number") from error
