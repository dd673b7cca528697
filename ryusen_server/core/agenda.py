"""What a run needs next, read off its state: the same for a run that has just moved and one that a restart has just loaded."""

from __future__ import annotations

from typing import Literal, assert_never

import msgspec

from ryusen_server.core.pacing import probe_ms
from ryusen_server.core.rows import WAKE_NOW
from ryusen_server.core.state import Attempt, Blocker, Run, Step

Need = Literal["discovery", "attempt", "answer", "probe", "timer", "event", "child", "nothing"]


class Agenda(msgspec.Struct, frozen=True):
    """`need` is what moves the run next: a worker for a pass or an attempt from `due_at_ms` on, an answer that is out, another look at
    the code of a blocked run from `due_at_ms` on, a timer at `due_at_ms`, an event or else the timeout at `due_at_ms`, the end of a
    child, or nothing of ours. `paced`: the wait is no promise to anybody, and a new registration may end it.
    """

    need: Need
    due_at_ms: int = 0
    paced: bool = False


NOTHING = Agenda("nothing")
ANSWER = Agenda("answer")
CHILD = Agenda("child")


def agenda(run: Run) -> Agenda:
    """What the run needs next."""
    if run.discovery_pass is not None:
        if run.dispatch is not None:
            return ANSWER
        return Agenda("discovery", run.discovery_due_at_ms, paced=run.discovery_due_at_ms > 0)
    if run.blocker is not None:
        return Agenda("probe", probe_at_ms(run.blocker))
    step = run.pending_step()
    if step is not None and step.kind != "run":
        return _wait(step)
    attempt = run.current_attempt()
    if attempt is None or attempt.state == "unknown":
        return NOTHING
    if attempt.state == "authorized":
        return ANSWER
    return Agenda("attempt", 0 if is_due(run, attempt, 0) else attempt.due_at_ms, paced=attempt.never_began > 0)


def wake_at_ms(run: Run) -> int | None:
    """When a restarted server must look at the run: at once while it moves, later while it waits, never while only others can move it.

    Reads durable facts alone, so that it is the same before and after a restart.
    """
    if run.status == "ended":
        return None
    deadline_ms = run.deadline.at_ms if run.deadline is not None and run.status in ("running", "definition_blocked") else None
    if run.discovery_pass is not None:
        return WAKE_NOW
    if run.blocker is not None:
        return _earlier(probe_at_ms(run.blocker), deadline_ms)
    step = run.pending_step()
    if step is not None and step.due_at_ms is not None:
        return _earlier(step.due_at_ms, deadline_ms)
    attempt = run.current_attempt()
    if attempt is None or attempt.state == "unknown":
        return deadline_ms
    if attempt.state == "authorized" or is_due(run, attempt, 0):
        return WAKE_NOW
    return _earlier(attempt.due_at_ms, deadline_ms)


def _wait(step: Step) -> Agenda:
    match step.kind:
        case "timer":
            return Agenda("timer", step.due_at_ms or 0)
        case "event_wait":
            return Agenda("event", step.due_at_ms or 0)
        case "child":
            return CHILD
        case "run" | "emission":
            raise AssertionError(f"a step of the kind {step.kind} does not wait so")
        case _:
            assert_never(step.kind)


def is_due(run: Run, attempt: Attempt, now_ms: int) -> bool:
    """Whether a queued attempt may go. What was due when the run last changed stays due, however far the clock goes back."""
    return attempt.due_at_ms <= max(now_ms, run.last_record_at_ms)


def probe_at_ms(blocker: Blocker) -> int:
    """When a blocked run's code is tried again, unless a newer release or an operator is first."""
    return blocker.last_seen_at_ms + probe_ms(blocker.count)


def _earlier(at_ms: int, deadline_ms: int | None) -> int:
    return at_ms if deadline_ms is None else min(at_ms, deadline_ms)
