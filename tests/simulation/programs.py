"""Random programs: what a function's body does, how a release changes it, and the real SDK functions they become.

A program is data. `function_of` makes of it an async function as a user would write it; its callbacks ask the world outside what befalls
them. Redeploys rename, remove and add steps and compensators, make a step another kind, repeat ids, and take repetitions out again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, assert_never

import msgspec

from ryusen_sdk.errors import StepFailed
from ryusen_sdk.options import Compensate, Retry
from tests.simulation.scheduling import EPOCH_MS

Role = Literal["top", "child", "leaf"]
"""A function that submitted events start and that may do anything; one that is invoked and may invoke; one that is invoked or started by
what others emit. Nobody invokes or emits in a circle, so that every program comes to an end."""

SUBMITTED = ("e0", "e1", "e2")
EMITTED = ("m0", "m1")
CHILD, LEAF, NOBODY = "c0", "c1", "nobody"
"""Functions that are invoked. Nobody ever has the last one."""

Keys = dict[str, str]


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


class Pause(msgspec.Struct, frozen=True):
    """A `step.sleep`, or with `since` a `step.sleep_until`, which counts from the beginning of time."""

    step_id: str
    delay_ms: int
    since: bool


class Await(msgspec.Struct, frozen=True):
    """A `step.wait_for_event`."""

    step_id: str
    event_name: str
    match: Keys
    timeout_ms: int
    caught: bool


class Invoke(msgspec.Struct, frozen=True):
    """A `step.invoke`."""

    step_id: str
    function: str
    given: int
    timeout_ms: int | None
    caught: bool


class Emit(msgspec.Struct, frozen=True):
    """A `step.send_event`."""

    step_id: str
    event_name: str
    data: int
    metadata: Keys


class Fork(msgspec.Struct, frozen=True):
    """A branch on something ambient: each pass may take it or not."""

    inside: tuple[Call, ...]


class Escape(msgspec.Struct, frozen=True):
    """The body raises something of its own."""

    message: str


StepNode = Call | Pause | Await | Invoke | Emit
Node = StepNode | Fork | Escape


class Program(msgspec.Struct, frozen=True):
    """One function's body. `result` is what it returns at the end: a value, or something that is not portable."""

    nodes: tuple[Node, ...]
    portable: bool = True
    role: Role = "top"

    def steps(self) -> list[StepNode]:
        """Every step it may reach, in order."""
        found: list[StepNode] = []
        for node in self.nodes:
            if isinstance(node, Fork):
                found.extend(node.inside)
            elif not isinstance(node, Escape):
                found.append(node)
        return found


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


def random_step(chance: random.Random, step_id: str, role: Role) -> StepNode:
    """One step of any kind that a function of the role may reach."""
    kinds = {"top": ("pause", "await", "invoke", "emit"), "child": ("pause", "await", "invoke"), "leaf": ("pause", "await")}[role]
    if chance.random() < 0.6:
        return random_call(chance, step_id)
    match chance.choice(kinds):
        case "pause":
            since = chance.random() < 0.2
            delay_ms = chance.choice((0, 30_000, 90_000)) if since else chance.choice((0, 50, 1_000, 5_000, 20_000, 70_000))
            return Pause(step_id, delay_ms, since)
        case "await":
            return Await(
                step_id,
                event_name=chance.choice((*SUBMITTED, *EMITTED)),
                match=random_keys(chance),
                timeout_ms=chance.choice((0, 100, 5_000, 15_000, 45_000, 45_000)),
                caught=chance.random() < 0.7,
            )
        case "invoke":
            function = chance.choice((CHILD, CHILD, LEAF) if role == "top" else (LEAF,))
            return Invoke(
                step_id,
                function=NOBODY if chance.random() < 0.05 else function,
                given=chance.randrange(10),
                timeout_ms=chance.choice((None, None, None, 0, 3_000, 20_000)),
                caught=chance.random() < 0.7,
            )
        case _:
            return Emit(step_id, chance.choice(EMITTED), chance.randrange(10), random_keys(chance))


def random_keys(chance: random.Random) -> Keys:
    """Metadata, or what a wait asks of it."""
    return chance.choice(({}, {"k": "0"}, {"k": "1"}, {"k": "0", "z": "0"}))


def random_program(chance: random.Random, role: Role = "top") -> Program:
    """A body of one to five steps."""
    sizes = {"top": (1, 2, 2, 3, 3, 4, 5), "child": (1, 2, 3), "leaf": (0, 1, 2)}[role]
    nodes: list[Node] = [random_step(chance, f"s{index}", role) for index in range(chance.choice(sizes))]
    if chance.random() < 0.2:
        inside = tuple(random_call(chance, f"f{index}") for index in range(chance.choice((1, 2))))
        nodes.insert(chance.randrange(len(nodes) + 1), Fork(inside))
    if chance.random() < 0.3:
        nodes.append(Escape("no good end"))
    steps = [node for node in nodes if not isinstance(node, Fork | Escape)]
    if steps and chance.random() < 0.15:
        nodes.insert(chance.randrange(len(nodes) + 1), chance.choice(steps))
    return Program(tuple(nodes), portable=chance.random() > 0.06, role=role)


def redeployed(program: Program, chance: random.Random, *, fresh: str) -> Program:
    """The same function in the next release. `fresh` is an id that no release has used."""
    nodes = list(program.nodes)
    for _ in range(chance.choice((1, 1, 2))):
        act = chance.choice(("rename", "remove", "add", "undo", "undo", "kind", "repeat", "repeat", "unrepeat", "unrepeat", "escape"))
        places = [index for index, node in enumerate(nodes) if not isinstance(node, Fork | Escape)]
        if act == "add":
            nodes.insert(chance.randrange(len(nodes) + 1), random_step(chance, f"{fresh}a", program.role))
        elif act == "unrepeat":
            nodes = list(without_repeats(Program(tuple(nodes))).nodes)
        elif act == "escape":
            nodes = list[Node]([each for each in nodes if not isinstance(each, Escape)] or nodes)
        elif places:
            _change(nodes, chance.choice(places), act, chance, fresh=fresh, role=program.role)
    return Program(tuple(nodes), program.portable, program.role)


def _change(nodes: list[Node], place: int, act: str, chance: random.Random, *, fresh: str, role: Role) -> None:
    """Does something to one step."""
    node = nodes[place]
    if isinstance(node, Fork | Escape):
        raise AssertionError("a step is changed")
    match act:
        case "rename":
            nodes[place] = msgspec.structs.replace(node, step_id=f"{fresh}r")
        case "remove" if len(nodes) > 1:
            del nodes[place]
        case "undo" if isinstance(node, Call):
            nodes[place] = msgspec.structs.replace(node, undo=not node.undo)
        case "kind":
            nodes[place] = random_step(chance, node.step_id, role)
        case "repeat":
            nodes.insert(chance.randrange(len(nodes) + 1), node)
        case _:
            pass


def without_repeats(program: Program) -> Program:
    """The fix of a duplicate id: the second call is removed."""
    seen: set[str] = set()
    nodes: list[Node] = []
    for node in program.nodes:
        kept: Node = node
        if isinstance(node, Fork):
            inside = tuple(call for call in node.inside if call.step_id not in seen)
            seen.update(call.step_id for call in inside)
            kept = Fork(inside)
        elif not isinstance(node, Escape):
            if node.step_id in seen:
                continue
            seen.add(node.step_id)
        nodes.append(kept)
    return Program(tuple(nodes), program.portable, program.role)


def without_conflicts(program: Program, versions: Iterable[Program], *, fresh: str) -> Program:
    """The fix of every other blocker: an id that has been of several kinds in some version gets a new name, and nobody is not invoked."""
    kinds: dict[str, set[type]] = {}
    for version in (*versions, program):
        for step in version.steps():
            kinds.setdefault(step.step_id, set()).add(type(step))
    return Program(tuple(_settled(node, kinds, fresh) for node in program.nodes), program.portable, program.role)


def _settled(node: Node, kinds: dict[str, set[type]], fresh: str) -> Node:
    if isinstance(node, Fork):
        return Fork(tuple(call if len(kinds[call.step_id]) == 1 else _renamed(call, fresh) for call in node.inside))
    if isinstance(node, Escape):
        return node
    if isinstance(node, Invoke) and node.function == NOBODY:
        node = msgspec.structs.replace(node, function=LEAF)
    return node if len(kinds[node.step_id]) == 1 else _renamed(node, fresh)


def _renamed(node: Any, fresh: str) -> Any:
    return msgspec.structs.replace(node, step_id=f"{node.step_id}{fresh}")


def function_of(program: Program, outside: Outside) -> Callable[[Any, Any], Awaitable[object]]:
    """The SDK function that a program is, in whichever worker's process it runs."""

    async def body(event: Any, step: Any) -> object:
        del event
        done: list[str] = []
        for node in program.nodes:
            if isinstance(node, Escape):
                raise Escaped(node.message)
            if not isinstance(node, Fork):
                await _reach(step, node, done, outside)
            elif outside.ambient():
                for inner in node.inside:
                    await _reach(step, inner, done, outside)
        return list(done) if program.portable else object()

    return body


async def _reach(step: Any, node: StepNode, done: list[str], outside: Outside) -> None:
    match node:
        case Call():
            await _call(step, node, done, outside)
        case Pause():
            await _pause(step, node)
        case Await() | Invoke():
            await _try(step, node, done)
        case Emit():
            await step.send_event(node.step_id, node.event_name, node.data, node.metadata)
        case _:
            assert_never(node)


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


async def _pause(step: Any, node: Pause) -> None:
    if node.since:
        await step.sleep_until(node.step_id, datetime.fromtimestamp((EPOCH_MS + node.delay_ms) / 1000, UTC))
    else:
        await step.sleep(node.step_id, node.delay_ms / 1000)


async def _try(step: Any, node: Await | Invoke, done: list[str]) -> None:
    try:
        if isinstance(node, Await):
            await step.wait_for_event(node.step_id, node.event_name, node.match, timeout=node.timeout_ms / 1000)
        else:
            timeout = None if node.timeout_ms is None else node.timeout_ms / 1000
            await step.invoke(node.step_id, node.function, node.given, timeout)
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
