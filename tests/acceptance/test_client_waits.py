"""A client that waits for a run outlives the server it asks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ryusen_sdk import Client, Event, Ryusen, SyncStep
from tests.acceptance.product import eventually, product


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_wait_goes_on_over_a_restart(tmp_path: Path, end: str) -> None:
    app = Ryusen("shop")

    @app.function(on="order/placed")
    def never(event: Event, step: SyncStep) -> None: ...

    with product(tmp_path) as running, ThreadPoolExecutor(1) as pool, Client(running.url) as client:
        app.publish(url=running.url)
        receipt = client.send("order/placed", {"order": 1})
        (run,) = client.runs(event=receipt.event_id).items
        begun = threading.Event()

        def wait() -> str | None:
            begun.set()
            return client.wait(run.run_id, timeout="40s").outcome

        waiting = pool.submit(wait)
        begun.wait()
        eventually(lambda: running.get("/v1/server")["counts"].get("waiting", 1), "the wait is held")
        if end == "killed":
            running.kill_server()
        else:
            running.stop_server()
        assert not waiting.done()
        running.start_server()
        with Client(running.url) as other:
            assert other.cancel(run.run_id).status == "applied"
        assert waiting.result(40) == "cancelled"
