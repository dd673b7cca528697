"""Settings: which of several places counts, and what is said about one that makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from ryusen_cli.exits import CliError, Exit
from ryusen_cli.settings import load


def files(tmp_path: Path, **contents: str) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    for name, text in contents.items():
        path = tmp_path / "home" / "ryusen" / "config.toml" if name == "user" else project / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return project


def test_every_source_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    project = files(
        tmp_path,
        ryusen='url = "http://ryusen-toml"\n',
        pyproject='[tool.ryusen]\nurl = "http://pyproject"\nworkspace = "from-pyproject"\n',
        user='url = "http://user"\nworkspace = "user"\ntoken = "from-user"\n',
    )
    environment = {"RYUSEN_URL": "http://environment", "XDG_CONFIG_HOME": str(tmp_path / "home")}
    settings = load("client", None, folder=project, environment=environment)
    assert settings.resolve("url", "http://flag").source == "flag --url"
    assert settings.resolve("url").value == "http://environment"
    without = load("client", None, folder=project, environment={"XDG_CONFIG_HOME": str(tmp_path / "home")})
    assert (without.text("url"), without.text("workspace"), without.optional("token")) == (
        "http://ryusen-toml",
        "from-pyproject",
        "from-user",
    )
    assert load("client", None, folder=tmp_path, environment={}).resolve("url").source == "default"


def test_config_replaces_the_projects_files(tmp_path: Path) -> None:
    project = files(tmp_path, ryusen='url = "http://ryusen-toml"\n', other='workspace = "other"\n')
    settings = load("client", str(project / "other.toml"), folder=project, environment={})
    assert (settings.text("url"), settings.text("workspace")) == ("http://127.0.0.1:7878", "other")


def test_a_commands_own_section_goes_first(tmp_path: Path) -> None:
    project = files(tmp_path, ryusen='port = 1\n[serve]\nport = 2\nlease = "5s"\n[dev]\nport = 3\ntui = true\n')
    assert load("dev", None, folder=project, environment={}).number("port") == 3
    assert load("serve", None, folder=project, environment={}).number("port") == 2
    assert load("dev", None, folder=project, environment={}).span_ms("lease") == 5_000
    assert load("dev", None, folder=project, environment={}).switch("tui")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1\n", "port"),
        ('port = "many"\n', "whole number"),
        ("port = true\n", "whole number"),
        ("[serv]\nport = 1\n", "[serv]"),
        ("port = \n", "cannot be read"),
        ('allow_host = "one"\n', "list"),
    ],
)
def test_a_setting_that_makes_no_sense_names_its_file_and_the_fix(tmp_path: Path, text: str, said: str) -> None:
    project = files(tmp_path, ryusen=text)

    def read() -> None:
        settings = load("serve", None, folder=project, environment={})
        settings.number("port")
        settings.many("allow-host")

    with pytest.raises(CliError) as refused:
        read()
    assert refused.value.exit_code is Exit.USAGE
    assert "ryusen.toml" in refused.value.message
    assert said in refused.value.message + (refused.value.hint or "")


def test_the_environment_is_read_by_kind(tmp_path: Path) -> None:
    environment = {"RYUSEN_PORT": "0", "RYUSEN_ALLOW_HOST": "one, two", "RYUSEN_PUBLISH": "no", "RYUSEN_LEASE": "4"}
    settings = load("worker", None, folder=tmp_path, environment=environment)
    assert (settings.number("port"), settings.many("allow-host"), settings.switch("publish")) == (0, ["one", "two"], False)
    assert settings.span_ms("lease") == 4_000
    with pytest.raises(CliError, match="RYUSEN_PUBLISH"):
        load("worker", None, folder=tmp_path, environment={"RYUSEN_PUBLISH": "maybe"}).switch("publish")


def test_a_duration_names_where_it_was_written(tmp_path: Path) -> None:
    settings = load("serve", None, folder=tmp_path, environment={"RYUSEN_LEASE": "soon"})
    with pytest.raises(CliError, match="RYUSEN_LEASE"):
        settings.span_ms("lease")
