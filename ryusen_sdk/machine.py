"""The decision machine: one invocation, from its first boundary to its one answer.

Fed the invocation and each boundary the body reaches, it answers *replay this value*, *raise this failure*, *run this callback now*
or *stop, here is the response*. It has no I/O, no clock and no threads, runs no user code and converts no values: results are the
exact bytes of the wire. The host above it latches: once a pass has stopped, no later boundary reaches the machine.

| target       | boundary                                        | answer                                              |
|--------------|-------------------------------------------------|-----------------------------------------------------|
| any          | an accepted outcome of its kind                 | replay, or raise the failure                        |
| discovery    | its id was met before in this pass              | `definition_blocked` (`duplicate_step_id`)          |
| discovery    | its id is complete as another kind              | `definition_blocked` (`declaration_conflict`)       |
| discovery    | no outcome                                      | `declared`                                          |
| forward      | the target                                      | run the callback                                    |
| forward      | id met before, another kind, or no outcome      | `target_not_found` (`hidden`)                       |
| compensation | the target, success on record, has compensator  | run the compensator                                 |
| compensation | the target, success on record, none             | `target_not_found` (`no_compensator`)               |
| compensation | id met before, or complete as another kind      | passed over: the recorded outcome                   |
| compensation | no outcome                                      | `target_not_found` (`hidden`; the target: `not_met`)|

Reaching the end before a target is `target_not_found` (`not_met`), and so is an exception that escapes; in compensation only a
replayed step failure, or one equal to the run's recorded failure, is, and any other is `callback_failed`, retryable.

A new kind of declaration needs nothing here: kinds differ in what they declare and how their outcome is read, and both belong to the
step module. Only `run` steps have callbacks.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import msgspec

from ryusen_protocol.declarations import Declaration, Location
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import StepId
from ryusen_protocol.invocation import (
    CompensationTarget,
    DiscoveryTarget,
    ForwardTarget,
    HistoryEntry,
    Invocation,
    Phase,
    RunFailure,
    StepKind,
)
from ryusen_protocol.outcome import (
    CallbackFailed,
    Completed,
    Declared,
    DefinitionBlocked,
    MissingReason,
    OutcomeBody,
    Succeeded,
    TargetNotFound,
    Uncaught,
)

NULL_RESULT: Final = msgspec.Raw(b'{"type":"null"}')


class CallSite(NamedTuple):
    """Where a step was called. `name` is that of the enclosing function."""

    file: str
    line: int
    name: str


class Boundary(Protocol):
    """One step as the body meets it. `declare` is called only if the pass stops here."""

    @property
    def step_id(self) -> str: ...
    @property
    def kind(self) -> StepKind: ...
    @property
    def has_compensator(self) -> bool: ...
    @property
    def call_site(self) -> CallSite: ...
    @property
    def display_name(self) -> str | None: ...
    def declare(self) -> Declaration: ...


class Replay(NamedTuple):
    """Give the body this recorded value."""

    value: msgspec.Raw


class PassOver(NamedTuple):
    """Give the body this value as it stands: it was recorded for another kind of step, and an unwind does not stop for that."""

    value: msgspec.Raw


class Raise(NamedTuple):
    """Raise this recorded failure at the call."""

    failure: ErrorRecord


class Execute(NamedTuple):
    """Run the step's callback now; in compensation its compensator, with the recorded forward result."""

    phase: Phase
    forward_result: msgspec.Raw | None


class Stop(NamedTuple):
    """The pass is over; this is the response."""

    outcome: OutcomeBody


Reaction = Replay | PassOver | Raise | Execute | Stop


class Machine:
    """One invocation's decisions. Use `meet` for each boundary, then exactly one of the endings.

    The endings are `returned` and `escaped` for the body, `succeeded` and `failed` for the callback that `meet` said to run.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._target = invocation.target
        self._run_failure = invocation.run.failure
        self._history: dict[str, HistoryEntry] = {entry.step_id: entry for entry in invocation.history.steps}
        self._newest = invocation.history.steps[-1].step_id if invocation.history.steps else None
        self._seen: dict[str, Boundary] = {}
        self._suspended: Stop | None = None
        self._is_replaying_alike = not isinstance(self._target, CompensationTarget)

    @property
    def is_discovery(self) -> bool:
        return isinstance(self._target, DiscoveryTarget)

    @property
    def is_beyond_history(self) -> bool:
        """Whether the body is past what earlier passes have replayed: the newest recorded step was met."""
        return self._newest is None or self._newest in self._seen

    def meet(self, boundary: Boundary) -> Reaction:
        """What happens at this boundary. A second use of an id in one discovery pass is a blocker, even after the pass stopped."""
        step_id = boundary.step_id
        first = self._seen.get(step_id)
        if first is None:
            self._seen[step_id] = boundary
        match self._target:
            case DiscoveryTarget():
                return self._discover(boundary, first)
            case ForwardTarget() as target:
                return self._forward(boundary, target, repeated=first is not None)
            case CompensationTarget() as target:
                return self._compensate(boundary, target, repeated=first is not None)

    def replayed(self, boundary: Boundary) -> msgspec.Raw | None:
        """The recorded success, if all that `meet` would do is to replay it; else `meet` is to be asked.

        A long run replays far more steps than it runs: this is `meet` without the questions that a step met for the first time, recorded
        as its kind with a success, has no answers to.
        """
        step_id = boundary.step_id
        entry = self._history.get(step_id)
        if entry is None or step_id in self._seen or self._suspended is not None or not self._is_replaying_alike:
            return None
        success = entry.outcome.success
        if success is msgspec.UNSET or entry.kind != boundary.kind:
            return None
        self._seen[step_id] = boundary
        return success

    def go_on(self, invocation: Invocation, boundary: Boundary) -> None:
        """The body has stood at this boundary since the last invocation's answer, and is to meet it again for this one.

        Its history has to begin with the last one's.
        """
        self._target = invocation.target
        self._run_failure = invocation.run.failure
        steps = invocation.history.steps
        for entry in steps[len(self._history) :]:
            self._history[entry.step_id] = entry
        self._newest = steps[-1].step_id if steps else None
        self._seen.pop(boundary.step_id, None)
        self._suspended = None
        self._is_replaying_alike = not isinstance(self._target, CompensationTarget)

    def returned(self, result: msgspec.Raw) -> OutcomeBody:
        """The body ended with this value."""
        return Completed(result) if self.is_discovery else self._missing("not_met")

    def escaped(self, failure: ErrorRecord, *, is_replayed: bool) -> OutcomeBody:
        """An exception left the body. `is_replayed`: it is the recorded failure of a step, raised by this pass."""
        match self._target:
            case DiscoveryTarget():
                return Uncaught(failure)
            case ForwardTarget():
                return self._missing("not_met")
            case CompensationTarget(attempt=attempt, attempt_generation=generation):
                if is_replayed or _is_run_failure(failure, self._run_failure):
                    return self._missing("not_met")
                # The body failed for a reason of its own before it reached the compensator: not a reason to skip a refund.
                return CallbackFailed(msgspec.structs.replace(failure, retryable=True), attempt, generation)

    def succeeded(self, result: msgspec.Raw) -> OutcomeBody:
        """The target's callback returned this value."""
        target = self._effect()
        return Succeeded(result, target.attempt, target.attempt_generation)

    def failed(self, failure: ErrorRecord) -> OutcomeBody:
        """The target's callback raised."""
        target = self._effect()
        return CallbackFailed(failure, target.attempt, target.attempt_generation)

    def unportable(self, failure: ErrorRecord) -> OutcomeBody:
        """The value to record is not portable: a compensator's is only shown and becomes null, any other is a failure."""
        match self._target:
            case DiscoveryTarget():
                return Uncaught(failure)
            case ForwardTarget():
                return self.failed(failure)
            case CompensationTarget():
                return self.succeeded(NULL_RESULT)

    def _discover(self, boundary: Boundary, first: Boundary | None) -> Reaction:
        step_id = StepId(boundary.step_id)
        if first is not None:
            return Stop(DefinitionBlocked("duplicate_step_id", step_id, _used_at(first), _used_at(boundary)))
        if self._suspended is not None:
            return self._suspended
        entry = self._history.get(step_id)
        if entry is None:
            self._suspended = Stop(Declared(boundary.declare()))
            return self._suspended
        if entry.kind != boundary.kind:
            return Stop(DefinitionBlocked("declaration_conflict", step_id, duplicate=_used_at(boundary)))
        return _replay(entry)

    def _forward(self, boundary: Boundary, target: ForwardTarget, *, repeated: bool) -> Reaction:
        entry = self._history.get(boundary.step_id)
        if repeated or (entry is not None and entry.kind != boundary.kind):
            return self._hidden(boundary, target.step_id)
        if entry is not None:
            return _replay(entry)
        if boundary.step_id == target.step_id and boundary.kind == "run":
            return Execute("forward", None)
        return self._hidden(boundary, target.step_id)

    def _compensate(self, boundary: Boundary, target: CompensationTarget, *, repeated: bool) -> Reaction:
        entry = self._history.get(boundary.step_id)
        if entry is None:
            return self._hidden(boundary, target.step_id)
        reaction = _replay(entry)
        if boundary.kind != entry.kind and isinstance(reaction, Replay):
            return PassOver(reaction.value)
        is_target = boundary.step_id == target.step_id and boundary.kind == "run" and not repeated
        if not is_target or isinstance(reaction, Raise):
            return reaction
        if not boundary.has_compensator:
            return Stop(self._missing("no_compensator"))
        return Execute("compensation", target.forward_result)

    def _hidden(self, boundary: Boundary, target_id: StepId) -> Stop:
        if boundary.step_id == target_id:
            return Stop(self._missing("not_met"))
        return Stop(self._missing("hidden", StepId(boundary.step_id)))

    def _missing(self, reason: MissingReason, hidden_by: StepId | None = None) -> TargetNotFound:
        target = self._effect()
        return TargetNotFound(reason, hidden_by, target.attempt, target.attempt_generation)

    def _effect(self) -> ForwardTarget | CompensationTarget:
        target = self._target
        if isinstance(target, DiscoveryTarget):
            msg = "a discovery pass runs no callback"
            raise AssertionError(msg)
        return target


def _replay(entry: HistoryEntry) -> Replay | Raise:
    recorded = entry.outcome
    if recorded.success is not msgspec.UNSET:
        return Replay(recorded.success)
    if recorded.failure is msgspec.UNSET:
        msg = f"the recorded outcome of step {entry.step_id!r} is neither a success nor a failure"
        raise AssertionError(msg)
    return Raise(recorded.failure)


def _is_run_failure(failure: ErrorRecord, run_failure: RunFailure | None) -> bool:
    return run_failure is not None and (failure.category, failure.message) == (run_failure.category, run_failure.message)


def _used_at(boundary: Boundary) -> Location:
    """Where a step was called, named as people name the step if they do: two calls of one line differ in nothing else."""
    place = located(boundary.call_site)
    return place if boundary.display_name is None else Location(place.file, place.line, boundary.display_name)


def located(site: CallSite) -> Location:
    """The place as the wire tells it: valid Unicode, whatever the folder is called."""
    return Location(site.file.encode("utf-8", "backslashreplace").decode(), site.line, site.name)
