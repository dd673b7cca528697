"""Which command can meet a run in which state, and how many of these meetings a simulation has reached.

A command is not listed for states the engine cannot send it in: work is started only when it is queued, and a loss or a proof is told
only of what is out. Reached meetings that are not listed are told, so that the list cannot quietly fall behind.
"""

from __future__ import annotations

from collections import Counter

import msgspec

PASS_OUT = ("running, pass out", "definition_blocked, pass out")
PASS_QUEUED = ("running, pass queued", "definition_blocked, pass queued")
AUTHORIZED = ("running, authorized", "stopping, authorized", "compensating, authorized")
UNKNOWN = ("running, unknown", "stopping, unknown", "compensating, unknown")
QUEUED = ("running, queued", "compensating, queued")
WAITING = ("running, timer", "running, event_wait", "running, child")
STOPPING = ("stopping, authorized", "stopping, unknown", "stopping, child")
STOPPABLE = (*PASS_QUEUED, *PASS_OUT, *WAITING, "running, queued", "running, authorized", "running, unknown", "definition_blocked")
COMPENSATING = ("compensating, queued", "compensating, authorized", "compensating, unknown")
STATES = (*STOPPABLE, *STOPPING, *COMPENSATING, "ended")

MEETINGS: dict[str, tuple[str, ...]] = {
    "StartDiscovery": PASS_QUEUED,
    "AuthorizeAttempt": QUEUED,
    "AnswerDiscovery(declared)": PASS_OUT,
    "AnswerDiscovery(completed)": PASS_OUT,
    "AnswerDiscovery(uncaught)": PASS_OUT,
    "AnswerDiscovery(definition_blocked)": PASS_OUT,
    "AnswerDiscovery(rejected_before_start)": PASS_OUT,
    "AnswerDiscovery(late)": STATES,
    "AnswerAttempt(succeeded)": (*AUTHORIZED, *UNKNOWN),
    "AnswerAttempt(callback_failed)": (*AUTHORIZED, *UNKNOWN),
    "AnswerAttempt(target_not_found)": (*AUTHORIZED, *UNKNOWN),
    "AnswerAttempt(rejected_before_start)": (*AUTHORIZED, *UNKNOWN),
    "AnswerAttempt(late)": STATES,
    "LoseDiscovery": PASS_OUT,
    "LoseDiscovery(late)": (
        *PASS_QUEUED,
        *PASS_OUT,
        "running, queued",
        "running, authorized",
        "running, timer",
        "running, event_wait",
        "definition_blocked",
        "stopping, unknown",
        *COMPENSATING,
        "ended",
    ),
    "LoseContact": AUTHORIZED,
    "LoseContact(late)": (
        *UNKNOWN,
        "running, pass out",
        "running, queued",
        "running, authorized",
        "running, timer",
        "running, child",
        "ended",
    ),
    "NeverBegan": (*AUTHORIZED, "running, unknown"),
    "TimerDue": ("running, timer",),
    "EventMatched": ("running, event_wait",),
    "EventMatched(late)": (
        *PASS_QUEUED,
        "running, pass out",
        "running, queued",
        "running, authorized",
        *WAITING,
        "definition_blocked",
        "compensating, queued",
        "compensating, authorized",
        "ended",
    ),
    "WaitTimedOut": ("running, event_wait",),
    "WaitTimedOut(late)": ("running, pass queued", "running, pass out", "running, event_wait"),
    "ChildEnded": ("running, child", "stopping, child"),
    "ChildEnded(late)": ("running, pass queued", "running, pass out", "compensating, authorized", "ended"),
    "ParentStopped": STOPPABLE,
    "ParentStopped(late)": (*STOPPING, *COMPENSATING, "ended"),
    "Cancel": STATES,
    "DeadlineReached": STATES,
    "Rediscover": STATES,
    "ResolveAttempt(SupplySuccess)": UNKNOWN,
    "ResolveAttempt(DeclareFailure)": UNKNOWN,
    "ResolveAttempt(AuthorizeRetry)": UNKNOWN,
    "ResolveAttempt(refused)": STATES,
}


class Coverage(msgspec.Struct, frozen=True):
    """How many of the possible meetings were reached."""

    reached: int
    possible: int
    missing: list[str]
    unlisted: list[str]

    @property
    def share(self) -> float:
        return self.reached / self.possible


def coverage(edges: Counter[str]) -> Coverage:
    """Holds what was reached against what is possible."""
    possible = [f"{state}: {word}" for word, states in MEETINGS.items() for state in states]
    missing = [edge for edge in possible if not edges[edge]]
    return Coverage(len(possible) - len(missing), len(possible), missing, sorted(set(edges) - set(possible)))
