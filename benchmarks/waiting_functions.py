"""Functions that do little but wait, so that very many runs can be pending; and one that works, to see what that costs it."""

from ryusen_sdk import Event, Ryusen, Step

app = Ryusen("bench")

AT_ONCE = 50
"""How many runs one event starts: half of them sleep, half wait for an event."""


async def effect(value: int) -> int:
    """A callback that costs nothing."""
    return value


@app.function(on="bench/steps")
async def steps(event: Event, step: Step) -> None:
    """As many steps as the event asks for."""
    for index in range(event.data["steps"]):
        await step.run(f"step-{index}", effect, index)


async def sleeps(_event: Event, step: Step) -> None:
    """Sleeps for a week."""
    await step.sleep("week", "168h")


async def waits(event: Event, step: Step) -> None:
    """Waits for one of very many approvals."""
    await step.wait_for_event("approved", "bench/approved", match={"order": str(event.data["order"])}, timeout="168h")


for number in range(AT_ONCE // 2):
    app.function(on="bench/pending", id=f"sleeps-{number}")(sleeps)
    app.function(on="bench/pending", id=f"waits-{number}")(waits)
