"""What a function is given: the event, or the parent's input, that its run was created for.

Owns the lazy views of the input. The exact bytes are always there; the JSON view is a convenience that never changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from ryusen_protocol.invocation import ChildInput, EventInput
from ryusen_sdk.convert import from_wire
from ryusen_sdk.typed import json_view, typed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ryusen_protocol.invocation import Invocation

T = TypeVar("T", default=Any)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Parent:
    """The run and step that invoked this run."""

    run_id: str
    step_id: str


@dataclass(frozen=True, repr=False)
class EventPayload:
    """What a wait received: the payload of the event that matched, as exact bytes and as JSON data."""

    payload: bytes

    @cached_property
    def data(self) -> Any:
        """The payload as JSON data. Raises `ConversionError` if it is none; the bytes are there all the same."""
        return json_view(self.payload, None)

    def __bytes__(self) -> bytes:
        return self.payload

    def __repr__(self) -> str:
        return f"<EventPayload of {len(self.payload)} bytes>"


class Event(Generic[T]):
    """The input of one run.

    `Event[Order]` in a function's signature makes `data` an `Order`; without it `data` is plain JSON data. For a run that another run
    invoked, `data` is the given input, `parent` names the caller, and there is no event: `id` and `name` are empty.
    """

    def __init__(self, invocation: Invocation, kind: type[Any] | None = None) -> None:
        source = invocation.input
        self._source = source
        self._kind = kind
        self.run_id: str = invocation.run.run_id
        event = source if isinstance(source, EventInput) else None
        self.id: str = event.event_id if event else ""
        self.name: str = event.name if event else ""
        self.metadata: Mapping[str, str] = event.metadata if event else {}
        self.parent: Parent | None = Parent(source.parent_run_id, source.parent_step_id) if isinstance(source, ChildInput) else None
        self._received_at_ms = event.received_at_ms if event else invocation.run.created_at_ms

    @property
    def received_at(self) -> datetime:
        """When the server accepted the event, or created the run, in UTC by the server's clock."""
        return _EPOCH + timedelta(milliseconds=self._received_at_ms)

    @cached_property
    def payload(self) -> bytes:
        """The exact bytes of the event. Empty for an invoked run, whose input is a value and not bytes."""
        source = self._source
        return cast("bytes", from_wire(source.payload)) if isinstance(source, EventInput) else b""

    @cached_property
    def data(self) -> T:
        """The payload as JSON data, or the invoked run's input, as T if the signature says so. Raises `ConversionError`."""
        source = self._source
        if isinstance(source, ChildInput):
            value = from_wire(source.value)
            return cast("T", value if self._kind is None else typed(value, self._kind))
        return cast("T", json_view(self.payload, self._kind))

    def __repr__(self) -> str:
        return f"<Event {self.name or 'input'} of run {self.run_id}>"
