"""A workflow whose callbacks print, as acceptance tests run it."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from ryusen_sdk import Event, Ryusen, Step, Terminal

FOLDER = Path(os.environ["ACCEPTANCE_FOLDER"])
app = Ryusen("acceptance")


def talk() -> None:
    print("charging", flush=True)
    logging.getLogger("shop").warning("slow card [/]\x1b[31m")
    print("bad news", file=sys.stderr)


def work() -> None:
    print("working")
    (FOLDER / "working").touch()
    while not (FOLDER / "go-on").exists():
        time.sleep(0.02)
    print("worked")


def refuse() -> None:
    print("no carrier")
    raise Terminal("no")


@app.function(id="talk", on="talk/now")
async def talk_now(event: Event, step: Step) -> None:
    print("the body is not kept")
    await step.run("talk", talk, compensate=lambda _: print("untalked"))
    if event.data == "wait":
        await step.run("work", work)
    else:
        await step.run("refuse", refuse)
