"""The order example behind HTTP: a web server hosts the functions, and the Ryusen server calls them.

    python examples/http/shop.py                       hosts the functions at http://127.0.0.1:9000
    ryusen serve --http-endpoint shop=http://127.0.0.1:9000/ryusen
    ryusen apps publish examples/http/shop.py
    ryusen send order/placed -d '{"order": 1}' --wait

Any ASGI or WSGI server will do instead of the one here: `uvicorn shop:asgi`, `gunicorn shop:wsgi`. Set RYUSEN_HTTP_SECRET to the same value
on both sides, and requests and responses are signed.
"""

from __future__ import annotations

import os
from socketserver import ThreadingMixIn
from typing import TypedDict
from wsgiref.simple_server import WSGIServer, make_server

from ryusen_sdk import Event, Ryusen, Step, operation

app = Ryusen("shop")
asgi = app.asgi(os.environ.get("RYUSEN_HTTP_SECRET"))
wsgi = app.wsgi(os.environ.get("RYUSEN_HTTP_SECRET"))


class Order(TypedDict):
    order: int


@app.function(on="order/placed")
async def fulfil_order(event: Event[Order], step: Step) -> str:
    order = event.data["order"]
    await step.run("charge", charge_card, order, compensate=refund_card)
    await step.run("ship", ship, order)
    return f"order {order} is on its way"


def charge_card(order: int) -> None:
    print(f"charging order {order}, key {operation().id}")


def refund_card(_: None, order: int) -> None:
    print(f"refunding order {order}")


async def ship(order: int) -> None:
    print(f"shipping order {order}")


class ThreadedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ.get("PORT", "9000")), wsgi, server_class=ThreadedServer) as server:
        print(f"hosting shop at http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
