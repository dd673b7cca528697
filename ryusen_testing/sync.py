"""The harness for tests that are not coroutines, and fixtures of both kinds.

Owns a loop of its own, which runs only while one of its methods does. What the methods do is `Harness`'s and `HarnessRun`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from ryusen_protocol.invocation import Phase
from ryusen_sdk.app import Ryusen
from ryusen_sdk.errors import Failure
from ryusen_server.bootstrap.embedded import CrashPoint
from ryusen_testing.errors import HarnessError
from ryusen_testing.harness import Harness, Span
from ryusen_testing.run import HarnessRun
from ryusen_testing.watching import Call

T = TypeVar("T")


class SyncHarness:
    """`with SyncHarness(app) as harness`. Options are those of `Harness`; it cannot be used where a loop is running."""

    def __init__(self, app: Ryusen, **options: Any) -> None:
        self._harness = Harness(app, **options)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        _refuse_inside_a_loop()
        self._runner.__enter__()
        self._do(self._harness.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._do(self._harness.__aexit__(kind, error, trace))
        finally:
            self._runner.__exit__(kind, error, trace)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def send(self, name: str, data: object = None, *, metadata: Mapping[str, str] | None = None, key: str | None = None) -> SyncRun:
        """As `Harness.send`."""
        return SyncRun(self, self._do(self._harness.send(name, data, metadata=metadata, key=key)))

    def send_all(
        self, name: str, data: object = None, *, metadata: Mapping[str, str] | None = None, key: str | None = None
    ) -> list[SyncRun]:
        """As `Harness.send_all`."""
        return [SyncRun(self, run) for run in self._do(self._harness.send_all(name, data, metadata=metadata, key=key))]

    def emit(self, name: str, data: object = None, *, metadata: Mapping[str, str] | None = None, key: str | None = None) -> str:
        """As `Harness.emit`, and what it starts goes as far as it goes."""
        event_id = self._do(self._harness.emit(name, data, metadata=metadata, key=key))
        self._do(self._harness.settle())
        return event_id

    def runs(self) -> list[SyncRun]:
        """As `Harness.runs`."""
        return [SyncRun(self, run) for run in self._do(self._harness.runs())]

    def advance(self, span: Span) -> None:
        """As `Harness.advance`."""
        self._do(self._harness.advance(span))

    def deploy(self, app: Ryusen) -> None:
        """As `Harness.deploy`."""
        self._do(self._harness.deploy(app))

    def crash(self) -> None:
        """As `Harness.crash`."""
        self._do(self._harness.crash())

    def kill_worker(self) -> None:
        """As `Harness.kill_worker`."""
        self._do(self._harness.kill_worker())

    def settle(self) -> None:
        """As `Harness.settle`."""
        self._do(self._harness.settle())

    def crash_at(self, commit: int, how: CrashPoint = "before") -> None:
        """As `Harness.crash_at`."""
        self._harness.crash_at(commit, how)

    @property
    def commits(self) -> int:
        """As `Harness.commits`."""
        return self._harness.commits

    def lose_result(self, step_id: str, *, phase: Phase = "forward") -> None:
        """As `Harness.lose_result`."""
        self._harness.lose_result(step_id, phase=phase)

    def stub(self, step_id: str, value: object = None, *, does: Callable[..., object] | None = None, phase: Phase = "forward") -> None:
        """As `Harness.stub`."""
        self._harness.stub(step_id, value, does=does, phase=phase)

    def fail(self, step_id: str, *errors: BaseException, for_ever: bool = False, phase: Phase = "forward") -> None:
        """As `Harness.fail`."""
        self._harness.fail(step_id, *errors, for_ever=for_ever, phase=phase)

    def unstub(self, step_id: str, *, phase: Phase = "forward") -> None:
        """As `Harness.unstub`."""
        self._harness.unstub(step_id, phase=phase)

    def calls(self, step_id: str | None = None, *, phase: Phase | None = None) -> list[Call]:
        """As `Harness.calls`."""
        return self._harness.calls(step_id, phase=phase)

    @property
    def now(self) -> datetime:
        """As `Harness.now`."""
        return self._harness.now

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the harness's loop."""
        return self._do(work)


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HarnessError("a loop is running here, and a SyncHarness has one of its own; write `async with Harness(app) as harness`")


class SyncRun:
    """A `HarnessRun` of a `SyncHarness`: every member is the same, and nothing is awaited."""

    def __init__(self, harness: SyncHarness, run: HarnessRun) -> None:
        self._harness = harness
        self._run = run
        self.run_id = run.run_id

    @property
    def function(self) -> str:
        """As `HarnessRun.function`."""
        return self._run.function

    @property
    def status(self) -> str:
        """As `HarnessRun.status`."""
        return self._run.status

    @property
    def outcome(self) -> str | None:
        """As `HarnessRun.outcome`."""
        return self._run.outcome

    @property
    def recovery(self) -> str | None:
        """As `HarnessRun.recovery`."""
        return self._run.recovery

    @property
    def result(self) -> object:
        """As `HarnessRun.result`."""
        return self._run.result

    @property
    def details(self) -> HarnessRun:
        """Everything else that a run tells without waiting: `steps`, `undone`, `unknown`, `failure`, `waits_for`."""
        return self._run

    def ended(self) -> SyncRun:
        """As `HarnessRun.ended`."""
        self._harness.do(self._run.ended())
        return self

    def cancel(self) -> None:
        """As `HarnessRun.cancel`."""
        self._harness.do(self._run.cancel())

    def resolve(self, step_id: str, *, result: object = None, failure: Failure | None = None, retry: bool = False) -> None:
        """As `HarnessRun.resolve`."""
        self._harness.do(self._run.resolve(step_id, result=result, failure=failure, retry=retry))

    def __repr__(self) -> str:
        return repr(self._run)


def harness_fixture(app: Ryusen, **options: Any) -> Callable[..., AsyncIterator[Harness]]:
    """A pytest fixture that gives each test a `Harness` of its own; needs pytest-asyncio. `harness = harness_fixture(app)`."""
    import pytest_asyncio

    @pytest_asyncio.fixture
    async def harness() -> AsyncIterator[Harness]:
        async with Harness(app, **options) as opened:
            yield opened

    return harness


def sync_harness_fixture(app: Ryusen, **options: Any) -> Callable[..., Iterator[SyncHarness]]:
    """As `harness_fixture`, for tests that are not coroutines."""
    import pytest

    @pytest.fixture
    def harness() -> Iterator[SyncHarness]:
        with SyncHarness(app, **options) as opened:
            yield opened

    return harness
