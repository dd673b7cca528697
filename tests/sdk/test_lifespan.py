"""The lifespan of an application: entered once per process, whoever holds it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from ryusen_sdk import DefinitionError, MisuseError, Ryusen


class Trail:
    """A lifespan that notes what happens to it, and in which task."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tasks: set[object] = set()
        self.may_enter = asyncio.Event()
        self.may_enter.set()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        self.notes.append("entering")
        self.tasks.add(asyncio.current_task())
        await self.may_enter.wait()
        self.notes.append("entered")
        try:
            yield
        finally:
            self.tasks.add(asyncio.current_task())
            self.notes.append("left")


async def test_the_first_hold_enters_and_the_last_leaves() -> None:
    trail = Trail()
    app = Ryusen("shop", lifespan=trail)
    first, second = app.lifespan(), app.lifespan()
    await asyncio.gather(first.enter(), first.enter(), second.enter())
    assert trail.notes == ["entering", "entered"]
    await first.leave()
    await first.leave()
    assert trail.notes == ["entering", "entered"]
    await second.leave()
    assert trail.notes == ["entering", "entered", "left"]
    assert len(trail.tasks) == 1, "task groups must be left by the task that entered them"
    async with app.lifespan():
        assert trail.notes[3:] == ["entering", "entered"]


async def test_a_failed_entry_is_told_to_everybody_and_may_be_tried_again() -> None:
    failures = [ConnectionError("no database")]

    @asynccontextmanager
    async def pools() -> AsyncIterator[None]:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        yield

    app = Ryusen("shop", lifespan=pools)
    told = await asyncio.gather(app.lifespan().enter(), app.lifespan().enter(), return_exceptions=True)
    assert [str(error) for error in told] == ["no database"] * 2
    async with app.lifespan():
        pass


async def test_a_cancelled_entry_is_abandoned_unless_somebody_else_waits_for_it() -> None:
    trail = Trail()
    trail.may_enter.clear()
    app = Ryusen("shop", lifespan=trail)
    waiting = [asyncio.create_task(app.lifespan().enter()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    trail.may_enter.set()
    await waiting[1]
    assert trail.notes == ["entering", "entered"]

    alone = Trail()
    alone.may_enter.clear()
    entering = asyncio.create_task(Ryusen("shop", lifespan=alone).lifespan().enter())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    await asyncio.sleep(0)
    assert alone.notes == ["entering"]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "ryusen-lifespan" and task in alone.tasks]


async def test_another_event_loop_is_refused() -> None:
    app = Ryusen("shop", lifespan=Trail())
    told: list[str] = []

    def elsewhere() -> None:
        try:
            asyncio.run(app.lifespan().enter())
        except MisuseError as error:
            told.append(str(error))

    async with app.lifespan():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
    assert "another event loop" in told[0]


async def test_a_manager_is_taken_as_it_is() -> None:
    trail = Trail()
    manager: AbstractAsyncContextManager[None] = trail()
    async with Ryusen("shop", lifespan=manager).lifespan():
        assert trail.notes == ["entering", "entered"]
    assert trail.notes[-1] == "left"
    async with Ryusen("shop").lifespan():
        pass


@pytest.mark.parametrize("made", [lambda: None, lambda: threading.Lock()])  # noqa: PLW0108
async def test_what_is_no_async_context_manager_is_told(made: Any) -> None:
    with pytest.raises(MisuseError, match="@asynccontextmanager"):
        await Ryusen("shop", lifespan=made).lifespan().enter()
    wrong: Any = "pools"
    with pytest.raises(DefinitionError, match="lifespan="):
        Ryusen("shop", lifespan=wrong)
