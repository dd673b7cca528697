"""The end of a life: faults stop, everything that can get well does, and every run must end or show what it waits for."""

from __future__ import annotations

import asyncio

from tests.core.driving import durable_snapshot
from tests.simulation.life import Life
from tests.simulation.world import World

PATIENCE_S = 1_800
CLOCK_IS_WRONG_S = 20
"""What needs no instant has to go on under a clock that went back; what waits for one may wait until the clock is set right."""
LONGEST_SILENCE_S = 70
"""After this a connection to a worker that is gone without a word has been given up, and an exchange that nobody answers."""


async def calm(life: Life) -> None:
    """Stop the faults and wait. Old code drains first; then the last release comes, in which nothing blocks a run."""
    world = life.world
    world.trace("calm")
    world.faults.calm()
    world.conditions.slow = 0.0
    for site in world.server.sites:
        site.trouble = 0.0
    world.outside.calm = True
    world.server.start()
    await life.finish_errands()
    await _replace_code(life)
    await _end_runs(life)
    await life.finish_errands()
    for _ in range(LONGEST_SILENCE_S):
        await asyncio.sleep(1)
        world.server.start()  # one that was told to stop before the calm may have ended since
        if _is_quiet(world):
            break


async def _replace_code(life: Life) -> None:
    world = life.world
    for worker in world.workers():
        worker.resume()
        worker.drain()
    for _ in range(300):
        world.server.start()
        if not world.workers():
            break
        await asyncio.sleep(1)
    for worker in world.workers():
        worker.kill("because it does not end")
    for deployment in world.deployments:
        deployment.current = deployment.last_release(world.functions[deployment.scope])
        world.start_worker(deployment, release=deployment.current, capacity=4)
        life.publish_now(deployment)


async def _end_runs(life: Life) -> None:
    world = life.world
    waited = 0
    while waited < PATIENCE_S and not all(audit.shadow.status == "ended" for audit in world.auditor.runs.values()):
        step = 1 if waited < 60 else 15
        waited += step
        if waited == CLOCK_IS_WRONG_S:
            world.wall.mend()
        world.server.start()
        _settle_abandoned(life)
        await asyncio.sleep(step)


def _settle_abandoned(life: Life) -> None:
    """An operator settles what is Unknown and what no living worker will answer."""
    held = _held(life.world)
    for audit in life.world.auditor.runs.values():
        attempt = audit.shadow.current_attempt()
        if attempt is not None and attempt.state == "unknown" and attempt.request_id not in held:
            life.settle(audit.shadow)


def _is_quiet(world: World) -> bool:
    life = world.server.life
    if life is None or not life.is_ready or life.is_closing or not life.store.is_idle:
        return False
    engine = life.engine
    busy = (engine._fleet._flights, engine._leases._leases, engine._mover.owed, engine._control._retry, engine._mover.tasks)
    return not any(busy) and not world.disk._obligations


def _held(world: World) -> set[str]:
    """Requests that a living worker will still answer."""
    return {request for worker in world.connected() for request in (*worker.session._executing, *worker.session._unacknowledged)}


def verdict(life: Life) -> None:
    """What must be true of every life at its end."""
    world = life.world
    _tasks(world)
    world.auditor.check_all()
    _events(world)
    _runs(world)
    _memory(world)


def _tasks(world: World) -> None:
    """What asyncio would complain of when it collects a task: here each one is kept. A dead process heard of nothing."""
    for task, process in world.loop.tasks:
        if (process is None or process.alive) and task.done() and not task.cancelled() and task._log_traceback:
            error = task.exception()
            raise AssertionError(f"a task failed and nobody took notice: {error!r}") from error


def _events(world: World) -> None:
    for event_id, sent in world.accepted.items():
        stored = world.disk._events.get(event_id)
        assert stored is not None, f"invariant 1: the acknowledged event {event_id} is gone"
        assert stored.payload == sent.payload
    for event in world.disk._events.values():
        assert event.fan_out_next is None, f"liveness: the fan-out of {event.event_id} does not end"
        expected = world.bindings.runs(event.event_id, event.routing_generation, event.name)
        found = {run_id for run_id, row in world.disk._runs.items() if row.event_id == event.event_id}
        assert found == expected, f"invariant 2: {event.event_id} started {sorted(found)}, not {sorted(expected)}"


def _runs(world: World) -> None:
    for run_id, audit in world.auditor.runs.items():
        run = audit.shadow
        assert run_id in world.disk._runs, f"{run_id} is gone"
        where = f"{run.workspace}/{run.application} {run.function}: {run.status}, {run.current_attempt() or run.blocker}"
        assert run.status == "ended", f"liveness: {run_id} does not end ({where})"
    for worker in world.connected():
        assert not worker.session._unacknowledged, f"liveness: {worker.name} waits for acknowledgements for ever"


def _memory(world: World) -> None:
    """Nothing is held for anything that is over, and what is in memory is what is durable."""
    life = world.server.life
    assert life is not None, "the server is down after the faults have stopped"
    assert life.is_ready, "the server does not get ready"
    engine = life.engine
    for run_id, live in engine._runs._live.items():
        shadow = world.auditor.runs[run_id].shadow
        assert live.uncommitted == 0, f"{run_id} waits for a commit"
        assert durable_snapshot(live.run) == durable_snapshot(shadow), f"invariant 26: {run_id} is in memory as it is not in the store"
    assert not engine._leases._leases, f"leases are left: {list(engine._leases._leases)}"
    assert not engine._fleet._flights, f"slots are taken: {list(engine._fleet._flights)}"
    for instance in engine._fleet.all():
        assert not instance.flights, f"{instance.instance_id} holds slots: {list(instance.flights)}"
    assert engine._dispatcher.waiting == 0, "runs wait for a worker that is there"
    assert not engine._dispatcher._ready
    assert not engine._mover.owed, "runs wait to be loaded again"
    assert not world.disk._obligations, f"what runs owe each other is left: {list(world.disk._obligations)}"
    assert not world.disk._waits, f"waits are left: {list(world.disk._waits)}"
    assert not engine._families._again
    assert not engine._control._matching._contended
    assert not engine._control._under_way._name_of, "events are being expanded for ever"
    assert not engine._control._waited._waits, f"names are waited for by nobody: {engine._control._waited._waits}"
    assert not engine._control._expanding
    assert not engine._control._retry
    assert not engine._control._keys
    assert not engine._operations._keys
