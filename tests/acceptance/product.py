"""The whole product as processes, for tests that kill them: a server on one file, workers, and a client that asks over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE_S = 40
W = "/v1/workspaces/default"


T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str, *, within_s: float = PATIENCE_S) -> T:
    """The first answer of `probe` that is something."""
    deadline = time.monotonic() + within_s
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


class Product:
    """One folder, one database file, and whatever processes a test starts over it."""

    def __init__(self, folder: Path, *, lease_ms: int = 8_000, plain: bool = False) -> None:
        self.folder = folder
        self.lease_ms = lease_ms
        self._plain = plain
        self._port = 0
        self.starts = 0
        self.server: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""
        self.client = httpx.Client(timeout=PATIENCE_S)
        self._environment = {**os.environ, "ACCEPTANCE_FOLDER": str(folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def start_server(self) -> None:
        """Start it over the same file, at the same port as before."""
        self.starts += 1
        told = self.folder / "url"
        told.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "wired_server.py"), str(self.folder), str(self._port), str(self.lease_ms)]
        log = (self.folder / "server.log").open("ab")
        self.server = subprocess.Popen([*command, "plain"] if self._plain else command, env=self._environment, stdout=log, stderr=log)
        log.close()
        self.url = eventually(lambda: told.read_text() if told.exists() else self._server_lives(), "the server tells its address")
        self._port = int(self.url.rsplit(":", 1)[1])

    def _server_lives(self) -> None:
        assert self.server is not None
        assert self.server.poll() is None, (self.folder / "server.log").read_text()

    def await_server_killed(self) -> None:
        """Return once the server has died of SIGKILL."""
        assert self.server is not None
        assert self.server.wait(PATIENCE_S) == -signal.SIGKILL
        self.server = None

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.await_server_killed()

    def stop_server(self) -> None:
        assert self.server is not None
        self.server.terminate()
        assert self.server.wait(PATIENCE_S) == 0, (self.folder / "server.log").read_text()
        self.server = None

    def start_worker(self, *arguments: str, target: Path = HERE / "workflows.py") -> subprocess.Popen[bytes]:
        """Start one and return when it has registered."""
        before = {item["instance_id"] for item in self.get(f"{W}/workers")["items"]}
        worker = self.start_worker_without_waiting(*arguments, target=target)

        def registered() -> bool:
            assert worker.poll() is None, (self.folder / "worker.log").read_text()
            return any(item["connected"] and item["instance_id"] not in before for item in self.get(f"{W}/workers")["items"])

        eventually(registered, "the worker registers")
        return worker

    def start_worker_without_waiting(self, *arguments: str, target: Path = HERE / "workflows.py") -> subprocess.Popen[bytes]:
        log = (self.folder / "worker.log").open("ab")
        worker = subprocess.Popen(
            [sys.executable, "-m", "ryusen_cli", "worker", str(target), "--url", self.url, *arguments],
            env=self._environment,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.workers.append(worker)
        return worker

    def kill_at(self, boundary: str, moment: str) -> None:
        """The next commit that contains the boundary kills the server."""
        (self.folder / "kill").write_text(f"{boundary} {moment}")

    def get(self, path: str) -> Any:
        answer = self.client.get(self.url + path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, name: str, data: object, key: str | None = None) -> Any:
        """Send an event and return the acknowledgement."""
        body: dict[str, object] = {"name": name, "data": data}
        if key is not None:
            body["idempotency_key"] = key
        answer = self.client.post(f"{self.url}{W}/events", json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def try_send(self, name: str, data: object, key: str) -> Any | None:
        """The acknowledgement, or none when the server is gone: sending again under the key is safe."""
        try:
            return self.send(name, data, key)
        except httpx.TransportError:
            return None

    def runs_of(self, event_id: str) -> list[Any]:
        return self.get(f"{W}/runs?event={event_id}")["items"]

    def ended(self, event_id: str) -> Any:
        """The one run of an event, once it has ended."""

        def probe() -> Any | None:
            runs = self.runs_of(event_id)
            return runs[0] if runs and runs[0]["status"] == "ended" else None

        found = eventually(probe, f"the run of {event_id} ends")
        assert len(self.runs_of(event_id)) == 1
        return self.get(f"{W}/runs/{found['run_id']}")

    def history(self, run_id: str) -> list[Any]:
        """Every record of a run, in commit order."""
        return [record for entry in self.get(f"{W}/runs/{run_id}/history?limit=500")["items"] for record in entry["records"]]

    def effects(self, order: object) -> list[tuple[str, str, str, int]]:
        """(name, phase, operation id, attempt) of every effect an order had, as the outside saw them."""
        log = self.folder / "effects"
        lines = log.read_text().splitlines() if log.exists() else []
        found: list[tuple[str, str, str, int]] = []
        for line in lines:
            mark, rest = line.split(" ", 1)
            if mark == str(order):
                name, phase, operation_id, attempt = rest.rsplit(" ", 3)
                found.append((name, phase, operation_id, int(attempt)))
        return found

    def effect_names(self, order: object) -> list[str]:
        return [name for name, *_ in self.effects(order)]

    def await_marker(self, name: str) -> None:
        eventually((self.folder / name).exists, f"the worker marks {name}")

    def go_on(self) -> None:
        (self.folder / "go-on").touch()

    def close(self) -> None:
        self.client.close()
        for process in [*self.workers, *([self.server] if self.server is not None else [])]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(PATIENCE_S)


@contextlib.contextmanager
def product(folder: Path, *, lease_ms: int = 8_000, plain: bool = False) -> Iterator[Product]:
    """A product with its server started."""
    made = Product(folder, lease_ms=lease_ms, plain=plain)
    try:
        made.start_server()
        yield made
    finally:
        made.close()
