"""What people do to runs, and what they are told: cancel, rediscover, settle what is Unknown, in their own workspace and in another."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import RunId, Workspace
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, RefusalEnvelope, ResolveCommand, SupplySuccess, fingerprint
from ryusen_protocol.problems import Problem
from ryusen_server.core.state import Run
from ryusen_server.engine.engine import Engine
from ryusen_server.engine.views import StoppedRun
from ryusen_server.ports.store import StorageUnavailable
from tests.simulation.acting import Acting
from tests.simulation.server import Lost
from tests.simulation.world import WORKSPACES, World


class People(Acting):
    """Operators of both workspaces."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._resolutions = 0
        self._acknowledged: dict[tuple[Workspace, str], Any] = {}

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
