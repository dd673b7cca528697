"""An order that is charged, reserved and shipped. When shipping fails, the reservation and the charge are undone, in that order.

Send one that succeeds, and one whose shipping fails:

    ryusen send order/placed -d '{"order": 7}' --wait
    ryusen send order/placed -d '{"order": 8, "fail": true}' --wait

Every effect is one line, `EFFECT OPERATION ORDER`, appended to the file that ORDERS_EFFECT_LOG names, or printed. The line stands for
what a payment provider or a warehouse would do; the operation id is what they would get as their idempotency key.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ryusen_sdk import Event, Ryusen, Step, Terminal, operation

app = Ryusen("shop")


@app.function(on="order/placed")
async def fulfil_order(event: Event, step: Step) -> dict[str, Any]:
    order = {"order": 1} | event.data
    charge = await step.run("charge", charge_card, order, compensate=refund_card)
    await step.run("reserve", reserve_stock, order, compensate=release_stock)
    shipment = await step.run("ship", ship, order)
    return {"order": order["order"], "charge": charge["charge"], "parcel": shipment["parcel"]}


def charge_card(order: dict[str, Any]) -> dict[str, Any]:
    effect("charge", order["order"])
    return {"order": order["order"], "charge": f"ch_{order['order']}"}


def refund_card(charge: dict[str, Any]) -> None:
    effect("refund", charge["order"])


async def reserve_stock(order: dict[str, Any]) -> dict[str, Any]:
    effect("reserve", order["order"])
    return {"order": order["order"], "shelf": "A4"}


def release_stock(reservation: dict[str, Any]) -> None:
    effect("release", reservation["order"])


def ship(order: dict[str, Any]) -> dict[str, Any]:
    if order.get("fail"):
        raise Terminal(f"no carrier takes order {order['order']}")
    effect("ship", order["order"])
    return {"parcel": f"pa_{order['order']}"}


def effect(name: str, order: object) -> None:
    """One effect on the world outside. A single write, so that lines of several processes never mix."""
    line = f"{name} {operation().id} {order}\n"
    log = os.environ.get("ORDERS_EFFECT_LOG")
    if log is None:
        print(line, end="", flush=True)
        return
    file = os.open(Path(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
