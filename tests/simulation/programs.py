"""Random programs: what a function's body does, how a release changes it, and the real SDK functions they become.

A program is data. `function_of` makes of it an async function as a user would write it; its callbacks ask the world outside what befalls
them. Redeploys rename, remove and add steps and compensators, repeat ids, and take repetitions out again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from ryusen_sdk.errors import StepFailed
from ryusen_sdk.options import Compensate, Retry


class Call(msgspec.Struct, frozen=True):
    """A `step.run`. `ways` is the number of attempts of each phase; `caught`: the body goes on after its failure."""

    step_id: str
    undo: bool
    ways: int
    undo_ways: int
    first_ms: int
    timeout_ms: int | None
    undo_timeout_ms: int | None
    caught: bool


class Fork(msgspec.Struct, frozen=True):
    """A branch on something ambient: each pass may take it or not."""

    inside: tuple[Call, ...]


class Escape(msgspec.Struct, frozen=True):
    """The body raises something of its own."""

    message: str


Node = Call | Fork | Escape


class Program(msgspec.Struct, frozen=True):
    """One function's body. `result` is what it returns at the end: a value, or something that is not portable."""

    nodes: tuple[Node, ...]
    portable: bool = True

    def calls(self) -> list[Call]:
        """Every call it may make, in order."""
        found: list[Call] = []
        for node in self.nodes:
            if isinstance(node, Call):
                found.append(node)
            elif isinstance(node, Fork):
                found.extend(node.inside)
        return found

    def repeats(self) -> bool:
        """Whether one id stands twice, so that a pass may block."""
        ids = [call.step_id for call in self.calls()]
        return len(ids) != len(set(ids))


class Escaped(Exception):
    """What an `Escape` raises."""


class Outside(Protocol):
    """The world that callbacks happen in."""

    async def perform(self, step_id: str, given: object) -> object: ...

    def ambient(self) -> bool: ...


def random_call(chance: random.Random, step_id: str) -> Call:
    """One step with options of its own."""
    return Call(
        step_id=step_id,
        undo=chance.random() < 0.65,
        ways=chance.choice((1, 2, 3, 4)),
        undo_ways=chance.choice((1, 2, 3)),
        first_ms=chance.choice((0, 100, 1_000, 4_000)),
        timeout_ms=chance.choice((None, None, None, 1_500, 20_000)),
        undo_timeout_ms=chance.choice((None, None, None, 2_000)),
        caught=chance.random() < 0.5,
    )


def random_program(chance: random.Random) -> Program:
    """A body of one to five steps."""
    nodes: list[Node] = [random_call(chance, f"s{index}") for index in range(chance.choice((1, 2, 2, 3, 3, 4, 5)))]
    if chance.random() < 0.2:
        inside = tuple(random_call(chance, f"f{index}") for index in range(chance.choice((1, 2))))
        nodes.insert(chance.randrange(len(nodes) + 1), Fork(inside))
    if chance.random() < 0.3:
        nodes.append(Escape("no good end"))
    if chance.random() < 0.2:
        nodes.insert(chance.randrange(len(nodes) + 1), _repeated(chance, nodes))
    return Program(tuple(nodes), portable=chance.random() > 0.06)


def _repeated(chance: random.Random, nodes: list[Node]) -> Call:
    calls = [node for node in nodes if isinstance(node, Call)]
    return chance.choice(calls)


def redeployed(program: Program, chance: random.Random, *, fresh: str) -> Program:
    """The same function in the next release. `fresh` is an id that no release has used."""
    nodes = list(program.nodes)
    places = [index for index, node in enumerate(nodes) if isinstance(node, Call)]
    for _ in range(chance.choice((1, 1, 2))):
        act = chance.choice(("rename", "remove", "add", "undo", "undo", "repeat", "repeat", "unrepeat", "unrepeat", "escape"))
        place = chance.choice(places) if places else None
        node = None if place is None or place >= len(nodes) else nodes[place]
        match act:
            case "rename" if isinstance(node, Call) and place is not None:
                nodes[place] = msgspec.structs.replace(node, step_id=f"{fresh}r")
            case "remove" if len(nodes) > 1 and place is not None and place < len(nodes):
                del nodes[place]
            case "add":
                nodes.insert(chance.randrange(len(nodes) + 1), random_call(chance, f"{fresh}a"))
            case "undo" if isinstance(node, Call) and place is not None:
                nodes[place] = msgspec.structs.replace(node, undo=not node.undo)
            case "repeat" if isinstance(node, Call):
                nodes.insert(chance.randrange(len(nodes) + 1), node)
            case "unrepeat":
                nodes = list(without_repeats(Program(tuple(nodes))).nodes)
            case "escape":
                nodes = [each for each in nodes if not isinstance(each, Escape)] or nodes
            case _:
                pass
    return Program(tuple(nodes), program.portable)


def without_repeats(program: Program) -> Program:
    """The fix of a duplicate id: the second call is removed."""
    seen: set[str] = set()
    nodes: list[Node] = []
    for node in program.nodes:
        if isinstance(node, Call):
            if node.step_id in seen:
                continue
            seen.add(node.step_id)
        elif isinstance(node, Fork):
            inside = tuple(call for call in node.inside if call.step_id not in seen)
            seen.update(call.step_id for call in inside)
            node = Fork(inside)  # noqa: PLW2901
        nodes.append(node)
    return Program(tuple(nodes), program.portable)


def function_of(program: Program, outside: Outside) -> Callable[[Any, Any], Awaitable[object]]:
    """The SDK function that a program is, in whichever worker's process it runs."""

    async def body(event: Any, step: Any) -> object:
        del event
        done: list[str] = []
        for node in program.nodes:
            match node:
                case Call():
                    await _call(step, node, done, outside)
                case Fork():
                    if outside.ambient():
                        for inner in node.inside:
                            await _call(step, inner, done, outside)
                case Escape():
                    raise Escaped(node.message)
        return list(done) if program.portable else object()

    return body


async def _call(step: Any, node: Call, done: list[str], outside: Outside) -> None:
    async def act() -> object:
        return await outside.perform(node.step_id, None)

    async def undo(result: object) -> object:
        return await outside.perform(node.step_id, result)

    own = None if node.undo_timeout_ms is None else node.undo_timeout_ms / 1000
    try:
        await step.run(
            node.step_id,
            act,
            compensate=Compensate(undo, retry=_retry(node.undo_ways, node.first_ms), timeout=own) if node.undo else None,
            retry=_retry(node.ways, node.first_ms),
            timeout=None if node.timeout_ms is None else node.timeout_ms / 1000,
        )
        done.append(node.step_id)
    except StepFailed:
        if not node.caught:
            raise


_RETRIES: dict[tuple[int, int], Retry] = {}


def _retry(ways: int, first_ms: int) -> Retry:
    key = (ways, first_ms)
    if key not in _RETRIES:
        _RETRIES[key] = Retry(max_attempts=ways, initial=first_ms / 1000, multiplier=2.0, maximum=5.0, jitter=0.1)
    return _RETRIES[key]


class Release(msgspec.Struct, frozen=True):
    """The code of one rollout of an application. `triggers` and `timeouts_ms` are by function."""

    release_id: str | None
    programs: dict[str, Program]
    triggers: dict[str, tuple[str, ...]]
    timeouts_ms: dict[str, int | None]
