"""Who settles a generation: a late result, operators, a cancel and a deadline come at once, in any order.

Every seed is one interleaving, down to single turns of the loop, with commits that are held back and commits that fail.
`RYUSEN_RACES` says how many there are.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from ryusen_protocol.ids import AttemptId, RunId
from ryusen_protocol.operator import AuthorizeRetry, Command, DeclareFailure, RefusalEnvelope, ResolveCommand, SupplySuccess
from ryusen_protocol.outcome import CallbackFailed, OutcomeBody, Succeeded
from ryusen_server.core.evolve import decode_records
from ryusen_server.core.records import (
    AttemptAuthorized,
    AttemptQueued,
    AttemptSettled,
    DiscoveryQueued,
    Record,
    StepCompleted,
    StopRequested,
)
from ryusen_server.core.state import UNRESOLVED
from ryusen_server.ports.store import StorageUnavailable
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error, value

RACES = int(os.environ.get("RYUSEN_RACES", "1000"))
CHUNKS = 10
SEEDS_A_BENCH = 50
TIMEOUT_MS = 10_000
FUNCTION = body(Step("paid", undo=[None]), Step("held", undo=[None]))


class Race:
    """One run whose step `held` is out, and everybody who has something to say about it."""

    def __init__(self, bench: Bench, worker: FakeWorker, seed: int) -> None:
        self.bench = bench
        self.worker = worker
        self.seed = seed
        self.chance = Random(seed)
        self.answers: list[tuple[str, Command, bytes | RefusalEnvelope | None]] = []

    async def begin(self) -> None:
        self.worker.holding("forward", "held")
        self.run_id: RunId = await self.bench.begin()
        (self.request_id,) = list(self.worker.executing)
        run = await self.bench.run(self.run_id)
        self.attempt_id: AttemptId = run.steps["held"].attempts[-1]  # type: ignore[index]  # ids are text
        self.operation_id = run.attempts[self.attempt_id].operation_id
        if self.chance.random() < 0.8:
            self.bench.engine.unreadable_outcome(self.worker.session_id, self.request_id, "garbled")
            await self.bench.settle()

    async def run(self) -> None:
        """Everybody at once, each after some turns of the loop; then calm until the end."""
        contenders: list[Callable[[], Awaitable[None]]] = [
            self.late,
            *(self.operate(command) for command in self.chance.sample(self.commands(), self.chance.randrange(1, 4))),
            *self.chance.sample([self.cancel, self.deadline, self.lose, self.hold_commits, self.fail_a_commit, self.resend], 3),
        ]
        self.chance.shuffle(contenders)
        await asyncio.gather(*(self.after(self.chance.randrange(14), contender) for contender in contenders))
        await self.bench.settle()
        self.bench.memory.release()
        self.bench.memory.failing_commits.clear()
        await self.bench.settle()
        for _ in range(40):
            self.worker.release_all()
            self.worker.resend()
            if not self.worker.unacknowledged and (await self.bench.run(self.run_id)).attempts[self.attempt_id].state in UNRESOLVED:
                # It gave up its answer when a garbled one was acknowledged, and the commit of the answer failed after that.
                self.worker.submit(self.request_id, self.run_id, Succeeded(value("late"), 1, 1))
            await self.bench.advance(500, beating=[self.worker])
            if (await self.bench.row(self.run_id)).status == "ended":
                return
        raise AssertionError(f"seed {self.seed}: {await self.bench.row(self.run_id)}")

    def commands(self) -> list[Command]:
        return [
            SupplySuccess(value("supplied")),
            SupplySuccess(value("supplied otherwise")),
            DeclareFailure(error("declared", retryable=True)),
            DeclareFailure(error("declared", retryable=False)),
            AuthorizeRetry(),
        ]

    async def after(self, turns: int, act: Callable[[], Awaitable[None]]) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await act()

    # contenders

    async def late(self) -> None:
        answer: OutcomeBody = Succeeded(value("late"), 1, 1)
        if self.chance.random() < 0.3:
            answer = CallbackFailed(error("late"), 1, 1)
        self.worker.finish(self.request_id, answer)

    def operate(self, command: Command) -> Callable[[], Awaitable[None]]:
        key = f"key-{self.seed}-{self.chance.random()}"

        async def send() -> None:
            request = ResolveCommand(attempt_id=self.attempt_id, attempt_generation=1, idempotency_key=key, command=command)
            try:
                answer = await self.bench.engine.resolve(DEFAULT, request, by="racer")
            except StorageUnavailable:
                answer = None
            self.answers.append((key, command, answer))

        return send

    async def cancel(self) -> None:
        try:
            await self.bench.engine.cancel(DEFAULT, self.run_id, by="racer")
        except StorageUnavailable:
            return

    async def deadline(self) -> None:
        self.bench.clock.jump(TIMEOUT_MS)
        if self.chance.random() < 0.5:
            self.bench.engine._dispatcher.fire()

    async def lose(self) -> None:
        self.bench.engine.unreadable_outcome(self.worker.session_id, self.request_id, "garbled")

    async def resend(self) -> None:
        self.worker.resend()

    async def hold_commits(self) -> None:
        self.bench.memory.hold()
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        self.bench.memory.release()

    async def fail_a_commit(self) -> None:
        self.bench.memory.failing_commits.add(self.bench.memory.commits + 1)

    # verdict

    async def verdict(self) -> Counter[str]:
        """One winner, and everything after it as the winner says. Tells what this interleaving was."""
        records: list[Record] = [record for row in self.bench.memory.rows_of(self.run_id) for record in decode_records(row.records)]
        settled = [record for record in records if isinstance(record, AttemptSettled) and record.attempt_id == self.attempt_id]
        assert len(settled) == 1, f"seed {self.seed}"
        (winner,) = settled
        seen = Counter({f"won by {'operator' if winner.operator else 'worker'}": 1, winner.state: 1})
        seen += self._check_answers(winner)
        self._check_stop(records, winner, seen)
        await self._check_end(records, winner)
        await self._check_replays()
        return seen

    def _check_answers(self, winner: AttemptSettled) -> Counter[str]:
        seen: Counter[str] = Counter()
        accepted = [ack for ack in self.worker.acks if ack.request_id == self.request_id and ack.disposition == "accepted"]
        applied = [answer for _, _, answer in self.answers if isinstance(answer, bytes)]
        assert len(accepted) + len(applied) == 1, f"seed {self.seed}: {accepted} {self.answers}"
        assert bool(applied) == (winner.operator is not None), f"seed {self.seed}"
        for _, command, answer in self.answers:
            if isinstance(answer, RefusalEnvelope):
                seen[answer.refusal.code] += 1
                allowed = ("stale", "retry_forbidden", "deadline_elapsed") if isinstance(command, AuthorizeRetry) else ("stale",)
                assert answer.refusal.code in allowed, f"seed {self.seed}: {answer}"
        return seen

    def _check_stop(self, records: list[Record], winner: AttemptSettled, seen: Counter[str]) -> None:
        stops = [index for index, record in enumerate(records) if isinstance(record, StopRequested)]
        assert len(stops) <= 1, f"seed {self.seed}: the reason is written once"
        if not stops:
            return
        seen["stopped"] += 1
        seen["stopped before it was settled"] += records.index(winner) > stops[0]
        assert not begun_forward(records, stops[0]), f"seed {self.seed}"
        if records.index(winner) > stops[0]:
            assert winner.state in ("succeeded", "failed", "fenced"), f"seed {self.seed}"

    async def _check_end(self, records: list[Record], winner: AttemptSettled) -> None:
        run = await self.bench.run(self.run_id)
        step = run.steps["held"]  # type: ignore[index]  # ids are text
        assert {run.attempts[attempt].operation_id for attempt in step.attempts} == {self.operation_id}
        completions = [record for record in records if isinstance(record, StepCompleted) and record.step_id == "held"]
        assert len(completions) <= 1, f"seed {self.seed}"
        stop = next((record for record in records if isinstance(record, StopRequested)), None)
        if stop is not None:
            assert run.outcome == stop.reason, f"seed {self.seed}"
        if winner.state == "succeeded":
            assert len(step.attempts) == 1, f"seed {self.seed}"
            spoken = [value("late"), value("supplied"), value("supplied otherwise")]
            assert step.result in spoken, f"seed {self.seed}"
            assert (step.result == value("late")) == (winner.operator is None), f"seed {self.seed}"
        plan = [target.step_id for target in run.unwind]
        expected = [step_id for step_id in ("held", "paid") if run.steps[step_id].state == "succeeded"]  # type: ignore[index]
        assert plan == ([] if run.outcome == "succeeded" else expected), f"seed {self.seed}"

    async def _check_replays(self) -> None:
        """Whoever was obeyed is answered alike for ever; whoever was refused has not used up the key."""
        units = sum(bool(unit.writes) for unit in self.bench.memory.units)
        for key, command, answer in self.answers:
            request = ResolveCommand(attempt_id=self.attempt_id, attempt_generation=1, idempotency_key=key, command=command)
            again = await self.bench.engine.resolve(DEFAULT, request, by="racer")
            if isinstance(answer, bytes):
                assert isinstance(again, bytes)
                first: dict[str, Any] = msgspec.json.decode(answer)
                assert msgspec.json.decode(again) == {**first, "status": "replayed"}
            else:
                assert isinstance(again, RefusalEnvelope), f"seed {self.seed}"
                assert again.refusal.code == "stale"
        assert sum(bool(unit.writes) for unit in self.bench.memory.units) == units


@pytest.mark.req("ACC-66", "ACC-67", "UNK-03", "UNK-07", "UNK-08", "UNK-09", "OPR-21", "OPR-22", "STOP-02", "STOP-06")
@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_every_interleaving_has_one_winner(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for start in range(chunk, RACES, CHUNKS * SEEDS_A_BENCH):
        async with Bench(merge=chunk % 2 == 0, early=chunk % 3 != 0) as bench:
            await bench.publish(timeouts={"f": TIMEOUT_MS})
            worker = await bench.connected(functions={"f": FUNCTION})
            for seed in range(start, min(start + CHUNKS * SEEDS_A_BENCH, RACES), CHUNKS):
                race = Race(bench, worker, seed)
                await race.begin()
                await race.run()
                seen += await race.verdict()
    if RACES >= 1_000:
        for kind in (
            "won by operator",
            "won by worker",
            "retry_authorized",
            "succeeded",
            "failed",
            "stale",
            "stopped before it was settled",
        ):
            assert seen[kind], (kind, seen)


# a cancel among steps that come and go


@pytest.mark.req("STOP-02", "STOP-04", "STOP-06")
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("early", [True, False])
async def test_b35_nothing_forward_begins_once_a_cancel_is_committed(merge: bool, early: bool) -> None:
    first = 2 * merge + early
    stopped = 0
    for start in range(first, RACES // 2, 4 * SEEDS_A_BENCH):
        async with Bench(merge=merge, early=early) as bench:
            await bench.serving(body(*(Step(f"s{index}", undo=[None]) for index in range(5))))
            for seed in range(start, min(start + 4 * SEEDS_A_BENCH, RACES // 2), 4):
                stopped += await cancelled_somewhere(bench, seed)
    assert 0 < stopped < RACES // 8, "some runs end before their cancel, most do not"


async def cancelled_somewhere(bench: Bench, seed: int) -> bool:
    """Cancel a run of short steps after some turns of the loop; whether it was stopped by that."""
    event_id = (await bench.submit()).event.event_id
    while not await bench.store.event_runs(event_id):  # noqa: ASYNC110  # the seed counts turns of the loop from here
        await asyncio.sleep(0)
    run_id = await bench.only_run(event_id)
    for _ in range(Random(seed).randrange(60)):
        await asyncio.sleep(0)
    await bench.engine.cancel(DEFAULT, run_id, by="racer")
    await bench.settle()
    run = await bench.run(run_id)
    assert run.status == "ended", f"seed {seed}"
    records = [record for row in bench.memory.rows_of(run_id) for record in decode_records(row.records)]
    at = next((index for index, record in enumerate(records) if isinstance(record, StopRequested)), None)
    if at is None:
        assert run.outcome == "succeeded", f"seed {seed}: the intent is lost"
        return False
    assert run.outcome == "cancelled", f"seed {seed}"
    assert not begun_forward(records, at), f"seed {seed}"
    done = [step_id for step_id, step in run.steps.items() if step.state == "succeeded"]
    assert [target.step_id for target in run.unwind] == done[::-1], f"seed {seed}"
    return True


def begun_forward(records: list[Record], at: int) -> list[Record]:
    """What would begin forward work among the records from one on."""
    forward = {record.attempt_id for record in records if isinstance(record, AttemptQueued) and record.phase == "forward"}
    return [
        record
        for record in records[at:]
        if isinstance(record, DiscoveryQueued) or (isinstance(record, (AttemptQueued, AttemptAuthorized)) and record.attempt_id in forward)
    ]


# what is not durable yet


@pytest.mark.req("OPR-17", "OPR-22")
@pytest.mark.parametrize("lost", [False, True])
async def test_a_refusal_is_told_only_when_what_it_rests_on_is_durable(lost: bool) -> None:
    async with Bench() as bench:
        await bench.publish()
        race = Race(bench, await bench.connected(functions={"f": FUNCTION}), seed=3)
        await race.begin()
        assert (await bench.run(race.run_id)).attempts[race.attempt_id].state == "unknown"
        bench.memory.hold()
        await race.late()
        sending = asyncio.ensure_future(race.operate(AuthorizeRetry())())
        await bench.settle()
        assert not sending.done(), "the result may be rolled back yet, and then the attempt is Unknown still"
        if lost:
            bench.memory.failing_commits.add(bench.memory.commits + 1)
        bench.memory.release()
        await sending
        ((_, _, answer),) = race.answers
        assert (answer is None) == lost
        race.worker.release_all()
        await bench.advance(2_000, beating=[race.worker])
        race.worker.resend()
        await bench.settle()
        assert await bench.ended(race.run_id) == ("succeeded", "not_required")
