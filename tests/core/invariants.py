"""The invariants of one run, each a named check over what was committed and what was seen to happen.

A `Watch` is the witness: the run's records in commit order, the run as the server holds it, and what happened outside the history, which
whoever drives the run reports: passes and callbacks that went out, proofs, submissions. The checks read the records themselves and never
`decide` or `evolve`, so that neither can hide its own mistake. Numbers are those of the project's list of invariants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

import msgspec

from ryusen_protocol.declarations import ChildDeclaration, Declaration, EmissionDeclaration, RunDeclaration
from ryusen_protocol.identity import emitted_event_id, run_id_for_child
from ryusen_protocol.ids import AttemptId, OperationId, RequestId, RunId, StepId
from ryusen_protocol.invocation import Phase
from ryusen_protocol.scope import Scope
from ryusen_server.core.agenda import agenda, wake_at_ms
from ryusen_server.core.decision import Decision, Obligation, SettleParent, StopChild
from ryusen_server.core.evolve import decode_records, fold
from ryusen_server.core.records import (
    AttemptAuthorized,
    AttemptQueued,
    AttemptRequeued,
    AttemptSettled,
    AttemptUnknown,
    ChildInvoked,
    CompensationStarted,
    DiscoveryQueued,
    OutcomeDecided,
    Record,
    RunBlocked,
    RunCreated,
    RunEnded,
    StepCompleted,
    StepDeclared,
    StepObsolete,
    StepStopped,
    StopRequested,
    SubmissionStale,
    TargetSettled,
    TimerArmed,
    WaitRegistered,
)
from ryusen_server.core.rows import HistoryRow
from ryusen_server.core.state import Run

_R = TypeVar("_R")
_UNRESOLVED = ("authorized", "unknown")


class Entry(msgspec.Struct, frozen=True):
    """One record. `index` counts the run's records, `position` is its transaction's."""

    index: int
    position: int
    at_ms: int
    record: Record


class Started(msgspec.Struct, frozen=True):
    """An invocation left the server when `committed` was the last position of the run. A pass has no attempt."""

    request_id: RequestId
    attempt_id: AttemptId | None
    committed: int


class Submitted(msgspec.Struct, frozen=True):
    """A worker's answer to an effect: what it names, the word it got, the records it made, and the request that was open when it came."""

    request_id: RequestId
    attempt_generation: int | None
    answer_digest: str
    disposition: str
    records: tuple[Record, ...]
    open_request: RequestId | None


class Responded(msgspec.Struct, frozen=True):
    """A worker's answer to a pass: whether it counted, and the pass that was out when it came."""

    request_id: RequestId
    counted: bool
    open_request: RequestId | None


class Matched(msgspec.Struct, frozen=True):
    """An event completed a wait in the transaction at `position`; the others are where it was accepted and the wait registered."""

    position: int
    accepted_at_ms: int
    accepted_position: int
    registered_position: int


class Watch:
    """What the checks look at. Feed it every committed row, in order, and everything that happened."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: list[HistoryRow] = []
        self.entries: list[Entry] = []
        self.started: list[Started] = []
        self.submitted: list[Submitted] = []
        self.responded: list[Responded] = []
        self.proofs: set[RequestId] = set()
        self.resolved: set[AttemptId] = set()
        """Attempts an operator command was obeyed on."""
        """Requests that provably never began."""
        self.matched: dict[int, Matched] = {}
        self.decided: dict[int, Decision] = {}
        """What was decided at a position, for whoever drives the run and sees it: the records come from the history."""
        self.duplicates: set[int] = set()
        """Positions of transactions that answered a pass which met one id twice."""
        self.states: dict[AttemptId, str] = {}
        self.queued: dict[AttemptId, AttemptQueued] = {}
        self._of: dict[type, list[Entry]] = defaultdict(list)
        self._at: dict[int, list[Entry]] = defaultdict(list)

    def commit(self, row: HistoryRow, records: list[Record] | None = None) -> None:
        """Take one committed transaction; `records` are those of the row, when they are decoded already."""
        self.rows.append(row)
        for record in decode_records(row.records) if records is None else records:
            entry = Entry(len(self.entries), row.position, row.at_ms, record)
            self.entries.append(entry)
            self._of[type(record)].append(entry)
            self._at[row.position].append(entry)
            self._follow(record)

    def of(self, kind: type[_R]) -> Iterator[tuple[Entry, _R]]:
        """The records of a kind, in commit order."""
        for entry in self._of[kind]:
            yield entry, cast("_R", entry.record)

    def at(self, position: int) -> list[Record]:
        """The records of one transaction."""
        return [entry.record for entry in self._at[position]]

    def first(self, kind: type[_R]) -> tuple[Entry, _R] | None:
        return next(self.of(kind), None)

    def phase(self, attempt_id: AttemptId) -> Phase:
        return self.queued[attempt_id].phase

    def of_attempt(self, attempt_id: AttemptId) -> list[Entry]:
        """Everything that befell one attempt."""
        return [entry for entry in self.entries if getattr(entry.record, "attempt_id", None) == attempt_id]

    def operations(self) -> dict[tuple[StepId, Phase], list[AttemptQueued]]:
        """The attempts of each (step, phase), in order."""
        found: dict[tuple[StepId, Phase], list[AttemptQueued]] = defaultdict(list)
        for record in self.queued.values():
            found[record.step_id, record.phase].append(record)
        return found

    def declarations(self) -> dict[StepId, Declaration]:
        """What each step was declared as, the last time."""
        return {record.declaration.step_id: record.declaration for _, record in self.of(StepDeclared)}

    def successes(self) -> list[StepId]:
        """The `run` steps that completed with success, in completion order."""
        declared = self.declarations()
        return [
            record.step_id
            for _, record in self.of(StepCompleted)
            if record.failure is None and isinstance(declared[record.step_id], RunDeclaration)
        ]

    def _follow(self, record: Record) -> None:
        match record:
            case AttemptQueued():
                self.queued[record.attempt_id] = record
                self.states[record.attempt_id] = "queued"
            case AttemptAuthorized():
                self.states[record.attempt_id] = "authorized"
            case AttemptUnknown():
                self.states[record.attempt_id] = "unknown"
            case AttemptRequeued():
                self.states[record.attempt_id] = "queued"
            case AttemptSettled():
                self.states[record.attempt_id] = record.state
            case _:
                pass


def _states_along(watch: Watch) -> Iterator[tuple[Entry, dict[AttemptId, str]]]:
    """Each record about an attempt with the states of all attempts just before it."""
    states: dict[AttemptId, str] = {}
    for entry in watch.entries:
        record = entry.record
        match record:
            case AttemptQueued():
                yield entry, states
                states[record.attempt_id] = "queued"
            case AttemptAuthorized():
                yield entry, states
                states[record.attempt_id] = "authorized"
            case AttemptUnknown():
                yield entry, states
                states[record.attempt_id] = "unknown"
            case AttemptRequeued():
                yield entry, states
                states[record.attempt_id] = "queued"
            case AttemptSettled():
                yield entry, states
                states[record.attempt_id] = record.state
            case _:
                pass


def _after(entries: Iterable[tuple[Entry, _R]], index: int) -> list[_R]:
    return [record for entry, record in entries if entry.index > index]


def invariant_02_1_one_thing_at_a_time(watch: Watch) -> None:
    """While it runs, a run has either a pass to make or one pending step, never both and never neither."""
    run = watch.run
    passes, pending = run.discovery_pass is not None, run.pending is not None
    match run.status:
        case "running":
            assert passes != pending, f"running with pass {run.discovery_pass} and step {run.pending}"
        case "definition_blocked":
            assert not pending, f"blocked while {run.pending} is pending"
        case "stopping":
            assert pending, "stopping, and nothing is waited for"
            assert not passes, "a pass is queued while stopping"
        case _:
            assert not passes, f"a pass is queued while {run.status}"
            assert not pending, f"{run.pending} is pending while {run.status}"


def invariant_03_a_generation_settles_once(watch: Watch) -> None:
    """No attempt has two settlements, and none settles that never was queued."""
    settled: set[AttemptId] = set()
    for _, record in watch.of(AttemptSettled):
        assert record.attempt_id in watch.queued, f"{record.attempt_id} settles without having been queued"
        assert record.attempt_id not in settled, f"{record.attempt_id} settles twice"
        settled.add(record.attempt_id)


def invariant_04_a_successor_waits_for_its_predecessor(watch: Watch) -> None:
    """Of one (step, phase) at most one attempt is open, and the next generation comes only after the last has settled."""
    latest: dict[tuple[StepId, Phase], AttemptQueued] = {}
    for entry, states in _states_along(watch):
        record = entry.record
        if not isinstance(record, AttemptQueued):
            continue
        key = (record.step_id, record.phase)
        before = latest.get(key)
        generation = 0
        if before is not None:
            generation = before.attempt_generation
            assert states[before.attempt_id] not in ("queued", *_UNRESOLVED), f"{record.attempt_id} is queued beside an open predecessor"
        assert record.attempt_generation == record.attempt == generation + 1, f"{record.attempt_id} skips a generation"
        latest[key] = record


def invariant_05_one_operation_id(watch: Watch) -> None:
    """All attempts of one (step, phase) carry one operation id, which no other (step, phase) shares."""
    owners: dict[OperationId, tuple[StepId, Phase]] = {}
    for key, attempts in watch.operations().items():
        for record in attempts:
            assert owners.setdefault(record.operation_id, key) == key, f"{record.operation_id} serves two operations"
        assert len({record.operation_id for record in attempts}) == 1, f"{key} has several operation ids"
    for _, record in watch.of(StepDeclared):
        key = (record.declaration.step_id, "forward")
        assert owners.setdefault(record.operation_id, key) == key, f"{key} is declared under another operation id"


def invariant_06_a_stale_result_is_a_diagnostic(watch: Watch) -> None:
    """Only an answer to the open request counts; any other leaves at most one diagnostic record, once."""
    attempts = {record.request_id: record.attempt_id for _, record in watch.of(AttemptAuthorized)}
    for submitted in watch.submitted:
        if submitted.disposition == "accepted":
            assert submitted.request_id == submitted.open_request, f"an answer to {submitted.request_id} counted, which was not open"
            generation = watch.queued[attempts[submitted.request_id]].attempt_generation
            assert submitted.attempt_generation == generation, f"an answer for {submitted.attempt_generation} settled {generation}"
            continue
        assert all(isinstance(record, SubmissionStale) for record in submitted.records), f"a {submitted.disposition} answer did something"
        assert len(submitted.records) <= 1
    for responded in watch.responded:
        if responded.counted:
            assert responded.request_id == responded.open_request, f"an answer to pass {responded.request_id} counted, which was not out"
    kept = [(record.request_id, record.answer_digest) for _, record in watch.of(SubmissionStale)]
    assert len(kept) == len(set(kept)), "a stale submission is recorded twice"


def invariant_07_authorized_before_it_begins(watch: Watch) -> None:
    """A callback leaves the server only when the record that authorizes exactly it is committed."""
    committed = {record.request_id: (entry.position, record.attempt_id) for entry, record in watch.of(AttemptAuthorized)}
    for started in watch.started:
        if started.attempt_id is None:
            continue
        assert started.request_id in committed, f"{started.attempt_id} began without an authorization"
        position, attempt_id = committed[started.request_id]
        assert attempt_id == started.attempt_id, f"{started.request_id} authorizes another attempt"
        assert position <= started.committed, f"{started.attempt_id} began before its authorization was committed"


def invariant_08_an_accepted_success_is_final(watch: Watch) -> None:
    """After a step has succeeded its forward callback is neither queued nor authorized again, nor is it declared again."""
    done: dict[StepId, int] = {}
    for entry, record in watch.of(StepCompleted):
        assert record.step_id not in done, f"{record.step_id} completes twice"
        done[record.step_id] = entry.index
    for entry, record in watch.of(AttemptQueued):
        late = record.phase == "forward" and entry.index > done.get(record.step_id, entry.index)
        assert not late, f"{record.step_id} is queued again after its outcome"
    for entry, record in watch.of(AttemptAuthorized):
        queued = watch.queued[record.attempt_id]
        late = queued.phase == "forward" and entry.index > done.get(queued.step_id, entry.index)
        assert not late, f"{queued.step_id} is authorized again after its outcome"
    for entry, record in watch.of(StepDeclared):
        step_id = record.declaration.step_id
        assert entry.index <= done.get(step_id, entry.index), f"{step_id} is declared again after its outcome"


def invariant_09_ambiguity_never_restarts_itself(watch: Watch) -> None:
    """What may have begun is queued again only on proof that it did not, and has a successor only once its answer is known."""
    requests: dict[AttemptId, RequestId] = {}
    for entry, states in _states_along(watch):
        record = entry.record
        match record:
            case AttemptAuthorized():
                assert states[record.attempt_id] == "queued", f"{record.attempt_id} is authorized while {states[record.attempt_id]}"
                requests[record.attempt_id] = record.request_id
            case AttemptRequeued():
                assert states[record.attempt_id] in _UNRESOLVED, f"{record.attempt_id} is requeued while {states[record.attempt_id]}"
                assert requests[record.attempt_id] in watch.proofs, f"{record.attempt_id} is requeued without proof"
            case _:
                pass


def invariant_10_a_stop_ends_forward_work(watch: Watch) -> None:
    """After stop intent, or from the deadline on, nothing forward is authorized; after stop intent nothing is queued or sent either."""
    deadline = watch.run.deadline
    for entry, record in watch.of(AttemptAuthorized):
        late = deadline is not None and entry.at_ms >= deadline.at_ms and watch.phase(record.attempt_id) == "forward"
        assert not late, f"{record.attempt_id} is authorized past the deadline"
    stop = watch.first(StopRequested)
    if stop is None:
        return
    index = stop[0].index
    assert not _after(watch.of(DiscoveryQueued), index), "a pass is queued after the stop"
    assert not _after(watch.of(StepDeclared), index), "a step is declared after the stop"
    for kind in (AttemptQueued, AttemptAuthorized, AttemptRequeued):
        for record in _after(watch.of(kind), index):
            assert watch.phase(record.attempt_id) == "compensation", f"forward work after the stop: {record}"
    for started in watch.started:
        assert started.attempt_id is not None or started.committed < stop[0].position, "a pass is sent after the stop"


def invariant_11_a_stop_reason_is_final(watch: Watch) -> None:
    """There is one stop reason and one outcome, and a stopped run's outcome is its stop reason."""
    stops = [record for _, record in watch.of(StopRequested)]
    outcomes = [record.outcome for _, record in watch.of(OutcomeDecided)]
    assert len(stops) <= 1, f"two stop reasons: {stops}"
    assert len(outcomes) <= 1, f"two outcomes: {outcomes}"
    if stops and outcomes:
        assert outcomes == [stops[0].reason], f"stopped as {stops[0].reason}, outcome {outcomes[0]}"
    if stops and watch.run.status in ("compensating", "ended"):
        assert outcomes, "a stopped run went on without its outcome"


def invariant_12_no_undo_beside_an_open_effect(watch: Watch) -> None:
    """While a forward effect is queued, authorized or Unknown, no compensation is queued or authorized."""
    for entry, states in _states_along(watch):
        record = entry.record
        if not isinstance(record, AttemptQueued | AttemptAuthorized) or watch.phase(record.attempt_id) == "forward":
            continue
        for attempt_id, state in states.items():
            loose = watch.phase(attempt_id) == "forward" and state in ("queued", *_UNRESOLVED)
            assert not loose, f"{record.attempt_id} is undone while {attempt_id} is {state}"


def invariant_13_success_is_never_undone(watch: Watch) -> None:
    """A run that succeeds compensates nothing, and a step's failure begins no unwind by itself."""
    decided = watch.first(OutcomeDecided)
    compensating = watch.first(CompensationStarted)
    if decided is not None and decided[1].outcome == "succeeded":
        assert compensating is None, "a succeeded run unwinds"
        assert not any(record.phase == "compensation" for record in watch.queued.values()), "a succeeded run compensates"
    if compensating is not None:
        assert decided is not None, "an unwind without an outcome"
        assert decided[0].index < compensating[0].index, "an unwind before its outcome"
    for entry, record in watch.of(StepCompleted):
        if record.failure is not None:
            ended = [other for other in watch.at(entry.position) if isinstance(other, OutcomeDecided)]
            assert not ended or watch.first(StopRequested) is not None, f"the failure of {record.step_id} ended the run by itself"


def invariant_14_the_unwind_is_sequential(watch: Watch) -> None:
    """Targets are walked one at a time in the plan's order; none begins before the one before it has its outcome."""
    plan = watch.first(CompensationStarted)
    order = [target.step_id for target in plan[1].targets] if plan is not None else []
    reached = 0
    for entry in watch.entries:
        record = entry.record
        if isinstance(record, AttemptQueued) and record.phase == "compensation":
            assert reached < len(order), f"{record.step_id} is undone after the unwind"
            assert record.step_id == order[reached], f"{record.step_id} is undone while {order[reached]} is not settled"
        elif isinstance(record, TargetSettled):
            assert reached < len(order), f"{record.step_id} settles after the unwind"
            assert record.step_id == order[reached], f"{record.step_id} settles out of order"
            reached += 1
    for entry, states in _states_along(watch):
        record = entry.record
        if isinstance(record, AttemptQueued | AttemptAuthorized):
            others = [key for key, state in states.items() if state in _UNRESOLVED and key != record.attempt_id]
            assert not others, f"{record.attempt_id} goes on beside {others}"


def invariant_15_the_plan_is_the_successes(watch: Watch) -> None:
    """The plan is exactly the `run` steps that succeeded, last completed first; there is none where there are none."""
    completed = [record.completion_order for _, record in watch.of(StepCompleted)]
    assert completed == list(range(1, len(completed) + 1)), f"completion order {completed}"
    decided = watch.first(OutcomeDecided)
    if decided is None or decided[1].outcome == "succeeded":
        return
    plan = watch.first(CompensationStarted)
    planned = [] if plan is None else [target.step_id for target in plan[1].targets]
    assert planned == watch.successes()[::-1], f"the plan is {planned}, the successes are {watch.successes()}"
    if plan is not None:
        assert plan[0].position == decided[0].position, "the plan is made in another transaction than the outcome"


def invariant_16_an_undone_step_stays_undone(watch: Watch) -> None:
    """A target's outcome is written once and nothing is attempted for it afterwards; recovery says what the outcomes add up to."""
    settled: dict[StepId, tuple[int, str]] = {}
    for entry, record in watch.of(TargetSettled):
        assert record.step_id not in settled, f"{record.step_id} is undone twice"
        settled[record.step_id] = (entry.index, record.state)
    for kind in (AttemptQueued, AttemptAuthorized, AttemptRequeued):
        for entry, record in watch.of(kind):
            queued = watch.queued[record.attempt_id]
            if queued.phase == "compensation" and queued.step_id in settled:
                assert entry.index < settled[queued.step_id][0], f"{queued.step_id} is reopened"
    ended = watch.first(RunEnded)
    if ended is not None:
        states = {state for _, state in settled.values()}
        expected = "compensation_failed" if "failed" in states else "partially_compensated" if "skipped" in states else "fully_compensated"
        assert ended[1].recovery == (expected if states else "not_required"), f"recovery {ended[1].recovery} of {states}"


def invariant_17_an_ended_run_owns_nothing(watch: Watch) -> None:
    """After its end a run has no pass, no open attempt and no instant to wake at; only stale submissions may still be recorded."""
    ended = watch.first(RunEnded)
    run = watch.run
    if ended is None:
        assert run.status != "ended", "the run is ended without a record of it"
        return
    assert run.status == "ended", f"ended, and {run.status}"
    later = [entry.record for entry in watch.entries[ended[0].index + 1 :] if not isinstance(entry.record, SubmissionStale)]
    assert not later, f"after the end: {later}"
    still_open = [attempt_id for attempt_id, state in watch.states.items() if state in ("queued", *_UNRESOLVED)]
    assert not still_open, f"ended with open attempts {still_open}"
    assert run.discovery_pass is None, "ended with a pass queued"
    assert run.dispatch is None, "ended with a pass out"
    assert run.current_attempt() is None, "ended with an attempt"
    waiting = [step.step_id for step in run.steps.values() if step.state == "pending"]
    assert not waiting, f"ended with {waiting} pending"
    assert agenda(run).need == "nothing", "ended and still in need"
    assert wake_at_ms(run) is None, "ended and still to be woken"


def invariant_18_a_live_run_is_never_stranded(watch: Watch) -> None:
    """A run that has not ended has work, an answer, an instant or a child to wait for, or a blocker that an operator can see.

    Whoever waits for a child alone is looked at when the child's end, which commits with the obligation, says so.
    """
    run = watch.run
    if run.status == "ended":
        return
    unknown = "unknown" in watch.states.values()
    if agenda(run).need == "nothing":
        assert unknown or run.blocker is not None, f"{run.status} with nothing to do"
    if wake_at_ms(run) is None:
        child = agenda(run).need == "child"
        assert unknown or child or run.blocker is not None, f"{run.status} and a restart would not look at it"
    assert (run.status == "definition_blocked") == (run.blocker is not None), f"{run.status} with blocker {run.blocker}"


def invariant_19_unknown_ends_by_an_answer(watch: Watch) -> None:
    """An unresolved attempt settles by an answer or by proof that it never began, and an Unknown one by an operator too; never by time."""
    requests: dict[AttemptId, RequestId] = {}
    answered = {
        record.attempt_id
        for submitted in watch.submitted
        if submitted.disposition == "accepted"
        for record in submitted.records
        if isinstance(record, AttemptSettled)
    }
    for entry, states in _states_along(watch):
        record = entry.record
        if isinstance(record, AttemptAuthorized):
            requests[record.attempt_id] = record.request_id
        elif isinstance(record, AttemptSettled) and states[record.attempt_id] in _UNRESOLVED:
            proven = requests[record.attempt_id] in watch.proofs and record.state == "fenced"
            if record.operator is not None:
                assert states[record.attempt_id] == "unknown", f"an operator settled {record.attempt_id}, which was not Unknown"
                assert record.attempt_id in watch.resolved, f"{record.attempt_id} names an operator who gave no command"
                continue
            assert record.state != "retry_authorized", f"{record.attempt_id} is to be retried, and no operator said so"
            assert proven or record.attempt_id in answered, f"{record.attempt_id} settled as {record.state} without an answer"


def invariant_22_never_began_consumes_nothing(watch: Watch) -> None:
    """An ordinal is used up only by an answer: what was requeued goes on as the same attempt of the same generation."""
    for key, attempts in watch.operations().items():
        used = [watch.states[record.attempt_id] for record in attempts[:-1]]
        assert all(state in ("failed", "obsolete", "retry_authorized") for state in used), f"{key} went through {used}"
    for entry, states in _states_along(watch):
        if isinstance(entry.record, AttemptRequeued):
            made = [record for record in watch.at(entry.position) if isinstance(record, AttemptQueued)]
            assert not made, f"{entry.record.attempt_id} never began, and a new attempt was made"
            assert entry.record.attempt_id in states


def invariant_23_nothing_is_early(watch: Watch) -> None:
    """A retry is authorized no earlier than its recorded instant; only the pace of what never began may be cut short.

    An instant that the run's own records have reached stays reached, however far the clock goes back. A timer settles and a wait times out
    no earlier than the instant recorded once, which is never before its acceptance.
    """
    due: dict[StepId, int] = {}
    for kind in (TimerArmed, WaitRegistered):
        for entry, record in watch.of(kind):
            assert record.step_id not in due, f"{record.step_id} is anchored twice"
            due[record.step_id] = record.due_at_ms if isinstance(record, TimerArmed) else record.timeout_at_ms
            assert due[record.step_id] >= entry.at_ms, f"{record.step_id} was due before it was accepted"
    for entry, record in watch.of(StepCompleted):
        if record.step_id in due and entry.position not in watch.matched:
            assert entry.at_ms >= due[record.step_id], f"{record.step_id} settles {due[record.step_id] - entry.at_ms} ms early"
    waiting: dict[AttemptId, int] = {}
    for entry in watch.entries:
        record = entry.record
        if isinstance(record, AttemptQueued):
            waiting[record.attempt_id] = record.due_at_ms
        elif isinstance(record, AttemptAuthorized):
            due_at_ms = waiting.pop(record.attempt_id, entry.at_ms)
            assert entry.at_ms >= due_at_ms, f"{record.attempt_id} is authorized {due_at_ms - entry.at_ms} ms early"
        for attempt_id in [attempt_id for attempt_id, due_at_ms in waiting.items() if due_at_ms <= entry.at_ms]:
            del waiting[attempt_id]


def invariant_24_a_wait_takes_one_event(watch: Watch) -> None:
    """A wait that succeeds does so by an event accepted after its registration and before its timeout, once; else it times out."""
    timeouts = {record.step_id: (entry.position, record.timeout_at_ms) for entry, record in watch.of(WaitRegistered)}
    for entry, record in watch.of(StepCompleted):
        matched = watch.matched.get(entry.position)
        if record.step_id not in timeouts:
            assert matched is None, f"an event completed {record.step_id}, which is no wait"
            continue
        if matched is None:
            assert record.failure is not None, f"{record.step_id} succeeded without an event"
            assert record.failure.category == "sdk.timeout", f"{record.step_id} failed without an event: {record.failure.category}"
            continue
        registered_at, timeout_at_ms = timeouts[record.step_id]
        assert entry.position > registered_at, f"{record.step_id} matched within its own registration"
        assert matched.accepted_position > matched.registered_position, f"{record.step_id} took an event from before its registration"
        assert matched.accepted_at_ms < timeout_at_ms, f"{record.step_id} took an event from after its timeout"


def invariant_25_a_duplicate_touches_nothing(watch: Watch) -> None:
    """A pass that met one id twice declares, runs, fails and undoes nothing."""
    allowed = (RunBlocked, DiscoveryQueued)
    for position in watch.duplicates:
        records = watch.at(position)
        assert records, f"a duplicate at {position} left no trace"
        assert all(isinstance(record, allowed) for record in records), f"a duplicate did {records}"
    for entry, _ in watch.of(RunBlocked):
        assert all(isinstance(record, allowed) for record in watch.at(entry.position)), "a blocked pass had an effect"


def invariant_26_history_is_the_state(watch: Watch) -> None:
    """Positions only grow, the first record makes the run, and folding the history gives the state."""
    positions = [row.position for row in watch.rows]
    assert positions == sorted(set(positions)), f"positions {positions}"
    assert isinstance(watch.entries[0].record, RunCreated)
    assert len(list(watch.of(RunCreated))) == 1
    folded = fold(watch.rows)
    assert folded is not None
    run = watch.run
    for name in (
        "status",
        "outcome",
        "recovery",
        "stop",
        "steps",
        "attempts",
        "unwind",
        "completed",
        "pending",
        "history_digest",
        "position",
    ):
        assert getattr(folded, name) == getattr(run, name), f"folding gives another {name}"
    ends = {record.step_id for kind in (StepCompleted, StepObsolete, StepStopped) for _, record in watch.of(kind)}
    assert all(run.steps[step_id].state != "pending" or step_id == run.pending for step_id in ends)


def invariant_28_what_belongs_together_commits_together(watch: Watch) -> None:
    """A child, an event and what one run owes another come with the decision whose records speak of them, and with no other.

    Looks at the transactions whose decisions were seen.
    """
    waits_for: RunId | None = None
    for row in watch.rows:
        records = watch.at(row.position)
        invoked = [record.child_run_id for record in records if isinstance(record, ChildInvoked)]
        completes = any(isinstance(record, StepCompleted) for record in records)
        waits_for = invoked[0] if invoked else None if completes else waits_for
        decision = watch.decided.get(row.position)
        if decision is None:
            continue
        _check_declared(watch.run, records, invoked, decision)
        owed: list[Obligation] = []
        for record in records:
            if isinstance(record, RunEnded) and watch.run.parent is not None:
                owed.append(SettleParent(watch.run.run_id, watch.run.parent.run_id, watch.run.parent.step_id))
            elif isinstance(record, StopRequested) and waits_for is not None:
                owed.append(StopChild(waits_for, watch.run.run_id, record.reason))
        assert list(decision.obligations) == owed, f"it owes {decision.obligations}, and should owe {owed}"


def _check_declared(run: Run, records: list[Record], invoked: list[RunId], decision: Decision) -> None:
    scope = Scope(run.workspace, run.application)
    declared = [record.declaration for record in records if isinstance(record, StepDeclared)]
    children = [run_id_for_child(scope, run.run_id, one.step_id) for one in declared if isinstance(one, ChildDeclaration)]
    born = [] if decision.birth is None else [decision.birth.created.run_id]
    assert born == invoked == children, f"{children} are declared, {invoked} recorded and {born} created"
    emitting = [one.step_id for one in declared if isinstance(one, EmissionDeclaration)]
    emitted = [] if decision.emitted is None else [decision.emitted.event_id]
    assert emitted == [emitted_event_id(scope, run.run_id, step_id) for step_id in emitting], f"{emitting} emit {emitted}"
    if emitting:
        done = [record.step_id for record in records if isinstance(record, StepCompleted)]
        assert done == emitting, f"{emitting} emits, and {done} completes"
        assert any(isinstance(record, DiscoveryQueued) for record in records), f"{emitting} emits and strands the run"


INVARIANTS: tuple[Callable[[Watch], None], ...] = (
    invariant_02_1_one_thing_at_a_time,
    invariant_03_a_generation_settles_once,
    invariant_04_a_successor_waits_for_its_predecessor,
    invariant_05_one_operation_id,
    invariant_06_a_stale_result_is_a_diagnostic,
    invariant_07_authorized_before_it_begins,
    invariant_08_an_accepted_success_is_final,
    invariant_09_ambiguity_never_restarts_itself,
    invariant_10_a_stop_ends_forward_work,
    invariant_11_a_stop_reason_is_final,
    invariant_12_no_undo_beside_an_open_effect,
    invariant_13_success_is_never_undone,
    invariant_14_the_unwind_is_sequential,
    invariant_15_the_plan_is_the_successes,
    invariant_16_an_undone_step_stays_undone,
    invariant_17_an_ended_run_owns_nothing,
    invariant_18_a_live_run_is_never_stranded,
    invariant_19_unknown_ends_by_an_answer,
    invariant_22_never_began_consumes_nothing,
    invariant_23_nothing_is_early,
    invariant_24_a_wait_takes_one_event,
    invariant_25_a_duplicate_touches_nothing,
    invariant_26_history_is_the_state,
    invariant_28_what_belongs_together_commits_together,
)
"""All checks that concern one run."""


def check_all(watch: Watch) -> None:
    """Hold the run against every invariant. Raises `AssertionError` that says what is broken."""
    for invariant in INVARIANTS:
        try:
            invariant(watch)
        except AssertionError as broken:
            raise AssertionError(f"{invariant.__name__}: {broken}") from broken
