"""`dev`, `serve` and `worker` as a person runs them: real processes, a real server, real files that change."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ryusen_cli.main import main
from tests.cli.processes import (
    COMMAND,
    PATIENCE_S,
    ROOT,
    asked,
    children,
    environment,
    linux,
    role,
    running,
    ryusen,
    said,
    send,
    until_gone,
    write,
)

APP = """
from pathlib import Path
from ryusen_sdk import Ryusen

app = Ryusen("APPLICATION")

@app.function(on="order/placed")
async def fulfil(event, step):
    return {"said": await step.run("say", say)}

def say():
    return "first"
"""

SLOW = """
import time
from pathlib import Path
from ryusen_sdk import Ryusen

app = Ryusen("shop")

@app.function(on="order/placed")
async def fulfil(event, step):
    await step.run("slow", slow, event.run_id)
    return {"code": await step.run("code", code)}

def slow(run_id):
    with Path("began").open("a") as file:
        file.write(f"{run_id}\\n")
    while not Path("go").exists():
        time.sleep(0.01)

def code():
    return 0
"""


@pytest.mark.req("CLI-01", "CLI-02", "CLI-04")
def test_from_an_empty_folder_to_a_finished_run_with_two_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my shop ü"
    assert ryusen("init", str(folder)).returncode == 0
    with running(folder, "dev", "--port", "0") as dev:
        address = dev.until("listening   http://127.0.0.1:").split()[1]
        assert str(folder / ".ryusen" / "ryusen.db") in dev.until("database")
        dev.until("routing     rg_")
        dev.until("manifest    shop: mg_")
        dev.until("workers     1 connected")
        assert "capacity 32" in dev.until("shop")
        dev.until("function    shop/fulfil-order on order/placed")
        step = dev.until("next step").removeprefix("next step").split(maxsplit=1)[1]
        assert address in step
        done = ryusen(*shlex.split(step))
        assert done.returncode == 0, done.stderr
        assert "Succeeded" in done.stdout
        failed = ryusen("send", "order/placed", "-d", '{"order": 8, "fail": true}', "--wait", "--url", address)
        assert failed.returncode == 6
        assert "Fully compensated" in failed.stdout
        run_id = failed.stdout.splitlines()[1].split()[0]
        shown = ryusen("runs", "show", run_id, "--url", address).stdout
        unwind = shown[shown.index("undone, in this order") :]
        assert unwind.index("reserve") < unwind.index("charge")
        assert "no carrier takes order 8" in shown
        assert "run ended" in ryusen("runs", "tail", run_id, "--url", address).stdout
        assert ryusen("runs", "wait", run_id, "--url", address).returncode == 6
        assert ryusen("runs", "cancel", run_id, "--url", address).returncode == 5
        for command in ("runs", "attempts", "events", "functions", "apps", "workers", "routing"):
            assert asked(command, "ls", "--url", address)["items"]
            assert main([command, "ls", "--url", address]) == 0
            assert capsys.readouterr().out
        assert dev.end() == 130
    assert (folder / ".ryusen" / "ryusen.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.req("CLI-03", "CLI-05")
def test_two_applications_share_the_events_and_a_later_publication_is_told(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(APP.replace("APPLICATION", "one"))
    (tmp_path / "two.py").write_text(APP.replace("APPLICATION", "two").replace("first", "second"))
    (tmp_path / "three.py").write_text(APP.replace("APPLICATION", "three"))
    with running(tmp_path, "dev", "one.py", "two.py", "--port", "0", "--json", "--ephemeral") as dev:
        ready = dev.ready()
        url = ready["server"]["addresses"][0]
        assert {one["application"] for one in ready["applications"]} == {"one", "two"}
        assert {one["capacity"] for one in ready["workers"]} == {32}
        assert ready["server"]["database"]["ephemeral"]
        assert said(send(url)) == ["first", "second"]
        with running(tmp_path, "worker", "three.py", "--url", url) as worker:
            worker.until("registered at")
            generation = dev.until("routing     rg_").split()[-1]
            assert generation != ready["routing"]["routing_generation"]
            dev.until("three: mg_")
            assert worker.end(signal.SIGTERM) == 143
        assert dev.end(signal.SIGTERM) == 143
    assert not (tmp_path / ".ryusen").exists()


def test_saved_code_goes_live_and_broken_code_never_does(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    text = APP.replace("APPLICATION", "shop")
    app.write_text(text)
    with running(tmp_path, "dev", "--port", "0", "--json", "--ephemeral") as dev:
        url = dev.ready()["server"]["addresses"][0]
        assert said(send(url)) == ["first"]
        write(app, text.replace("first", "second"))
        dev.until("new code is live")
        assert said(send(url)) == ["second"]
        write(app, text + "def broken(:\n")
        assert f"app.py:{text.count(chr(10)) + 1}" in dev.until("SyntaxError")
        dev.until("the last good code goes on")
        assert said(send(url)) == ["second"]
        write(app, text + "raise RuntimeError('at import')\n")
        assert "app.py:" in dev.until("RuntimeError: at import")
        dev.until("the last good code goes on")
        assert said(send(url)) == ["second"]
        write(app, text.replace("first", "third"))
        dev.until("new code is live")
        assert said(send(url)) == ["third"]
        assert [line for line in dev.lines if "starting the new code" in line] == ["ryusen | app.py: changed, starting the new code"] * 3


def test_reloads_during_a_step_lose_nothing_and_leave_no_unknown(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(SLOW)
    with running(tmp_path, "dev", "--port", "0", "--json", "--ephemeral", "--capacity", "2") as dev:
        url = dev.ready()["server"]["addresses"][0]
        for _ in range(6):
            asked("send", "order/placed", "-d", "{}", "--url", url)
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "began").exists() or (tmp_path / "began").read_text().count("\n") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for version in range(1, 6):
            app.touch()
            write(app, SLOW.replace("return 0", f"return {version}"))
            dev.until("new code is live")
        (tmp_path / "go").touch()
        runs = asked("runs", "ls", "--url", url)["items"]
        assert len(runs) == 6
        results: list[str] = []
        for run in runs:
            done = asked("runs", "wait", run["run_id"], "--timeout", "60s", "--url", url)
            results.append(done["result"]["value"]["code"]["value"])
        assert results == ["5"] * 6
        assert asked("attempts", "ls", "--state", "unknown", "--url", url)["items"] == []
        began = (tmp_path / "began").read_text().split()
        assert len(began) == len(set(began)) == 6


@linux
def test_a_worker_or_server_that_is_killed_comes_back_and_keeps_everything(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("APPLICATION", "shop"))
    with running(tmp_path, "dev", "--port", "0", "--json") as dev:
        url = dev.ready()["server"]["addresses"][0]
        first = send(url)
        for pid in children(dev.process.pid):
            if role(pid) == "worker":
                os.kill(pid, signal.SIGKILL)
        dev.until("by SIGKILL")
        dev.until("registered, fulfil")
        assert said(send(url)) == ["first"]
        [server] = [pid for pid in children(dev.process.pid) if role(pid) == "server"]
        os.kill(server, signal.SIGKILL)
        dev.until("server: listening again")
        dev.until("connected again")
        assert said(send(url)) == ["first"]
        assert asked("events", "show", first["event_id"], "--url", url)["name"] == "order/placed"


@linux
def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("APPLICATION", "shop"))
    with running(tmp_path, "dev", "--port", "0", "--json") as dev:
        dev.ready()
        pids = children(dev.process.pid)
        assert {role(pid) for pid in pids} == {"server", "worker"}
        assert dev.end(signal.SIGKILL) == -signal.SIGKILL
        until_gone(pids)


@linux
def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    with running(tmp_path, "dev", "--port", "0", "--json", "--ephemeral") as dev:
        url = dev.ready()["server"]["addresses"][0]
        asked("send", "order/placed", "-d", "{}", "--url", url)
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pids = children(dev.process.pid)
        dev.process.send_signal(signal.SIGINT)
        dev.until("once more ends at once")
        assert dev.process.poll() is None
        assert dev.end(signal.SIGINT) == 130
        until_gone(pids)


def test_code_that_never_imported_runs_as_soon_as_it_is_fixed(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    text = APP.replace("APPLICATION", "shop")
    app.write_text(text + "import nothing_of_that_name\n")
    with running(tmp_path, "dev", "--port", "0", "--ephemeral") as dev:
        assert sys.executable in dev.until("nothing_of_that_name")
        dev.until("no worker   app.py did not start")
        dev.until("ready")
        write(app, text)
        dev.until("registered, fulfil")
        dev.until("function    shop/fulfil on order/placed")


def test_a_module_beside_the_package_is_watched_once_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "said.py").write_text('FIRST = "first"\n')
    text = APP.replace("APPLICATION", "shop").replace("from pathlib", "from words.said import FIRST\nfrom pathlib")
    (tmp_path / "shop" / "app.py").write_text(text.replace('return "first"', "return FIRST"))
    with running(tmp_path, "dev", "shop.app", "--port", "0", "--json", "--ephemeral") as dev:
        url = dev.ready()["server"]["addresses"][0]
        assert said(send(url)) == ["first"]
        write(tmp_path / "words" / "said.py", 'FIRST = "second"\n')
        dev.until("new code is live")
        assert said(send(url)) == ["second"]


def test_no_target_says_how_to_begin(tmp_path: Path) -> None:
    done = ryusen("dev", cwd=tmp_path)
    assert done.returncode == 2
    assert "ryusen init" in done.stderr
    assert not (tmp_path / ".ryusen").exists()


@pytest.mark.parametrize("command", [("serve",), ("dev", "app.py")])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_taken_port_is_named_and_no_database_is_made(tmp_path: Path, command: tuple[str, ...], family: socket.AddressFamily) -> None:
    (tmp_path / "app.py").write_text(APP)
    with socket.socket(family) as taken:
        taken.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = ryusen(*command, "--port", port, cwd=tmp_path)
        document = json.loads(ryusen(*command, "--port", port, "--json", cwd=tmp_path).stdout)
    assert done.returncode == document["exit_code"] == 1
    assert f"port {port}" in done.stderr
    assert "--port" in document["detail"]
    assert not (tmp_path / ".ryusen").exists()


def without(stream: str, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command with a standard stream closed, as `<&-` and `>&-` close it in a shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {stream}', "sh", *COMMAND, *command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_dev_needs_no_standard_input(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = without("<&-", "dev", "app.py", "--port", port, cwd=tmp_path)
    assert f"port {port} is already in use" in done.stderr  # so the server got its order, and what it said was heard


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_needs_no_standard_streams(tmp_path: Path, stream: str) -> None:
    done = without(stream, "version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in stream.split())


INTERRUPTED = """
import os, signal, sys
sys.path.append({root!r})
class Finder:
    def find_spec(self, name, *_):
        if name == "ryusen_cli.tree":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from ryusen_cli.main import run
run()
"""


def test_an_interrupt_before_the_command_line_is_read_is_no_defect(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", INTERRUPTED.format(root=str(ROOT)), "dev", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells who listens")
@pytest.mark.parametrize("command", [("serve",), ("dev", "app.py")])
def test_a_port_taken_by_another_server_of_ours_is_told_as_such(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(APP)
    with running(tmp_path, *command, "--port", "0", "--json", "--db", "one.db") as first:
        ready = first.ready()
        port = (ready["server"] if command[0] == "dev" else ready)["addresses"][0].rpartition(":")[2]
        done = ryusen("serve", "--port", port, "--db", "two.db", cwd=tmp_path)
    assert done.returncode == 1
    assert f"port {port} is already in use by another Ryusen server, process " in done.stderr


def test_serve_says_where_it_is_and_ends_by_its_signal(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with running(tmp_path, "serve", "--port", "0", "--json") as server:
            ready = server.ready()
            assert asked("runs", "ls", "--url", ready["addresses"][0])["items"] == []
            assert server.end(number) == code


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        ("missing.py", None, "no file missing.py"),
        ("missing", None, "no module 'missing'"),
        ("app.py", "x = 1\n", "no Ryusen object"),
        ("app.py:other", APP, "nothing named 'other'"),
        ("app.py", "def broken(:\n", "app.py:1"),
    ],
)
def test_a_target_that_does_not_load_says_why(tmp_path: Path, target: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "app.py").write_text(text)
    done = ryusen("worker", target, "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert said in json.loads(done.stdout)["detail"]


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        ("missing.py", None, "no file missing.py"),
        ("missing", None, "no module 'missing'"),
        ("app.py", "x = 1\n", "no Ryusen object"),
        ("app.py:other", APP, "nothing named 'other'"),
    ],
)
def test_dev_ends_at_once_if_its_target_leads_nowhere(tmp_path: Path, target: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "app.py").write_text(text)
    done = ryusen("dev", target, "--port", "0", "--ephemeral", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert said in json.loads(done.stdout)["detail"]


def test_a_function_that_cannot_be_served_is_no_refusal_of_the_server(tmp_path: Path) -> None:
    text = APP.replace("import Ryusen", "import Event, Ryusen").replace("fulfil(event,", 'fulfil(event: "Event[Nowhere]",')
    (tmp_path / "app.py").write_text(text)
    done = ryusen("worker", "app.py", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert "Nowhere" in json.loads(done.stdout)["detail"]


def test_a_worker_without_a_server_says_so_and_waits(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with running(tmp_path, "worker", "app.py", "--url", url) as worker:
            worker.until("trying again")
            assert worker.end() == 130


def test_a_worker_alone_reloads_too(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    text = APP.replace("APPLICATION", "shop")
    app.write_text(text)
    with running(tmp_path, "serve", "--port", "0", "--json") as server:
        url = server.ready()["addresses"][0]
        with running(tmp_path, "worker", "app.py", "--reload", "--release", "r1", "--url", url) as worker:
            worker.until("registered, fulfil")
            assert said(send(url)) == ["first"]
            write(app, text.replace("first", "second"))
            worker.until("new code is live (r1-")
            assert said(send(url)) == ["second"]
            assert worker.end(signal.SIGTERM) == 143


def test_the_example_of_the_project_charges_and_undoes(tmp_path: Path) -> None:
    log = tmp_path / "effects"
    target = str(ROOT / "examples" / "orders" / "orders.py")
    with running(tmp_path, "dev", target, "--port", "0", "--json", "--ephemeral", ORDERS_EFFECT_LOG=str(log)) as dev:
        ready = dev.ready()
        url = ready["server"]["addresses"][0]
        assert ryusen(*shlex.split(ready["next_step"])[1:]).returncode == 0
        assert ryusen("send", "order/placed", "-d", '{"order": 8, "fail": true}', "--wait", "--url", url).returncode == 6
    effects = [line.split() for line in log.read_text().splitlines()]
    assert [(effect, order) for effect, _, order in effects] == [
        *[(effect, "7") for effect in ("charge", "reserve", "ship")],
        *[(effect, "8") for effect in ("charge", "reserve", "release", "refund")],
    ]
    assert len({operation for _, operation, _ in effects}) == len(effects)
