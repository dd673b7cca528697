"""What callbacks print and log, kept for each attempt beside its history: best effort, bounded, and never in the way of a result.

Owns how lines that came while a callback ran and those of its outcome become one list, and when that is written. A callback that prints
all the time is written at most twice a second; whoever reads has the rest written first. Nothing waits for a write, and a failed one is
forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from ryusen_protocol.ids import AttemptId, RequestId, RunId
from ryusen_protocol.limits import LOG_BYTES_MAX, MIB
from ryusen_protocol.log_lines import merged
from ryusen_protocol.outcome import LogLine
from ryusen_protocol.scope import Scope
from ryusen_server.core.rows import LogRow
from ryusen_server.core.state import Attempt, Run
from ryusen_server.engine.moving import Mover
from ryusen_server.ports.logs import LogWrite
from ryusen_server.ports.store import StorageUnavailable, Store, Unit
from ryusen_server.ports.time import Clock

log = logging.getLogger(__name__)

WRITE_EVERY_MS: Final = 500
IN_MEMORY_MAX: Final = 32 * MIB // LOG_BYTES_MAX
"""Attempts whose lines are held, since their callbacks may print more. The oldest is written and let go for another."""

_decode = msgspec.json.Decoder(list[LogLine]).decode
_encode = msgspec.json.Encoder().encode


class _Held(msgspec.Struct):
    """The lines of one attempt whose callback may still run. `loading`: what came while the store was asked for earlier ones."""

    row: LogRow
    scope: Scope
    request_id: RequestId
    lines: list[LogLine]
    written_at_ms: int
    dirty: bool = False
    loading: list[list[LogLine]] | None = None
    loaded: asyncio.Event | None = None
    ended: bool = False


class AttemptLogs:
    """The lines of every attempt. Loop thread only."""

    def __init__(self, *, store: Store, mover: Mover, clock: Clock) -> None:
        self._store = store
        self._mover = mover
        self._clock = clock
        self._held: dict[AttemptId, _Held] = {}
        self._requests: dict[RequestId, AttemptId] = {}
        self._fresh_since_ms = clock.now_ms()
        """The store holds nothing of an attempt that was authorized after this and is not held here."""
        self._writing = 0

    def goes_on(self, scope: Scope, request_id: RequestId, lines: list[LogLine]) -> bool:
        """More lines of a callback that has printed before; whether it has."""
        attempt_id = self._requests.get(request_id)
        held = None if attempt_id is None else self._held[attempt_id]
        if held is None or held.scope != scope:
            return False
        self._add(held, lines)
        return True

    def printed(self, run: Run, attempt: Attempt, request_id: RequestId, lines: list[LogLine]) -> None:
        """Lines of a callback that is still running."""
        self._add(self._hold(run, attempt, request_id, known=False), lines)

    def answered(self, run: Run, request_id: RequestId, lines: list[LogLine], *, late: bool) -> None:
        """What the callback of an outcome printed. `late`: the attempt was settled before, so that the store may have lines of it."""
        attempt_id = run.requests.get(request_id)
        if attempt_id is None:
            return
        held = self._held.get(attempt_id)
        if held is None:
            if not lines:
                return
            held = self._hold(run, run.attempts[attempt_id], request_id, known=late)
        held.ended = True
        self._add(held, lines)

    async def settle(self, run_id: RunId) -> None:
        """Have everything told of a run's attempts written, for somebody who is about to read it."""
        of_run = [held for held in self._held.values() if held.row.run_id == run_id]
        for held in of_run:
            if held.loading is not None and held.loaded is not None:
                await held.loaded.wait()
        self._write_all(of_run)
        if self._writing:
            await self._store.flush()

    def stop(self) -> None:
        """Have everything written before the store is closed."""
        self._write_all(self._held.values())

    def _write_all(self, among: Iterable[_Held]) -> None:
        for held in among:
            if held.dirty and held.loading is None:
                self._write(held)

    def _hold(self, run: Run, attempt: Attempt, request_id: RequestId, *, known: bool) -> _Held:
        row = LogRow(
            attempt_id=attempt.attempt_id,
            workspace=run.workspace,
            application=run.application,
            run_id=run.run_id,
            step_id=attempt.step_id,
            phase=attempt.phase,
            attempt=attempt.attempt,
            attempt_generation=attempt.attempt_generation,
            lines=b"[]",
        )
        before = self._held.get(attempt.attempt_id)
        if before is not None:  # printed by a worker that then claimed not to have begun, so that the attempt has another request now
            self._let_go(before)
        self._make_room()
        held = _Held(row, Scope(run.workspace, run.application), request_id, [], self._clock.now_ms() - WRITE_EVERY_MS)
        self._held[attempt.attempt_id] = held
        self._requests[request_id] = attempt.attempt_id
        if known or (attempt.authorized_at_ms or 0) <= self._fresh_since_ms:
            held.loading, held.loaded = [], asyncio.Event()
            self._mover.spawn("read an attempt's lines", self._load(held))
        return held

    def _make_room(self) -> None:
        if len(self._held) < IN_MEMORY_MAX:
            return
        oldest = next(iter(self._held.values()))
        if oldest.dirty and oldest.loading is None:
            self._write(oldest)
        self._let_go(oldest)
        self._fresh_since_ms = self._clock.now_ms()

    async def _load(self, held: _Held) -> None:
        try:
            row = await self._store.attempt_log(held.row.attempt_id)
        except StorageUnavailable:
            self._let_go(held)
            return
        finally:
            if held.loaded is not None:
                held.loaded.set()
        told, held.loading = held.loading or [], None
        if row is not None:
            held.lines = _decode(row.lines)
        for lines in told:
            held.lines = merged(held.lines, lines)
        held.dirty = bool(told)
        self._wrote_some(held)

    def _add(self, held: _Held, lines: list[LogLine]) -> None:
        if held.loading is not None:
            held.loading.append(lines)
            return
        if lines:
            held.lines = merged(held.lines, lines)
            held.dirty = True
        self._wrote_some(held)

    def _wrote_some(self, held: _Held) -> None:
        if held.dirty and (held.ended or self._clock.now_ms() - held.written_at_ms >= WRITE_EVERY_MS):
            self._write(held)
        if held.ended:
            self._let_go(held)

    def _write(self, held: _Held) -> None:
        held.dirty = False
        held.written_at_ms = self._clock.now_ms()
        row = msgspec.structs.replace(held.row, lines=_encode(held.lines))
        self._writing += 1
        self._store.submit(Unit((LogWrite(row),), rides=True), self._wrote)

    def _wrote(self, error: StorageUnavailable | None) -> None:
        self._writing -= 1
        if error is not None:
            log.debug("lines of an attempt are lost: %s", error.reason)

    def _let_go(self, held: _Held) -> None:
        self._requests.pop(held.request_id, None)
        if self._held.get(held.row.attempt_id) is held:  # and not of a later request
            del self._held[held.row.attempt_id]
