"""What the dashboard takes along on its way to the first paint, and what it leaves for later or for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.tui.stage import PATIENCE_S, environment

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json, sys
sys.path.append(sys.argv[1])
import ryusen_cli.dev.front
from ryusen_tui.app import Dashboard

def loaded():
    return sorted({*sys.modules, *(name.partition(".")[0] for name in sys.modules)})

async def main():
    painted = []
    app = Dashboard("http://127.0.0.1:9", started=lambda: painted.extend(loaded()))
    async with app.run_test() as pilot:
        while not app.feed.why:
            await pilot.pause(0.05)
    print(json.dumps([painted, loaded()]))

asyncio.run(main())
"""
NEVER = {
    "ryusen_server",
    "ryusen_sdk",
    "sanic",
    "aiohttp",
    "pydantic",
    "typer",
    "click",
    "pygments",
    "markdown_it",
    "tree_sitter",
    "httpx._main",
}
LATER = {"httpx", "httpcore", "watchfiles", "websockets", "ryusen_cli.dev.supervisor"}


def test_the_first_paint_waits_for_nothing_that_it_does_not_need() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(ROOT)], capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=environment()
    )
    painted, asked = (set(names) for names in json.loads(done.stdout))
    assert "ryusen_tui.panes" in painted
    assert not (NEVER | LATER) & painted
    assert "httpx" in asked
    assert not NEVER & asked
