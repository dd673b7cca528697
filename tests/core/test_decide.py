"""The one door of the core: it takes every command, changes nothing itself, is the same for the same input, and costs the same however
long a run has become."""

from __future__ import annotations

import ast
import copy
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

import ryusen_server.core
from ryusen_protocol.ids import RequestId, RunId, StepId
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, SupplySuccess
from ryusen_protocol.outcome import (
    CallbackFailed,
    Completed,
    Declared,
    DefinitionBlocked,
    EffectOutcome,
    RejectedBeforeStart,
    Succeeded,
    TargetNotFound,
    Uncaught,
)
from ryusen_server.core.children import ChildEnd
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.commands.lose_discovery import LoseDiscovery
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.commands.rediscover import Rediscover
from ryusen_server.core.commands.request_stop import Cancel, DeadlineReached, ParentStopped
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt
from ryusen_server.core.commands.settle_child import ChildEnded
from ryusen_server.core.commands.settle_timer import TimerDue
from ryusen_server.core.commands.settle_wait import EventMatched, WaitTimedOut
from ryusen_server.core.commands.start_discovery import StartDiscovery
from ryusen_server.core.decide import Command, decide
from ryusen_server.core.decision import Decision, Moment, Refusal
from ryusen_server.core.projection import run_row
from ryusen_server.core.state import Run
from tests.core.driving import (
    LEASE_MS,
    PACK,
    START_MS,
    WORKER,
    Driver,
    SeededEntropy,
    child,
    emission,
    error,
    event_wait,
    raw,
    snapshot,
    step,
    timer,
)

CORE = Path(ryusen_server.core.__file__).parent


def every_command(run: Run) -> Iterator[Command]:
    """Each command in each of its forms, aimed at what the run has out."""
    passes = RequestId("rq_none") if run.dispatch is None else run.dispatch.request_id
    assignee = AuthorizeAttempt(WORKER, LEASE_MS)
    yield StartDiscovery(WORKER, None)
    yield LoseDiscovery(passes)
    yield assignee
    for outcome in (
        Declared(step("z")),
        Declared(step("a")),
        Declared(timer("t")),
        Declared(event_wait("w")),
        Declared(child("c")),
        Declared(emission("e")),
        Completed(raw(1)),
        Uncaught(error()),
        DefinitionBlocked("duplicate_step_id", StepId("a")),
        RejectedBeforeStart("busy"),
    ):
        yield AnswerDiscovery(passes, outcome, None, None, assignee, PACK)
    requests = [*run.requests, RequestId("rq_none")]
    results: tuple[type[EffectOutcome | RejectedBeforeStart], ...] = (Succeeded, CallbackFailed, TargetNotFound, RejectedBeforeStart)
    content = {Succeeded: raw(1), CallbackFailed: error(retryable=True), TargetNotFound: "not_met", RejectedBeforeStart: "busy"}
    for request in requests:
        for kind in results:
            for generation in (1, 2):
                yield AnswerAttempt(request, kind(content[kind], attempt=1, attempt_generation=generation), "d", WORKER.instance_id)  # type: ignore[arg-type]
        yield LoseContact(request, "x")
        yield NeverBegan(request, "x")
    yield Cancel("x")
    yield DeadlineReached()
    yield Rediscover("x")
    yield ParentStopped(RunId("rn_parent"), "timed_out")
    for step_id in [*run.steps, StepId("x")]:
        yield TimerDue(step_id)
        yield WaitTimedOut(step_id)
        yield EventMatched(step_id, b"{}", START_MS + 1, 2, 1)
    for child_run_id in (known.child_run_id or RunId("rn_none") for known in run.steps.values()):
        yield ChildEnded(ChildEnd(child_run_id, "succeeded", raw(1), None))
        yield ChildEnded(ChildEnd(child_run_id, "failed", None, error()))
    for attempt in [*run.attempts.values()]:
        for resolution in (SupplySuccess(raw(1)), DeclareFailure(error(retryable=True)), AuthorizeRetry()):
            yield ResolveAttempt(attempt.attempt_id, attempt.attempt_generation, resolution, "x")
            yield ResolveAttempt(attempt.attempt_id, attempt.attempt_generation + 1, resolution, "x")


def states() -> Iterator[Driver]:
    """A run in each kind of state."""

    def reached(*acts: Callable[[Driver], object]) -> Driver:
        driver = Driver(deadline_ms=10_000)
        for act in acts:
            act(driver)
        return driver

    def declare(driver: Driver) -> object:
        return driver.declare("a", assign=True)

    def done(driver: Driver) -> object:
        return driver.run_step("a")

    yield reached()
    yield reached(Driver.start)
    yield reached(Driver.block)
    yield reached(Driver.block, Driver.rediscover, Driver.start)
    yield reached(lambda driver: driver.declare("a"))
    yield reached(declare)
    yield reached(declare, Driver.lose)
    yield reached(declare, Driver.missing, Driver.start)
    yield reached(declare, lambda driver: driver.fail(retryable=True))
    yield reached(declare, Driver.cancel)
    yield reached(declare, Driver.cancel, Driver.lose)
    for waiting in (timer("a"), event_wait("a"), child("a")):
        yield reached(lambda driver, declared=waiting: driver.declare(declared))
    yield reached(lambda driver: driver.declare(child("a")), Driver.cancel)
    yield reached(lambda driver: driver.declare(emission("a")))
    yield reached(done, Driver.uncaught)
    yield reached(done, Driver.uncaught, Driver.authorize)
    yield reached(done, Driver.cancel, Driver.authorize, Driver.lose)
    yield reached(done, Driver.complete)


def test_it_takes_every_command_and_the_matrix_below_holds_them_all() -> None:
    found = {type(command) for driver in states() for command in every_command(driver.run)}
    assert found == set(get_args(Command))


@pytest.mark.parametrize("late", [False, True])
def test_deciding_never_changes_the_run_and_is_the_same_each_time(late: bool) -> None:
    for driver in states():
        if late:
            driver.wait(10_000)
        before = snapshot(driver.run)
        for command in every_command(driver.run):
            first = decide(driver.run, command, Moment(driver.now_ms, SeededEntropy(7)))
            second = decide(driver.run, command, Moment(driver.now_ms, SeededEntropy(7)))
            assert first == second
            assert snapshot(driver.run) == before, f"{command} changed the run"


@pytest.mark.parametrize("late", [False, True])
def test_every_command_in_every_state_leaves_a_run_that_folds_to_the_same(late: bool) -> None:
    for driver in states():
        if late:
            driver.wait(10_000)
        for command in every_command(driver.run):
            branch = copy.deepcopy(driver)
            answer = branch.send(command)
            assert isinstance(answer, Decision | Refusal)
            if isinstance(answer, Refusal):
                assert answer.message


def test_only_a_command_that_is_refused_or_answered_gives_a_word() -> None:
    for driver in states():
        for command in every_command(driver.run):
            answer = decide(driver.run, command, Moment(driver.now_ms, SeededEntropy(7)))
            worded = isinstance(command, AnswerAttempt | AnswerDiscovery | LoseDiscovery)
            assert isinstance(answer, Refusal) or (answer.disposition is not None) == worded


ALLOWED = {
    "__future__",
    "collections",
    "collections.abc",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "typing",
    "msgspec",
    "typing_extensions",
}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_imports_nothing_that_could_vary_and_prints_and_opens_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for module in _imports(tree):
        ours = module.startswith(("ryusen_protocol", "ryusen_server.core"))
        assert ours or module in ALLOWED, f"{path.name} imports {module}"
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "id", "hash"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global | ast.AsyncFunctionDef | ast.Await)]


def _median_us(act: Callable[[], object], times: int) -> float:
    taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2] * 1e6


def test_a_step_costs_the_same_however_long_the_run_is() -> None:
    """Compares medians of the same run early and late; work that grows with the steps would be tens of times slower."""
    driver = Driver(checked=False)
    names = iter(range(10**6))

    def one_step() -> None:
        driver.declare(f"s{next(names)}", assign=True)
        driver.succeed("done")
        run_row(driver.run)

    for _ in range(20):
        one_step()
    early_us = _median_us(one_step, 60)
    for _ in range(3_000):
        one_step()
    late_us = _median_us(one_step, 60)
    assert late_us < 4 * early_us, f"{early_us:.0f} µs a step at the beginning, {late_us:.0f} µs after 3,000"


def test_an_undo_costs_the_same_however_long_the_plan_is() -> None:
    def unwinding(steps: int) -> Driver:
        driver = Driver(checked=False)
        for index in range(steps):
            driver.run_step(f"s{index}")
        driver.uncaught()
        return driver

    def median_us(driver: Driver) -> float:
        def one_undo() -> None:
            driver.authorize()
            driver.succeed()
            run_row(driver.run)

        return _median_us(one_undo, 60)

    short_us, long_us = median_us(unwinding(100)), median_us(unwinding(3_000))
    assert long_us < 4 * short_us, f"{short_us:.0f} µs a target of 100, {long_us:.0f} µs of 3,000"


def test_chance_comes_from_the_caller_alone() -> None:
    random.seed(1)
    first = random.random()
    random.seed(1)
    driver = Driver(seed=3, jitter=None)
    driver.declare("a", assign=True)
    driver.fail(retryable=True)
    assert random.random() == first
