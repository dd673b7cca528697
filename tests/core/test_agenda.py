"""What a run needs next, and when a restarted server must look at it, in each state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ryusen_server.core.agenda import ANSWER, CHILD, NOTHING, Agenda, agenda, wake_at_ms
from ryusen_server.core.rows import WAKE_NOW
from tests.core.driving import START_MS, Driver, child, emission, event_wait, timer

DEADLINE_MS = START_MS + 100_000


def queued_pass(driver: Driver) -> None:
    del driver


def pass_out(driver: Driver) -> None:
    driver.start()


def paced_pass(driver: Driver) -> None:
    for _ in range(2):
        driver.start()
        driver.lose_pass()


def queued_attempt(driver: Driver) -> None:
    driver.declare("a")


def effect_out(driver: Driver) -> None:
    driver.declare("a", assign=True)


def unknown(driver: Driver) -> None:
    effect_out(driver)
    driver.lose()


def backoff(driver: Driver) -> None:
    effect_out(driver)
    driver.fail(retryable=True)


def paced_attempt(driver: Driver) -> None:
    driver.declare("a")
    for _ in range(2):
        driver.authorize()
        driver.never_began()


def blocked(driver: Driver) -> None:
    driver.block()


def rediscovering(driver: Driver) -> None:
    driver.block()
    driver.rediscover()


def timing(driver: Driver) -> None:
    driver.declare(timer("a", 1_000))


def timing_beyond_the_deadline(driver: Driver) -> None:
    driver.declare(timer("a", 200_000))


def timing_no_time(driver: Driver) -> None:
    driver.declare(timer("a", 0))


def waiting_for_an_event(driver: Driver) -> None:
    driver.declare(event_wait("a", 1_000))


def waiting_for_a_child(driver: Driver) -> None:
    driver.declare(child("a"))


def stopping_with_a_child(driver: Driver) -> None:
    waiting_for_a_child(driver)
    driver.cancel()


def emitted(driver: Driver) -> None:
    driver.declare(emission("a"))


def stopping(driver: Driver) -> None:
    effect_out(driver)
    driver.cancel()


def stopping_unknown(driver: Driver) -> None:
    unknown(driver)
    driver.cancel()


def compensating(driver: Driver) -> None:
    driver.run_step("a")
    driver.uncaught()


def undoing(driver: Driver) -> None:
    compensating(driver)
    driver.authorize()


def undoing_backoff(driver: Driver) -> None:
    undoing(driver)
    driver.fail(retryable=True)


def halted(driver: Driver) -> None:
    undoing(driver)
    driver.lose()


def ended(driver: Driver) -> None:
    driver.complete()


Reach = Callable[[Driver], None]
SECOND_LATER = START_MS + 1_000
STATES: list[tuple[Reach, Agenda, int | None, int | None]] = [
    (queued_pass, Agenda("discovery"), WAKE_NOW, WAKE_NOW),
    (pass_out, ANSWER, WAKE_NOW, WAKE_NOW),
    (paced_pass, Agenda("discovery", SECOND_LATER, paced=True), WAKE_NOW, WAKE_NOW),
    (queued_attempt, Agenda("attempt"), WAKE_NOW, WAKE_NOW),
    (effect_out, ANSWER, WAKE_NOW, WAKE_NOW),
    (unknown, NOTHING, None, DEADLINE_MS),
    (backoff, Agenda("attempt", SECOND_LATER), SECOND_LATER, SECOND_LATER),
    (paced_attempt, Agenda("attempt", SECOND_LATER, paced=True), SECOND_LATER, SECOND_LATER),
    (blocked, Agenda("probe", START_MS + 30_000), START_MS + 30_000, START_MS + 30_000),
    (rediscovering, Agenda("discovery"), WAKE_NOW, WAKE_NOW),
    (timing, Agenda("timer", SECOND_LATER), SECOND_LATER, SECOND_LATER),
    (timing_beyond_the_deadline, Agenda("timer", START_MS + 200_000), START_MS + 200_000, DEADLINE_MS),
    (timing_no_time, Agenda("timer", START_MS), START_MS, START_MS),
    (waiting_for_an_event, Agenda("event", SECOND_LATER), SECOND_LATER, SECOND_LATER),
    (waiting_for_a_child, CHILD, None, DEADLINE_MS),
    (stopping_with_a_child, CHILD, None, None),
    (emitted, Agenda("discovery"), WAKE_NOW, WAKE_NOW),
    (stopping, ANSWER, WAKE_NOW, WAKE_NOW),
    (stopping_unknown, NOTHING, None, None),
    (compensating, Agenda("attempt"), WAKE_NOW, WAKE_NOW),
    (undoing, ANSWER, WAKE_NOW, WAKE_NOW),
    (undoing_backoff, Agenda("attempt", SECOND_LATER), SECOND_LATER, SECOND_LATER),
    (halted, NOTHING, None, None),
    (ended, NOTHING, None, None),
]
NAMES = [reach.__name__ for reach, _, _, _ in STATES]


@pytest.mark.parametrize(("reach", "expected", "wake", "wake_with_deadline"), STATES, ids=NAMES)
@pytest.mark.parametrize("deadline", [False, True])
def test_each_state_needs_what_it_needs(
    reach: Reach, expected: Agenda, wake: int | None, wake_with_deadline: int | None, deadline: bool
) -> None:
    driver = Driver(deadline_ms=100_000 if deadline else None)
    reach(driver)
    found = agenda(driver.run)
    assert (found.need, found.due_at_ms, found.paced) == (expected.need, expected.due_at_ms, expected.paced)
    assert wake_at_ms(driver.run) == (wake_with_deadline if deadline else wake)


@pytest.mark.req("DLN-09")
def test_a_deadline_before_the_retry_is_when_a_restart_looks() -> None:
    driver = Driver(deadline_ms=500)
    backoff(driver)
    assert wake_at_ms(driver.run) == START_MS + 500
    driver.restart()
    assert wake_at_ms(driver.run) == START_MS + 500


@pytest.mark.req("DLN-09")
def test_a_deadline_before_the_probe_is_when_a_restart_looks_at_a_blocked_run() -> None:
    driver = Driver(deadline_ms=500)
    driver.block()
    assert wake_at_ms(driver.run) == START_MS + 500


def test_a_retry_of_a_compensation_is_woken_at_its_instant_whatever_the_deadline() -> None:
    driver = Driver(deadline_ms=500)
    undoing_backoff(driver)
    assert wake_at_ms(driver.run) == SECOND_LATER


@pytest.mark.parametrize("reach", [reach for reach, _, _, _ in STATES], ids=NAMES)
def test_a_restart_wakes_a_run_at_the_same_instant_and_sends_what_was_out(reach: Reach) -> None:
    driver = Driver()
    reach(driver)
    before, wake = agenda(driver.run), wake_at_ms(driver.run)
    driver.restart()
    assert wake_at_ms(driver.run) == wake
    if before.need != "discovery" and reach is not pass_out:
        assert agenda(driver.run) == before
    else:
        assert agenda(driver.run).need == "discovery"
