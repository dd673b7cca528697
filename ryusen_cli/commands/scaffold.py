"""`ryusen init`: an example to start from, in a folder that has none."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from ryusen_cli.exits import CliError
from ryusen_cli.options import JsonOption

_NAME: Final = "orders.py"
_EXAMPLE: Final = '''"""An order that is charged, reserved and shipped; when shipping fails, what was done is undone.

Start it:    ryusen dev
Then, in another terminal:

    ryusen send order/placed -d '{"order": 7, "items": ["tea"]}' --wait

and with "fail": true in the data, to see the first two steps undone in reverse order.
"""

from ryusen_sdk import Event, Ryusen, Step, Terminal, operation

app = Ryusen("shop")


@app.function(on="order/placed")
async def fulfil_order(event: Event, step: Step):
    order = event.data
    charge = await step.run("charge", charge_card, order, compensate=refund_card)
    await step.run("reserve", reserve_stock, order, compensate=release_stock)
    await step.run("ship", ship, order)
    return {"order": order["order"], "charge": charge["charge"]}


def charge_card(order):
    # An external system should get operation().id as its idempotency key: it stays the same when a step is tried again.
    print(f"charge order {order['order']} ({operation().id})")
    return {"charge": f"ch_{order['order']}"}


def refund_card(charge):
    print(f"refund {charge['charge']}")


def reserve_stock(order):
    print(f"reserve {', '.join(order.get('items', []))}")
    return {"items": order.get("items", [])}


def release_stock(reservation):
    print(f"release {', '.join(reservation['items'])}")


def ship(order):
    if order.get("fail"):
        raise Terminal(f"no carrier takes order {order['order']}")
    print(f"ship order {order['order']}")
    return {"shipped": True}
'''


def init(
    folder: Annotated[str, typer.Argument(metavar="[DIR]", help="Where to write it; made if it is missing.")] = ".",
    *,
    json_: JsonOption = False,
) -> None:
    """Write an order example with compensation, ready for `ryusen dev`. Overwrites nothing."""
    from ryusen_cli.output import Output

    output = Output(json=json_)
    place = Path(folder)
    path = place / _NAME
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Exclusive: between a look and a write somebody else could have made the file.
        with path.open("x", encoding="utf-8") as file:
            file.write(_EXAMPLE)
    except FileExistsError as error:
        what = path if path.exists() else place
        raise CliError(f"{what} exists already, and nothing is overwritten", hint="name another folder: ryusen init DIR") from error
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}", hint="name a folder you may write to: ryusen init DIR") from error
    if output.json:
        output.encoded({"status": "created", "path": str(path)})
        return
    output.line(f"wrote {path}")
    # The working directory may be spelled in many ways; only a folder that is another one needs a cd.
    inside = "" if os.path.realpath(place) == os.path.realpath(".") else f"cd {shlex.quote(str(place))} && "
    output.note(f"next: {inside}ryusen dev")
