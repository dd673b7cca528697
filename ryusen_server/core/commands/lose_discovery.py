"""Lose a discovery: contact lost, an unreadable answer, or a rejection before start.

| the request | effect |
|---|---|
| the current dispatch | the same pass is queued again, at once the first time, then paced; no ordinal is consumed |
| any other | nothing |

Nothing is recorded: where a pass is out is a fact of this server's life.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import RequestId
from ryusen_server.core.decision import Decision, Moment
from ryusen_server.core.pacing import pace_ms
from ryusen_server.core.records import DiscoveryReturned
from ryusen_server.core.state import Run


class LoseDiscovery(msgspec.Struct, frozen=True):
    """The pass sent under this request will not be answered."""

    request_id: RequestId


def decide(run: Run, command: LoseDiscovery, moment: Moment) -> Decision:
    """See the table above."""
    decision = Decision(disposition="discarded")
    if run.dispatch is not None and run.dispatch.request_id == command.request_id:
        decision.notes.append(DiscoveryReturned(moment.now_ms + pace_ms(run.discovery_repeats)))
    return decision
