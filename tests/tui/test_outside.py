"""The person's own editor and browser, used from a dashboard in a real terminal: they get what they need, and the screen comes back."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ryusen_tui.outside import NotThere, editor_of
from tests.tui.conftest import Gallery
from tests.tui.ptys import ALTERNATE_OFF, ALTERNATE_ON, COMMAND, Terminal, plain, restored, terminal

EDITOR = """
import os, shutil, sys, termios, time
from pathlib import Path
folder, given = Path(sys.argv[1]), Path(sys.argv[-1])
shutil.copy(given, folder / "given.json")
(folder / "name").write_text(str(given))
assert given.stat().st_mode & 0o777 == 0o600
is_ready = sys.stdin.isatty() and termios.tcgetattr(0)[3] & termios.ICANON
os.write(1, b"EDITING" if is_ready else b"NO TERMINAL")
while not (folder / "saved").exists():
    time.sleep(0.02)
sys.exit(int((folder / "saved").read_text() or 0))
"""
BROWSER = """
import os, sys
with open(sys.argv[1], "w") as told:
    told.write(" ".join([sys.argv[-1], *(str(os.isatty(number)) for number in range(3))]))
print("noise of a browser")
"""


def editor(folder: Path) -> str:
    (folder / "editor.py").write_text(EDITOR)
    return f"{sys.executable} {folder / 'editor.py'} {folder}"


def open_a_run(made: Terminal) -> None:
    made.until("live")
    made.until("Failed")
    made.type("G\r")
    made.until("[Timeline]")
    made.until("took")


def test_the_payload_is_read_in_the_editor_while_everything_goes_on(gallery: Gallery, tmp_path: Path) -> None:
    command = [*COMMAND, "tui", "--url", gallery.stage.url]
    with terminal(command, tmp_path, (120, 40), EDITOR=editor(tmp_path), VISUAL="") as made:
        open_a_run(made)
        made.type("e")
        made.until("EDITING")
        gallery.stage.ended(gallery.stage.run_of("order/placed", {}))
        os.killpg(made.process.pid, 0)
        made.process.send_signal(signal.SIGINT)
        given = json.loads((tmp_path / "given.json").read_text())
        assert given["run_id"] in gallery.stage.product.get("/v1/workspaces/default/runs?limit=500").__repr__()
        assert given["input"] is not None
        assert made.received.endswith(b"EDITING"), "nothing is painted over the editor"
        since = len(made.received)
        (tmp_path / "saved").write_text("")
        made.until("[Timeline]", since=since)
        assert ALTERNATE_ON in made.received[since:]
        assert not Path((tmp_path / "name").read_text()).exists()
        made.type("\x1b")
        made.until("Runs", since=since)
        made.type("q")
        assert made.ended() == 0
        assert restored(made)


def test_an_editor_that_fails_or_is_not_there_is_said(gallery: Gallery, tmp_path: Path) -> None:
    command = [*COMMAND, "tui", "--url", gallery.stage.url]
    (tmp_path / "saved").write_text("3")
    with terminal(command, tmp_path, (120, 40), EDITOR=editor(tmp_path), VISUAL="") as made:
        open_a_run(made)
        made.type("e")
        made.until("ended with 3")
        assert made.received.rfind(ALTERNATE_ON) > made.received.rfind(ALTERNATE_OFF)
    with terminal(command, tmp_path, (120, 40), EDITOR="no-such-editor -w", VISUAL="") as made:
        open_a_run(made)
        made.type("e")
        made.until("no editor 'no-such-editor' here; set EDITOR")
        assert ALTERNATE_OFF not in made.received


def test_ending_the_dashboard_ends_the_editor(gallery: Gallery, tmp_path: Path) -> None:
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path, (120, 40), EDITOR=editor(tmp_path), VISUAL="") as made:
        open_a_run(made)
        made.type("e")
        made.until("EDITING")
        made.process.send_signal(signal.SIGTERM)
        assert made.ended() == 128 + signal.SIGTERM
        assert restored(made)
        assert not Path((tmp_path / "name").read_text()).exists()


def test_a_page_is_opened_in_the_browser_which_gets_none_of_the_terminal(gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "browser.py").write_text(BROWSER)
    told = tmp_path / "told"
    browser = f"{sys.executable} {tmp_path / 'browser.py'} {told} %s"
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path, (120, 40), BROWSER=browser, DISPLAY="") as made:
        open_a_run(made)
        made.type("o")
        made.until("opened http")
        address, *terminals = told.read_text().split()
        assert address.startswith(f"{gallery.stage.url}/runs/rn_")
        assert terminals == ["False"] * 3
        assert "noise" not in plain(made.received)
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path, (120, 40), BROWSER="", DISPLAY="", WAYLAND_DISPLAY="") as made:
        made.until("live")
        made.type("4o")
        made.until(f"no browser here; the address is {gallery.stage.url}/workers")
    other = [*COMMAND, "tui", "--url", gallery.stage.url, "--workspace", "other"]
    with terminal(other, tmp_path, (120, 40), BROWSER="", DISPLAY="", WAYLAND_DISPLAY="") as made:
        made.until("live")
        made.type("4o")
        made.until(f"the address is {gallery.stage.url}/workers?workspace=other")
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path, (120, 40), BROWSER="/bin/false", DISPLAY="") as made:
        made.until("live")
        made.type("o")
        made.until("no browser opened it; the address is")


def test_which_editor_it_is(tmp_path: Path) -> None:
    one = tmp_path / "an editor"
    one.write_text("#!/bin/sh\n")
    one.chmod(0o700)
    path = str(tmp_path)
    assert editor_of({"EDITOR": "'an editor' --wait", "PATH": path}) == ["an editor", "--wait"]
    assert editor_of({"VISUAL": f"'{one}'", "EDITOR": "ed", "PATH": "/nowhere"}) == [str(one)]
    for environment, said in (
        ({"PATH": path}, "no editor here"),
        ({"EDITOR": "ed 'x", "PATH": path}, "cannot be read as a command"),
        ({"EDITOR": " ", "PATH": path}, "no editor"),
    ):
        with pytest.raises(NotThere, match=said):
            editor_of(environment)
