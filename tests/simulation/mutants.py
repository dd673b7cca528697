"""Planted mistakes, one a rule, each of which some schedule must catch: `make mutants`.

A mutant is an edit of the product's source, made while a fresh process imports it. An edit whose text is no longer there is an error, so
that no mutant silently turns into the product.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import CodeType

import msgspec

CORE = "ryusen_server.core"
ENGINE = "ryusen_server.engine"


class Edit(msgspec.Struct, frozen=True):
    """`old` stands once in the module's source, and becomes `new`."""

    module: str
    old: str
    new: str


class Mutant(msgspec.Struct, frozen=True):
    """One mistake, and the rule it breaks. Numbers are those of the project's invariants."""

    name: str
    rule: str
    edits: tuple[Edit, ...]


def _one(name: str, rule: str, module: str, old: str, new: str) -> Mutant:
    return Mutant(name, rule, (Edit(module, old, new),))


MUTANTS: tuple[Mutant, ...] = (
    _one(
        "a key is forgotten",
        "1: one key gives one event",
        f"{ENGINE}.control",
        "            if known is not None:\n                return await self._replay(known, fingerprint)\n",
        "",
    ),
    _one(
        "an event is acknowledged before it is durable",
        "1: an acknowledged event survives",
        f"{ENGINE}.control",
        "        await durable.future\n        runs =",
        "        runs =",
    ),
    _one(
        "fan-out ends after its first batch",
        "2: exactly the bindings",
        f"{ENGINE}.control",
        "more = end_at < len(bindings) or (event.workspace, event.name) in self._waited",
        "more = False",
    ),
    _one(
        "an event is routed by what is active when its runs are made",
        "2: exactly its routing generation",
        f"{ENGINE}.control",
        "            routing_generation=table.routing_generation,\n            matched",
        "            routing_generation=next(iter(self._tables)),\n            matched",
    ),
    _one(
        "an attempt settles twice",
        "3: a generation settles once",
        f"{CORE}.commands.answer_attempt",
        "    if attempt.state not in UNRESOLVED:\n",
        "    if False:\n",
    ),
    _one(
        "a retry keeps its generation",
        "4: G+1 after G",
        f"{CORE}.results",
        "        attempt_generation=ordinal,\n",
        "        attempt_generation=attempt.attempt_generation,\n",
    ),
    _one(
        "a retry is another operation",
        "5: one operation id",
        f"{CORE}.results",
        "        operation_id=attempt.operation_id,\n",
        '        operation_id=attempt.operation_id + "x",\n',
    ),
    _one(
        "an undo shares its step's operation",
        "5: one operation id for each phase",
        f"{CORE}.settlement",
        'operation_id(run.run_id, step_id, "compensation")',
        'operation_id(run.run_id, step_id, "forward")',
    ),
    _one(
        "any generation counts",
        "6: only the current result",
        f"{CORE}.commands.answer_attempt",
        "    if (outcome.attempt, outcome.attempt_generation) != (attempt.attempt, attempt.attempt_generation):\n",
        "    if False:\n",
    ),
    _one(
        "an earlier request counts",
        "6: only the current request",
        f"{CORE}.commands.answer_attempt",
        "    if attempt.request_id != command.request_id:\n",
        "    if False:\n",
    ),
    _one(
        "a pass that was overtaken counts",
        "6: only the current pass",
        f"{CORE}.commands.answer_discovery",
        "    if not current or run.status not in",
        "    if run.discovery_pass is None or run.status not in",
    ),
    _one(
        "a stale answer is kept each time",
        "6: recorded once",
        f"{CORE}.commands.answer_attempt",
        "    if (command.request_id, command.answer_digest) not in run.stale_answers:\n",
        "    if True:\n",
    ),
    _one(
        "an effect leaves before its commit",
        "7: authorized before it begins",
        f"{ENGINE}.runs",
        "            if self._early and isinstance(out.effect, SendDiscovery):\n",
        "            if True:\n",
    ),
    _one(
        "an answer is acknowledged before its commit",
        "durable before it is acknowledged",
        f"{ENGINE}.sessions",
        'late=disposition == "stale")\n\n        self._runs.when_durable(live, acknowledge)',
        'late=disposition == "stale")\n\n        acknowledge(None)',
    ),
    _one(
        "an answered step is declared again",
        "8: an accepted success is final",
        f"{CORE}.evolve",
        "    run.history_entries.append(entry)\n",
        "    if len(run.completed) != 2:\n        run.history_entries.append(entry)\n",
    ),
    _one(
        "what is lost is sent again",
        "9: ambiguity never restarts itself",
        f"{CORE}.commands.lose_contact",
        "        decision.add(AttemptUnknown(attempt.attempt_id, command.reason))",
        "        from ryusen_server.core.records import AttemptRequeued\n\n"
        "        decision.add(AttemptRequeued(attempt.attempt_id, command.reason, 0))",
    ),
    _one(
        "a stop leaves what is queued",
        "10: no forward work after a stop",
        f"{CORE}.settlement",
        '    if attempt is not None and attempt.state == "queued" and attempt.phase == "forward":\n',
        "    if False:\n",
    ),
    _one(
        "a failure is retried after the stop",
        "10: no retry after a stop",
        f"{CORE}.results",
        '    active = run.status == "running" and not past_deadline(run, moment.now_ms)\n',
        "    active = True\n",
    ),
    _one(
        "what never began is queued after the stop",
        "10: no forward work after a stop",
        f"{CORE}.commands.never_began",
        '    if attempt.phase == "compensation" or (run.status == "running" and not late):\n',
        "    if True:\n",
    ),
    _one(
        "deadlines do not count",
        "10: nothing forward from the deadline on",
        f"{CORE}.settlement",
        "    return run.deadline is not None and now_ms >= run.deadline.at_ms",
        "    return False",
    ),
    _one(
        "an operator retries a cancelled step",
        "10: no forward work after a stop",
        f"{CORE}.commands.resolve_attempt",
        '    if attempt.phase == "compensation":\n        return None\n',
        "    return None\n",
    ),
    _one(
        "a second stop takes the first one's place",
        "11: a stop reason is written once",
        f"{CORE}.commands.request_stop",
        '    if run.status == "stopping" or (run.stop is not None and run.stop.reason == "cancelled"):\n'
        "        return Decision(replayed=True)\n",
        '    if run.status == "stopping":\n        return _stop(run, "cancelled", command.by, moment)\n',
    ),
    _one(
        "the gate does not wait",
        "12: no undo beside an open effect",
        f"{CORE}.settlement",
        "    return attempt is not None and attempt.state in UNRESOLVED",
        "    return False",
    ),
    _one(
        "a success is undone",
        "13: success never compensates",
        f"{CORE}.commands.answer_discovery",
        '    decision.add(OutcomeDecided("succeeded", result=result), RunEnded("not_required", "succeeded"))',
        '    enter_gate(decision, run, "succeeded", moment.now_ms)',
    ),
    _one(
        "the unwind goes forward",
        "14, 15: reverse completion order",
        f"{CORE}.settlement",
        "        for step_id in reversed(completed)\n",
        "        for step_id in completed\n",
    ),
    _one(
        "an unwind stops at a failure",
        "14: the unwind goes on",
        f"{CORE}.results",
        'advance(decision, run, TargetSettled(attempt.step_id, "failed", failure=failure), moment.now_ms)',
        'decision.add(TargetSettled(attempt.step_id, "failed", failure=failure))',
    ),
    _one(
        "a late success is left out of the plan",
        "15: the plan is the successes",
        f"{CORE}.settlement",
        "    completed = [*run.completed, also] if also is not None else run.completed\n",
        "    completed = run.completed\n",
    ),
    _one(
        "every recovery looks full",
        "16: recovery says what the outcomes add up to",
        f"{CORE}.settlement",
        '    if "failed" in states:\n        return "compensation_failed"\n',
        "",
    ),
    _one(
        "a run that returns does not end",
        "17, 18: it ends or has work",
        f"{CORE}.commands.answer_discovery",
        'result=result), RunEnded("not_required", "succeeded"))',
        "result=result))",
    ),
    _one(
        "a retry is in no index",
        "18: a restart finds what waits",
        f"{CORE}.agenda",
        'if attempt.state == "authorized" or is_due(run, attempt, 0):\n        return WAKE_NOW\n',
        'if attempt.state == "authorized" or is_due(run, attempt, 0):\n        return WAKE_NOW\n    return None\n',
    ),
    _one(
        "an operator settles what is not Unknown",
        "19: Unknown ends by an answer or an operator, and nothing else does",
        f"{CORE}.commands.resolve_attempt",
        '    if attempt.state != "unknown":\n        return Refusal("stale", _not_unknown(attempt))\n    resolution',
        '    if attempt.state not in ("unknown", "authorized"):\n        return Refusal("stale", _not_unknown(attempt))\n    resolution',
    ),
    _one(
        "a refused cancel leaves a trace",
        "20: a refusal changes nothing",
        f"{ENGINE}.runs",
        "        if isinstance(decision, Refusal):\n            return decision\n",
        "        if isinstance(decision, Refusal):\n            if decision.code == 'not_cancellable':\n"
        "                self._submit(live, Decision(), (), now_ms, None, rides=False)\n            return decision\n",
    ),
    _one(
        "an operator's key is forgotten",
        "21: the same answer for ever",
        f"{ENGINE}.operations",
        "            if known is not None:\n                return _again(known, command)\n",
        "",
    ),
    _one(
        "what a worker holds never began",
        "22: proof, and nothing less",
        f"{ENGINE}.registration",
        "            if lease.request_id in held:\n",
        "            if lease.request_id in held and not held:\n",
    ),
    _one(
        "a worker does not tell what it holds",
        "22: proof, and nothing less",
        "ryusen_sdk.session",
        "                    *self._executing.values(),\n",
        "",
    ),
    _one(
        "what never began takes an ordinal",
        "22: never began consumes nothing",
        f"{CORE}.evolve",
        '    attempt.state = "queued"\n    attempt.due_at_ms = record.due_at_ms\n',
        '    attempt.state = "queued"\n    attempt.attempt += 1\n    attempt.due_at_ms = record.due_at_ms\n',
    ),
    _one(
        "retries do not wait",
        "23: nothing is early",
        f"{CORE}.pacing",
        "    return max(0, round(delay * (1 + policy.jitter * jitter)))",
        "    return 0",
    ),
    Mutant(
        "retries go when a worker is free",
        "23: nothing is early",
        (
            Edit(
                f"{ENGINE}.dispatcher",
                "        if need.due_at_ms > self._clock.now_ms() and not early:\n",
                '        if need.need != "attempt" and need.due_at_ms > self._clock.now_ms() and not early:\n',
            ),
            Edit(
                f"{CORE}.commands.authorize_attempt",
                "    if not is_due(run, attempt, moment.now_ms) and not paced_out:\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant(
        "what is due waits for a clock that went back",
        "liveness",
        (
            Edit(f"{CORE}.agenda", '"attempt", 0 if is_due(run, attempt, 0) else attempt.due_at_ms,', '"attempt", attempt.due_at_ms,'),
            Edit(
                f"{CORE}.commands.authorize_attempt",
                "    if not is_due(run, attempt, moment.now_ms) and not paced_out:\n",
                "    if moment.now_ms < attempt.due_at_ms and not paced_out:\n",
            ),
        ),
    ),
    _one(
        "a duplicate id fails the run",
        "25: a duplicate touches nothing",
        f"{CORE}.commands.answer_discovery",
        "            _block(decision, run, command, blocked.reason, blocked.step_id, (blocked.first, blocked.duplicate), message)",
        '            del message\n            enter_gate(decision, run, "failed", moment.now_ms)',
    ),
    _one(
        "memory outlives a failed commit",
        "26: folding the history gives the state",
        f"{ENGINE}.runs",
        "        if error is not None:\n            self.drop(live)\n        elif ended:\n",
        "        if ended:\n",
    ),
    _one(
        "a row lags behind",
        "26: the rows are what the history gives",
        f"{ENGINE}.runs",
        "        changed = row != live.row\n",
        "        changed = row != live.row and (live.row is None or row.status != live.row.status)\n",
    ),
    _one(
        "another application's answer counts",
        "27: nothing crosses scopes",
        f"{ENGINE}.sessions",
        "        run = live.run\n        if Scope(run.workspace, run.application) != instance.scope:\n"
        '            self._acknowledge(instance, outcome.request_id, "discarded", None)\n            return\n',
        "",
    ),
    _one(
        "a run of another workspace is operated",
        "27: nothing crosses scopes",
        f"{ENGINE}.operations",
        "        if live is None or live.run.workspace != workspace:\n",
        "        if live is None:\n",
    ),
    _one(
        "an event commits without its obligation",
        "28: event and obligation together",
        f"{ENGINE}.control",
        "            fan_out_next=0 if matched or (workspace, name) in self._waited else None,\n",
        "            fan_out_next=None,\n",
    ),
    _one(
        "leases never end",
        "liveness: a lost worker is noticed",
        f"{ENGINE}.leases",
        "        return [lease for lease in self._leases.values() if now_ms >= lease.ends_at_ms]",
        "        return []",
    ),
    _one(
        "an answer keeps its slot",
        "liveness: no slot leaks",
        f"{ENGINE}.moving",
        "        self.landed.set()\n        return self._fleet.land(request_id)\n",
        "        self.landed.set()\n        return flight\n",
    ),
    _one(
        "what a failed commit dropped is not taken up again",
        "liveness: storage faults end",
        f"{ENGINE}.moving",
        "        self.owed.setdefault(run_id, []).extend(commands)\n",
        "        self.owed.setdefault(run_id, []).extend(commands)\n        self.owed.clear()\n",
    ),
    Mutant(
        "a restart forgets what was under way",
        "liveness: a restart resumes leases",
        (
            Edit(
                f"{ENGINE}.engine",
                "        for run_id in await self._store.authorized_runs():\n            await self._mover.resume_alone(run_id)\n",
                "",
            ),
            Edit(
                f"{ENGINE}.sweeping",
                "                        await self._mover.resume_alone(row.run_id)\n",
                "                        pass\n",
            ),
        ),
    ),
    _one(
        "an unreached compensator counts as run",
        "what is recorded has happened",
        "ryusen_sdk.latch",
        "_converted(result, to_wire) if self._machine.is_discovery else NULL_RESULT",
        "_converted(result, to_wire)",
    ),
    Mutant(
        "timers settle early",
        "23: nothing is early",
        (
            Edit(
                f"{ENGINE}.dispatcher",
                "        if need.due_at_ms > self._clock.now_ms() and not early:\n",
                '        if need.need != "timer" and need.due_at_ms > self._clock.now_ms() and not early:\n',
            ),
            Edit(
                f"{CORE}.commands.settle_timer",
                "    if step.due_at_ms is not None and moment.now_ms >= step.due_at_ms:\n",
                "    if step.due_at_ms is not None:\n",
            ),
        ),
    ),
    Mutant(
        "a wait takes an event from before its registration",
        "24: accepted after registration",
        (
            Edit(f"{ENGINE}.matching", "event.metadata, before=event.position, after=after", "event.metadata, before=1 << 60, after=after"),
            Edit(f"{ENGINE}.matching", "event.position > wait.position and event.received_at_ms", "event.received_at_ms"),
            Edit(
                f"{CORE}.commands.settle_wait",
                "    elif command.accepted_position > command.registered_position and command.accepted_at_ms < step.due_at_ms:\n",
                "    elif command.accepted_at_ms < step.due_at_ms:\n",
            ),
        ),
    ),
    _one(
        "a later event overtakes an earlier one",
        "24: the earliest wins",
        f"{ENGINE}.matching",
        "        rivals: list[EventRow] = []\n        if self._under_way.has((event.workspace, event.name), besides=event.event_id):\n",
        "        rivals: list[EventRow] = []\n        if False:\n",
    ),
    _one(
        "a timeout does not look behind it",
        "24: an event before the timeout wins",
        f"{ENGINE}.matching",
        "        if not self._under_way.has((run.workspace, step.declaration.event_name)):\n",
        "        if True:\n",
    ),
    _one(
        "a correlation is not looked at",
        "24: a wait takes its event",
        f"{CORE}.correlation",
        "    return hashlib.sha256(framed(*values)).digest()",
        '    return b""',
    ),
    _one(
        "a wait that is over stays stored",
        "26: the rows are what the history gives",
        f"{ENGINE}.runs",
        "            wait_over=before is not None and live.wait is None,\n",
        "            wait_over=False,\n",
    ),
    _one(
        "a child's end is not owed",
        "28: what is owed commits with its cause",
        f"{CORE}.obligations",
        "        if isinstance(record, RunEnded) and run.parent is not None:\n",
        "        if isinstance(record, RunEnded) and run.parent is not None and run.stop is None:\n",
    ),
    _one(
        "a stop leaves the child alone",
        "28: what is owed commits with its cause",
        f"{CORE}.obligations",
        "                owed.append(StopChild(step.child_run_id, run.run_id, record.reason))\n",
        "                pass\n",
    ),
    _one(
        "what is owed is not written down",
        "28: what is owed commits with its cause",
        f"{ENGINE}.runs",
        "        writes += [ObligationWrite(",
        "        [ObligationWrite(",
    ),
    _one(
        "what is owed goes before it is carried out",
        "28: what is owed goes with what carries it out",
        f"{ENGINE}.families",
        "        decision = self._runs.apply(live, command, beside=lambda _: discharge)\n",
        "        self._store.submit(Unit((discharge,)), done)\n        decision = self._runs.apply(live, command)\n",
    ),
    _one(
        "a restart forgets what runs owe each other",
        "28: an obligation survives",
        f"{ENGINE}.engine",
        '        self._mover.spawn("obligations", self._families.load())\n',
        "",
    ),
    _one(
        "what runs owe each other is read once",
        "liveness: storage faults end",
        f"{ENGINE}.families",
        "        if self._unread:\n            await self.load()\n",
        "",
    ),
    _one(
        "a stop does not wait for the child",
        "12, 28: the gate waits for the child",
        f"{CORE}.settlement",
        '    if step is not None and step.kind == "child":\n        return True\n',
        "",
    ),
    _one(
        "a child runs in another application",
        "27: no child crosses",
        f"{CORE}.children",
        "        application=parent.application,\n",
        '        application="shop",\n',
    ),
    _one(
        "a child outlives its parent's deadline",
        "the tightest deadline bounds a child",
        f"{CORE}.children",
        '        bounds.append(Deadline(parent.deadline.at_ms, "parent"))\n',
        "        pass\n",
    ),
    _one(
        "a child's result is not its parent's",
        "a child's step completes with its result",
        f"{CORE}.commands.settle_child",
        "        outcome = replayable(run, end.result)\n",
        '        outcome = msgspec.Raw(b\'{"type":"null"}\')\n',
    ),
    _one(
        "an Unknown is not shown on the runs above",
        "26: the rows are what the history gives",
        f"{ENGINE}.runs",
        "            unknown_moved=unknown_moved,\n",
        "            unknown_moved=False,\n",
    ),
    _one(
        "a status of HTTP proves that nothing began",
        "9: an ambiguous effect is never restarted",
        "ryusen_server.transports.http.exchange",
        '        return Lost(f"it answered {reply.status}{_said(reply.body)}")\n',
        '        from ryusen_server.ports.worker import NotSent\n        return NotSent("it answered")\n',
    ),
    _one(
        "a lost exchange is taken for one that never began",
        "9: an ambiguous effect is never restarted",
        f"{ENGINE}.exchanges",
        "                self._mover.command(exchange.run_id, LoseContact(exchange.request_id, why))\n",
        "                self._mover.command(exchange.run_id, NeverBegan(exchange.request_id, why))\n",
    ),
    _one(
        "an exchange keeps its slot",
        "liveness: no slot leaks",
        f"{ENGINE}.exchanges",
        "        self._mover.land(exchange.request_id, instance)\n",
        "",
    ),
    _one(
        "what was rejected begins when it arrives again",
        "22: proven never began",
        "ryusen_sdk.http.handler",
        "            self._keep(invocation.request_id, answer)\n        return answer\n",
        "            pass\n        return answer\n",
    ),
)


class NoSuchText(LookupError):
    """A mutant's edit does not fit the source any more: bring it up to date."""


class _Planter(importlib.abc.MetaPathFinder):
    """Plants a mutant's edits into the modules it names, as they are imported."""

    def __init__(self, mutant: Mutant) -> None:
        self._edits = {module: [edit for edit in mutant.edits if edit.module == module] for module in {e.module for e in mutant.edits}}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        edits = self._edits.get(fullname)
        if edits is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Mutated(fullname, spec.origin, edits)
        return spec


class _Mutated(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, edits: list[Edit]) -> None:
        super().__init__(fullname, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        source = mutated(Path(self.path).read_text(), self._edits)
        return compile(source, self.path, "exec", dont_inherit=True)


def mutated(source: str, edits: Sequence[Edit]) -> str:
    """The source with the mistake in it. Raises `NoSuchText`."""
    for edit in edits:
        if source.count(edit.old) != 1:
            raise NoSuchText(f"{edit.module} has {source.count(edit.old)} times: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    return source


def hunt(name: str, first: int, seeds: int) -> int:
    """In a fresh process: run seeds over one mutant until one catches it. Returns 0 when one did."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    sys.meta_path.insert(0, _Planter(mutant))
    from tests.simulation.options import Options
    from tests.simulation.simulate import simulate

    for seed in range(first, first + seeds):
        result = simulate(seed, Options(steps=60))
        if result.violation is not None:
            print(f"seed {seed}: {result.violation.splitlines()[0][:150]}")
            return 0
    return 1


def main(words: list[str] | None = None) -> int:
    """Returns 1 if a mutant lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("--seeds", type=int, default=600, help="how many schedules each mutant must live through to escape")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=None, help="mutants whose name holds this")
    parser.add_argument("--hunt", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.hunt is not None:
        return hunt(given.hunt, given.first, given.seeds)
    chosen = [mutant for mutant in MUTANTS if given.only is None or given.only in mutant.name]
    began = time.perf_counter()
    with ThreadPoolExecutor(given.jobs) as pool:
        alive = [
            mutant.name
            for mutant, caught in zip(chosen, pool.map(partial(_hunted, first=given.first, seeds=given.seeds), chosen), strict=True)
            if not caught
        ]
    print(f"mutants {len(chosen)}, caught {len(chosen) - len(alive)}; {time.perf_counter() - began:.0f} s")
    for name in alive:
        print(f"  lives: {name}")
    return 1 if alive else 0


def _hunted(mutant: Mutant, first: int, seeds: int) -> bool:
    words = [sys.executable, "-m", "tests.simulation.mutants", "--hunt", mutant.name, "--from", str(first), "--seeds", str(seeds)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    caught = done.returncode == 0
    said = done.stdout.strip() or done.stderr.strip()[-400:]
    print(f"{'caught' if caught else 'LIVES '} {mutant.name} ({mutant.rule})\n         {said}", flush=True)
    return caught


if __name__ == "__main__":
    sys.exit(main())
