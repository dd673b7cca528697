"""The functions of the acceptance tests. Every effect is one line in a file; markers tell a test where a worker is."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from ryusen_sdk import Event, Retry, Ryusen, Step, SyncStep, Terminal, operation

app = Ryusen("acceptance")

FOLDER = Path(os.environ["ACCEPTANCE_FOLDER"])


def effect(name: str, order: object) -> None:
    current = operation()
    line = f"{order} {name} {current.phase} {current.id} {current.attempt}\n"
    file = os.open(FOLDER / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def mark(name: str) -> None:
    (FOLDER / name).touch()


def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.01)


@app.function(on="order/placed")
async def fulfil_order(event: Event, step: Step) -> dict[str, Any]:
    order = event.data["order"]
    charge = await step.run("charge", charge_card, order, compensate=refund_card)
    await step.run("reserve", reserve_stock, order, compensate=release_stock, retry=Retry(max_attempts=3, initial="10ms", jitter=0))
    await step.run("ship", ship, order, event.data["fail"])
    return {"charge": charge}


def charge_card(order: int) -> int:
    effect("charge", order)
    return order


async def refund_card(order: int) -> None:
    effect("refund", order)


async def reserve_stock(order: int) -> int:
    effect("reserve", order)
    if operation().attempt == 1:
        raise ConnectionError("the warehouse hung up")
    return order


def release_stock(order: int) -> None:
    effect("release", order)


def ship(order: int, fail: bool) -> None:
    effect("ship", order)
    if fail:
        raise Terminal("no carrier takes it")


@app.function(on="hang/body")
def hang_in_body(event: Event, step: SyncStep) -> str:
    mark("in-body")
    wait_for("go-on")
    step.run("after", effect_of, "after", event.data)
    return "done"


@app.function(on="hang/before")
def hang_before_effect(event: Event, step: SyncStep) -> None:
    step.run("first", effect_of, "first", event.data)
    step.run("held", hold_then, "held", event.data)


@app.function(on="hang/after")
def hang_after_effect(event: Event, step: SyncStep) -> None:
    step.run("held", then_hold, "held", event.data)


def effect_of(name: str, order: object) -> str:
    effect(name, order)
    return name


def hold_then(name: str, order: object) -> str:
    mark("in-callback")
    wait_for("go-on")
    effect(name, order)
    return name


def then_hold(name: str, order: object) -> str:
    effect(name, order)
    mark("in-callback")
    wait_for("go-on")
    return name


@app.function(on="busy")
async def busy(event: Event, step: Step) -> None:
    await step.run("sync", block_sync, event.data["seconds"])
    await step.run("async", block_loop, event.data["seconds"])


def block_sync(seconds: float) -> None:
    effect("sync", seconds)
    time.sleep(seconds)


async def block_loop(seconds: float) -> None:
    effect("async", seconds)
    time.sleep(seconds)  # noqa: ASYNC251  # a coroutine that blocks the user loop is what is tested
    await asyncio.sleep(0)


@app.function(on="unportable")
async def unportable(event: Event, step: Step) -> None:
    await step.run("ok", effect_of, "ok", event.data, compensate=undo)
    await step.run("set", a_set)


async def undo(name: str) -> None:
    effect(f"undo {name}", "-")


async def a_set() -> Any:
    effect("set", "-")
    return {"nested": [1, {2, 3}]}
