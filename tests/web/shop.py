"""The functions that the pages are shown with: every way a run can stand, and texts that try to be more than text."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from ryusen_sdk import Event, Retry, Ryusen, Step, SyncStep, Terminal, operation

app = Ryusen("shop")
FOLDER = Path(os.environ["ACCEPTANCE_FOLDER"])
SOON = Retry(max_attempts=3, initial="30ms", jitter=0)


def take(name: str) -> str:
    print(f"{name} taken")
    time.sleep(0.02)
    return name


def give_back(name: str) -> None:
    time.sleep(0.02)


def await_file(name: str) -> None:
    """Wait for a file, and print a line as soon as there is one beside it that asks for it."""
    asked = FOLDER / f"{name}.say"
    while not (FOLDER / name).exists():
        if asked.exists():
            asked.unlink()
            print(f"still waiting for {name}")
        time.sleep(0.01)


def flaky(name: str) -> str:
    if operation().attempt == 1:
        raise ConnectionError("the warehouse hung up")
    return name


def refuse(message: str) -> None:
    raise Terminal(message)


@app.function(on="order/placed", timeout="2h")
async def fulfil_order(event: Event, step: Step) -> dict[str, Any]:
    """`fail`: no carrier takes it. `gate`: the name of a file that shipping waits for."""
    wishes = event.data if isinstance(event.data, dict) else {}
    charge = await step.run("charge", take, "charge", compensate=give_back)
    await step.run("reserve", flaky, "reserve", compensate=give_back, retry=SOON)
    await step.run("note", take, "note")
    if "gate" in wishes:
        await step.run("gate", await_file, wishes["gate"])
    if "fail" in wishes:
        await step.run("ship", refuse, wishes["fail"])
    await step.run("ship", take, "ship")
    return {"charge": charge, "order": wishes}


def hold(name: str) -> str:
    (FOLDER / f"in-{name}-{operation().attempt}").touch()
    if operation().attempt == 1:
        await_file(f"go-{name}")
    return f"{name} by attempt {operation().attempt}"


@app.function(on="held")
async def held(event: Event, step: Step) -> str:
    """Its second step has no answer when it is due."""
    await step.run("paid", take, "paid", compensate=give_back)
    return await step.run("held", hold, event.data["name"], timeout="100ms", retry=SOON)


@app.function(on="late", timeout="9s")
async def late(event: Event, step: Step) -> str:
    """Unknown when its deadline comes."""
    await step.run("paid", take, "paid", compensate=give_back)
    return await step.run("held", hold, event.data["name"], timeout="100ms")


def hold_back(paid: str) -> None:
    (FOLDER / "in-undo").touch()
    if operation().attempt == 1:
        await_file("go-undo")


@app.function(on="undo")
async def undo(event: Event, step: Step) -> None:
    """What undoes its first step gives no answer."""
    from ryusen_sdk import Compensate

    await step.run("paid", take, "paid", compensate=Compensate(hold_back, timeout="100ms"))
    await step.run("ship", refuse, "no carrier takes it")


@app.function(on="twice")
async def use_an_id_twice(event: Event, step: Step) -> None:
    for item in ("one", "two"):
        await step.run("item", take, item)


@app.function(on="waits")
async def wait_and_invoke(event: Event, step: Step) -> Any:
    """A timer, an emission, a child, and an event that may come."""
    await step.sleep("cool down", "50ms")
    await step.send_event("tell", "order/shipped", {"order": 7}, metadata={"order": "7"})
    await step.invoke("pack", "pack-box", {"items": 3})
    return await step.wait_for_event("approval", "order/approved", match={"order": "7"}, timeout="24h")


@app.function()
async def pack_box(event: Event, step: Step) -> str:
    return await step.run("pack", take, "pack")


@app.function(on="long")
async def many_steps(event: Event, step: Step) -> int:
    for number in range(event.data["steps"]):
        if "loud" in event.data:
            await step.run(f"step-{number:04}", take, str(number))
        else:
            await step.run(f"step-{number:04}", quick, number)
    if "gate" in event.data:
        await step.run("gate", await_file, event.data["gate"])
    return event.data["steps"]


async def quick(number: int) -> int:
    await asyncio.sleep(0)
    return number


@app.function(on="echo")
def echo(event: Event, step: SyncStep) -> Any:
    return step.run(event.data["id"] if isinstance(event.data, dict) and "id" in event.data else "echo", give, event.data)


def give(value: Any) -> Any:
    return value
