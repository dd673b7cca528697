"""One random life: acts and faults at random, then calm, then the verdict."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ryusen_protocol import PROTOCOL_VERSION
from ryusen_protocol.codec import encode
from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import ManifestGeneration, RequestId, RunId, Workspace
from ryusen_protocol.manifests import manifest_generation_id
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, RefusalEnvelope, ResolveCommand, SupplySuccess, fingerprint
from ryusen_protocol.outcome import Outcome, OutcomeBody, Succeeded
from ryusen_protocol.problems import Problem
from ryusen_server.core.state import Run
from ryusen_server.engine.engine import Engine
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest, StoppedRun
from ryusen_server.ports.store import StorageUnavailable
from tests.simulation.auditing import RunAudit
from tests.simulation.endpoints import HttpWorker
from tests.simulation.options import TROUBLES
from tests.simulation.programs import SUBMITTED, Keys, random_keys
from tests.simulation.server import Lost
from tests.simulation.workers import Worker
from tests.simulation.world import WORKSPACES, Accepted, Deployment, World

TRANSITIONS_MIN = 40
"""A life that will have seen fewer by its end goes on."""
MORE_ACTS_MAX = 400
REMEDIES = ("mend", "publish", "worker", "submit")
"""What is left to a life in which troubles let hardly anything happen."""

Act = Callable[["Life"], None]


class Life:
    """Acts on a world. Each act begins something and returns; what takes time goes on beside the next acts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"acts/{world.seed}")
        self._errands: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}
        self._resolutions = 0
        world.auditor.requeued.append(self._requeued)
        self._acknowledged: dict[tuple[Workspace, str], Any] = {}

    # the whole

    async def live(self) -> None:
        """From the first start to the verdict."""
        world = self.world
        world.server.start()
        for deployment in world.deployments:
            self._errand(self._publish(deployment))
            world.start_worker(deployment)
        await asyncio.sleep(0.2)
        acts = list(world.temper.weights)
        weights = list(world.temper.weights.values())
        in_trouble_max = world.options.steps + MORE_ACTS_MAX // 2
        for index in range(world.options.steps + MORE_ACTS_MAX):
            if index >= world.options.steps and self._is_full():
                break
            name = self.chance.choices(acts, weights)[0] if index < in_trouble_max else self.chance.choice(REMEDIES)
            world.trace(f"act: {name}")
            self.counts[name] = self.counts.get(name, 0) + 1
            ACTS[name](self)
            await asyncio.sleep(self.chance.choice(world.temper.pause_ms) / 1000)

    def _is_full(self) -> bool:
        """Whether the life will have seen enough by its end: a run that has not ended has at least one transition before it."""
        auditor = self.world.auditor
        missing = TRANSITIONS_MIN - auditor.transitions
        return missing <= 0 or missing <= sum(audit.shadow.status != "ended" for audit in auditor.runs.values())

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        self._errands.append(self.world.loop.spawn(None, work))

    async def finish_errands(self) -> None:
        """Wait until every client has its answer or has given up."""
        for errand in self._errands:
            await errand
        self._errands.clear()

    # events

    def submit(self) -> None:
        workspace = self.chance.choice(WORKSPACES)
        name = self.chance.choice(SUBMITTED)
        key = f"k{self.chance.randrange(8)}" if self.chance.random() < 0.5 else None
        metadata = {"k": key[-1]} if key and self.chance.random() < 0.9 else random_keys(self.chance)
        self._errand(self._submit(workspace, name, key, metadata))

    def answer(self) -> None:
        """Somebody submits what a run waits for, or two do."""
        waits = self.world.auditor.waits.open
        if not waits:
            return
        run = self.world.auditor.runs[self.chance.choice(list(waits))].shadow
        step = run.pending_step()
        if step is None or not isinstance(step.declaration, EventWaitDeclaration):
            return
        asked = step.declaration
        for _ in range(self.chance.choice((1, 1, 2))):
            metadata = {**asked.correlation, **self.chance.choice(({}, {"k": "1"}, {"other": "x"}))}
            self._errand(self._submit(run.workspace, asked.event_name, None, metadata))

    async def _submit(self, workspace: Workspace, name: str, key: str | None, metadata: Keys) -> None:
        world = self.world
        payload = (f'"{key}"' if key and self.chance.random() < 0.8 else f'"{self.chance.randrange(1000)}"').encode()
        for _ in range(4 if key is not None else 1):
            lose = self.chance.random() < 0.15

            def request(engine: Engine) -> Any:
                return engine.submit_event(workspace, name=name, payload=payload, metadata=metadata, key=key)

            try:
                answer = await world.server.ask(request, lose_answer=lose)
            except (Lost, StorageUnavailable):
                await asyncio.sleep(self.chance.choice((0.05, 1.0)))
                continue
            world.verdicts.guard(self._submitted)(answer, Accepted(workspace, name, payload, metadata, key))
            return

    def _submitted(self, answer: AcceptedEvent | Problem, sent: Accepted) -> None:
        world = self.world
        if isinstance(answer, Problem):
            assert answer.code == "idempotency_key_reused", answer
            assert sent.key is not None
            return
        event = answer.event
        world.trace(f"accepted {event.event_id[-4:]} {sent.name} {'again' if answer.replayed else ''}")
        stored = world.disk._events.get(event.event_id)
        assert stored is not None, f"invariant 1: {event.event_id} was acknowledged before it was durable"
        told = (stored.workspace, stored.name, stored.payload, stored.metadata)
        assert told == (sent.workspace, sent.name, sent.payload, sent.metadata), "invariant 1: another event"
        if sent.key is not None:
            known = world.keys.setdefault((sent.workspace, sent.key), event.event_id)
            assert known == event.event_id, f"invariant 1: key {sent.key} gave {known} and {event.event_id}"
        world.accepted[event.event_id] = sent

    # deployment

    async def _publish(self, deployment: Deployment, *, stale: bool = False, tries: int = 3) -> None:
        world, scope = self.world, deployment.scope
        release = deployment.current
        _, manifest = world.builds.of(release)
        parent: ManifestGeneration | None = None if stale else deployment.parent
        for _ in range(tries):
            publication = manifest.publication(parent)
            bound = [(trigger.event_name, str(trigger.id), str(trigger.function)) for trigger in manifest.triggers]
            world.bindings.of_manifest[manifest_generation_id(scope, publication.expected_parent, publication)] = bound

            def request(engine: Engine, publication: Any = publication) -> Any:
                return engine.publish(scope, publication)

            try:
                answer: ActivatedManifest | Problem = await world.server.ask(request, lose_answer=self.chance.random() < 0.1)
            except (Lost, StorageUnavailable):
                await asyncio.sleep(0.3)
                continue
            if isinstance(answer, ActivatedManifest):
                deployment.parent = answer.manifest.manifest_generation
                return
            world.verdicts.guard(self._conflicted)(answer)
            active = [row for row in (world.disk._manifests.values()) if row.application == scope.application]
            mine = [row for row in active if row.workspace == scope.workspace]
            head = world.bindings.routings.get(world.bindings.head(scope.workspace), {}).get(scope.application)
            parent = head if mine else None

    def _conflicted(self, answer: Problem) -> None:
        assert answer.code == "parent_conflict", answer

    def publish(self) -> None:
        self._errand(self._publish(self._any_deployment(), stale=self.chance.random() < 0.3))

    def publish_now(self, deployment: Deployment) -> None:
        """Activate what is deployed, until it is active."""
        self._errand(self._publish(deployment, tries=40))

    def redeploy(self) -> None:
        deployment = self._any_deployment()
        deployment.redeploy()
        if self.chance.random() < 0.5:
            self._errand(self._publish(deployment))
        old = [worker for worker in deployment.workers if worker.is_up]
        self.world.start_worker(deployment)
        for worker in old:
            way = self.chance.random()
            if way < 0.4:
                worker.drain()
            elif way < 0.6:
                worker.kill("for a new release")

    def _any_deployment(self) -> Deployment:
        return self.chance.choice(self.world.deployments)

    # workers

    def _any_worker(self, *, up: bool = True) -> Worker | None:
        found = [worker for worker in self.world.connected() if worker.is_up or not up]
        return self.chance.choice(found) if found else None

    def _any_process(self, *, up: bool = True) -> Worker | HttpWorker | None:
        found = [worker for worker in self.world.workers() if worker.is_up or not up]
        return self.chance.choice(found) if found else None

    def worker(self) -> None:
        deployment = self._any_deployment()
        alive = sum(worker.is_alive for worker in deployment.workers)
        if deployment.accepting() is None if deployment.is_http else alive < 3:
            self.world.start_worker(deployment)

    def kill_worker(self) -> None:
        worker = self._any_process(up=False)
        if worker is not None:
            worker.kill("from outside", silently=self.chance.random() < 0.3)

    def pause_worker(self) -> None:
        worker = self._any_process()
        if worker is not None:
            worker.pause()
            self.world.loop.call_later(self.chance.choice((0.5, 8.0, 28.0, 70.0)), worker.resume)

    def drain_worker(self) -> None:
        worker = self._any_process()
        if worker is not None:
            worker.drain()

    def cut(self) -> None:
        worker = self._any_worker(up=False)
        if worker is not None and worker.end is not None and not worker.end.is_gone:
            self.world.trace(f"{worker.name} is cut off")
            worker.end._wire.reset(lose=self.chance.random() < 0.6)

    def silence(self) -> None:
        worker = self._any_worker(up=False)
        if worker is not None and worker.end is not None and not worker.end.is_gone:
            self.world.trace(f"{worker.name} hears nothing any more")
            worker.end._wire.go_silent()

    # words that should not count

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
        scopes = {_scope(worker.scope) for worker in self.world.connected() if worker.is_up}
        for request_id, run_id in self._requests():
            run = self.world.auditor.runs[run_id].shadow
            attempt = run.attempts.get(run.requests.get(request_id, ""))  # type: ignore[call-overload]
            if attempt is not None and attempt.request_id not in {None, request_id} and _scope(run) in scopes:
                superseded.append((request_id, run_id))
            elif attempt is not None and attempt.settled_at_ms is not None:
                settled.append((request_id, run_id))
        worker, requests = self._any_worker(), superseded or settled
        if worker is not None and requests:
            request_id, run_id = self.chance.choice(requests)
            owner = self.world.auditor.runs[run_id].shadow
            own = [other for other in self.world.connected() if other.is_up and _scope(owner) == _scope(other.scope)]
            self._say(self.chance.choice(own or [worker]), self._answer(request_id, run_id, shift=self.chance.choice((0, 0, 1))))

    def _requeued(self, audit: RunAudit, request_id: RequestId) -> None:
        """What never began is to be sent again: sometimes somebody answers under the first request after that."""
        run = audit.shadow
        if self.world.temper.weights.get("late") and not self.world.outside.calm and self.chance.random() < 0.5:
            self._errand(self._say_once_superseded(request_id, run.run_id))

    async def _say_once_superseded(self, request_id: RequestId, run_id: RunId) -> None:
        run = self.world.auditor.runs[run_id].shadow
        attempt = run.attempts[run.requests[request_id]]
        for _ in range(400):
            await asyncio.sleep(0.02)
            if attempt.settled_at_ms is not None or (attempt.state == "authorized" and attempt.request_id != request_id):
                break
        for worker in self.world.connected():
            if worker.is_up and _scope(run) == _scope(worker.scope):
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
        body: OutcomeBody = Succeeded(msgspec.Raw(b'{"type":"null"}'), attempt.attempt, attempt.attempt_generation + shift)
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

    # the server

    def kill_server(self) -> None:
        self.world.server.kill("from outside")
        self._errand(self._start_again())

    def stop_server(self) -> None:
        self.world.server.stop(self.chance.choice((100, 5_000)))

    async def _start_again(self) -> None:
        await asyncio.sleep(self.chance.choice((0.0, 0.5, 5.0, 40.0)))
        self.world.server.start()

    def mend(self) -> None:
        """Somebody looks after the server and its disk."""
        self.world.faults.full = self.world.faults.unplugged = False
        self.world.server.start()

    def disk_full(self) -> None:
        self.world.faults.full = True

    def unplug(self) -> None:
        self.world.faults.unplugged = True

    def jump(self) -> None:
        ms = self.chance.choice((-7_200_000, -45_000, -45_000, -3_000, -1, 1, 2_000, 20_000, 70_000))
        self.world.trace(f"the clock jumps by {ms} ms")
        self.world.wall.jump(ms)

    def wait(self) -> None:
        """Nothing: time passes."""

    # operators

    def _shadows(self) -> list[Run]:
        return [audit.shadow for audit in self.world.auditor.runs.values()]

    def _any_run(self) -> RunId | None:
        runs = list(self.world.auditor.runs)
        if not runs:
            return None
        shadows = {run_id: self.world.auditor.runs[run_id].shadow for run_id in runs}
        blocked = [run_id for run_id in runs if shadows[run_id].status == "definition_blocked"]
        if blocked and self.chance.random() < 0.3:
            return self.chance.choice(blocked)
        live = [run_id for run_id in runs if shadows[run_id].status != "ended"]
        return self.chance.choice(live if live and self.chance.random() < 0.8 else runs)

    def cancel(self) -> None:
        parents = [run.parent.run_id for run in self._shadows() if run.parent is not None and run.status != "ended"]
        run_id = self.chance.choice(parents) if parents and self.chance.random() < 0.4 else self._any_run()
        if run_id is not None:
            self._errand(self._operate(run_id, "cancel"))

    def rediscover(self) -> None:
        blocked = [run_id for run_id, audit in self.world.auditor.runs.items() if audit.shadow.status == "definition_blocked"]
        run_id = self.chance.choice(blocked) if blocked and self.chance.random() < 0.7 else self._any_run()
        if run_id is not None:
            self._errand(self._operate(run_id, "rediscover"))

    async def _operate(self, run_id: RunId, what: str) -> None:
        world = self.world
        run = world.auditor.runs[run_id].shadow
        workspace = run.workspace if self.chance.random() < 0.9 else WORKSPACES[1 - WORKSPACES.index(run.workspace)]

        def request(engine: Engine) -> Any:
            return getattr(engine, what)(workspace, run_id, by="operator")

        try:
            answer: StoppedRun | Problem = await world.server.ask(request)
        except (Lost, StorageUnavailable):
            return
        world.verdicts.guard(self._operated)(answer, run_id, what, foreign=workspace != run.workspace)

    def _operated(self, answer: StoppedRun | Problem, run_id: RunId, what: str, *, foreign: bool) -> None:
        run = self.world.auditor.runs[run_id].shadow
        self.world.trace(f"{what} {run_id[-6:]}: {answer.code if isinstance(answer, Problem) else 'done'}")
        if foreign:
            assert isinstance(answer, Problem), f"invariant 27: {run_id} was operated from another workspace"
            assert answer.code == "not_found"
            return
        if isinstance(answer, Problem):
            assert answer.code in {"not_cancellable", "not_blocked"}, answer
        elif what == "cancel":
            assert run.stop is not None, f"{run_id} was acknowledged as stopped before it was durable"

    def resolve(self) -> None:
        """An operator settles an Unknown attempt, or tries to settle another."""
        candidates = [run for run in (audit.shadow for audit in self.world.auditor.runs.values()) if run.attempts]
        unknown = [run for run in candidates if (attempt := run.current_attempt()) is not None and attempt.state == "unknown"]
        run = self.chance.choice(unknown) if unknown and self.chance.random() < 0.85 else None
        run = run or (self.chance.choice(candidates) if candidates else None)
        if run is not None:
            self._errand(self._resolve(run, key=f"o{self.chance.randrange(12)}" if self.chance.random() < 0.4 else None))

    def settle(self, run: Run) -> None:
        """An operator settles what nobody else will."""
        self._errand(self._resolve(run, key=None))

    async def _resolve(self, run: Run, key: str | None) -> None:
        world = self.world
        attempt = run.current_attempt() or self.chance.choice(list(run.attempts.values()))
        self._resolutions += 1
        command = ResolveCommand(
            attempt_id=attempt.attempt_id,
            attempt_generation=attempt.attempt_generation + (1 if self.chance.random() < 0.05 and not world.outside.calm else 0),
            idempotency_key=key or f"own{self._resolutions}",
            command=self._resolution(),
        )
        foreign = self.chance.random() < 0.05 and not world.outside.calm
        workspace = WORKSPACES[1 - WORKSPACES.index(run.workspace)] if foreign else run.workspace

        def request(engine: Engine) -> Any:
            return engine.resolve(workspace, command, by="operator")

        for _ in range(3):
            try:
                answer: bytes | RefusalEnvelope = await world.server.ask(request, lose_answer=self.chance.random() < 0.2)
            except (Lost, StorageUnavailable):
                await asyncio.sleep(self.chance.choice((0.05, 1.0)))
                continue
            world.verdicts.guard(self._resolved)(answer, workspace, command, foreign=foreign)
            if self.chance.random() < 0.7:
                return

    def _resolution(self) -> SupplySuccess | DeclareFailure | AuthorizeRetry:
        match self.chance.choice(("supply", "supply", "declare", "retry")):
            case "supply":
                return SupplySuccess(msgspec.Raw(b'{"type":"null"}'))
            case "declare":
                return DeclareFailure(ErrorRecord("operator.says", "it failed", self.chance.random() < 0.5))
            case _:
                return AuthorizeRetry()

    def _resolved(self, answer: bytes | RefusalEnvelope, workspace: Workspace, command: ResolveCommand, *, foreign: bool) -> None:
        world = self.world
        stored = world.disk._operator_commands.get((workspace, command.idempotency_key))
        if isinstance(answer, RefusalEnvelope):
            world.trace(f"resolve {command.attempt_id[-6:]}: {answer.refusal.code}")
            mine = stored is not None and stored.fingerprint == fingerprint(command)
            assert not mine, f"invariant 20, 21: a command that is durable was refused as {answer.refusal.code}"
            reused = answer.refusal.code == "idempotency_key_reused"
            assert not reused or stored is not None, "a key that nobody has used is reused"
            return
        assert not foreign, f"invariant 27: {command.attempt_id} was settled from another workspace"
        acknowledgement = msgspec.json.decode(answer)
        world.trace(f"resolve {command.attempt_id[-6:]}: {acknowledgement['status']}")
        assert stored is not None, f"{command.attempt_id} was acknowledged as settled before it was durable"
        assert stored.fingerprint == fingerprint(command), "invariant 21: the answer to another command"
        acknowledgement.pop("status")
        first = self._acknowledged.setdefault((workspace, command.idempotency_key), acknowledgement)
        assert first == acknowledgement, f"invariant 21: the second answer is {acknowledgement}, the first was {first}"


def _scope(of: Any) -> tuple[str, str]:
    return of.workspace, of.application


ACTS: dict[str, Act] = {name: getattr(Life, name) for name in ("submit", "answer", "wait", "mend", "worker", *TROUBLES)}
