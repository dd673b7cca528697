"""Which event names matter to whom just now: those somebody waits for, and those whose events are still being expanded.

Two small tables in memory, so that an event that nobody waits for and a timeout that nothing contends for cost no look-up. Both count what
memory has decided, committed or not: a name may be named in vain for a moment, and never be missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ryusen_protocol.ids import EventId, Workspace
from ryusen_server.core.rows import EventRow
from ryusen_server.ports.store import WaitedName

Name = tuple[Workspace, str]


class WaitedNames:
    """How many pending waits each event name has."""

    def __init__(self) -> None:
        self._waits: dict[Name, int] = {}

    def load(self, names: Iterable[WaitedName]) -> None:
        """What the store holds, at a start."""
        self._waits = {(name.workspace, name.event_name): name.waits for name in names}

    def begin(self, name: Name) -> None:
        """A wait is decided: from now on an event may match it."""
        self._waits[name] = self._waits.get(name, 0) + 1

    def end(self, name: Name) -> None:
        """A wait's end is durable, or its registration is lost."""
        left = self._waits[name] - 1
        if left:
            self._waits[name] = left
        else:
            del self._waits[name]

    def __contains__(self, name: Name) -> bool:
        return name in self._waits

    def __len__(self) -> int:
        return len(self._waits)


class UnderWay:
    """The events whose expansion this server has under way or owes."""

    def __init__(self) -> None:
        self._name_of: dict[EventId, Name] = {}
        self._events: dict[Name, set[EventId]] = {}

    def add(self, event: EventRow) -> None:
        """Its expansion begins; to say so again changes nothing."""
        name = (event.workspace, event.name)
        self._name_of[event.event_id] = name
        self._events.setdefault(name, set()).add(event.event_id)

    def discard(self, event_id: EventId) -> None:
        """Its expansion is complete and durable, or there never was such an event."""
        name = self._name_of.pop(event_id, None)
        if name is None:
            return
        events = self._events[name]
        events.discard(event_id)
        if not events:
            del self._events[name]

    def has(self, name: Name, *, besides: EventId | None = None) -> bool:
        """Whether any event of the name, other than one, is being expanded."""
        events = self._events.get(name)
        return events is not None and not (len(events) == 1 and besides in events)

    def __len__(self) -> int:
        return len(self._name_of)
