"""The functions that are measured. Callbacks do nothing, so that what is left is the engine."""

from ryusen_sdk import Event, Ryusen, Step, Terminal

app = Ryusen("bench")


async def effect(value: int) -> dict[str, int]:
    """A forward callback that costs nothing."""
    return {"value": value}


async def undo(result: dict[str, int]) -> None:
    """A compensator that costs nothing."""


async def refuse() -> None:
    """A callback that fails for good."""
    raise Terminal("told to fail")


@app.function(on="bench/steps")
async def steps(event: Event, step: Step) -> int:
    """As many steps as the event asks for."""
    total = 0
    for index in range(event.data["steps"]):
        result = await step.run(f"step-{index}", effect, index)
        total += result["value"]
    return total


@app.function(on="bench/saga")
async def saga(_event: Event, step: Step) -> None:
    """Two steps that succeed and one that fails: two compensations."""
    await step.run("first", effect, 1, compensate=undo)
    await step.run("second", effect, 2, compensate=undo)
    await step.run("third", refuse)
