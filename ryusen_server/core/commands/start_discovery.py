"""Start discovery: send the current pass to a worker.

| status | deadline | effect |
|---|---|---|
| `running`, `definition_blocked`, a pass queued and due | ahead or none | the pass is out (volatile), its invocation is sent |
| same | reached | stop intent `timed_out`, the pass is fenced, settlement gate |
| no pass queued, already out, not due, or any other status | | refused `not_ready`: the dispatcher was late |

Dispatch is not recorded: discovery is repeatable work, and a restart may send it again.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import ReleaseId
from ryusen_server.core.decision import Decision, Moment, Refusal, SendDiscovery
from ryusen_server.core.records import DiscoveryDispatched, WorkerRef
from ryusen_server.core.settlement import enter_gate, past_deadline, record_stop
from ryusen_server.core.state import Run


class StartDiscovery(msgspec.Struct, frozen=True):
    """A worker has room. `hurry`: whatever pace the pass waited for is over."""

    worker: WorkerRef
    preferred_release: ReleaseId | None
    hurry: bool = False


def decide(run: Run, command: StartDiscovery, moment: Moment) -> Decision | Refusal:
    """See the table above."""
    waiting = run.discovery_pass is not None and run.dispatch is None and run.status in ("running", "definition_blocked")
    if not waiting or (moment.now_ms < run.discovery_due_at_ms and not command.hurry):
        return Refusal("not_ready", "no discovery pass is queued and due")
    decision = Decision()
    if past_deadline(run, moment.now_ms):
        record_stop(decision, run, "timed_out", "deadline")
        enter_gate(decision, run, "timed_out", moment.now_ms)
        return decision
    request_id = moment.entropy.request_id()
    decision.notes.append(DiscoveryDispatched(request_id, command.worker, command.preferred_release))
    decision.effects.append(SendDiscovery(request_id, command.worker))
    return decision
