"""A real server with endpoints, for tests of what it does with them: the function `fulfil` of `shop` runs on `order/placed`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ryusen_protocol.scope import Scope
from ryusen_server.bootstrap.settings import HttpEndpoint
from ryusen_server.engine.config import EngineConfig
from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.http.raw_endpoint import Asked


class ShopServer:
    """What a test asks of the server."""

    def __init__(self, api: ApiHarness) -> None:
        self.api = api

    async def begin(self) -> str:
        """Start one run."""
        sent = await self.api.send()
        runs = await self.api.get(f"{W}/runs", event=sent["event_id"])
        return runs["items"][0]["run_id"]

    async def run(self, run_id: str) -> Any:
        return await self.api.get(f"{W}/runs/{run_id}")

    async def ended(self, run_id: str) -> Any:
        """The run, once it has ended."""
        run = await self.api.get(f"{W}/runs/{run_id}", wait_ms=15_000)
        assert run["status"] == "ended", run
        return run

    async def attempts(self, run_id: str) -> list[Any]:
        """Every attempt, in order."""
        return [attempt for step in (await self.run(run_id))["steps"] for attempt in step["attempts"]]

    async def attempt_in(self, run_id: str, *states: str) -> Any:
        """The first attempt, once it is in one of the states."""

        async def is_there() -> bool:
            attempts = await self.attempts(run_id)
            return bool(attempts) and attempts[0]["state"] in states

        await eventually(is_there)
        return (await self.attempts(run_id))[0]

    async def records(self, run_id: str) -> list[Any]:
        """The history, record by record."""
        page = await self.api.get(f"{W}/runs/{run_id}/history", limit=500)
        return [record for entry in page["items"] for record in entry["records"]]

    async def recorded(self, run_id: str, kind: str) -> None:
        """Return once the history has a record of this kind."""

        async def is_there() -> bool:
            return kind in [record["kind"] for record in await self.records(run_id)]

        await eventually(is_there)

    async def failing(self) -> Any:
        """The endpoint, once an exchange with it has failed."""

        async def is_there() -> bool:
            return (await self.worker())["last_failure"] is not None

        await eventually(is_there)
        return await self.worker()

    async def worker(self) -> Any:
        """The one endpoint as readers see it."""
        (worker,) = (await self.api.get(f"{W}/workers"))["items"]
        return worker

    async def resolve(self, attempt: Any, command: dict[str, Any], status: int = 200) -> Any:
        """An operator's command on an attempt."""
        body = {
            "version": 1,
            "attempt_id": attempt["attempt_id"],
            "attempt_generation": attempt["attempt_generation"],
            "idempotency_key": f"key-{attempt['attempt_id']}",
            "command": command,
        }
        return await self.api.post(f"{W}/attempts/{attempt['attempt_id']}/resolve", body, status)


@asynccontextmanager
async def shop_server(
    folder: Path, *urls: str, publish: bool = True, config: EngineConfig | None = None, **settings: Any
) -> AsyncGenerator[ShopServer, None]:
    """A server whose `shop` is at these URLs."""
    endpoints = tuple(HttpEndpoint(Scope("default", "shop"), url) for url in urls)  # type: ignore[arg-type]  # ids are text
    config = config or EngineConfig(tick_ms=20)
    async with api_server(folder, http_endpoints=endpoints, engine_config=config, **settings) as api:
        if publish:
            await api.publish()
        yield ShopServer(api)


def declared(step_id: str = "charge", **members: Any) -> dict[str, Any]:
    """Discovery: a run step, with a compensator."""
    return {"type": "declared", "declaration": {"kind": "run", "step_id": step_id, "name": step_id, "has_compensation": True, **members}}


NULL = {"type": "null"}
DONE = {"type": "succeeded", "result": NULL}


async def well_behaved(asked: Asked, *, steps: tuple[str, ...] = ("charge",), **members: Any) -> None:
    """Declare each step in turn, let it succeed, and complete."""
    if asked.mode != "discovery":
        await asked.respond(asked.outcome(DONE))
        return
    done = len(asked.invocation["history"]["steps"])
    body = declared(steps[done], **members) if done < len(steps) else {"type": "completed", "result": NULL}
    await asked.respond(asked.outcome(body))
