"""The one door of the core: a command in, a decision or a refusal out."""

from __future__ import annotations

from typing import assert_never

from ryusen_server.core.commands import (
    answer_attempt,
    answer_discovery,
    authorize_attempt,
    lose_contact,
    lose_discovery,
    never_began,
    rediscover,
    request_stop,
    resolve_attempt,
    settle_child,
    settle_timer,
    settle_wait,
    start_discovery,
)
from ryusen_server.core.decision import Decision, Moment, Refusal
from ryusen_server.core.obligations import obligations
from ryusen_server.core.state import Run

Command = (
    start_discovery.StartDiscovery
    | answer_discovery.AnswerDiscovery
    | lose_discovery.LoseDiscovery
    | authorize_attempt.AuthorizeAttempt
    | answer_attempt.AnswerAttempt
    | lose_contact.LoseContact
    | never_began.NeverBegan
    | request_stop.Cancel
    | request_stop.DeadlineReached
    | request_stop.ParentStopped
    | rediscover.Rediscover
    | resolve_attempt.ResolveAttempt
    | settle_timer.TimerDue
    | settle_wait.EventMatched
    | settle_wait.WaitTimedOut
    | settle_child.ChildEnded
)


def decide(run: Run, command: Command, moment: Moment) -> Decision | Refusal:
    """What the command comes to in the run's state at this moment, and what that obliges other runs to. Never changes the run."""
    answer = _decide(run, command, moment)
    if isinstance(answer, Decision):
        answer.obligations = obligations(run, answer.records)
    return answer


def _decide(run: Run, command: Command, moment: Moment) -> Decision | Refusal:  # noqa: C901, PLR0911, PLR0912  # one branch a command
    match command:
        case answer_attempt.AnswerAttempt():
            return answer_attempt.decide(run, command, moment)
        case answer_discovery.AnswerDiscovery():
            return answer_discovery.decide(run, command, moment)
        case start_discovery.StartDiscovery():
            return start_discovery.decide(run, command, moment)
        case authorize_attempt.AuthorizeAttempt():
            return authorize_attempt.decide(run, command, moment)
        case lose_discovery.LoseDiscovery():
            return lose_discovery.decide(run, command, moment)
        case lose_contact.LoseContact():
            return lose_contact.decide(run, command, moment)
        case never_began.NeverBegan():
            return never_began.decide(run, command, moment)
        case request_stop.Cancel() | request_stop.DeadlineReached() | request_stop.ParentStopped():
            return request_stop.decide(run, command, moment)
        case rediscover.Rediscover():
            return rediscover.decide(run, command, moment)
        case resolve_attempt.ResolveAttempt():
            return resolve_attempt.decide(run, command, moment)
        case settle_timer.TimerDue():
            return settle_timer.decide(run, command, moment)
        case settle_wait.EventMatched() | settle_wait.WaitTimedOut():
            return settle_wait.decide(run, command, moment)
        case settle_child.ChildEnded():
            return settle_child.decide(run, command, moment)
        case _:
            assert_never(command)
