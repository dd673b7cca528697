"""A real server with runs of every kind, and a dashboard that is driven by keys: what all tests of the dashboard stand on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from textual.pilot import Pilot

from ryusen_tui.app import Dashboard
from tests.acceptance.product import Product, W, eventually, product

T = TypeVar("T")

PATIENCE_S = 40.0
SIZES = ((120, 40), (80, 24), (50, 16))
HOSTILE = "[/b][@click=app.quit]x[/] \x1b[2J\x1b]0;owned\x07 \u202e\u200b [TODO] ü 漢"

FLOWS = """
import os, time
from pathlib import Path
from ryusen_sdk import Ryusen, Step, SyncStep, Event, Terminal, operation

app = Ryusen("stage")
FOLDER = Path(os.environ["ACCEPTANCE_FOLDER"])

def do(name):
    print(f"doing {name}")
    return {"did": name}

def undo(result):
    return None

def give_up(why):
    raise Terminal(why)

def hold(name):
    (FOLDER / f"holding-{name}").touch()
    while not (FOLDER / f"let-{name}").exists():
        time.sleep(0.01)
    return name

def hold_undo(name):
    hold("undo")

@app.function(on="order/placed")
async def fulfil_order(event: Event, step: Step):
    await step.run("charge", do, "charge", compensate=undo)
    await step.run("reserve", do, "reserve", compensate=undo)
    if event.data.get("fail"):
        await step.run("ship", give_up, event.data["fail"])
    return {"parcel": 7}

@app.function(on="hold")
async def hold_up(event: Event, step: Step):
    await step.run("first", do, "first", compensate=undo)
    await step.run("held", hold, event.data["name"], compensate=undo)
    return "done"

@app.function(on="nap")
async def nap(event: Event, step: Step):
    await step.sleep("nap", "30m")

@app.function(on="twice")
async def twice(event: Event, step: Step):
    await step.run("same", do, "a")
    await step.run("same", do, "b")

@app.function(on="timed", timeout="1s")
async def timed(event: Event, step: Step):
    await step.run("held", hold, event.data["name"])
"""


class Stage:
    """The server, its workers, and what a test makes happen there."""

    def __init__(self, running: Product) -> None:
        self.product = running
        self.target = running.folder / "stage_flows.py"
        self.target.write_text(FLOWS)
        self.worker = running.start_worker(target=self.target)

    @property
    def url(self) -> str:
        return self.product.url

    def run_of(self, name: str, data: object) -> str:
        """Send an event; the id of its one run."""
        event_id = self.product.send(name, data)["event_id"]
        return eventually(lambda: self.product.runs_of(event_id), "the run exists")[0]["run_id"]

    def run(self, run_id: str) -> Any:
        return self.product.get(f"{W}/runs/{run_id}")

    def until(self, run_id: str, holds: Callable[[Any], bool]) -> Any:
        def probe() -> Any | None:
            run = self.run(run_id)
            return run if holds(run) else None

        return eventually(probe, f"run {run_id} gets there")

    def ended(self, run_id: str) -> Any:
        return self.until(run_id, lambda run: run["status"] == "ended")

    def make_unknown(self, name: str, event: str = "hold") -> tuple[str, str]:
        """A run whose worker is killed in its step, and the attempt that nobody knows of. Another worker stands in."""
        run_id = self.run_of(event, {"name": name})
        self.product.await_marker(f"holding-{name}")
        self.kill_worker()
        attempt = self.unknown_attempt(run_id)
        self.worker = self.product.start_worker(target=self.target)
        return run_id, attempt

    def unknown_attempt(self, run_id: str) -> str:
        def probe() -> str | None:
            items = self.product.get(f"{W}/attempts?state=unknown")["items"]
            return next((one["attempt_id"] for one in items if one["run_id"] == run_id), None)

        return eventually(probe, "the attempt is Unknown")

    def kill_worker(self) -> None:
        self.worker.send_signal(signal.SIGKILL)
        self.worker.wait(PATIENCE_S)

    def let(self, name: str) -> None:
        (self.product.folder / f"let-{name}").touch()


@contextlib.contextmanager
def stage(folder: Path, *, lease_ms: int = 900) -> Iterator[Stage]:
    """A server and a worker of these functions, until the end of the block."""
    with product(folder, lease_ms=lease_ms) as running:
        yield Stage(running)


class Driven:
    """A dashboard under a pilot."""

    def __init__(self, app: Dashboard, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    def text(self) -> str:
        return screen_text(self.app)

    async def sees(self, *wanted: str, without: str | None = None) -> str:
        """What is on the screen once all of it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            shown = self.text()
            if all(one in shown for one in wanted) and (without is None or without not in shown):
                return shown
            assert time.monotonic() < deadline, f"never saw {wanted} (without {without!r}) in:\n{shown}"
            await self.pilot.pause(0.05)

    async def until(self, probe: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := probe()):
            assert time.monotonic() < deadline, f"{what}:\n{self.text()}"
            await self.pilot.pause(0.05)
        return found


def screen_text(app: Dashboard) -> str:
    """The characters that are on the screen now."""
    rows = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in rows)


@contextlib.asynccontextmanager
async def dashboard(url: str, *, size: tuple[int, int] = SIZES[0], **options: Any) -> AsyncGenerator[Driven]:
    """A dashboard of that server, on a screen of that size."""
    app = Dashboard(url, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        yield Driven(app, pilot)


async def off_loop(call: Callable[[], T]) -> T:
    """Something that blocks, beside the dashboard."""
    return await asyncio.to_thread(call)


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RYUSEN_")}
    return {**clean, "PYTHONUTF8": "1", "TERM": "xterm-256color", **more}
