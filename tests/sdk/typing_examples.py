"""What type checkers see of the SDK; checked with pyright and mypy, never run.

A line that must not pass carries an ignore with mypy's codes: both checkers complain when there is nothing to ignore.
"""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from typing_extensions import TypedDict

from ryusen_sdk import AsyncClient, Client, Compensate, Event, EventPayload, Operation, Retry, Ryusen, Step, SyncStep, operation

app = Ryusen("shop")


@dataclass
class Order:
    id: int


class Charge(TypedDict):
    id: str


def charge_card(order: Order, amount: int) -> Charge:
    return {"id": f"{order.id}-{amount}"}


async def acharge_card(order: Order, amount: int) -> Charge:
    return {"id": f"{order.id}-{amount}"}


def refund(charge: Charge) -> None: ...


def refund_all(charge: Charge, order: Order, amount: int) -> None: ...


async def arefund(charge: Charge) -> str:
    return charge["id"]


def load_order(order_id: int, *, strict: bool = False) -> Order:
    return Order(order_id)


class Shop:
    async def ship(self, order: Order) -> str:
        return str(order.id)


@app.function(on="order/placed", timeout="2h")
async def fulfil(event: Event[Order], step: Step) -> dict[str, str]:
    order = event.data
    assert_type(order, Order)
    assert_type(event.payload, bytes)
    assert_type(await step.run("sync", charge_card, order, 5), Charge)
    assert_type(await step.run("async", acharge_card, order, 5, compensate=refund, retry=3, timeout="5s"), Charge)
    assert_type(await step.run("full", charge_card, order, 5, compensate=refund_all), Charge)
    assert_type(await step.run("undo", acharge_card, order, 5, compensate=arefund), Charge)
    assert_type(await step.run("own", charge_card, order, 5, compensate=Compensate(refund, retry=Retry(9))), Charge)
    assert_type(await step.run("partial", functools.partial(load_order, strict=True), 5), Order)
    assert_type(await step.run("typed", load_order, 5, returns=Order), Order)
    assert_type(await step.run("method", Shop().ship, order), str)
    assert_type(await step.run("lambda", lambda: 5), int)
    call = step.run("call", charge_card, order, 5)
    _ = assert_type(call, Coroutine[Any, Any, Charge])
    await call
    await step.run("too few", charge_card, order)  # type: ignore[arg-type]
    await step.run("wrong", charge_card, order, "5")  # type: ignore[arg-type, call-arg]
    await step.run(charge_card, order, 5)  # type: ignore[call-overload]
    await step.run("undo", charge_card, order, 5, compensate=load_order)  # type: ignore[arg-type, call-arg]
    return {"charge": "x"}


@app.function()
def plain(event: Event, step: SyncStep) -> str:
    assert_type(step.run("sync", charge_card, Order(1), 5, compensate=refund), Charge)
    assert_type(step.run("async", acharge_card, Order(1), 5), Charge)
    assert_type(step.run("typed", load_order, 5, returns=Order), Order)
    assert_type(operation(), Operation)
    return "x"


@app.function(on="order/packed")
async def pack(event: Event[Order], step: Step) -> dict[str, int]:
    return {"box": event.data.id}


@app.function()
def label(event: Event[str], step: SyncStep) -> list[str]:
    return [event.data]


@app.function()
async def kinds(event: Event, step: Step) -> None:
    await step.sleep("nap", "1.5s")
    await step.sleep("rest", timedelta(hours=1))
    await step.sleep_until("dawn", datetime(2030, 1, 1, tzinfo=UTC))
    approval = await step.wait_for_event("approval", "order/approved", match={"order": "7"}, timeout="2h")
    assert_type(approval, EventPayload)
    assert_type(approval.payload, bytes)
    assert_type(await step.invoke("pack", pack, Order(7), timeout="1m"), dict[str, int])
    assert_type(await step.invoke("label", label, "x"), list[str])
    assert_type(await step.invoke("by id", "pack", {"id": 7}), Any)
    assert_type(await step.invoke("typed", "pack", {"id": 7}, returns=Order), Order)
    assert_type(await step.invoke("typed too", pack, Order(7), returns=Order), Order)
    assert_type(await step.send_event("tell", "order/shipped", {"id": 7}, metadata={"order": "7"}), str)
    await step.invoke("wrong input", pack, "x")  # type: ignore[arg-type]
    await step.wait_for_event("for ever", "order/approved")  # type: ignore[call-arg]
    await step.sleep_until("when", "tomorrow")  # type: ignore[arg-type]
    await step.send_event("wrong metadata", "order/shipped", metadata={"order": 7})  # type: ignore[dict-item]


@app.function()
def sync_kinds(event: Event, step: SyncStep) -> None:
    step.sleep("nap", 5)
    assert_type(step.wait_for_event("approval", "order/approved", timeout="2h").payload, bytes)
    assert_type(step.invoke("pack", pack, Order(7)), dict[str, int])
    assert_type(step.invoke("label", label, "x"), list[str])
    assert_type(step.invoke("typed", "pack", {"id": 7}, returns=Order), Order)
    assert_type(step.send_event("tell", "order/shipped", b"raw"), str)


async def decorated(event: Event[Order], step: Step, plain_event: Event, sync_step: SyncStep) -> None:
    # The decorator changes nothing of a function's type.
    assert_type(await fulfil(event, step), dict[str, str])
    assert_type(plain(plain_event, sync_step), str)


def clients() -> None:
    with Client("http://127.0.0.1:7878") as client:
        assert_type(client.send("order/placed", {"id": 1}, key="k", wait="30s").matched, int)
        assert_type(client.wait("rn_1", timeout=5).status == "ended", bool)
        client.runs(status="sleeping")  # type: ignore[arg-type]


async def async_clients() -> None:
    async with AsyncClient() as client:
        assert_type((await client.send("order/placed", b"raw")).matched, int)
