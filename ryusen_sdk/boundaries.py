"""What each kind of step declares, and how its recorded outcome is read. A kind is one class here.

Owns the content of declarations and the arguments of callbacks. What a boundary answers is the machine's to decide, how it is written
in user code is `step`'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal, cast

from ryusen_protocol.declarations import CompensationPolicy, Declaration, Location, RunDeclaration
from ryusen_sdk.convert import from_wire, to_wire
from ryusen_sdk.errors import ConversionError, MisuseError, StepFailed
from ryusen_sdk.latch import Callback
from ryusen_sdk.machine import CallSite, located
from ryusen_sdk.operation import Operation
from ryusen_sdk.options import Compensate, Retry, Span, checked_name, checked_step_id, retry_policy, shown, timeout_ms
from ryusen_sdk.recall import recalled
from ryusen_sdk.typed import check_type, plain, returns_hint, typed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    import msgspec

    from ryusen_protocol.errors import ErrorRecord
    from ryusen_protocol.invocation import CompensationTarget, ForwardTarget, StepKind
    from ryusen_sdk.latch import Pass
    from ryusen_sdk.machine import Execute


class StepBoundary:
    """One step of a body: what it declares and how its recorded outcome is read. One subclass a kind."""

    __slots__ = ("_code", "_instruction", "step_id")

    kind: StepKind

    def __init__(self, step_id: str, frame: FrameType) -> None:
        if type(step_id) is not str or not step_id:
            raise MisuseError(f"a step id is non-empty text that names the step in this run, not {shown(step_id)}")
        if not step_id.isascii():
            checked_step_id(step_id)  # it may name what hides a target before anything is declared
        self.step_id = step_id
        self._code = frame.f_code
        self._instruction = frame.f_lasti

    @property
    def has_compensator(self) -> bool:
        return False

    @property
    def call_site(self) -> CallSite:
        """Worked out only when it is told: a replayed step has no use for its line."""
        code = self._code
        lines = (line for start, end, line in code.co_lines() if start <= self._instruction < end and line is not None)
        return CallSite(code.co_filename, next(lines, code.co_firstlineno), code.co_name)

    @property
    def display_name(self) -> str | None:
        """The name it was given beside its id, if it was."""
        return None

    def declare(self) -> Declaration:
        """What discovery tells the server. Raises `MisuseError` for options that mean nothing."""
        raise NotImplementedError

    def read(self, value: msgspec.Raw) -> object:
        """The recorded success as the body gets it, its own to change."""
        return recalled(value)

    def recorder(self, reaction: Execute) -> Callable[[object], msgspec.Raw]:
        """How a callback's result becomes what is recorded."""
        del reaction
        return to_wire

    def callback(self, pass_: Pass, reaction: Execute) -> Callback:
        """What to run. Only `run` steps have callbacks, and the machine asks no other kind to run one."""
        msg = f"a {self.kind} step has no callback ({pass_.invocation.request_id}, {reaction.phase})"
        raise AssertionError(msg)

    def location(self) -> Location:
        return located(self.call_site)


class RunStep(StepBoundary):
    """`step.run`: one effect with an optional compensator."""

    __slots__ = ("_args", "_compensate", "_function", "_name", "_retry", "_returns", "_timeout")

    kind = "run"

    def __init__(
        self,
        step_id: str,
        frame: FrameType,
        function: Callable[..., object],
        args: tuple[object, ...],
        compensate: Callable[..., object] | Compensate | None,
        retry: Retry | int | None,
        timeout: Span | None,
        returns: type[Any] | None,
        name: str | None,
    ) -> None:
        super().__init__(step_id, frame)
        if not callable(function):
            raise MisuseError(_not_callable(step_id, function, "callback"))
        self._function = function
        self._args = args
        self._compensate = compensate
        self._retry = retry
        self._timeout = timeout
        self._returns = returns
        self._name = name
        if not (compensate is None or isinstance(compensate, Compensate) or callable(compensate)):
            raise MisuseError(_not_callable(step_id, compensate, "compensator"))

    @property
    def has_compensator(self) -> bool:
        return self._compensate is not None

    @property
    def display_name(self) -> str | None:
        try:
            return None if self._name is None else checked_name(self.step_id, self._name)
        except MisuseError:
            return None  # asked of a call that is refused for its id, whatever else is wrong with it

    def declare(self) -> Declaration:
        undo = self._compensate
        own = undo if isinstance(undo, Compensate) else None
        if self._returns is not None:
            check_returns(self.step_id, self._returns)
        if undo is not None:
            # Found before the effect: found in the unwind, it would leave the effect as it is.
            _compensator_args(self.step_id, own.function if own else cast("Callable[..., object]", undo), None, self._args)
        what, what_of_undo = f"step {self.step_id!r}", f"the compensation of step {self.step_id!r}"
        for number, argument in enumerate(self._args, 1):
            if isinstance(argument, Coroutine):
                raise MisuseError(f"step {self.step_id!r}: argument {number} is {argument!r:.80}, not awaited; give what awaiting it gives")
        return RunDeclaration(
            step_id=checked_step_id(self.step_id),
            name=checked_name(self.step_id, self._name),
            location=self.location(),
            has_compensation=undo is not None,
            retry=retry_policy(what, self._retry),
            attempt_timeout_ms=timeout_ms(what, self._timeout),
            compensation=None
            if undo is None
            else CompensationPolicy(
                retry=retry_policy(what_of_undo, own.retry if own else None),
                attempt_timeout_ms=timeout_ms(what_of_undo, own.timeout if own else None),
            ),
        )

    def read(self, value: msgspec.Raw) -> object:
        plain_value = recalled(value)
        return plain_value if self._returns is None else typed(plain_value, self._returns)

    def callback(self, pass_: Pass, reaction: Execute) -> Callback:
        target = cast("ForwardTarget | CompensationTarget", pass_.invocation.target)
        operation = Operation(
            id=target.operation_id,
            step_id=target.step_id,
            phase=reaction.phase,
            attempt=target.attempt,
            attempt_generation=target.attempt_generation,
            run_id=pass_.invocation.run.run_id,
        )
        if reaction.forward_result is None:
            return Callback(self._function, self._args, operation, timeout_ms(f"step {self.step_id!r}", self._timeout))
        undo = cast("Callable[..., object] | Compensate", self._compensate)
        own = undo if isinstance(undo, Compensate) else None
        function = own.function if own else cast("Callable[..., object]", undo)
        args = _compensator_args(self.step_id, function, self.read(reaction.forward_result), self._args)
        timeout = timeout_ms(f"the compensation of step {self.step_id!r}", own.timeout if own else None)
        return Callback(function, args, operation, timeout)

    def recorder(self, reaction: Execute) -> Callable[[object], msgspec.Raw]:
        returns = self._returns
        if reaction.forward_result is not None:
            return to_wire  # a compensator's own result is plain, whatever the step returns
        return _untyped if returns is None else lambda result: to_wire(plain(result, returns))


def check_returns(step_id: str, kind: Any) -> None:
    """Raises `MisuseError` for a `returns=` that no value could be turned into."""
    try:
        check_type(kind)
    except MisuseError as refused:
        raise MisuseError(f"step {step_id!r}: returns= names a type of values, and {refused}") from None


def _untyped(result: object) -> msgspec.Raw:
    """The bytes of a result without `returns=`. Raises `ConversionError`, which tells of `returns=` where that is what is missing."""
    try:
        return to_wire(result)
    except ConversionError as refused:
        returns = returns_hint(result)
        if returns is None:
            raise
        raise ConversionError(refused.path, f"{refused.why}, or name the type of the result: returns={returns}") from None


def step_failed(step_id: str, failure: ErrorRecord) -> StepFailed:
    """The exception that a recorded failure is raised as."""
    details: dict[str, object] = {}
    for name, value in (failure.details or {}).items():
        try:
            details[name] = from_wire(value)
        except ConversionError as refused:
            details[name] = f"<{refused}>"
    return StepFailed(step_id, failure, details)


def _compensator_args(step_id: str, function: Callable[..., object], result: object, args: tuple[object, ...]) -> tuple[object, ...]:
    """`(result, *args)` if the compensator takes them, else `(result,)`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not tell
        return (result,)
    for given in ((result, *args), (result,)):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        return given
    raise MisuseError(
        f"the compensator of step {step_id!r} takes neither (result) nor (result, *args) with {len(args)} arguments: {signature}"
    )


def _not_callable(step_id: str, function: object, role: Literal["callback", "compensator"]) -> str:
    if inspect.isawaitable(function):
        if inspect.iscoroutine(function):
            function.close()
        if role == "callback":
            return f"step {step_id!r}: give the callback and its arguments (step.run(id, charge, order)), not the call (charge(order))"
        return (
            f"step {step_id!r}: give the compensator (compensate=refund), not the call (refund(…)); the result of the step is passed to it"
        )
    if role == "callback":
        return f"step {step_id!r}: the callback is something to call, not {shown(function)}"
    return f"step {step_id!r}: compensate= is a callable or Compensate(callable, …), not {shown(function)}"
