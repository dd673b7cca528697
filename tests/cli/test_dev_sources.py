"""Sources and targets: what is watched, what names its state, and which module is meant."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath

import pytest

from ryusen_cli.dev.sources import Sources, compile_error, is_source, place_of_file, source_folder
from ryusen_cli.dev.targets import candidates, find_target
from ryusen_cli.exits import CliError, Exit

APP = 'from ryusen_sdk import Ryusen\n\napp = Ryusen("shop")\n'


def write(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_digest_follows_contents_and_not_touches(tmp_path: Path) -> None:
    module = write(tmp_path / "shop.py")
    sources = Sources([tmp_path])
    first = sources.digest()
    module.touch()
    assert sources.digest() == first
    write(module, "x = 2\n")
    assert sources.digest() != first
    write(module)
    assert sources.digest() == first
    write(tmp_path / "deep" / "inner.py")
    assert sources.digest() != first


def test_the_digest_does_not_depend_on_where_the_project_stands(tmp_path: Path) -> None:
    for name in ("one", "zwei mit Umlaut ü\\und Blank"):
        write(tmp_path / name / "shop.py")
    assert Sources([tmp_path / "one"]).digest() == Sources([tmp_path / "zwei mit Umlaut ü\\und Blank"]).digest()


@pytest.mark.parametrize("name", [".venv/a.py", "__pycache__/a.py", ".ryusen/a.py", ".git/a.py", "node_modules/a.py", ".#a.py", "a.txt"])
def test_what_is_no_source_changes_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / "shop.py")
    sources = Sources([tmp_path])
    before = sources.digest()
    write(tmp_path / name)
    assert sources.digest() == before
    assert not is_source(tmp_path / name, tmp_path)


def test_a_project_inside_a_hidden_folder_is_watched_all_the_same(tmp_path: Path) -> None:
    root = tmp_path / ".work"
    path = write(root / "shop.py")
    assert is_source(path, root)


@pytest.mark.parametrize(
    ("text", "line"), [("def broken(:\n", 1), ("x = 1\n  y = 2\n", 2), ("x = '\n", 1), ("# -*- coding: nothing -*-\n", 1), ("x\0 = 1\n", 1)]
)
def test_an_error_names_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path / "shop.py", text)
    error = compile_error(path)
    assert error is not None
    assert error.startswith(f"{path}:{line}: ")


def test_windows_line_ends_compile(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_bytes(b"def f():\r\n    return 1\r\n")
    assert compile_error(path) is None


def test_only_what_changed_is_compiled_again(tmp_path: Path) -> None:
    good = write(tmp_path / "a.py")
    broken = write(tmp_path / "b.py", "def broken(:\n")
    sources = Sources([tmp_path])
    sources.trust()
    assert sources.first_error() is None
    write(good, "x = (\n")
    error = sources.first_error()
    assert error is not None
    assert error.startswith(str(good))
    write(good, "x = 3\n")
    assert sources.first_error() is None
    write(broken, "def broken( :\n")
    assert sources.first_error() is not None


def test_folders_of_a_target(tmp_path: Path) -> None:
    write(tmp_path / "shop" / "__init__.py")
    write(tmp_path / "shop" / "flows" / "orders.py")
    write(tmp_path / "orders.py")
    assert source_folder("shop.flows.orders", tmp_path) == tmp_path / "shop"
    assert source_folder("shop.flows.orders:app", tmp_path) == tmp_path / "shop"
    assert source_folder("orders", tmp_path) == tmp_path
    assert source_folder("shop/flows/orders.py", tmp_path) == tmp_path / "shop" / "flows"
    assert source_folder("shop/flows/orders.py:app", tmp_path) == tmp_path / "shop" / "flows"


def test_a_drive_letter_is_no_object_name() -> None:
    # No Windows here: the parts of a path are looked at by the rules of Windows, and nothing is opened.
    target = str(PureWindowsPath("C:/project/shop.py"))
    found = place_of_file(target)
    assert found is not None
    assert str(found) == target


def test_folders_of_imported_files_are_added_once(tmp_path: Path) -> None:
    inner = write(tmp_path / "shop" / "a.py")
    other = write(tmp_path / "common" / "b.py")
    sources = Sources([tmp_path / "shop"])
    assert not sources.add([inner])
    assert sources.add([other])
    assert sources.folders == [tmp_path / "common", tmp_path / "shop"]
    assert sources.add([write(tmp_path / "c.py")])
    assert sources.folders == [tmp_path]


def test_the_one_module_with_a_registry_is_found_without_importing_it(tmp_path: Path) -> None:
    write(tmp_path / "orders.py", APP + "raise SystemExit('never imported')\n")
    write(tmp_path / "other.py", "from orders import app\n# app = Ryusen() from ryusen_sdk\n")
    write(tmp_path / "test_orders.py", APP)
    write(tmp_path / ".venv" / "x.py", APP)
    assert find_target(tmp_path) == "orders.py"


def test_a_registry_in_a_package_counts(tmp_path: Path) -> None:
    write(tmp_path / "shop" / "__init__.py", "")
    write(tmp_path / "shop" / "app.py", "import ryusen_sdk\napp: object = ryusen_sdk.Ryusen('a')\n")
    assert candidates(tmp_path) == ["shop/app.py"]


def test_a_module_that_does_not_parse_is_found_so_that_its_error_can_be_shown(tmp_path: Path) -> None:
    write(tmp_path / "orders.py", APP + "def broken(:\n")
    assert find_target(tmp_path) == "orders.py"


def test_none_says_how_to_begin_and_several_name_themselves(tmp_path: Path) -> None:
    with pytest.raises(CliError) as none:
        find_target(tmp_path)
    assert "ryusen init" in (none.value.hint or "")
    write(tmp_path / "a.py", APP)
    write(tmp_path / "b.py", APP)
    with pytest.raises(CliError, match=r"a\.py, b\.py") as several:
        find_target(tmp_path)
    assert none.value.exit_code == several.value.exit_code == Exit.USAGE
