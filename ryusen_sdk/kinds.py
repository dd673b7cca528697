"""The steps that the server carries out: timers, event waits, child invocations, emissions. One class a kind.

Owns what each declares and how its recorded outcome is read. None has a callback: the body ends at such a step, the server waits,
matches, runs or accepts, and a later pass finds the outcome. Anchors, matching and identities are the server's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ryusen_protocol.declarations import ChildDeclaration, Declaration, EmissionDeclaration, EventWaitDeclaration, TimerDeclaration
from ryusen_protocol.ids import FunctionId
from ryusen_protocol.limits import MIB, PAYLOAD_BYTES_MAX
from ryusen_sdk.boundaries import StepBoundary, check_returns
from ryusen_sdk.convert import to_wire
from ryusen_sdk.errors import ConversionError, MisuseError
from ryusen_sdk.event import EventPayload
from ryusen_sdk.options import Span, checked_step_id, instant_ms, pairs, shown, span_ms
from ryusen_sdk.payload import payload_of
from ryusen_sdk.typed import plain, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from types import FrameType

    from ryusen_sdk.latch import Functions


class SleepStep(StepBoundary):
    """`step.sleep`: a timer of so long, counted from its acceptance."""

    __slots__ = ("_duration",)

    kind = "timer"

    def __init__(self, step_id: str, frame: FrameType, duration: Span) -> None:
        super().__init__(step_id, frame)
        self._duration = duration

    def declare(self) -> Declaration:
        return _checked(
            TimerDeclaration(
                step_id=checked_step_id(self.step_id),
                name=self.step_id,
                location=self.location(),
                delay_ms=span_ms(f"the duration of step {self.step_id!r}", self._duration),
            )
        )


class SleepUntilStep(StepBoundary):
    """`step.sleep_until`: a timer that stays an absolute instant."""

    __slots__ = ("_when",)

    kind = "timer"

    def __init__(self, step_id: str, frame: FrameType, when: datetime) -> None:
        super().__init__(step_id, frame)
        self._when = when

    def declare(self) -> Declaration:
        return _checked(
            TimerDeclaration(
                step_id=checked_step_id(self.step_id),
                name=self.step_id,
                location=self.location(),
                deadline_ms=instant_ms(f"the instant of step {self.step_id!r}", self._when),
            )
        )


class WaitStep(StepBoundary):
    """`step.wait_for_event`: the first event of that name whose metadata carries every pair asked for."""

    __slots__ = ("_event_name", "_match", "_timeout")

    kind = "event_wait"

    def __init__(self, step_id: str, frame: FrameType, event_name: str, match: Mapping[str, str] | None, timeout: Span) -> None:
        super().__init__(step_id, frame)
        self._event_name = event_name
        self._match = match
        self._timeout = timeout

    def declare(self) -> Declaration:
        return _checked(
            EventWaitDeclaration(
                step_id=checked_step_id(self.step_id),
                name=self.step_id,
                location=self.location(),
                event_name=_event_name(self.step_id, self._event_name),
                correlation=pairs(f"step {self.step_id!r}: match=", self._match),
                timeout_ms=span_ms(f"the timeout of step {self.step_id!r}", self._timeout),
            )
        )

    def read(self, value: msgspec.Raw) -> EventPayload:
        payload = super().read(value)
        if not isinstance(payload, bytes):
            raise ConversionError("$", f"step {self.step_id!r} recorded {shown(payload)} where the bytes of an event belong")
        return EventPayload(payload)


class InvokeStep(StepBoundary):
    """`step.invoke`: another function of the same application, as a run of its own."""

    __slots__ = ("_function", "_functions", "_input", "_returns", "_timeout")

    kind = "child"

    def __init__(
        self,
        step_id: str,
        frame: FrameType,
        functions: Functions,
        function: Callable[..., object] | str,
        given: object,
        timeout: Span | None,
        returns: type[Any] | None,
    ) -> None:
        super().__init__(step_id, frame)
        self._functions = functions
        self._function = function
        self._input = given
        self._timeout = timeout
        self._returns = returns

    def declare(self) -> Declaration:
        if self._returns is not None:
            check_returns(self.step_id, self._returns)
        function_id, kind = self._child()
        return _checked(
            ChildDeclaration(
                step_id=checked_step_id(self.step_id),
                name=self.step_id,
                location=self.location(),
                function=function_id,
                # The child says what it takes, as `returns=` does: only then is a typed input turned into plain values.
                input=_portable(
                    f"the input of step {self.step_id!r}", lambda: to_wire(self._input if kind is None else plain(self._input, kind))
                ),
                timeout_ms=None if self._timeout is None else span_ms(f"the timeout of step {self.step_id!r}", self._timeout),
            )
        )

    def read(self, value: msgspec.Raw) -> object:
        result = super().read(value)
        return result if self._returns is None else typed(result, self._returns)

    def _child(self) -> tuple[FunctionId, type[Any] | None]:
        """The id of the function, and the T of its `Event[T]` where its code is at hand."""
        if isinstance(self._function, str):
            return FunctionId(str(self._function)), None
        if not callable(self._function):
            raise MisuseError(f"step {self.step_id!r} invokes a function of this application or its id, not {shown(self._function)}")
        try:
            found = self._functions.of(self._function)
        except MisuseError as refused:
            raise MisuseError(f"step {self.step_id!r}: {refused}") from None
        return found.id, found.event_type()


class SendStep(StepBoundary):
    """`step.send_event`: an event that the server accepts on behalf of the run, once."""

    __slots__ = ("_data", "_event_name", "_metadata")

    kind = "emission"

    def __init__(self, step_id: str, frame: FrameType, event_name: str, data: object, metadata: Mapping[str, str] | None) -> None:
        super().__init__(step_id, frame)
        self._event_name = event_name
        self._data = data
        self._metadata = metadata

    def declare(self) -> Declaration:
        return _checked(
            EmissionDeclaration(
                step_id=checked_step_id(self.step_id),
                name=self.step_id,
                location=self.location(),
                event_name=_event_name(self.step_id, self._event_name),
                payload=_portable(f"the data of step {self.step_id!r}", lambda: to_wire(_payload(self.step_id, self._data))),
                metadata=pairs(f"step {self.step_id!r}: metadata=", self._metadata),
            )
        )


def _checked(declaration: Declaration) -> Declaration:
    """The declaration, if the server would take it. Raises `MisuseError` for what it would refuse."""
    # Only here, so that importing an application stays quick.
    from ryusen_protocol.declaration_checks import InvalidDeclaration, check_declaration

    try:
        check_declaration(declaration)
    except InvalidDeclaration as refused:
        raise MisuseError(f"step {declaration.step_id!r}: {refused}") from None
    return declaration


def _portable(what: str, convert: Callable[[], msgspec.Raw]) -> msgspec.Raw:
    """The converted value. Raises `ConversionError` that says of what."""
    try:
        return convert()
    except ConversionError as refused:
        raise ConversionError(refused.path, f"{what}: {refused.why}") from None


def _payload(step_id: str, data: object) -> bytes:
    """The bytes to send. Raises `MisuseError` over the limit of payloads: what a value may hold is another limit, met later."""
    payload = payload_of(data)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MisuseError(f"step {step_id!r}: its payload of {len(payload):,} bytes is over the limit of {PAYLOAD_BYTES_MAX // MIB} MiB.")
    return payload


def _event_name(step_id: str, name: object) -> str:
    if not isinstance(name, str):
        raise MisuseError(f"step {step_id!r}: an event name is text, not {shown(name)}")
    return str(name)
