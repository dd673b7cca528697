"""One random life: acts and faults at random, then calm, then the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ryusen_protocol.declarations import EventWaitDeclaration
from ryusen_protocol.ids import ManifestGeneration, Workspace
from ryusen_protocol.manifests import manifest_generation_id
from ryusen_protocol.problems import Problem
from ryusen_server.engine.engine import Engine
from ryusen_server.engine.views import AcceptedEvent, ActivatedManifest
from ryusen_server.ports.store import StorageUnavailable
from tests.simulation.options import TROUBLES
from tests.simulation.people import People
from tests.simulation.programs import SUBMITTED, Keys, random_keys
from tests.simulation.server import Lost
from tests.simulation.words import Words
from tests.simulation.world import WORKSPACES, Accepted, Deployment, World

TRANSITIONS_MIN = 40
"""A life that will have seen fewer by its end goes on."""
LAST_MOMENTS_MS = (1, 2, 5, 20)
AWAITED_MS_MAX = 20_000
"""How near a wait's end must be for somebody to submit its event in the last moment."""
MORE_ACTS_MAX = 400
REMEDIES = ("mend", "publish", "worker", "submit")
"""What is left to a life in which troubles let hardly anything happen."""

Act = Callable[["Life"], None]


class Life(Words, People):
    """One life, from the first start of the server to the end of its troubles."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.counts: dict[str, int] = {}

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

    # events

    def submit(self) -> None:
        workspace = self.chance.choice(WORKSPACES)
        name = self.chance.choice(SUBMITTED)
        key = f"k{self.chance.randrange(8)}" if self.chance.random() < 0.5 else None
        metadata = {"k": key[-1]} if key and self.chance.random() < 0.9 else random_keys(self.chance)
        self._errand(self._submit(workspace, name, key, metadata))

    def answer(self) -> None:
        """Somebody submits what a run waits for, or two do; now, or in the last moment before the wait is over."""
        waits = self.world.auditor.waits.open
        if not waits:
            return
        run_id = self.chance.choice(list(waits))
        run = self.world.auditor.runs[run_id].shadow
        step = run.pending_step()
        if step is None or not isinstance(step.declaration, EventWaitDeclaration):
            return
        asked = step.declaration
        left_ms = waits[run_id].timeout_at_ms - self.world.wall.now_ms()
        in_ms = left_ms - self.chance.choice(LAST_MOMENTS_MS) if 0 < left_ms <= AWAITED_MS_MAX and self.chance.random() < 0.5 else 0
        for _ in range(self.chance.choice((1, 1, 2))):
            metadata = {**asked.correlation, **self.chance.choice(({}, {"k": "1"}, {"other": "x"}))}
            self._errand(self._submit(run.workspace, asked.event_name, None, metadata, in_ms=in_ms))

    async def _submit(self, workspace: Workspace, name: str, key: str | None, metadata: Keys, *, in_ms: int = 0) -> None:
        world = self.world
        await asyncio.sleep(max(0, in_ms) / 1000)
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


ACTS: dict[str, Act] = {name: getattr(Life, name) for name in ("submit", "answer", "wait", "mend", "worker", *TROUBLES)}
