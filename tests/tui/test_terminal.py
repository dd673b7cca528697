"""The dashboard in a real pseudo-terminal: what a person's terminal gets, and in which state it is left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ryusen_cli.dev.front import _outliving_terminal
from tests.tui.conftest import Gallery
from tests.tui.ptys import ALTERNATE_ON, COMMAND, ROOT, plain, restored, terminal
from tests.tui.stage import PATIENCE_S, environment

CRASH = """
import sys
sys.path.append({root!r})
from ryusen_tui.app import Dashboard
from ryusen_tui.screens import Main
def broken(self, name):
    secret = "hunter2"
    raise RuntimeError("a defect")
Main.choose = broken
app = Dashboard("http://127.0.0.1:9")
app.run()
sys.exit(app.return_code)
"""
TARGET = """
from ryusen_sdk import Event, Ryusen, Step
app = Ryusen("shop")
@app.function(on="go")
async def go(event: Event, step: Step):
    await step.run("one", str)
"""


def descendants(pid: int) -> set[int]:
    """Every living process below that one."""
    found: set[int] = set()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found |= {int(child)} | descendants(int(child))
    return found


def are_gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() and "\tZ" not in Path(f"/proc/{pid}/status").read_text() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_hostile_payloads_reach_the_terminal_as_text(gallery: Gallery, tmp_path: Path) -> None:
    # What the environment says of the size is of another terminal, and a key may be typed before anything is drawn.
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path, (160, 30), COLUMNS="60", LINES="12") as made:
        made.type("3")
        made.until(r"@click=app.quit]x[/] \x1b[2J\x1b]0;owned\x07")
        made.type("q")
        assert made.ended() == 0
        assert b"owned\x07" not in made.received
        assert b"\x1b]0;owned" not in made.received
        assert "\u202e".encode() not in made.received
        assert restored(made)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(gallery: Gallery, tmp_path: Path, number: signal.Signals) -> None:
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path) as made:
        made.until("live")
        assert made.is_raw()
        made.process.send_signal(number)
        assert made.ended() == 128 + number
        assert restored(made)


def test_a_crash_restores_the_terminal_and_shows_where_but_not_with_what(tmp_path: Path) -> None:
    with terminal([sys.executable, "-c", CRASH.format(root=str(ROOT))], tmp_path) as made:
        assert made.ended() != 0
        shown = plain(made.received)
        assert "RuntimeError: a defect" in shown
        assert "in broken" in shown
        assert "hunter2" not in shown
        assert not made.is_raw()


def test_without_a_terminal_what_commits_comes_as_plain_lines(gallery: Gallery, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "tui", "--url", gallery.stage.url], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "no terminal" in process.stderr.readline()
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        while not lines:
            gallery.stage.run_of("order/placed", {})
            reader.join(0.3)
        assert "\x1b" not in lines[0]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_with_its_errors_led_elsewhere_it_is_no_dashboard_that_nobody_sees(gallery: Gallery, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = ["sh", "-c", 'exec "$@" 2>told', "sh", *COMMAND, "tui", "--url", gallery.stage.url]
    with terminal(command, tmp_path) as made:
        deadline = time.monotonic() + PATIENCE_S
        while "run created" not in plain(made.received):  # what committed before it follows is not told
            assert time.monotonic() < deadline, plain(made.received)
            gallery.stage.run_of("order/placed", {})
        assert told.read_text().startswith("no terminal here")
        assert ALTERNATE_ON not in made.received
        assert "\x1b" not in told.read_text()


def test_the_dashboard_stands_in_front_of_what_it_runs_and_takes_it_along(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TARGET)
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", "0"], tmp_path, TERM="xterm-256color") as made:
        made.until("starting server")
        made.until("live")
        made.until("workers 1")
        children = descendants(made.process.pid)
        assert len(children) >= 2
        assert all(os.getsid(pid) != os.getsid(made.process.pid) for pid in children)
        made.type("6")
        made.until("registered" if "registered" in plain(made.received) else "listening")
        made.type("q")
        made.until("Leave?")
        made.type("\x1b")
        made.type("q")
        made.type("q")
        assert made.ended() == 0
        assert restored(made)
        assert are_gone(children)
        log = tmp_path / ".ryusen" / "dev.log"
        assert "ready" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600


def test_a_dashboard_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TARGET)
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", "0"], tmp_path) as made:
        made.until("workers 1")
        children = descendants(made.process.pid)
        made.process.kill()
        assert made.ended() == -signal.SIGKILL
        assert are_gone(children)


def test_a_terminal_that_goes_away_without_a_signal_takes_everything_along(tmp_path: Path, gallery: Gallery) -> None:
    with terminal([*COMMAND, "tui", "--url", gallery.stage.url], tmp_path) as made:
        made.until("live")
        made.hang_up()
        assert made.ended() == 128 + signal.SIGHUP
    (tmp_path / "shop.py").write_text(TARGET)
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", "0"], tmp_path) as made:
        made.until("workers 1")
        children = descendants(made.process.pid)
        made.hang_up()
        assert made.ended() == 143
        assert are_gone(children)
    port = gallery.stage.url.rsplit(":", 1)[1]
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", port], tmp_path) as made:
        made.until("already in use")
        made.hang_up()
        assert made.ended() == 128 + signal.SIGHUP


@pytest.mark.parametrize("told", [True, False])
def test_plain_lines_end_with_their_terminal(tmp_path: Path, told: bool) -> None:
    (tmp_path / "shop.py").write_text(TARGET)
    with terminal([*COMMAND, "dev", "shop.py", "--no-tui", "--port", "0"], tmp_path) as made:
        made.until("ready")
        children = descendants(made.process.pid)
        made.hang_up()
        if told:
            made.process.send_signal(signal.SIGHUP)
        assert made.ended() == 143
        assert are_gone(children)


def test_what_a_terminal_that_went_away_would_show_is_lost_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, child = pty.openpty()
    with os.fdopen(child, "w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        with _outliving_terminal():
            assert sys.__stderr__ is not None
            assert sys.__stderr__.isatty()
            os.close(ours)
            for _ in range(2):
                sys.__stderr__.write("x" * 100_000)
                sys.__stderr__.flush()
        assert sys.__stderr__ is stream


def test_leaving_for_the_plain_log_leaves_everything_running(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TARGET)
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", "0"], tmp_path) as made:
        made.until("workers 1")
        children = descendants(made.process.pid)
        made.type("D")
        made.until("the dashboard is closed and everything goes on")
        assert restored(made)
        assert {pid for pid in children if Path(f"/proc/{pid}").exists()} == children
        (tmp_path / "shop.py").write_text(TARGET + "# saved\n")
        made.until("ryusen |")
        made.process.send_signal(signal.SIGTERM)
        assert made.ended() == 143
        assert are_gone(children)


def test_code_that_does_not_import_and_a_taken_port_are_said_where_the_person_looks(tmp_path: Path, gallery: Gallery) -> None:
    (tmp_path / "shop.py").write_text(TARGET + "\nimport nothing_of_that_name\n")
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", "0"], tmp_path) as made:
        made.until("live")
        made.type("6")
        made.until("nothing_of_that_name")
        made.until("shop.py")
    port = gallery.stage.url.rsplit(":", 1)[1]
    with terminal([*COMMAND, "dev", "shop.py", "--tui", "--port", port], tmp_path) as made:
        made.until("no server")
        made.until(f"port {port} is already in use by process")
        made.until("--port")
        made.type("q")
        assert made.ended() == 1
        assert restored(made)


def test_dev_without_a_dashboard_says_that_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TARGET)
    with terminal([*COMMAND, "dev", "shop.py", "--port", "0"], tmp_path) as made:
        made.until("--tui shows all this as a dashboard")
        made.until("ready")
    (tmp_path / "ryusen.toml").write_text("[dev]\ntui = true\n")
    with terminal([*COMMAND, "dev", "shop.py", "--port", "0"], tmp_path) as made:
        made.until("starting server")
    said = subprocess.run(
        [*COMMAND, "dev", "missing.py", "--port", "0"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert "the dashboard needs a terminal" in said.stderr
