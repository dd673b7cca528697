"""The acceptance workflow over every transport, as processes: the same registry connected, behind ASGI and behind WSGI."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.product import HERE, PATIENCE_S, ROOT, Product, W, eventually

SECRET = "one-long-random-value"


class Served(Product):
    """The product with the server of the command line. An HTTP worker is a web server with the same file in it."""

    def __init__(self, folder: Path, *flags: str, secret: str | None = None) -> None:
        super().__init__(folder)
        self.flags = list(flags)
        if secret is not None:
            self._environment["RYUSEN_HTTP_SECRET"] = secret

    def start_server(self) -> None:
        log = (self.folder / "server.log").open("ab")
        command = [sys.executable, "-m", "ryusen_cli", "serve", "--json", "--port", str(self._port), "--db", str(self.folder / "ryusen.db")]
        self.server = subprocess.Popen(
            [*command, "--lease", "2s", "--reconnect-grace", "1s", *self.flags], env=self._environment, stdout=subprocess.PIPE, stderr=log
        )
        log.close()
        assert self.server.stdout is not None
        self.url = json.loads(self.server.stdout.readline())["addresses"][0].rstrip("/")
        self._port = int(self.url.rsplit(":", 1)[1])

    def end_server(self) -> None:
        """Stop it as a person would."""
        server, self.server = self.server, None
        assert server is not None
        server.terminate()
        assert server.wait(PATIENCE_S) == 128 + signal.SIGTERM
        self.hang_up(server)

    def await_server_killed(self) -> None:
        server = self.server
        super().await_server_killed()
        assert server is not None
        self.hang_up(server)

    def hang_up(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdout is not None
        server.stdout.close()

    def close(self) -> None:
        server = self.server
        super().close()
        if server is not None:
            self.hang_up(server)

    def start_web_server(self, kind: str, target: Path = HERE / "workflows.py", *, port: int = 0) -> str:
        """Host the application, and return its endpoint."""
        told = self.folder / f"{kind}-url"
        told.unlink(missing_ok=True)
        log = (self.folder / "worker.log").open("ab")
        command = [sys.executable, str(ROOT / "tests" / "http" / "hosting.py"), kind, str(target), str(told)]
        worker = subprocess.Popen(command, env={**self._environment, "HOSTING_PORT": str(port)}, stdout=log, stderr=log)
        log.close()
        self.workers.append(worker)

        def address() -> str | None:
            assert worker.poll() is None, (self.folder / "worker.log").read_text()
            return told.read_text() if told.exists() else None

        return eventually(address, "the web server tells its address")

    def publish(self, target: Path = HERE / "workflows.py") -> None:
        command = [sys.executable, str(ROOT / "tests" / "http" / "hosting.py"), "publish", str(target), self.url]
        subprocess.run(command, env=self._environment, check=True)


@contextlib.contextmanager
def served(folder: Path, transport: str, target: Path = HERE / "workflows.py", *, secret: str | None = None) -> Iterator[Served]:
    """A server with one worker of that transport for the target."""
    running = Served(folder, secret=secret)
    try:
        if transport == "connected":
            running.start_server()
            running.start_worker(target=target)
        else:
            running.flags = ["--http-endpoint", f"acceptance={running.start_web_server(transport, target)}"]
            running.start_server()
            running.publish(target)
        yield running
    finally:
        running.close()


def transports_of(running: Served, run: Any) -> set[str]:
    listed = running.get(f"{W}/runs/{run['run_id']}")
    return {attempt["worker"]["transport"] for step in listed["steps"] for attempt in step["attempts"]}


@pytest.mark.req("ACC-77", "SDK-12", "CLI-08")
@pytest.mark.parametrize("transport", ["connected", "asgi", "wsgi"])
def test_the_acceptance_workflow_is_the_same_over_every_transport(tmp_path: Path, transport: str) -> None:
    secret = SECRET if transport == "asgi" else None
    with served(tmp_path, transport, secret=secret) as running:
        good = running.ended(running.send("order/placed", {"order": 1, "fail": False})["event_id"])
        assert (good["outcome"], good["recovery"]) == ("succeeded", "not_required")
        assert good["result"] == {"type": "object", "value": {"charge": {"type": "i64", "value": "1"}}}
        assert running.effect_names(1) == ["charge", "reserve", "reserve", "ship"]
        bad = running.ended(running.send("order/placed", {"order": 2, "fail": True})["event_id"])
        assert (bad["outcome"], bad["recovery"]) == ("failed", "fully_compensated")
        assert running.effect_names(2) == ["charge", "reserve", "reserve", "ship", "release", "refund"]
        assert bad["failure"]["message"] == "no carrier takes it"
        reserves = [(operation, attempt) for name, _, operation, attempt in running.effects(2) if name == "reserve"]
        assert [attempt for _, attempt in reserves] == [1, 2]
        assert len({operation for operation, _ in reserves}) == 1
        kind = "connected" if transport == "connected" else "http"
        assert transports_of(running, good) == transports_of(running, bad) == {kind}
        (worker,) = running.get(f"{W}/workers")["items"]
        assert (worker["transport"], worker["connected"], worker["capacity"]) == (kind, True, 32)


@pytest.mark.req("OPT-03")
def test_the_code_behind_the_url_is_the_code_that_runs(tmp_path: Path) -> None:
    def code(name: str, second: str) -> Path:
        file = tmp_path / f"{name}.py"
        body = f"""
from ryusen_sdk import Event, Retry, Ryusen, Step
app = Ryusen("acceptance")
def not_yet():
    raise ConnectionError("not yet")
@app.function(on="go")
async def go(event: Event, step: Step):
    first = await step.run("first", lambda: "{name}")
    return [first, await step.run("second", {second}, retry=Retry(max_attempts=1000, initial="100ms", multiplier=1))]
"""
        file.write_text(body)
        return file

    with served(tmp_path, "asgi", code("old", "not_yet")) as running:
        event_id = running.send("go", None)["event_id"]
        run_id = eventually(lambda: running.runs_of(event_id), "the run exists")[0]["run_id"]
        eventually(lambda: running.get(f"{W}/runs/{run_id}")["steps"][1:], "the run has come to its second step")
        endpoint = running.flags[1].partition("=")[2]
        old = running.workers[-1]
        old.terminate()
        old.wait(PATIENCE_S)
        running.start_web_server("asgi", code("new", "lambda: 'new'"), port=httpx.URL(endpoint).port or 0)
        assert [item["value"] for item in running.ended(event_id)["result"]["value"]] == ["old", "new"]


@pytest.mark.req("ACC-82", "HTT-01", "HTT-03")
def test_only_a_configured_endpoint_makes_http_happen(tmp_path: Path) -> None:
    running = Served(tmp_path)
    try:
        endpoint = running.start_web_server("wsgi")
        running.start_server()
        running.publish()
        event_id = running.send("order/placed", {"order": 1, "fail": False})["event_id"]
        assert running.get(f"{W}/workers")["items"] == []
        run = eventually(lambda: running.runs_of(event_id), "the run exists")[0]
        assert (run["status"], run["attention"]) == ("running", "no_worker")
        running.end_server()
        running.flags = ["--http-endpoint", f"acceptance={endpoint}", "--http-capacity", "3"]
        running.start_server()
        assert running.ended(event_id)["outcome"] == "succeeded"
        command = [sys.executable, "-m", "ryusen_cli", "workers", "ls", "--url", running.url]
        listed = subprocess.run(command, env={**os.environ, "NO_COLOR": "1"}, check=True, capture_output=True, text=True).stdout
        assert endpoint in listed
        assert "http" in listed
        assert "0/3" in listed
    finally:
        running.close()


@pytest.mark.parametrize("transport", ["asgi", "wsgi"])
def test_a_killed_server_leaves_the_effect_of_an_open_exchange_unknown(tmp_path: Path, transport: str) -> None:
    with served(tmp_path, transport) as running:
        event_id = running.send("hang/after", "-")["event_id"]
        running.await_marker("in-callback")
        running.kill_server()
        running.start_server()
        run_id = running.runs_of(event_id)[0]["run_id"]

        def unknown() -> Any | None:
            attempt = running.get(f"{W}/runs/{run_id}")["steps"][0]["attempts"][0]
            return attempt if attempt["state"] == "unknown" else None

        attempt = eventually(unknown, "its durable lease ends")
        assert (attempt["attempt"], attempt["attempt_generation"]) == (1, 1)
        running.go_on()
        assert running.effect_names("-") == ["held"], "nothing is started a second time"


def test_the_example_runs_as_it_says(tmp_path: Path) -> None:
    example = ROOT / "examples" / "http" / "shop.py"
    environment = {**os.environ, "PORT": "0", "PYTHONUNBUFFERED": "1"}
    running = Served(tmp_path)
    hosting = subprocess.Popen([sys.executable, str(example)], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert hosting.stdout is not None
        address = hosting.stdout.readline().split()[-1]
        running.flags = ["--http-endpoint", f"shop={address}/ryusen"]
        running.start_server()
        publish = [sys.executable, "-m", "ryusen_cli", "apps", "publish", str(example), "--url", running.url]
        subprocess.run(publish, check=True, capture_output=True)
        run = running.ended(running.send("order/placed", {"order": 1})["event_id"])
        assert run["result"] == {"type": "string", "value": "order 1 is on its way"}
        assert hosting.stdout.readline().startswith("charging order 1, key ")
    finally:
        running.close()
        hosting.kill()
        hosting.communicate()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--http-endpoint", "shop"], "APPLICATION=URL"),
        (["--http-endpoint", "shop=ftp://x/"], "not an address"),
        (["--http-endpoint", "shop=http://me:pw@x/"], "user name or password"),
        (["--http-endpoint", "shop=http://x/#a"], "behind a #"),
        (["--http-endpoint", "shop=http://x/", "--http-endpoint", "shop=http://x/"], "given twice"),
        (["--http-capacity", "0"], "between 1 and"),
    ],
)
def test_an_endpoint_that_cannot_be_meant_is_refused_before_anything_starts(tmp_path: Path, flags: list[str], told: str) -> None:
    command = [sys.executable, "-m", "ryusen_cli", "serve", "--db", str(tmp_path / "x.db"), "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2, ended.stderr
    assert told in " ".join(ended.stderr.split())
    assert not (tmp_path / "x.db").exists()
