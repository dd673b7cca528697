"""A project in a place with an odd name, its source with the line ends of another system: under the real `ryusen dev --tui`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from ryusen_protocol.client import Api
from tests.acceptance.product import eventually
from tests.tui.ptys import COMMAND, terminal
from tests.tui.test_terminal import TARGET, are_gone, descendants

ODD = "a project, with ü and C:\\backslash " + "x" * 210
"""250 bytes: with a blank, an umlaut, a drive letter and a backslash. This is no Windows, where such a name would be a path."""


def test_a_project_in_an_odd_place_with_other_line_ends_runs(tmp_path: Path) -> None:
    folder = tmp_path / ODD[:245]
    folder.mkdir()
    (folder / "shop.py").write_bytes(TARGET.replace("\n", "\r\n").encode())
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", "0"], folder, (400, 40)) as made:
        made.until("live")
        made.until("workers 1")
        children = descendants(made.process.pid)
        made.type("6")
        made.until("ü and C:\\backslash")
        made.until("Log")
        made.type("5")
        made.until("1 worker")
        made.type("s")
        made.until("Enter sends")
        made.type("\r")
        made.until("accepted")
        since = len(made.received)
        made.type("\t\t\r")
        made.until("Functions", since=since)
        made.type("1")
        made.until("Succeeded")
        made.type("q")
        made.until("Leave?")
        made.type("q")
        assert made.ended() == 0
        assert are_gone(children)
    database = folder / ".ryusen" / "ryusen.db"
    assert eventually(database.exists, "the database is where the project is")


def test_no_path_is_made_of_an_id_and_no_id_of_a_path() -> None:
    """An id that would be a path of either system stays one segment of an address, as it is."""
    for odd in ("C:\\runs\\1", "..\\..\\x", "a/../b", "\\\\host\\share", "rn ü"):
        target = Api("default", None).get_run(odd).target
        assert len(PurePosixPath(target).parts) == len(PurePosixPath("/v1/workspaces/default/runs/rn_1").parts)
        assert len(PureWindowsPath(target).parts) == len(PureWindowsPath("/v1/workspaces/default/runs/rn_1").parts)
        assert ".." not in PurePosixPath(target).parts
