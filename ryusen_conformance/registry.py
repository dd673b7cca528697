"""The contract registry in Python: what `fixtures/contract.md` describes, written with the Python SDK.

A TARGET for `ryusen worker` and for the conformance commands: `ryusen conformance worker -- ryusen worker ryusen_conformance.registry`.
`asgi` and `wsgi` offer the same functions over HTTP. Owns nothing but those functions; the expectations are the fixtures'.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ryusen_sdk import Compensate, Event, Failure, Retry, Ryusen, Step, StepFailed, SyncStep, operation

if TYPE_CHECKING:
    from collections.abc import Callable

app: Final = Ryusen("conformance")

_calls: Final[dict[str, list[str]]] = defaultdict(list)
"""The calls noted in this process, by run."""


def _noted(make: Callable[[], Any]) -> Callable[..., Any]:
    """A callback that notes its call and then does what it is for."""

    def callback(*_given: object) -> Any:
        now = operation()
        _calls[now.run_id].append(f"{now.phase} {now.step_id} {now.id} {now.attempt} {now.attempt_generation}")
        return make()

    return callback


def _gives(result: Any) -> Callable[..., Any]:
    return _noted(lambda: result)


@app.function(id="call-log")
async def call_log(event: Event, _step: Step) -> list[str]:
    return _calls[event.data["run_id"]]


@app.function()
async def echo(event: Event, _step: Step) -> bytes:
    return event.payload


@app.function(on="conformance/started")
async def two_steps(_event: Event, step: Step) -> dict[str, object]:
    first = await step.run("first", _gives("one"))
    second = await step.run("second", _gives("two"))
    return {"first": first, "second": second}


def _refund(charge: object) -> list[object]:
    return _gives(["refunded", charge])()


@app.function()
async def saga(event: Event, step: Step) -> NoReturn:
    if event.data.get("early"):
        raise Failure("early", category="contract.early")
    await step.run(
        "charge",
        _gives({"cents": 1250, "id": "ch_1"}),
        compensate=Compensate(_refund, retry=Retry(max_attempts=2), timeout="5s"),
        retry=Retry(max_attempts=6, initial="250ms", multiplier=3, maximum="10s", jitter=0),
        timeout="30s",
    )
    await step.run("ship", _gives("shipped"))
    raise Failure("broken", category="contract.broken")


@app.function()
async def twice(_event: Event, step: Step) -> str:
    await step.run("same", _gives("once"))
    await step.run("same", _gives("again"))
    return "done"


@_noted
def _risky() -> NoReturn:
    raise Failure("no funds", category="contract.declined", details={"card": "c-1", "cents": 1250})


@app.function()
def handled(_event: Event, step: SyncStep) -> object:
    try:
        return step.run("risky", _risky)
    except StepFailed as failed:
        paid = step.run("fallback", _gives("cash"))
        return {"category": failed.category, "message": failed.message, "details": failed.details, "paid": paid}


@app.function()
async def unhandled(_event: Event, step: Step) -> object:
    return await step.run("risky", _risky)


@_noted
def _caused() -> NoReturn:
    raise Failure("outer", category="contract.outer", retryable=True) from Failure("inner", category="contract.inner")


@app.function()
async def caused(_event: Event, step: Step) -> object:
    return await step.run("risky", _caused)


@_noted
def _broken() -> NoReturn:
    raise RuntimeError("it broke")


@app.function()
async def ordinary(_event: Event, step: Step) -> object:
    return await step.run("plain", _broken)


@app.function()
async def unportable(_event: Event, step: Step) -> float:
    await step.run("bad", _gives(float("nan")), compensate=_gives(float("nan")))
    return float("nan")


@app.function()
async def ambient(_event: Event, step: Step) -> object:
    chosen = random.choice(["left", "right"])  # noqa: S311 - that it differs from pass to pass is the point
    return await step.run(chosen, _gives(chosen))


@app.function()
async def swallowing(_event: Event, step: Step) -> str:
    for step_id in ("first", "second", "first"):
        try:
            await step.run(step_id, _gives(step_id))
        except BaseException:  # noqa: BLE001, S112 - swallowing everything is the point
            continue
    return "swallowed"


@app.function()
async def kept(_event: Event, step: Step) -> object:
    return await step.run("value", _gives(None))


_ALL_VALUES: Final[list[object]] = [
    None,
    True,
    -(2**63),
    2**64 - 1,
    1.5,
    -0.0,
    "é😀",
    b"\x00\xff",
    [],
    {},
    datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
    timedelta(seconds=-0.5),
]


@app.function()
async def all_values(_event: Event, step: Step) -> None:
    await step.run("make", _gives(_ALL_VALUES))


def _told() -> dict[str, object]:
    now = operation()
    names = ("id", "step_id", "phase", "attempt", "attempt_generation", "run_id")
    return {name: getattr(now, name) for name in names}


@app.function(id="operation")
async def operation_(_event: Event, step: Step) -> None:
    await step.run("tell", _noted(_told), compensate=_noted(_told))


@app.function()
async def loop(event: Event, step: Step) -> int:
    return sum([await step.run(f"step-{number}", _gives(number)) for number in range(1, event.data["count"] + 1)])


@app.function()
async def sleeper(_event: Event, step: Step) -> None:
    await step.sleep("cool", "1.5s")
    await step.sleep_until("morning", datetime(2030, 1, 1, tzinfo=UTC))


@app.function()
async def waiter(_event: Event, step: Step) -> bytes:
    return (await step.wait_for_event("approved", "order/approved", match={"order": "7"}, timeout="1h")).payload


@app.function()
async def parent(_event: Event, step: Step) -> object:
    return await step.invoke("pack", "packing", {"boxes": 2}, timeout="1m")


@app.function()
async def packing(event: Event, _step: Step) -> dict[str, object]:
    invoker = event.parent
    return {
        "input": event.data,
        "parent_run": invoker.run_id if invoker else None,
        "parent_step": invoker.step_id if invoker else None,
    }


@app.function()
async def emitter(_event: Event, step: Step) -> object:
    return await step.send_event("tell", "order/shipped", b"\x00\xff", metadata={"carrier": "post"})


@_noted
def _nap() -> str:
    time.sleep(0.5)
    return "rested"


@app.function()
async def slow(_event: Event, step: Step) -> object:
    return await step.run("nap", _nap)


def __getattr__(name: str) -> object:
    """`asgi` and `wsgi`, made when a web server asks for one; `RYUSEN_HTTP_SECRET` signs."""
    if name not in {"asgi", "wsgi"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(app, name)(secret=os.environ.get("RYUSEN_HTTP_SECRET"))
