"""How long each authorized attempt may stay without contact.

A lease is durable as the instant recorded at authorization; its renewals live here. After a restart every lease lasts at least
the reconnect grace. Whether a lease is over is checked by a sweep over what is out, which workers' capacity bounds.
"""

from __future__ import annotations

import msgspec

from ryusen_protocol.ids import InstanceId, RequestId, RunId, SessionId
from ryusen_server.core.state import Attempt, Run
from ryusen_server.engine.views import ContactView


class Lease(msgspec.Struct):
    """One authorized attempt. `until_ms` moves with contact; `answer_by_ms`, from the attempt timeout, never does."""

    run_id: RunId
    request_id: RequestId
    instance_id: InstanceId
    session_id: SessionId
    until_ms: int
    answer_by_ms: int | None
    in_contact: bool

    @property
    def ends_at_ms(self) -> int:
        """When the attempt becomes Unknown, if nothing is heard."""
        return self.until_ms if self.answer_by_ms is None else min(self.until_ms, self.answer_by_ms)


class Leases:
    """The leases of every authorized attempt, by request."""

    def __init__(self, lease_ms: int, heartbeat_ms: int) -> None:
        self._lease_ms = lease_ms
        self._heartbeat_ms = heartbeat_ms
        self._leases: dict[RequestId, Lease] = {}

    def begin(self, run: Run, attempt: Attempt, *, floor_ms: int, in_contact: bool) -> None:
        """Watch an authorized attempt; the lease ends at `floor_ms` at the earliest."""
        if attempt.request_id is None or attempt.worker is None or attempt.lease_until_ms is None:
            raise AssertionError("an authorized attempt has a request, a worker and a lease")
        self._leases[attempt.request_id] = Lease(
            run.run_id,
            attempt.request_id,
            attempt.worker.instance_id,
            attempt.worker.session_id,
            max(attempt.lease_until_ms, floor_ms),
            attempt.answer_by_ms,
            in_contact,
        )

    def end(self, request_id: RequestId) -> None:
        """The attempt has settled, or is beyond reach."""
        self._leases.pop(request_id, None)

    def get(self, request_id: RequestId) -> Lease | None:
        """The lease under a request id."""
        return self._leases.get(request_id)

    def renew(self, request_id: RequestId, instance_id: InstanceId, now_ms: int) -> None:
        """The worker says that it holds the attempt."""
        lease = self._leases.get(request_id)
        if lease is not None and lease.instance_id == instance_id:
            lease.until_ms = now_ms + self._lease_ms
            lease.in_contact = True

    def lose_contact(self, instance_id: InstanceId) -> None:
        """The worker's session is gone; its leases run on."""
        for lease in self._leases.values():
            if lease.instance_id == instance_id:
                lease.in_contact = False

    def of(self, instance_id: InstanceId) -> list[Lease]:
        """The leases an instance holds."""
        return [lease for lease in self._leases.values() if lease.instance_id == instance_id]

    def elapsed(self, now_ms: int) -> list[Lease]:
        """The leases that are over."""
        return [lease for lease in self._leases.values() if now_ms >= lease.ends_at_ms]

    def view(self, request_id: RequestId, now_ms: int) -> ContactView | None:
        """For readers. A worker whose session stands but that has missed two heartbeats is out of contact too."""
        lease = self._leases.get(request_id)
        if lease is None:
            return None
        silent = now_ms > lease.until_ms - self._lease_ms + 2 * self._heartbeat_ms
        return ContactView(lease.run_id, request_id, out_of_contact=silent or not lease.in_contact, unknown_at_ms=lease.ends_at_ms)

    def __len__(self) -> int:
        return len(self._leases)
