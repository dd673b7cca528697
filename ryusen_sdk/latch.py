"""One pass as a function body meets it: the decision machine behind a latch.

Owns the stop signal and the promise that a stopped pass stays stopped: the first answer stands, and no later boundary reaches the
machine, whatever the body catches, returns or declares afterwards. Runs no callback itself.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from ryusen_protocol.invocation import CompensationTarget, ForwardTarget
from ryusen_protocol.outcome import Declared, Succeeded
from ryusen_sdk.convert import to_wire
from ryusen_sdk.errors import ConversionError, MisuseError, StepFailed, attempt_timeout, invalid_result, record_of
from ryusen_sdk.machine import NULL_RESULT, Boundary, Execute, Machine, PassOver, Raise, Replay, Stop
from ryusen_sdk.operation import current_operation, current_pass

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    import msgspec

    from ryusen_protocol.ids import FunctionId
    from ryusen_protocol.invocation import Invocation
    from ryusen_protocol.outcome import OutcomeBody
    from ryusen_sdk.operation import Operation


_log: Final = logging.getLogger("ryusen.sdk")
_REASON_CHARACTERS_MAX: Final = 300


class PassStopped(BaseException):
    """Ends a body at its boundary. Not an `Exception`, so that `except Exception` never sees it; each raise is a fresh instance."""


class Callback:
    """What the target asks for: a callable with its arguments, under one operation."""

    __slots__ = ("args", "function", "operation", "timeout_ms")

    def __init__(self, function: Callable[..., object], args: tuple[object, ...], operation: Operation, timeout_ms: int | None) -> None:
        self.function = function
        self.args = args
        self.operation = operation
        self.timeout_ms = timeout_ms


class AttemptTimedOut(Exception):
    """An async callback was cancelled at its timeout and has unwound. The cause is what it raised meanwhile, if anything."""

    def __init__(self, timeout_ms: int, error: BaseException | None) -> None:
        super().__init__(f"timed out after {timeout_ms} ms")
        self.timeout_ms = timeout_ms
        self.error = error


class Effects(Protocol):
    """Runs callbacks where they belong; supplied by the host."""

    @property
    def is_abandoned(self) -> bool:
        """The worker ends at once: nothing is waited for any more."""
        ...

    async def from_async(self, callback: Callback) -> object:
        """Runs it for an async body. Raises what it raised, or `AttemptTimedOut`."""
        ...

    def from_sync(self, callback: Callback) -> object:
        """The same for a sync body, in its thread."""
        ...


class Keeper(Protocol):
    """Keeps a body at the step where its pass has stopped, until the run's next invocation; supplied by the host."""

    def may_stand(self) -> bool:
        """Whether the body may wait here, called at a step of it."""
        ...

    def stand(self, boundary: Boundary) -> Generator[Any, Any, Invocation]:
        """Gives the pass's answer, and waits for the invocation that goes on here. Raises `PassStopped` if there is none."""
        ...


class ThreadKeeper(Protocol):
    """The same for a sync body, which waits in its thread."""

    def may_stand(self) -> bool:
        """Whether the body may wait here, called at a step of it."""
        ...

    def stand(self, boundary: Boundary) -> Invocation:
        """Gives the pass's answer, and waits for the invocation that goes on here. Raises `PassStopped` if there is none."""
        ...


class Invocable(Protocol):
    """A function that a run may invoke."""

    @property
    def id(self) -> FunctionId: ...
    def event_type(self) -> type[Any] | None:
        """The T of its `Event[T]`. Raises `DefinitionError`."""
        ...


class Functions(Protocol):
    """What this application has registered; supplied by the host."""

    def of(self, call: object) -> Invocable:
        """The function with this code. Raises `MisuseError`."""
        ...


class Pass:
    """The state of an invocation between body, machine and host. Belongs to one body; not shared between threads.

    It answers one invocation; or, with a keeper, one after the other, where the body goes on at the step at which it stopped.
    """

    __slots__ = (
        "_answer",
        "_forgotten",
        "_goes_on_at",
        "_is_executing",
        "_is_given_up",
        "_is_over",
        "_keeper",
        "_machine",
        "_opened",
        "_thread_keeper",
        "effects",
        "executing",
        "functions",
        "invocation",
        "is_disturbed",
        "open_calls",
        "shutdown",
    )

    def __init__(
        self,
        invocation: Invocation,
        effects: Effects,
        functions: Functions,
        keeper: Keeper | None = None,
        thread_keeper: ThreadKeeper | None = None,
    ) -> None:
        self.invocation = invocation
        self.effects = effects
        self.functions = functions
        self.executing: asyncio.Event | None = None
        """Set from the start of the target's callback in an async body: fires at its end."""
        self.open_calls: dict[int, Boundary] = {}
        """Steps called and not awaited yet, in the order of their calls."""
        self._opened = 0
        self._forgotten: Boundary | None = None
        """The first step that was called and thrown away without an await."""
        self._is_over = False
        """The body has ended by itself, not at a boundary."""
        self.shutdown: BaseException | None = None
        """KeyboardInterrupt or SystemExit from user code: the worker stops and nothing is answered."""
        self._is_given_up = False
        """Another pass answers in place of this one."""
        self._machine = Machine(invocation)
        self._answer: OutcomeBody | None = None
        self._is_executing = False
        self._keeper = keeper
        self._thread_keeper = thread_keeper
        self._goes_on_at: Boundary | None = None
        """The step that the pass has stopped at, if the run's next invocation can go on there."""
        self.is_disturbed = False
        """A step was met after the pass had stopped: whoever met it has ended, and would not have in a pass that goes on."""

    @property
    def is_discovery(self) -> bool:
        return self._machine.is_discovery

    @property
    def is_news(self) -> bool:
        return not self._is_stopped and self._machine.is_discovery and self._machine.is_beyond_history

    @property
    def answer(self) -> OutcomeBody | None:
        return self._answer

    def opened(self, boundary: Boundary) -> int:
        """A step of an async body was called, and is to be awaited. The number it is known by until then."""
        self._opened += 1
        self.open_calls[self._opened] = boundary
        return self._opened

    def forgotten(self, number: int) -> None:
        """Nobody holds this call any more. If it was not awaited, nobody ever will."""
        boundary = self.open_calls.pop(number, None)
        if boundary is not None and self._forgotten is None:
            self._forgotten = boundary

    def replayed(self, boundary: Boundary) -> msgspec.Raw | None:
        """The recorded success of a boundary where nothing is to be decided; else none, and `meet` is to be asked."""
        if self._is_special or current_pass.get() is not self:
            return None
        return self._machine.replayed(boundary)

    @property
    def _is_special(self) -> bool:
        return self._is_over or self._is_executing or self._is_stopped or self._forgotten is not None

    @property
    def _is_stopped(self) -> bool:
        """Nothing that the body does now makes a difference to the answer."""
        return self._answer is not None or self.shutdown is not None or self._is_given_up

    def meet(self, boundary: Boundary) -> Replay | PassOver | Raise | Execute:
        """What the body does at this boundary, or the stop signal."""
        if current_pass.get() is not self:
            raise MisuseError(_elsewhere(boundary))
        if self._is_over:
            raise MisuseError(f"step {boundary.step_id!r} is called after its function has ended; await every step before it returns")
        if self._is_stopped:
            self.is_disturbed = True
            raise PassStopped
        if self._is_executing:
            raise MisuseError(f"step {boundary.step_id!r} is called while a callback runs; steps belong to the function body")
        if self._forgotten is not None and self._machine.is_discovery:
            # Told by discovery alone: a callback that was authorized still runs, and no compensator is missed for it.
            raise MisuseError(_unawaited(self._forgotten))
        reaction = self._machine.meet(boundary)
        if isinstance(reaction, Stop):
            self._answer = reaction.outcome
            if isinstance(reaction.outcome, Declared):
                self._goes_on_at = boundary
            raise PassStopped
        return reaction

    def may_stand(self, boundary: Boundary) -> bool:
        """Whether the body, stopped at this boundary, may `stand` there. Nothing else of it may be under way."""
        keeper = self._keeper or self._thread_keeper
        is_quiet = self._goes_on_at is boundary and not self.open_calls and self._forgotten is None
        return is_quiet and keeper is not None and keeper.may_stand()

    def stand(self, boundary: Boundary) -> Generator[Any, Any, None]:
        """Answers, and waits for the invocation that goes on at this boundary, which is then to be met again. Or the stop signal."""
        if self._keeper is None:
            raise PassStopped
        self._go_on((yield from self._keeper.stand(boundary)), boundary)

    def stand_in_thread(self, boundary: Boundary) -> None:
        """The same for a sync body."""
        if self._thread_keeper is None:
            raise PassStopped
        self._go_on(self._thread_keeper.stand(boundary), boundary)

    def _go_on(self, invocation: Invocation, boundary: Boundary) -> None:
        self.invocation = invocation
        self._machine.go_on(invocation, boundary)
        self._answer = None
        self._goes_on_at = None
        self._is_executing = False
        self.executing = None

    def give_up(self) -> bool:
        """Ends the pass without an answer, if it has none yet and no callback has begun that counts; whether it did."""
        if self._is_stopped or self._is_over or self._is_executing:
            return False
        self._is_given_up = True
        return True

    def refuse_inside_callback(self, step_id: str) -> None:
        """A callback that calls a step would wait for itself."""
        if current_operation.get() is not None:
            raise MisuseError(f"step {step_id!r} is called inside a callback; steps belong to the function body")

    def begin_async(self) -> asyncio.Event:
        """The target's callback starts in an async body. The event is to be set at its end."""
        import asyncio  # only an async body gets here, so it is loaded; importing an application stays quick

        self._is_executing = True
        self.executing = asyncio.Event()
        return self.executing

    def begin_sync(self) -> None:
        """The target's callback starts in a sync body."""
        self._is_executing = True

    def called(self, boundary: Boundary, result: object, convert: Callable[[object], msgspec.Raw]) -> NoReturn:
        """The target's callback returned: its result is recorded, and the pass is over."""
        try:
            outcome = self._machine.succeeded(_converted(result, convert))
        except ConversionError as refused:
            outcome = self._unportable(f"the result of step {boundary.step_id!r}", refused)
        if isinstance(outcome, Succeeded) and isinstance(self.invocation.target, ForwardTarget):
            self._goes_on_at = boundary
        self._settle(outcome)

    def failed(self, error: BaseException) -> NoReturn:
        """The target's callback raised: that is a failed attempt, or the end of the worker."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.shutdown = error
            raise PassStopped
        record = attempt_timeout(error.timeout_ms, error.error) if isinstance(error, AttemptTimedOut) else record_of(error)
        self._settle(self._machine.failed(record))

    def returned(self, result: object) -> OutcomeBody | None:
        """The body returned. The answer, or `None` if the worker is to stop instead."""
        if self._is_stopped:
            return self._answer
        unawaited = self._first_unawaited()
        if unawaited is not None:
            return self.raised(MisuseError(_unawaited(unawaited)))
        self._is_over = True
        try:
            # Only a discovery tells what the body returned; a target that was not reached was not, whatever this is.
            self._answer = self._machine.returned(_converted(result, to_wire) if self._machine.is_discovery else NULL_RESULT)
        except ConversionError as refused:
            self._answer = self._unportable("the result of the function", _returned_awaitable(result, refused))
        return self._answer

    def raised(self, error: BaseException) -> OutcomeBody | None:
        """An exception left the body. The answer, or `None` if the worker is to stop instead."""
        if self._is_stopped:
            return self._answer
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.shutdown = error
            return None
        self._is_over = True
        error = self._explained(error)
        self._answer = self._machine.escaped(record_of(error), is_replayed=isinstance(error, StepFailed))
        return self._answer

    def _explained(self, error: BaseException) -> BaseException:
        """A step used as if it were its result fails in a way that does not tell why."""
        unawaited = self._first_unawaited() if isinstance(error, TypeError | AttributeError) else None
        if unawaited is None or not self._machine.is_discovery:
            return error
        misuse = MisuseError(_unawaited(unawaited))
        misuse.__cause__ = error
        return misuse.with_traceback(error.__traceback__)

    def _first_unawaited(self) -> Boundary | None:
        return self._forgotten or next(iter(self.open_calls.values()), None)

    def _unportable(self, what: str, refused: ConversionError) -> OutcomeBody:
        target = self.invocation.target
        if isinstance(target, CompensationTarget):
            _log.warning("run %s: %s is recorded as null: %s", self.invocation.run.run_id, what, refused)
        return self._machine.unportable(invalid_result(what, refused))

    def _settle(self, outcome: OutcomeBody) -> NoReturn:
        self._answer = outcome
        raise PassStopped


def _converted(result: object, convert: Callable[[object], msgspec.Raw]) -> msgspec.Raw:
    """The bytes of a result. Raises `ConversionError` whatever the user's own objects raise on the way: the effect has happened."""
    try:
        return convert(result)
    except ConversionError:
        raise
    except Exception as error:
        raised = record_of(error)
        why = f"converting this {type(result).__name__} raised {raised.category}: {raised.message[:_REASON_CHARACTERS_MAX]}"
        raise ConversionError("$", why) from error


def _unawaited(call: Boundary) -> str:
    site = call.call_site
    return f"step {call.step_id!r} was called but never awaited ({site.file}:{site.line}); write `await` before the call"


def _elsewhere(boundary: Boundary) -> str:
    if current_pass.get() is None:
        return f"step {boundary.step_id!r} is called outside a run; only the body of a function that the server invoked has steps"
    return f"step {boundary.step_id!r} is called with the step of another run; use the step that this run's function was given"


def _returned_awaitable(result: object, refused: ConversionError) -> ConversionError:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return ConversionError(refused.path, "the function returned something to await; declare it `async def`, or return its result")
    return refused
