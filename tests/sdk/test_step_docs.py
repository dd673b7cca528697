"""The examples of `docs/steps.md` are code that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ryusen_sdk import Ryusen
from tests.sdk.hosted import outcome_of
from tests.sdk.peer import NULL, discovery, done

ROOT = Path(__file__).parents[2]
DATA = b'{"order": 7}'


def documented() -> Ryusen:
    """The application that the examples make together."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "steps.md").read_text(), re.DOTALL)
    module: dict[str, Any] = {"__name__": "documented"}
    exec(compile("\n".join(blocks), "docs/steps.md", "exec"), module)
    return module["app"]


async def test_every_example_declares_its_steps_and_completes() -> None:
    app = documented()
    declared: list[tuple[str, str]] = []
    for function in app.registry.functions():
        document = discovery(function=function.id, data=DATA)
        if not function.triggers:
            value = {"type": "object", "value": {"order": {"type": "i64", "value": "7"}}}
            document["input"] = {"kind": "child", "parent_run_id": "rn_0", "parent_step_id": "pack", "value": value}
        while (given := await outcome_of(app, document))["type"] == "declared":
            declaration = given["declaration"]
            declared.append((function.id, declaration["kind"]))
            approval = {"type": "bytes", "value": "eyJieSI6ICJBZGEifQ=="}
            recorded = approval if declaration["kind"] == "event_wait" else NULL
            document["history"]["steps"].append(done(declaration["step_id"], recorded, declaration["kind"]))
        assert given["type"] == "completed", given
    assert declared == [
        ("announce", "emission"),
        ("ask", "event_wait"),
        ("deliver", "child"),
        ("fulfil-order", "run"),
        ("pack-box", "timer"),
        ("remind", "timer"),
        ("remind", "timer"),
        ("remind", "timer"),
        ("split", "run"),
        ("split", "run"),
    ]
