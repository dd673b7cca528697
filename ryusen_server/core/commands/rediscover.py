"""Rediscover a blocked run: a newly preferred release, or an operator.

| status | discovery | effect |
|---|---|---|
| `definition_blocked` | none | a pass is queued; the status stays until the first response that is no blocker |
| `definition_blocked` | queued, not out | nothing more is needed |
| `definition_blocked` | out | superseded: the next pass is queued, the response of the one that is out is discarded |
| any other | | refused `not_blocked` |
"""

from __future__ import annotations

import msgspec

from ryusen_server.core.decision import Decision, Moment, Refusal
from ryusen_server.core.records import DiscoveryQueued
from ryusen_server.core.state import Run


class Rediscover(msgspec.Struct, frozen=True):
    """Run the current code again. `by` says who or what asked."""

    by: str


def decide(run: Run, command: Rediscover, moment: Moment) -> Decision | Refusal:
    """See the table above."""
    del command, moment
    if run.status != "definition_blocked":
        return Refusal("not_blocked", f"The run is not blocked; it is {run.status}.")
    if run.discovery_pass is not None and run.dispatch is None:
        return Decision(replayed=True)
    decision = Decision()
    decision.add(DiscoveryQueued(run.passes + 1))
    return decision
