"""What type checkers see of the SDK; checked by a test, never run."""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

from typing_extensions import TypedDict

from ryusen_sdk import AsyncClient, Client, Compensate, Event, Operation, Retry, Ryusen, Step, SyncStep, operation

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
    await step.run("too few", charge_card, order)  # pyright: ignore[reportArgumentType, reportCallIssue]
    await step.run("wrong", charge_card, order, "5")  # pyright: ignore[reportArgumentType, reportCallIssue]
    await step.run(charge_card, order, 5)  # pyright: ignore[reportArgumentType, reportCallIssue]
    await step.run("undo", charge_card, order, 5, compensate=load_order)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return {"charge": "x"}


@app.function()
def plain(event: Event, step: SyncStep) -> str:
    assert_type(step.run("sync", charge_card, Order(1), 5, compensate=refund), Charge)
    assert_type(step.run("async", acharge_card, Order(1), 5), Charge)
    assert_type(step.run("typed", load_order, 5, returns=Order), Order)
    assert_type(operation(), Operation)
    return "x"


async def decorated(event: Event[Order], step: Step, plain_event: Event, sync_step: SyncStep) -> None:
    # The decorator changes nothing of a function's type.
    assert_type(await fulfil(event, step), dict[str, str])
    assert_type(plain(plain_event, sync_step), str)


def clients() -> None:
    with Client("http://127.0.0.1:7878") as client:
        assert_type(client.send("order/placed", {"id": 1}, key="k", wait="30s").matched, int)
        assert_type(client.wait("rn_1", timeout=5).status == "ended", bool)
        client.runs(status="sleeping")  # pyright: ignore[reportArgumentType]


async def async_clients() -> None:
    async with AsyncClient() as client:
        assert_type((await client.send("order/placed", b"raw")).matched, int)
