"""What has no instant of its own: the end of leases, timers after a jump of the clock, lost workers, and the walk of the wake index."""

from __future__ import annotations

import logging

from ryusen_protocol.ids import RunId
from ryusen_server.core.commands.lose_contact import LoseContact
from ryusen_server.core.rows import WAKE_NOW
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.dispatcher import HORIZON_MS, Dispatcher
from ryusen_server.engine.fleet import Fleet
from ryusen_server.engine.leases import Leases
from ryusen_server.engine.moving import Mover
from ryusen_server.ports.store import StorageUnavailable, Store, WakeRow
from ryusen_server.ports.time import Clock, Handle

log = logging.getLogger(__name__)

LOST_INSTANCE_SHOWN_MS = 60_000
"""How long a lost worker that holds nothing stays in the list."""
SCAN_PAGE = 500
SCAN_EVERY_MS = 30_000
"""Well below how far ahead a walk looks, so that nothing falls due between two."""
SCAN_AHEAD_MS = HORIZON_MS - 10_000
"""Less than what the dispatcher takes itself: a wait just beyond its horizon is durable before a walk comes by."""
_FROM_THE_START = WakeRow(RunId(""), WAKE_NOW + 1)
JUMP_MS = 5_000
"""A clock that moved this far between two ticks has jumped."""


class Sweeper:
    """Ticks from `start` to `stop`."""

    def __init__(
        self,
        *,
        store: Store,
        mover: Mover,
        fleet: Fleet,
        leases: Leases,
        dispatcher: Dispatcher,
        clock: Clock,
        config: EngineConfig,
    ) -> None:
        self._store = store
        self._mover = mover
        self._fleet = fleet
        self._leases = leases
        self._dispatcher = dispatcher
        self._clock = clock
        self._config = config
        self._tick_handle: Handle | None = None
        self._scanned_until: WakeRow | None = None
        self._ticks = 0
        self._scan_ticks = max(1, SCAN_EVERY_MS // config.tick_ms)
        self._scan_at_tick = self._scan_ticks
        self._scanning = False
        self._ticked_at_ms = 0

    def start(self) -> None:
        """Walk the wake index from its beginning, and tick from now on."""
        self._mover.spawn("scan", self._scan())
        self._tick()

    def stop(self) -> None:
        """No more ticks."""
        if self._tick_handle is not None:
            self._tick_handle.cancel()

    def _tick(self) -> None:
        """What has no instant of its own: leases, timers after a jump of the clock, lost workers, the wake index."""
        try:
            self._sweep()
        except Exception:  # without the next tick no lease would ever end
            log.exception("a tick failed")
        self._tick_handle = self._clock.call_later(self._config.tick_ms, self._tick)

    def _sweep(self) -> None:
        now_ms = self._clock.now_ms()
        for lease in self._leases.elapsed(now_ms):
            overdue = lease.answer_by_ms is not None and now_ms >= lease.answer_by_ms
            reason = "no answer came after its timeout" if overdue else "its worker was out of contact for its whole lease"
            self._leases.end(lease.request_id)
            self._mover.give_back(lease.request_id)
            self._mover.command(lease.run_id, LoseContact(lease.request_id, reason))
        for instance in list(self._fleet.all()):
            gone = not instance.present and not instance.flights
            if gone and now_ms - instance.last_contact_at_ms > LOST_INSTANCE_SHOWN_MS:
                self._fleet.forget(instance)
        self._dispatcher.fire()
        self._ticks += 1
        jumped = not 0 <= now_ms - self._ticked_at_ms <= JUMP_MS
        self._ticked_at_ms = now_ms
        if jumped:
            self._dispatcher.clock_jumped()
        if jumped or self._ticks >= self._scan_at_tick:
            self._scan_at_tick = self._ticks + self._scan_ticks
            self._mover.spawn("scan", self._scan())

    async def _scan(self) -> None:
        """Walk the wake index some way ahead; what lies beyond is met by a later walk."""
        if self._scanning:
            return
        self._scanning = True
        left_ms = self._dispatcher.left_to_index_ms()
        if self._scanned_until is not None and left_ms <= self._scanned_until.wake_at_ms:
            self._scanned_until = _FROM_THE_START
        try:
            while page := await self._store.wakes(until_ms=self._scan_until_ms(), after=self._scanned_until, limit=SCAN_PAGE):
                for row in page:
                    if row.wake_at_ms == WAKE_NOW:
                        await self._mover.resume_alone(row.run_id)
                    else:
                        self._dispatcher.schedule(row.run_id, row.wake_at_ms)
                    self._scanned_until = row
        except StorageUnavailable:
            self._scan_at_tick = self._ticks + 1
            raise
        finally:
            self._scanning = False

    def _scan_until_ms(self) -> int:
        until_ms = self._clock.now_ms() + SCAN_AHEAD_MS
        if self._scanned_until is not None and self._scanned_until.wake_at_ms > until_ms:
            # The clock went back: what has been set since then may stand before what was met.
            self._scanned_until = _FROM_THE_START
        return until_ms
