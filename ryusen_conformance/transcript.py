"""Transcripts: conversations written down step by step, and the one reader that plays a peer's part in them.

| step | the peer |
|---|---|
| `{"accept": true}` | waits for the subject to connect, cutting a connection that is still up |
| `{"connect": true}` | connects to the subject |
| `{"say": frame}` | sends the frame; a text `$name` is what that name stands for |
| `{"hear": pattern}` | receives the next frame, which must match |
| `{"hear_all": [pattern, …]}` | receives as many frames, which must match in some order |
| `{"cut": true}` | ends the connection without a word |
| `{"stop": true}` | asks the subject's process to stop, as a supervisor does |
| `{"ended": true}` | waits for the subject's process to end |
| `{"calls": [text, …], "run": id}` | asks for the calls noted for a run, which must be these |
| `{"post": path, "body": …, "status": n, "answer": pattern}` | sends an HTTP request; the answer must match |
| `{"get": path, "answer": pattern}` | asks again until the answer matches |

Heartbeats and log frames may come at any time; they are passed over unless a step waits for one, and then the first that matches counts.

Owns the steps, not the wires: `Stage` moves the frames.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from ryusen_conformance.expectation import JsonDict, bound, mismatch

_ANY_TIME: Final = frozenset({"heartbeat", "log"})


class StageFailed(Exception):
    """A step that did not come about: nothing arrived, the connection ended, a process did not stop."""


class Stage(Protocol):
    """What a transcript is played on. Waits are bounded; every method may raise `StageFailed`, also for what it cannot do."""

    async def open(self) -> None:
        """The subject's next connection, or a new one to it."""
        ...

    async def send(self, frame: JsonDict) -> None: ...
    async def receive(self) -> JsonDict: ...
    async def cut(self) -> None: ...
    async def stop(self) -> None: ...
    async def ended(self) -> None: ...
    async def calls(self, run_id: str) -> list[str]: ...
    async def post(self, path: str, body: JsonDict) -> tuple[int, Any]: ...
    async def get(self, path: str) -> tuple[int, Any]: ...
    async def pause(self) -> bool:
        """A moment before a `get` is repeated; `False` when it was long enough."""
        ...


async def play(steps: list[JsonDict], stage: Stage, names: dict[str, Any]) -> str | None:
    """Plays a transcript. What is wrong with the subject, naming the step; `None` if nothing is."""
    for number, step in enumerate(steps, 1):
        try:
            wrong = await _step(step, stage, names)
        except StageFailed as failed:
            wrong = str(failed)
        if wrong is not None:
            return f"step {number} ({next(iter(step))}): {wrong}"
    return None


async def _step(step: JsonDict, stage: Stage, names: dict[str, Any]) -> str | None:  # noqa: C901 - one branch a step
    match step:
        case {"accept": True} | {"connect": True}:
            await stage.open()
        case {"say": frame}:
            await stage.send(bound(frame, names))
        case {"hear": pattern}:
            return await _hear(pattern, stage, names)
        case {"hear_all": patterns}:
            return await _hear_all(patterns, stage, names)
        case {"cut": True}:
            await stage.cut()
        case {"stop": True}:
            await stage.stop()
        case {"ended": True}:
            await stage.ended()
        case {"calls": expected, "run": run}:
            noted = await stage.calls(bound(run, names))
            return None if noted == bound(expected, names) else f"callbacks ran: {noted}, not {expected}"
        case {"post": path, "body": body, "status": status}:
            code, answer = await stage.post(_filled(path, names), bound(body, names))
            wrong = mismatch(answer, step.get("answer", {}), names)
            return wrong if code == status else f"status {code} with {str(answer)[:200]}, not {status}"
        case {"get": path, "answer": pattern}:
            return await _get(_filled(path, names), pattern, stage, names)
        case _:
            raise AssertionError(f"no step of a transcript: {step}")
    return None


async def _hear(pattern: JsonDict, stage: Stage, names: dict[str, Any]) -> str | None:
    while True:
        frame = await stage.receive()
        kind = frame.get("type")
        if kind in _ANY_TIME:
            trial = dict(names)
            if pattern.get("type") == kind and mismatch(frame, pattern, trial) is None:
                names.update(trial)
                return None
            continue
        return mismatch(frame, pattern, names)


async def _hear_all(patterns: list[JsonDict], stage: Stage, names: dict[str, Any]) -> str | None:
    waiting = list(patterns)
    while waiting:
        frame = await stage.receive()
        if frame.get("type") in _ANY_TIME:
            continue
        wrongs: list[str] = []
        for pattern in waiting:
            trial = dict(names)
            wrong = mismatch(frame, pattern, trial)
            if wrong is None:
                names.update(trial)
                waiting.remove(pattern)
                break
            wrongs.append(wrong)
        else:
            return f"an unexpected {frame.get('type')!r} frame: " + "; or: ".join(wrongs)
    return None


async def _get(path: str, pattern: Any, stage: Stage, names: dict[str, Any]) -> str | None:
    while True:
        trial = dict(names)
        status, answer = await stage.get(path)
        wrong = mismatch(answer, pattern, trial) if status == 200 else f"status {status} with {str(answer)[:200]}"
        if wrong is None:
            names.update(trial)
            return None
        if not await stage.pause():
            return wrong


def _filled(path: str, names: dict[str, Any]) -> str:
    """A path with `{name}` filled in."""
    for name, content in names.items():
        path = path.replace("{" + name + "}", str(content))
    return path
