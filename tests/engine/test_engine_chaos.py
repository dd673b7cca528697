"""Random lives of a server: workers come and go, the disk fails, the process dies, operators cancel, the clock jumps.

Once the faults stop, every run has ended or shows an Unknown attempt whose worker lost it; nothing ran twice for one generation, nothing
accepted was lost, and what is in memory is what is stored (`Bench` holds every life to that).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from ryusen_protocol.ids import EventId
from ryusen_sdk.histories import Histories
from ryusen_server.ports.store import StorageUnavailable
from tests.engine.bench import DEFAULT, Bench
from tests.engine.bench_worker import FakeWorker, Step, body, error

TERMINAL = error("terminal", retryable=False)
FUNCTIONS = {
    "f": body(Step("a", undo=[None]), Step("b", forward=[error(), None], undo=[error(), None]), Step("c", forward=[TERMINAL])),
    "g": body(Step("a"), Step("b", timeout_ms=4_000)),
}
TRIGGERS = [("go", "f"), ("go", "g"), ("go", "g")]


class Life:
    """One random life. Every act may find nothing to do."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.accepted: dict[str, EventId] = {}
        self.workers: list[FakeWorker] = []
        self.sent = 0

    def acts(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        return [
            (4, self.submit),
            (8, self.wait),
            (8, self.finish_one),
            (2, self.reject_one),
            (1, self.garble_one),
            (3, self.cut),
            (4, self.come_back),
            (1, self.lose_reads),
            (2, self.forget_histories),
            (3, self.beat),
            (3, self.resend),
            (1, self.crash),
            (2, self.break_store),
            (3, self.mend_store),
            (2, self.cancel),
            (1, self.jump),
            (1, self.drain_one),
            (1, self.hold_commits),
            (2, self.release_commits),
        ]

    async def submit(self) -> None:
        self.sent += 1
        key = f"k{self.chance.randrange(max(1, self.sent))}"
        if self.bench.memory._held:
            return
        try:
            accepted = await self.bench.submit(key=key)
        except StorageUnavailable:
            return
        if key in self.accepted:
            assert accepted.replayed
            assert self.accepted[key] == accepted.event.event_id
        self.accepted[key] = accepted.event.event_id

    async def wait(self) -> None:
        await self.bench.advance(self.chance.choice([1, 250, 1_000, 5_000, 12_000, 35_000]))

    def busy(self) -> list[FakeWorker]:
        return [worker for worker in self.workers if worker.executing]

    async def finish_one(self) -> None:
        for worker in self.busy():
            worker.finish(self.chance.choice(list(worker.executing)))

    async def reject_one(self) -> None:
        for worker in self.busy()[:1]:
            worker.reject(self.chance.choice(list(worker.executing.values())))

    async def garble_one(self) -> None:
        for worker in self.busy()[:1]:
            if worker.channel is not None:
                self.bench.engine.unreadable_outcome(worker.session_id, self.chance.choice(list(worker.executing)), "garbled")

    async def cut(self) -> None:
        connected = [worker for worker in self.workers if worker.channel is not None]
        if connected:
            self.chance.choice(connected).disconnect()

    async def come_back(self) -> None:
        gone = [worker for worker in self.workers if worker.channel is None]
        if gone and not self.bench.memory._held:
            worker = self.chance.choice(gone)
            worker.draining = False
            await worker.register()

    async def forget_histories(self) -> None:
        """A worker's copies gave way to others."""
        self.chance.choice(self.workers).histories = Histories()

    async def lose_reads(self) -> None:
        gone = [worker for worker in self.workers if worker.channel is None]
        if gone:
            self.chance.choice(gone).forget()

    async def beat(self) -> None:
        for worker in self.workers:
            if worker.channel is not None and self.chance.random() < 0.8:
                worker.heartbeat() if worker.executing else worker.heartbeat_empty()

    async def resend(self) -> None:
        for worker in self.workers:
            if worker.channel is not None:
                worker.resend()

    async def crash(self) -> None:
        self.bench.memory.fault = self.bench.memory.write_fault = None
        await self.bench.crash()
        if self.chance.random() < 0.5:
            self.bench.clock.jump(self.chance.choice([1_000, 60_000]))
        await self.bench.engine.start()

    async def break_store(self) -> None:
        if self.chance.random() < 0.5:
            self.bench.memory.write_fault = "disk full"
        else:
            self.bench.memory.fault = "unplugged"

    async def mend_store(self) -> None:
        self.bench.memory.fault = self.bench.memory.write_fault = None

    async def cancel(self) -> None:
        runs = self.bench.memory.run_ids()
        if runs and not self.bench.memory._held:
            try:
                await self.bench.engine.cancel(DEFAULT, self.chance.choice(runs), by="chaos")
            except StorageUnavailable:
                return

    async def jump(self) -> None:
        self.bench.clock.jump(self.chance.choice([-30_000, -1_000, 1_000, 30_000]))

    async def drain_one(self) -> None:
        for worker in self.workers[:1]:
            if worker.channel is not None and not worker.draining:
                worker.drain()

    async def hold_commits(self) -> None:
        self.bench.memory.hold()

    async def release_commits(self) -> None:
        self.bench.memory.release()

    async def calm(self) -> None:
        """The faults stop; every worker comes back and answers what it still holds."""
        bench = self.bench
        bench.memory.release()
        bench.memory.fault = bench.memory.write_fault = None
        await bench.settle()
        for worker in self.workers:
            worker.draining = False
            worker.holds = lambda _: False
            if worker.channel is None:
                await worker.connect()
            else:
                worker.disconnect()
                await worker.connect()
            worker.release_all()
        for _ in range(400):
            if all(row.status == "ended" or row.attention == "unknown" for row in bench.memory._runs.values()):
                break
            await bench.advance(1_000, beating=self.workers)
            for worker in self.workers:
                worker.heartbeat() if worker.executing else worker.heartbeat_empty()
            await self.resend()
            await bench.settle()

    def verdict(self) -> None:
        store = self.bench.memory
        for key, event_id in self.accepted.items():
            event = store._events[event_id]
            assert event.fan_out_next is None, key
            assert sum(row.event_id == event_id for row in store._runs.values()) == len(TRIGGERS)
        held = {request_id for worker in self.workers for request_id in (*worker.executing, *worker.unacknowledged)}
        for run_id, row in store._runs.items():
            run = store.folded(run_id)
            assert run is not None
            if row.status != "ended":
                attempt = run.current_attempt()
                assert row.attention == "unknown", row
                assert attempt is not None
                assert attempt.request_id not in held
            else:
                assert run.outcome in {"succeeded", "failed", "cancelled"}
                if run.function == "f":
                    assert run.outcome != "succeeded"
                assert all(target.state != "pending" for target in run.unwind)
        assert not any(worker.unacknowledged for worker in self.workers)


@pytest.mark.parametrize("seed", range(60))
async def test_a_random_life_ends_well(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(
        merge=chance.random() < 0.7,
        early=chance.random() < 0.7,
        fan_out_batch=chance.choice([1, 2, 64]),
        runs_in_memory=chance.choice([1, 3, 20_000]),
    )
    async with bench:
        await bench.publish(TRIGGERS)
        life = Life(bench, chance)
        for index, release_id in enumerate([None, "r1", "r2"]):
            worker = await bench.connected(f"wk_{index}", functions=FUNCTIONS, capacity=index + 1, release_id=release_id)
            life.workers.append(worker)
            worker.strict = False
            worker.holds = lambda _: chance.random() < 0.5
        weights, acts = zip(*life.acts(), strict=True)
        for _ in range(120):
            await chance.choices(acts, weights)[0]()
            if chance.random() < 0.7:
                await bench.settle()
        await life.calm()
        life.verdict()
