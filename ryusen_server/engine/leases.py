"""How long each authorized attempt may stay without contact.

A lease is durable as the instant recorded at authorization; its renewals live here. After a restart every lease lasts at least
the reconnect grace. Whether a lease is over is checked by a sweep over what is out, which workers' capacity bounds.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from ryusen_protocol.ids import InstanceId, RequestId, RunId, SessionId
from ryusen_protocol.scope import Scope
from ryusen_server.core.state import Attempt, Run
from ryusen_server.engine.views import ContactView


class Lease(msgspec.Struct):
    """One authorized attempt. `until_ms` moves with contact; `answer_by_ms`, from the attempt timeout, never does.

    `is_exchange`: it went to an endpoint, so that contact is its open exchange and no heartbeat is waited for.
    """

    run_id: RunId
    request_id: RequestId
    scope: Scope
    instance_id: InstanceId
    session_id: SessionId
    until_ms: int
    answer_by_ms: int | None
    in_contact: bool
    is_exchange: bool = False

    @property
    def ends_at_ms(self) -> int:
        """When the attempt becomes Unknown, if nothing is heard."""
        return self.until_ms if self.answer_by_ms is None else min(self.until_ms, self.answer_by_ms)


class Holder(Protocol):
    """A worker, as its leases know it. Instance ids are the workers' own words, so they mean nothing beyond their scope."""

    scope: Scope
    instance_id: InstanceId


def _holds(holder: Holder, lease: Lease) -> bool:
    return lease.instance_id == holder.instance_id and lease.scope == holder.scope


class Leases:
    """The leases of every authorized attempt, by request."""

    def __init__(self, lease_ms: int, heartbeat_ms: int, exchange_ms: int) -> None:
        self._lease_ms = lease_ms
        self._heartbeat_ms = heartbeat_ms
        self._exchange_ms = exchange_ms
        self._leases: dict[RequestId, Lease] = {}

    def begin(self, run: Run, attempt: Attempt, *, floor_ms: int, in_contact: bool) -> None:
        """Watch an authorized attempt; the lease ends at `floor_ms` at the earliest, whatever it was and whenever its answer was due."""
        if attempt.request_id is None or attempt.worker is None or attempt.lease_until_ms is None:
            raise AssertionError("an authorized attempt has a request, a worker and a lease")
        is_exchange = attempt.worker.transport == "http"
        until_ms = attempt.lease_until_ms
        if is_exchange and in_contact and attempt.authorized_at_ms is not None:
            # The durable lease is for a server that dies; while the exchange is open it is the contact.
            until_ms = attempt.answer_by_ms or attempt.authorized_at_ms + self._exchange_ms
        self._leases[attempt.request_id] = Lease(
            run.run_id,
            attempt.request_id,
            Scope(run.workspace, run.application),
            attempt.worker.instance_id,
            attempt.worker.session_id,
            max(until_ms, floor_ms),
            None if attempt.answer_by_ms is None else max(attempt.answer_by_ms, floor_ms),
            in_contact,
            is_exchange,
        )

    def end(self, request_id: RequestId) -> None:
        """The attempt has settled, or is beyond reach."""
        self._leases.pop(request_id, None)

    def get(self, request_id: RequestId) -> Lease | None:
        """The lease under a request id."""
        return self._leases.get(request_id)

    def of_scope(self, request_id: RequestId, scope: Scope) -> Lease | None:
        """The lease under a request id, if it is the scope's: no worker's word crosses applications."""
        lease = self._leases.get(request_id)
        return lease if lease is not None and lease.scope == scope else None

    def renew(self, request_id: RequestId, holder: Holder, now_ms: int) -> None:
        """The worker says that it holds the attempt."""
        lease = self._leases.get(request_id)
        if lease is not None and _holds(holder, lease):
            lease.until_ms = now_ms + self._lease_ms
            lease.in_contact = True

    def lose_contact(self, holder: Holder) -> None:
        """The worker's session is gone; its leases run on."""
        for lease in self.of(holder):
            lease.in_contact = False

    def of(self, holder: Holder) -> list[Lease]:
        """The leases a worker holds."""
        return [lease for lease in self._leases.values() if _holds(holder, lease)]

    def elapsed(self, now_ms: int) -> list[Lease]:
        """The leases that are over."""
        return [lease for lease in self._leases.values() if now_ms >= lease.ends_at_ms]

    def view(self, request_id: RequestId, now_ms: int) -> ContactView | None:
        """For readers. A worker whose session stands but that has missed two heartbeats is out of contact too."""
        lease = self._leases.get(request_id)
        if lease is None:
            return None
        silent = not lease.is_exchange and now_ms > lease.until_ms - self._lease_ms + 2 * self._heartbeat_ms
        return ContactView(lease.run_id, request_id, out_of_contact=silent or not lease.in_contact, unknown_at_ms=lease.ends_at_ms)

    def __len__(self) -> int:
        return len(self._leases)
