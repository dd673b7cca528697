"""Words that should not count: a worker says what is late, another's, wrong or unreadable, in the middle of what the SDK says."""

from __future__ import annotations

import asyncio

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import encode
from ryusen_protocol.ids import RequestId, RunId
from ryusen_protocol.outcome import Completed, Outcome, OutcomeBody, Succeeded
from tests.simulation.acting import Acting, scope_of
from tests.simulation.auditing import RunAudit
from tests.simulation.workers import Worker
from tests.simulation.world import World

NULL = msgspec.Raw(b'{"type":"null"}')


class Words(Acting):
    """Speaks in the name of workers."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.auditor.requeued.append(self._requeued)

    def _say(self, worker: Worker, frame: bytes) -> None:
        def say() -> None:
            connection = worker.line._connection
            if connection is not None and worker.session.is_open:
                connection.send([frame])

        self.world.loop.call_soon(say, context=worker.process.context)

    def _requests(self) -> list[tuple[RequestId, RunId]]:
        return [(request, run_id) for request, run_id in self.world.auditor._requests.items()][-40:]

    def impostor(self) -> None:
        """A worker of another application answers what is not its own."""
        worker, requests = self._any_worker(), self._requests()
        if worker is None or not requests:
            return
        request_id, run_id = self.chance.choice(requests)
        run = self.world.auditor.runs[run_id].shadow
        if (run.workspace, run.application) != (worker.scope.workspace, worker.scope.application):
            self._say(worker, self._answer(request_id, run_id))

    def late(self) -> None:
        """A worker says again, or otherwise, what has been settled."""
        superseded: list[tuple[RequestId, RunId]] = []
        settled: list[tuple[RequestId, RunId]] = []
        scopes = {scope_of(worker.scope) for worker in self.world.connected() if worker.is_up}
        for request_id, run_id in self._requests():
            run = self.world.auditor.runs[run_id].shadow
            attempt = run.attempts.get(run.requests.get(request_id, ""))  # type: ignore[call-overload]
            if attempt is not None and attempt.request_id not in {None, request_id} and scope_of(run) in scopes:
                superseded.append((request_id, run_id))
            elif attempt is not None and attempt.settled_at_ms is not None:
                settled.append((request_id, run_id))
        worker, requests = self._any_worker(), superseded or settled
        if worker is not None and requests:
            request_id, run_id = self.chance.choice(requests)
            owner = self.world.auditor.runs[run_id].shadow
            own = [other for other in self.world.connected() if other.is_up and scope_of(owner) == scope_of(other.scope)]
            self._say(self.chance.choice(own or [worker]), self._answer(request_id, run_id, shift=self.chance.choice((0, 0, 1))))

    def _requeued(self, audit: RunAudit, request_id: RequestId) -> None:
        """What never began is to be sent again: sometimes somebody answers under the first request after that."""
        run = audit.shadow
        if self.world.temper.weights.get("late") and not self.world.outside.calm and self.chance.random() < 0.5:
            self._errand(self._say_once_superseded(request_id, run.run_id))

    def overtaken(self) -> None:
        """A worker answers a pass that is not out any more."""
        workers = [worker for worker in self.world.connected() if worker.is_up]
        chosen = self.chance.choice(workers) if workers else None
        passes: list[tuple[RequestId, RunId]] = []
        for run_id, audit in self.world.auditor.runs.items():
            sent = [started.request_id for started in audit.watch.started if started.attempt_id is None]
            if chosen is not None and scope_of(audit.shadow) == scope_of(chosen.scope):
                passes += [(request_id, run_id) for request_id in sent[:-1]]  # the last one may be out
        if chosen is not None and passes:
            request_id, run_id = self.chance.choice(passes[-20:])
            self._say(chosen, encode(Outcome(PROTOCOL_VERSION, request_id, run_id, Completed(NULL))))

    async def _say_once_superseded(self, request_id: RequestId, run_id: RunId) -> None:
        run = self.world.auditor.runs[run_id].shadow
        attempt = run.attempts[run.requests[request_id]]
        for _ in range(400):
            await asyncio.sleep(0.02)
            if attempt.settled_at_ms is not None or (attempt.state == "authorized" and attempt.request_id != request_id):
                break
        for worker in self.world.connected():
            if worker.is_up and scope_of(run) == scope_of(worker.scope):
                self._say(worker, self._answer(request_id, run_id))
                return

    def mistake(self) -> None:
        """A worker answers what it executes under another generation than it was given."""
        worker = self._any_worker()
        held = [] if worker is None else [held for held in worker.session._executing.values() if held.attempt is not None]
        if worker is not None and held:
            chosen = self.chance.choice(held)
            if chosen.run_id in self.world.auditor.runs and chosen.request_id in self.world.auditor.runs[chosen.run_id].shadow.requests:
                self.world.auditor.misspoken.add(chosen.request_id)
                self._say(worker, self._answer(chosen.request_id, chosen.run_id, shift=self.chance.choice((-1, 1))))

    def _answer(self, request_id: RequestId, run_id: RunId, shift: int = 0) -> bytes:
        run = self.world.auditor.runs[run_id].shadow
        attempt = run.attempts[run.requests[request_id]]
        body: OutcomeBody = Succeeded(NULL, attempt.attempt, attempt.attempt_generation + shift)
        return encode(Outcome(PROTOCOL_VERSION, request_id, run_id, body))

    def garble(self) -> None:
        """A worker's answer arrives so that nobody can read it."""
        worker = self._any_worker()
        if worker is None or not worker.session._executing:
            return
        held = self.chance.choice(list(worker.session._executing.values()))
        frame = {"type": "outcome", "protocol_version": 1, "request_id": held.request_id, "run_id": held.run_id, "outcome": {"type": "?"}}
        self._say(worker, msgspec.json.encode(frame))

    def register_wrongly(self) -> None:
        """A registration that is not the first frame of its connection."""
        worker = self._any_worker()
        if worker is not None:
            self._say(worker, b'{"type":"draining","protocol_version":2}')
