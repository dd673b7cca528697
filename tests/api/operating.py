"""A server over a file, a worker that loses effects, an operator who settles them, and a look at all that is stored."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from ryusen_protocol.operator import REFUSAL_CODES
from ryusen_server.bootstrap import running_server
from ryusen_server.bootstrap import server as bootstrap
from ryusen_server.bootstrap.server import Server
from ryusen_server.bootstrap.system import SystemClock
from ryusen_server.engine.config import EngineConfig
from tests.api.api_harness import JSON_BODY, ApiHarness, W, eventually
from tests.gateway.worker_peer import WorkerPeer, string, worker_peer

KEY = "S3cr3t-key"
LATE_TICK_MS = 3_600_000
"""A server whose tick is that late meets no jump of its clock by itself."""

SUPPLY = {"supply_success": {"result": string("supplied")}}
FAIL = {"declare_failure": {"failure": {"category": "Lost", "message": "the courier has no record of it", "retryable": True}}}
RETRY: dict[str, Any] = {"authorize_retry": {}}
COMPENSATED: dict[str, Any] = {"has_compensation": True}


class Database:
    """Everything a database file holds, and whether anybody has committed to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def contents(self) -> list[str]:
        """Every row of every table, as statements that would make them again."""
        return list(self._connection.iterdump())

    def version(self) -> int:
        """Another number after every commit of anybody else."""
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def rows(self, query: str, *parameters: object) -> list[Any]:
        """What a query gives."""
        return self._connection.execute(query, parameters).fetchall()

    def words(self, query: str) -> set[str]:
        """The texts of a one-column query."""
        return {text for (text,) in self._connection.execute(query) if text}

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """What happens inside must leave no trace."""
        contents, version = self.contents(), self.version()
        yield
        assert self.version() == version, "something was committed"
        assert self.contents() == contents


@contextmanager
def database(folder: Path) -> Generator[Database]:
    """The database of a server in that folder, running or not."""
    connection = sqlite3.connect(f"file:{folder / 'ryusen.db'}?mode=ro", uri=True, isolation_level=None)
    try:
        yield Database(connection)
    finally:
        connection.close()


class StoppedClock(SystemClock):
    """The machine's clock until the test stops it at an instant; timers go on as before."""

    stopped_at_ms: int | None = None

    def now_ms(self) -> int:
        return super().now_ms() if self.stopped_at_ms is None else self.stopped_at_ms


class Desk:
    """An operator's desk at a server: one worker, and the attempts it lost."""

    def __init__(self, api: ApiHarness, peer: WorkerPeer, data: Database) -> None:
        self.api = api
        self.peer = peer
        self.data = data
        self._read: list[dict[str, Any]] = []

    @property
    def clock(self) -> StoppedClock:
        """The server's."""
        return cast("StoppedClock", self.api.server.clock)

    async def invoked(self) -> dict[str, Any]:
        """The next invocation."""
        return await self._next("invoke")

    async def acknowledged(self) -> str:
        """The disposition of the next acknowledgement."""
        return (await self._next("outcome_ack"))["disposition"]

    async def _next(self, kind: str) -> dict[str, Any]:
        """The next frame of that type; acknowledgements and invocations come in any order."""
        for index, frame in enumerate(self._read):
            if frame["type"] == kind:
                return self._read.pop(index)
        while (frame := await self.peer.receive())["type"] != kind:
            self._read.append(frame)
        return frame

    async def leave(self) -> None:
        """The worker goes away, and the server knows."""
        await self.peer.socket.close()

        async def gone() -> bool:
            return not any(worker["connected"] for worker in (await self.api.get(f"{W}/workers"))["items"])

        await eventually(gone)

    async def submit(self, invoke: dict[str, Any], outcome: dict[str, Any]) -> str:
        """Send an outcome and return what it was taken as."""
        await self.peer.answer(invoke, outcome)
        return await self.acknowledged()

    async def succeed(self, invoke: dict[str, Any], result: str = "done") -> str:
        return await self.submit(invoke, {"type": "succeeded", "result": string(result)})

    async def fail(self, invoke: dict[str, Any], *, retryable: bool = True) -> str:
        return await self.submit(
            invoke, {"type": "callback_failed", "failure": {**FAIL["declare_failure"]["failure"], "retryable": retryable}}
        )

    async def step(self, step_id: str, **members: Any) -> None:
        """The run's next step, done."""
        await self.peer.declare(await self.invoked(), step_id, **members)
        assert await self.succeed(await self.invoked(), step_id) == "accepted"

    async def out(self, step_id: str = "held", *, before: tuple[str, ...] = ("paid",), **members: Any) -> Case:
        """A run with the steps before done, whose next one is out."""
        await self.api.send()
        for each in before:
            await self.step(each, **COMPENSATED)
        await self.peer.declare(await self.invoked(), step_id, **{**COMPENSATED, **members})
        return Case(self, await self.invoked())

    async def lost(self, step_id: str = "held", *, before: tuple[str, ...] = ("paid",), **members: Any) -> Case:
        """A run with the steps before done, whose next one is Unknown."""
        case = await self.out(step_id, before=before, **members)
        await case.lose()
        return case

    async def resolve(self, attempt_id: str, body: object) -> tuple[int, dict[str, Any]]:
        """Send a command. A refusal is held to what every refusal is held to."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self.api.client.post(f"{W}/attempts/{attempt_id}/resolve", content=content, headers=JSON_BODY)
        document = answer.json()
        if answer.status_code != 200:
            self.check_refusal(document, answer.text)
        return answer.status_code, document

    def check_refusal(self, document: dict[str, Any], text: str) -> None:
        """Its shape, and that it tells nothing that is not the sender's to know."""
        assert document.keys() == {"version", "refusal"}, document
        assert document["version"] == 1
        assert document["refusal"].keys() == {"code", "message"}
        assert document["refusal"]["code"] in REFUSAL_CODES
        assert "s3cr3t" not in text.lower()
        assert "sha256:" not in text
        kept = self.data.words("SELECT request_id FROM attempts UNION SELECT session_id FROM attempts")
        kept |= self.data.words("SELECT attempt_id FROM attempts") | self.data.words("SELECT fingerprint FROM operator_commands")
        assert not [word for word in kept if word in text]


class Case:
    """One attempt that is out or Unknown, and its run."""

    def __init__(self, desk: Desk, invoke: dict[str, Any]) -> None:
        self.desk = desk
        self.invoke = invoke
        self.run_id: str = invoke["invocation"]["run"]["run_id"]
        self.target: dict[str, Any] = invoke["invocation"]["target"]
        self.attempt_id = ""

    async def lose(self) -> None:
        """Answer what nobody can read."""
        await self.desk.peer.answer(self.invoke, {"type": "invented"})
        assert await self.desk.acknowledged() == "malformed"
        self.attempt_id = (await self.attempt())["attempt_id"]

    async def run(self) -> dict[str, Any]:
        return await self.desk.api.get(f"{W}/runs/{self.run_id}")

    async def attempt(self) -> dict[str, Any]:
        """As the list of attempts shows it now."""
        request_id = self.invoke["invocation"]["request_id"]
        items = (await self.desk.api.get(f"{W}/attempts", limit=200))["items"]
        return next(item for item in items if item["request_id"] == request_id)

    async def attempts(self) -> list[tuple[int, str]]:
        """Generation and state of every attempt at the step or target."""
        run = await self.run()
        parts = run["steps"] if self.target["mode"] == "forward" else run["unwind"]["targets"]
        (part,) = [part for part in parts if part["step_id"] == self.target["step_id"]]
        return [(attempt["attempt_generation"], attempt["state"]) for attempt in part["attempts"]]

    async def records(self) -> list[dict[str, Any]]:
        entries = (await self.desk.api.get(f"{W}/runs/{self.run_id}/history", limit=500))["items"]
        return [record for entry in entries for record in entry["records"]]

    async def kinds(self) -> list[str]:
        return [record["kind"] for record in await self.records()]

    def envelope(self, command: object, key: str = KEY, **members: object) -> dict[str, Any]:
        return {
            "version": 1,
            "attempt_id": self.attempt_id,
            "attempt_generation": self.target["attempt_generation"],
            "idempotency_key": key,
            "command": command,
            **members,
        }

    async def resolve(self, command: object, key: str = KEY, **members: object) -> tuple[int, dict[str, Any]]:
        return await self.desk.resolve(self.attempt_id, self.envelope(command, key, **members))

    async def applied(self, command: object, key: str = KEY) -> dict[str, Any]:
        """The acknowledgement of a command that must be obeyed now."""
        status, document = await self.resolve(command, key)
        assert (status, document.get("status")) == (200, "applied"), document
        return document

    async def replayed(self, command: object, first: dict[str, Any], key: str = KEY) -> None:
        """The command again: the first answer, and nothing happens."""
        with self.desk.data.unchanged():
            assert await self.resolve(command, key) == (200, {**first, "status": "replayed"})

    async def refused(self, command: object, code: str, key: str = "S3cr3t-other") -> None:
        """The command is refused with that code, and nothing happens."""
        with self.desk.data.unchanged():
            status, document = await self.resolve(command, key)
            assert document["refusal"]["code"] == code, document
        assert status == {"invalid": 400, "unsupported_version": 400, "limit_exceeded": 413, "server": 500}.get(code, 409)

    async def cancel(self) -> dict[str, Any]:
        return await self.desk.api.post(f"{W}/runs/{self.run_id}/cancel", {}, 202)

    async def unwound(self) -> dict[str, Any]:
        """The run at its end, its compensations having succeeded as they came."""
        while (run := await self.run())["status"] != "ended":
            invoke = await self.desk.invoked()
            assert invoke["invocation"]["target"]["mode"] == "compensation", invoke
            assert await self.desk.succeed(invoke) == "accepted"
        return run


def end(run: dict[str, Any]) -> tuple[str, str, str | None]:
    return run["outcome"], run["recovery"], run["recovery_reason"]


def undone(run: dict[str, Any]) -> list[tuple[str, str]]:
    return [(target["step_id"], target["state"]) for target in run["unwind"]["targets"]]


@asynccontextmanager
async def client_of(server: Server) -> AsyncGenerator[ApiHarness]:
    """A client of a running server."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as client:
        yield ApiHarness(server, client)


@asynccontextmanager
async def desk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, timeout_ms: int | None = None, tick_ms: int = LATE_TICK_MS, **options: Any
) -> AsyncGenerator[Desk]:
    """A desk at a server in the folder; a second one after it finds what the first left. The worker is another instance each time."""
    monkeypatch.setattr(bootstrap, "SystemClock", StoppedClock)
    config = EngineConfig(tick_ms=tick_ms)
    async with running_server(folder, engine_config=config, **options) as server, client_of(server) as api:
        if not (await api.get(f"{W}/applications"))["items"]:
            await publish_with_timeout(api, timeout_ms)
        async with worker_peer(api.server.url, capacity=64) as peer:
            with database(folder) as data:
                yield Desk(api, peer, data)


async def publish_with_timeout(api: ApiHarness, timeout_ms: int | None, *, status: int = 201, parent: str | None = None) -> Any:
    """The function `fulfil` with a whole-run timeout, started by `order/placed`."""
    function = {"id": "fulfil"} if timeout_ms is None else {"id": "fulfil", "timeout_ms": timeout_ms}
    manifest = {
        "protocol_version": 1,
        "expected_parent": parent,
        "functions": [function],
        "triggers": [{"id": "t", "event_name": "order/placed", "function": "fulfil"}],
        "contents": "",
    }
    return await api.post(f"{W}/applications/shop/manifests", manifest, status)
