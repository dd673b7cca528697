"""Wires one simulation: loop, disk, server, workers, the outside, and the witnesses of all of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from functools import partial

import msgspec

from ryusen_protocol.identity import run_id_for_event
from ryusen_protocol.ids import Application, EventId, ManifestGeneration, RoutingGeneration, RunId, TriggerId, Workspace
from ryusen_protocol.manifests import initial_routing_generation
from ryusen_protocol.scope import Scope
from ryusen_server.core.rows import WaitRow
from ryusen_server.engine.config import EngineConfig
from ryusen_server.ports.store import EventWrite, ManifestWrite, Unit
from tests.simulation.auditing import Auditor
from tests.simulation.durable import Disk, Faults
from tests.simulation.endpoints import HttpWorker, Site
from tests.simulation.network import Conditions
from tests.simulation.options import Options, Temper, temper
from tests.simulation.outside import Outside
from tests.simulation.programs import (
    CHILD,
    EMITTED,
    LEAF,
    SUBMITTED,
    Keys,
    Program,
    Release,
    random_program,
    redeployed,
    without_conflicts,
    without_repeats,
)
from tests.simulation.scheduling import CountedEntropy, SimulatedLoop, Wall
from tests.simulation.server import SimulatedServer, audit_invocation
from tests.simulation.verdicts import Verdicts
from tests.simulation.workers import Builds, Connector, Worker

WORKSPACES = (Workspace("w1"), Workspace("w2"))
SCOPES = (
    Scope(WORKSPACES[0], Application("shop")),
    Scope(WORKSPACES[0], Application("bank")),
    Scope(WORKSPACES[1], Application("shop")),
)
HTTP_SCOPE = SCOPES[1]


class Accepted(msgspec.Struct, frozen=True):
    """An event whose acceptance its sender knows of."""

    workspace: Workspace
    name: str
    payload: bytes
    metadata: Keys
    key: str | None


class Deployment:
    """One application: its releases so far, and its workers."""

    def __init__(self, scope: Scope, chance: random.Random, *, is_http: bool) -> None:
        self.scope = scope
        self.chance = chance
        self.is_http = is_http
        self.releases = 0
        self._versions: dict[str, list[Program]] = {}
        self.current = self._first()
        self.workers: list[Worker | HttpWorker] = []
        self.parent: ManifestGeneration | None = None
        """The generation this application's publisher believes to be active."""

    def _first(self) -> Release:
        programs = {f"f{index}": random_program(self.chance) for index in range(self.chance.choice((1, 2)))}
        programs[CHILD] = random_program(self.chance, "child")
        programs[LEAF] = random_program(self.chance, "leaf")
        return self._release(programs, versioned=self.chance.random() < 0.7)

    def _release(self, programs: dict[str, Program], *, versioned: bool) -> Release:
        self.releases += 1
        chance = self.chance
        triggers = {
            name: tuple(event for event in SUBMITTED if chance.random() < 0.5) or SUBMITTED[:1]
            for name, program in programs.items()
            if program.role == "top"
        }
        triggers[LEAF] = tuple(event for event in EMITTED if chance.random() < 0.5)
        timeouts = {name: chance.choice((None, None, None, 2_000, 15_000, 60_000)) for name in programs}
        release = Release(f"r{self.releases}" if versioned and not self.is_http else None, programs, triggers, timeouts)
        for name, program in programs.items():
            self._versions.setdefault(name, []).append(program)
        return release

    def accepting(self) -> HttpWorker | None:
        """The process behind the web server that connections go to."""
        found = [worker for worker in self.workers if isinstance(worker, HttpWorker) and worker.accepts]
        return found[-1] if found else None

    def redeploy(self) -> None:
        """The next release."""
        fresh = f"x{self.releases}"
        programs = {name: redeployed(program, self.chance, fresh=fresh) for name, program in self.current.programs.items()}
        if self.chance.random() < 0.1:
            programs[f"g{self.releases}"] = random_program(self.chance)
        self.current = self._release(programs, versioned=self.chance.random() < 0.8)

    def last_release(self, every: set[str]) -> Release:
        """The release that ends all trouble: nothing in it blocks a run, and every function that any release had is there."""
        programs = {name: without_repeats(program) for name, program in self.current.programs.items()}
        for name in sorted(every):
            programs.setdefault(name, random_program(self.chance))
        programs = {
            name: without_repeats(without_conflicts(program, self._versions.get(name, ()), fresh="z")) for name, program in programs.items()
        }
        return self._release(programs, versioned=True)


class Bindings:
    """What each durable routing generation starts for an event, worked out from what was published and nothing else."""

    def __init__(self, waits: Mapping[RunId, WaitRow]) -> None:
        self.waits = waits
        """Those that are durable."""
        self.of_manifest: dict[ManifestGeneration, list[tuple[str, str, str]]] = {}
        """Event name, trigger id, function."""
        self.heads: dict[Workspace, RoutingGeneration] = {}
        self.routings: dict[RoutingGeneration, dict[Application, ManifestGeneration]] = {}

    def committed(self, unit: Unit, last_position: int) -> None:
        """Heads move only as a whole, each over the one before; an event is routed by the head it commits after."""
        position = last_position - len(unit.writes)
        for write in unit.writes:
            position += 1
            if isinstance(write, ManifestWrite):
                manifest, routing = write.manifest, write.routing
                head = self.head(manifest.workspace)
                before = self.routings.get(head, {})
                assert routing.expected_parent == head, f"routing {routing.routing_generation} is not built on the head"
                expected = {**before, manifest.application: manifest.manifest_generation}
                assert routing.applications == expected, "an activation moved another application's head"
                parent = before.get(manifest.application)
                assert manifest.expected_parent == parent, f"manifest {manifest.manifest_generation} is activated over {parent}"
                self.heads[manifest.workspace] = routing.routing_generation
                self.routings[routing.routing_generation] = dict(routing.applications)
            elif isinstance(write, EventWrite):
                event = write.event
                assert event.routing_generation == self.head(event.workspace), f"invariant 2: {event.event_id} is not routed by the head"
                matched = len(self.runs(event.event_id, event.routing_generation, event.name))
                assert event.matched == matched, f"invariant 2: {event.event_id} matches {matched}, not {event.matched}"
                waited = any(
                    (wait.workspace, wait.event_name) == (event.workspace, event.name) and wait.position < position
                    for wait in self.waits.values()
                )
                owed = event.fan_out_next is not None
                assert owed or not (matched or waited), f"invariant 28: {event.event_id} commits without its obligation"

    def head(self, workspace: Workspace) -> RoutingGeneration:
        return self.heads.get(workspace) or initial_routing_generation(workspace)

    def runs(self, event_id: EventId, routing: RoutingGeneration, name: str) -> set[RunId]:
        """The runs an event must have."""
        return {
            run_id_for_event(event_id, application, TriggerId(trigger_id))
            for application, generation in self.routings.get(routing, {}).items()
            for event_name, trigger_id, _ in self.of_manifest[generation]
            if event_name == name
        }


class World:
    """Everything of one simulation."""

    def __init__(self, seed: int, options: Options, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.options = options
        self.temper: Temper = temper(seed, options)
        self.loop = SimulatedLoop(random.Random(f"order/{seed}"), shuffle=self.temper.shuffle)
        self.wall = Wall(self.loop)
        self.verdicts = Verdicts(self.loop.stop)
        self.trace_lines: list[str] | None = [] if keep_trace else None
        self._digest = hashlib.blake2b(digest_size=16)
        self.auditor = Auditor(self.trace, thorough=options.thorough)
        self.conditions = Conditions(random.Random(f"network/{seed}"))
        self.conditions.delay_ms_max = self.temper.delay_ms_max
        self.conditions.slow = self.temper.slow
        self.faults = Faults(random.Random(f"disk/{seed}"))
        self.faults.commit_ms_max = self.temper.commit_ms_max
        self.faults.read_ms_max = self.temper.read_ms_max
        self.faults.commit_fails = self.temper.commit_fails
        self.faults.read_fails = self.temper.read_fails
        self.faults.hiccups = self.temper.hiccups
        self.faults.crash_at_commit = self.temper.crash_at_commit
        self.faults.crash_at_obligation = self.temper.crash_at_obligation
        if options.crash_at_commit is not None:
            self.faults.crash_at[options.crash_at_commit] = options.crash_how
        self.disk = Disk(self, self.faults)
        self.bindings = Bindings(self.disk._waits)
        self.auditor.kinship.disk = self.auditor.waits.disk = self.disk
        self.connector = Connector(self)
        self.outside = Outside(seed, self.temper.callbacks, self.auditor, self.connector.workers, self.wall.elapsed_ms, self.trace)
        self.builds = Builds(self.outside)
        self.outside._began = self.verdicts.guard(self.outside._began)  # type: ignore[method-assign]
        for witness, names in ((self.auditor, ("observed", "sent", "acknowledged", "check_all")), (self, ("committed", "rolled_back"))):
            for name in names:
                setattr(witness, name, self.verdicts.guard(getattr(witness, name)))
        self.server = SimulatedServer(
            loop=self.loop,
            wall=self.wall,
            entropy=CountedEntropy(random.Random(f"entropy/{seed}")),
            disk=self.disk,
            config=EngineConfig(
                merge=self.temper.merge,
                early=self.temper.early,
                fan_out_batch=self.temper.fan_out_batch,
                runs_in_memory=self.temper.runs_in_memory,
                tick_ms=self.temper.tick_ms,
                exchange_ms=self.temper.exchange_ms,
            ),
            auditor=self.auditor,
            conditions=self.conditions,
            trace=self.trace,
            fail=self.verdicts.fail,
        )
        self.deployments = [
            Deployment(scope, random.Random(f"code/{seed}/{index}"), is_http=self.temper.http and scope == HTTP_SCOPE)
            for index, scope in enumerate(SCOPES)
        ]
        self.server.sites = [self._site(deployment) for deployment in self.deployments if deployment.is_http]
        self.accepted: dict[EventId, Accepted] = {}
        self.keys: dict[tuple[Workspace, str], EventId] = {}
        self.functions: dict[Scope, set[str]] = {scope: set() for scope in SCOPES}
        self._workers = 0

    # witnesses of the disk

    def committed(self, unit: Unit, last_position: int) -> None:
        self.trace(f"durable {last_position}: {','.join(type(write).__name__ for write in unit.writes)}")
        self.bindings.committed(unit, last_position)
        self.auditor.committed(unit, last_position)

    def rolled_back(self, unit: Unit) -> None:
        self.trace(f"rolled back: {','.join(type(write).__name__ for write in unit.writes)}")
        self.auditor.rolled_back(unit)

    # what happened

    def trace(self, what: str) -> None:
        """One line of what happened. The digest of all lines names the run."""
        line = f"{self.wall.elapsed_ms():>9} {what}"
        self._digest.update(line.encode())
        if self.trace_lines is not None:
            self.trace_lines.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # workers

    def _site(self, deployment: Deployment) -> Site:
        site = Site(
            deployment.scope,
            capacity=4,
            current=deployment.accepting,
            loop=self.loop,
            conditions=self.conditions,
            chance=random.Random(f"http/{self.seed}"),
            left=self.verdicts.guard(partial(audit_invocation, self.auditor, early=self.temper.early)),
            trace=self.trace,
        )
        site.trouble = self.temper.http_trouble
        return site

    def start_worker(self, deployment: Deployment, *, release: Release | None = None, capacity: int | None = None) -> Worker | HttpWorker:
        """A new worker process of an application. Instance ids mean nothing beyond their scope, so scopes share them."""
        self._workers += 1
        chance = random.Random(f"worker/{self.seed}/{self._workers}")
        healthy = release is not None
        release = release or deployment.current
        known = self.functions[deployment.scope]
        known.update(release.programs)
        if deployment.is_http:
            return self._start_http(deployment, release, capacity or chance.choice((1, 4)))
        pretends: list[str] = []
        if not healthy and chance.random() < 0.15:
            pretends = [name for name in sorted(known) if name not in release.programs]
            missing = chance.choice(sorted(release.programs))
            if not pretends and len(release.programs) > 1:
                release = msgspec.structs.replace(
                    release, programs={name: program for name, program in release.programs.items() if name != missing}
                )
                pretends = [missing]
        worker = Worker(
            f"worker-{self._workers}",
            deployment.scope,
            release,
            instance_id=f"wk_{len(deployment.workers)}",
            capacity=capacity or chance.choice((1, 2, 4)),
            loop=self.loop,
            builds=self.builds,
            connector=self.connector,
            chance=chance,
            trace=self.trace,
            pretends=pretends,
        )
        deployment.workers.append(worker)
        self.trace(f"{worker.name} starts: {deployment.scope.workspace}/{deployment.scope.application} {release.release_id}")
        return worker

    def _start_http(self, deployment: Deployment, release: Release, capacity: int) -> HttpWorker:
        worker = HttpWorker(
            f"worker-{self._workers}",
            deployment.scope,
            release,
            registry=self.builds.of(release)[0],
            capacity=capacity,
            loop=self.loop,
            trace=self.trace,
        )
        self.connector.workers[worker.process] = worker
        deployment.workers.append(worker)
        self.trace(f"{worker.name} starts: {deployment.scope.workspace}/{deployment.scope.application} behind a web server")
        return worker

    def workers(self) -> list[Worker | HttpWorker]:
        """Every worker process that is alive."""
        return [worker for deployment in self.deployments for worker in deployment.workers if worker.is_alive]

    def connected(self) -> list[Worker]:
        """Those of them that open connections themselves."""
        return [worker for worker in self.workers() if isinstance(worker, Worker)]
