"""Runs, attempts, events, workers and histories as lines of text, for reading in full. Pure."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ryusen_protocol import words
from ryusen_protocol.durations import format_ms
from ryusen_protocol.plain import clock_text, error_lines, error_text, input_text, instant_text, is_value, payload_text, value_text
from ryusen_tui.spans import Glyphs, Line, Span, foreign, own
from ryusen_tui.tables import COMMANDS, worker_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ryusen_protocol.api import (
        AttemptDocument,
        AttemptLogDocument,
        Blocker,
        EventDetail,
        FunctionDocument,
        HistoryEntryDocument,
        RunDetail,
        RunSummary,
        ServerInfo,
        WorkerDocument,
    )
    from ryusen_protocol.declarations import Location
    from ryusen_tui.board import Board

_LABEL: Final = 13
_PRINTED_MAX: Final = 50
"""Lines of one attempt, its last ones."""


def fact(name: str, *spans: Span) -> Line:
    """A name and what stands behind it."""
    return (own(f"{name:<{_LABEL}}", "muted"), *spans)


def run_head(run: RunSummary, glyphs: Glyphs) -> list[Line]:
    """What a run is and how it stands, on two lines."""
    status = words.run_word(run.status, None if run.stop is None else run.stop.reason, run.outcome)
    first = [Span(foreign(run.function).text, None, strong=True), own("  "), foreign(run.run_id, "muted")]
    second = [*glyphs.word(status)]
    if run.outcome is not None and run.status != "ended":
        second += [own("  outcome: ", "muted"), *glyphs.word(words.OUTCOMES[run.outcome])]
    if run.recovery is not None:
        second += [own("   "), *glyphs.word(words.recovery_word(run.recovery, run.recovery_reason, run.unwind_counts))]
    if run.attention is not None and run.status != "definition_blocked":
        second += [own("   "), *glyphs.word(words.ATTENTION[run.attention])]
    if run.ended_at_ms is not None:
        second.append(own(f"   took {format_ms(max(0, run.ended_at_ms - run.created_at_ms))}", "muted"))
    return [tuple(first), tuple(second)]


def run_failure(run: RunDetail) -> Line:
    """Why a run failed, on one line; nothing for any other."""
    return () if run.failure is None else (foreign(error_text(run.failure), "bad"),)


def blocker_lines(blocker: Blocker, glyphs: Glyphs, *, now_ms: int) -> list[Line]:
    """Why the current code cannot go on, both places, and what to do."""
    why = blocker.reason.replace("_", " ")
    lines: list[Line] = [(own(f"{glyphs.glyph('■')} Blocked at step ", "warn"), foreign(blocker.step_id), own(": "), foreign(why))]
    if blocker.first is not None:
        lines.append((own("  first      "), foreign(location(blocker.first))))
    if blocker.duplicate is not None:
        lines.append((own("  again at   "), foreign(location(blocker.duplicate))))
    lines.append((own("  fix        "), own("correct the code and save it")))
    seen = f"{blocker.count} times, last {format_ms(max(0, now_ms - blocker.last_seen_at_ms))} ago"
    lines.append((own("             "), own(f"the run then goes on by itself; seen {seen}", "muted")))
    return [*lines, (own("  "), foreign(blocker.message, "muted"))]


def location(place: Location) -> str:
    """A place in the source as an editor takes it."""
    parts = msgspec.structs.asdict(place)
    return ":".join(str(part) for part in (parts.get("file"), parts.get("line")) if part is not None)


def attempts_lines(run: RunDetail, logs: Mapping[str, AttemptLogDocument], glyphs: Glyphs, *, now_ms: int) -> list[Line]:
    """Every attempt of a run, step by step, forward ones first, each with what it printed last."""
    lines: list[Line] = []
    for step in run.steps:
        lines.append((Span(foreign(step.step_id).text, None, strong=True), own(f"  {step.kind.replace('_', ' ')}", "muted")))
        if step.location is not None:
            lines.append((own("  at "), foreign(location(step.location), "muted")))
        for attempt in step.attempts:
            lines += [*_attempt(attempt, glyphs, now_ms=now_ms), *_printed(logs.get(attempt.attempt_id), glyphs)]
        if not step.attempts:
            lines.append((own("  "), *glyphs.word(words.STEPS[step.state])))
        if step.child_run_id is not None:
            lines.append((own("  run "), foreign(step.child_run_id)))
        if is_value(step.result):
            lines.append((own("  result "), foreign(value_text(step.result))))
    for target in run.unwind.targets:
        lines.append((own(f"{glyphs.glyph('↺')} ", "accent"), Span(foreign(target.step_id).text, None, strong=True)))
        for attempt in target.attempts:
            lines += [*_attempt(attempt, glyphs, now_ms=now_ms), *_printed(logs.get(attempt.attempt_id), glyphs)]
        if not target.attempts:
            why = f" ({words.skip_reason(target.reason, target.hidden_by)})" if target.state == "skipped" else ""
            lines.append((own("  "), *glyphs.word(words.TARGETS[target.state]), own(why, "muted")))
    return lines


def _printed(log: AttemptLogDocument | None, glyphs: Glyphs) -> list[Line]:
    if log is None:
        return []
    lines: list[Line] = []
    earlier = len(log.lines) - _PRINTED_MAX
    if earlier > 0:
        lines.append((own(f"    {glyphs.glyph('…')} {earlier} earlier lines: ryusen runs show --json", "muted"),))
    for said in log.lines[-_PRINTED_MAX:]:
        for index, text in enumerate(said.text.rstrip("\n").split("\n")):
            head = f"    {clock_text(said.at_ms)}  " if index == 0 else " " * 18
            tone = "bad" if said.level in {"error", "critical"} else "warn" if said.level in {"warning", "stderr"} else None
            lines.append((own(head, "muted"), foreign(text, tone)))
    return lines


def _attempt(attempt: AttemptDocument, glyphs: Glyphs, *, now_ms: int) -> list[Line]:
    word = words.attempt_word(
        attempt.state,
        out_of_contact=attempt.out_of_contact,
        unknown_in_ms=None if attempt.unknown_at_ms is None else attempt.unknown_at_ms - now_ms,
        settled_by=attempt.settled_by,
    )
    head: list[Span] = [
        own(f"  attempt {attempt.attempt}"),
        own(f"  generation {attempt.attempt_generation}  ", "muted"),
        *glyphs.word(word),
    ]
    if attempt.authorized_at_ms is not None and attempt.settled_at_ms is not None:
        head.append(own(f"  {format_ms(max(0, attempt.settled_at_ms - attempt.authorized_at_ms))}", "muted"))
    lines: list[Line] = [tuple(head)]
    if attempt.worker is not None:
        release = attempt.worker.release_id or "none"
        lines.append((own("    at ", "muted"), foreign(attempt.worker.instance_id), own("  release ", "muted"), foreign(release)))
    if attempt.error is not None:
        lines += [(own("    "), foreign(text, "bad")) for text in error_lines(attempt.error, title="error")]
    if attempt.state == "unknown":
        lines.append((own("    "), *_why_unknown(attempt), own("; R resolves it", "alert")))
    return lines


def _why_unknown(attempt: AttemptDocument) -> Line:
    """A server that is older does not say why."""
    return (own("its worker reported no outcome") if attempt.unknown_reason is None else foreign(attempt.unknown_reason),)


def payload_lines(run: RunDetail) -> list[Line]:
    """Input and what came of it, indented where it is JSON."""
    lines: list[Line] = [(own("input", "muted"),), *_document(input_text(run.input)), ()]
    if run.failure is not None:
        lines += [(foreign(text, "bad"),) for text in error_lines(run.failure)]
    elif is_value(run.result):
        lines += [(own("result", "muted"),), *_document(value_text(run.result))]
    else:
        lines.append((own("no result yet" if run.status != "ended" else "no result", "muted"),))
    for step in run.steps:
        if is_value(step.result):
            lines += [(), (own("result of step ", "muted"), foreign(step.step_id)), *_document(value_text(step.result))]
    return lines


def payload_document(run: RunDetail) -> str:
    """The same for an editor, as one JSON text."""
    found: dict[str, Any] = {"run_id": run.run_id, "input": _parsed(input_text(run.input))}
    if is_value(run.result):
        found["result"] = _parsed(value_text(run.result))
    if run.failure is not None:
        found["failure"] = error_lines(run.failure)
    found["steps"] = {step.step_id: _parsed(value_text(step.result)) for step in run.steps if is_value(step.result)}
    return json.dumps(found, indent=2, ensure_ascii=True) + "\n"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _document(text: str) -> list[Line]:
    try:
        shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = text
    return [(own("  "), foreign(line)) for line in shown.split("\n")]


_TOLD: Final = frozenset(("pass", "reason", "by", "recovery", "function", "event_id", "name", "child_run_id", "hidden_by", "answer"))
"""Members that a person reads; a history in full, with digests and ids, is what `ryusen runs history --json` gives."""


class Teller:
    """Tells one run's history from the first entry on: later records name an attempt only by its id."""

    def __init__(self, glyphs: Glyphs) -> None:
        self._glyphs = glyphs
        self._attempts: dict[str, str] = {}

    def lines(self, entry: HistoryEntryDocument) -> list[Line]:
        """One transaction: the instant, the position, and what happened in it."""
        lines: list[Line] = []
        when = f"{clock_text(entry.at_ms)} {entry.position:>6}  "
        for index, raw in enumerate(entry.records):
            record = cast("dict[str, Any]", msgspec.json.decode(raw))
            lines.append((own(when if index == 0 else " " * len(when), "muted"), *self._record(record)))
        return lines

    def _record(self, record: dict[str, Any]) -> list[Span]:
        spans: list[Span] = [foreign(str(record.get("kind")).replace("_", " "))]
        what = self._what(record)
        if what:
            spans += [own("  "), foreign(what, "accent")]
        state = record.get("state") or record.get("outcome")
        word = words.ATTEMPTS.get(cast("Any", state)) or words.OUTCOMES.get(cast("Any", state)) if isinstance(state, str) else None
        if word is not None:
            spans += [own("  "), *self._glyphs.word(word)]
        failure = cast("dict[str, Any] | None", record.get("failure"))
        if failure is not None:
            spans += [own("  "), foreign(f"{failure.get('category')}: {failure.get('message')}", "bad")]
        rest = [f"{name} {_short(value)}" for name, value in record.items() if name in _TOLD and value is not None]
        if rest:
            spans += [own("  "), foreign(", ".join(rest), "muted")]
        return spans

    def _what(self, record: dict[str, Any]) -> str:
        declaration = cast("dict[str, Any] | None", record.get("declaration"))
        if declaration is not None:
            return f"{declaration.get('step_id')} ({declaration.get('kind')})"
        attempt_id = record.get("attempt_id")
        if record.get("kind") == "attempt_queued":
            undo = "undo " if record.get("phase") == "compensation" else ""
            self._attempts[str(attempt_id)] = f"{undo}{record.get('step_id')}, attempt {record.get('attempt')}"
        if attempt_id is not None:
            return self._attempts.get(str(attempt_id), str(attempt_id))
        targets = cast("list[dict[str, Any]] | None", record.get("targets"))
        if targets is not None:
            return ", ".join(str(target.get("step_id")) for target in targets)
        return str(record.get("step_id") or "")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def attempt_identity(attempt: AttemptDocument, run: RunSummary | None, *, now_ms: int) -> list[Line]:
    """What an Unknown attempt is, all of it, for somebody who is about to settle it."""
    what = "undoing step " if attempt.phase == "compensation" else "step "
    lines = [
        fact("run", foreign(attempt.run_id), own("  "), foreign("" if run is None else run.function, "muted")),
        fact("what", own(what), foreign(attempt.step_id), own(f", {attempt.phase}")),
        fact("attempt", own(f"{attempt.attempt}, generation {attempt.attempt_generation}  "), foreign(attempt.attempt_id, "muted")),
        fact("operation", foreign(attempt.operation_id)),
    ]
    if run is None:
        lines.append(fact("deadline", own("not known yet", "muted")))
    elif run.deadline is None:
        lines.append(fact("deadline", own("none")))
    else:
        left = run.deadline.at_ms - now_ms
        said = f"in {format_ms(left)}" if left > 0 else f"{format_ms(-left)} ago"
        lines.append(fact("deadline", own(f"{said}, from the {run.deadline.source}", "warn" if left <= 0 else None)))
    if attempt.worker is not None:
        lines.append(
            fact("worker", foreign(attempt.worker.instance_id), own("  release ", "muted"), foreign(attempt.worker.release_id or "none"))
        )
    began = "" if attempt.authorized_at_ms is None else f"began {format_ms(max(0, now_ms - attempt.authorized_at_ms))} ago"
    lost = "" if attempt.unknown_at_ms is None else f", Unknown for {format_ms(max(0, now_ms - attempt.unknown_at_ms))}"
    lines.append(fact("last heard", own(f"{began}{lost}; " if began else "nothing"), *(_why_unknown(attempt) if began else ())))
    if attempt.error is not None:
        lines.append(fact("it said", foreign(error_text(attempt.error), "bad")))
    return lines


def forbidden(attempt: AttemptDocument, command: str) -> str | None:
    """Why the server would refuse a command now; `None` if it would not."""
    return next((f"{one.code}: {one.reason}" for one in attempt.forbidden_commands if one.command == command), None)


def event_lines(event: EventDetail, glyphs: Glyphs) -> list[Line]:
    """An event: what it is, what it started is a list of its own."""
    payload = base64.b64decode(event.payload_base64)
    lines = [
        fact("event", Span(foreign(event.name).text, None, strong=True)),
        fact("id", foreign(event.event_id)),
        fact("received", own(instant_text(event.received_at_ms))),
        fact("routing", foreign(event.routing_generation)),
        fact("fan-out", *glyphs.word(words.EXPANSIONS[event.expansion]), own(f"  {event.matched} matched")),
    ]
    lines += [fact("metadata", foreign(f"{name} = {value}")) for name, value in event.metadata.items()]
    return [*lines, fact("payload"), *_document(payload_text(payload))]


def worker_lines(worker: WorkerDocument, glyphs: Glyphs) -> list[Line]:
    """All that is known of a worker."""
    lines = [
        fact("worker", Span(foreign(worker.instance_id).text, None, strong=True), own("  "), *worker_state(worker, glyphs)),
        fact("application", foreign(worker.application)),
        fact("release", foreign(worker.release_id or "none")),
        fact("transport", own(worker.transport)),
        fact("session", foreign(worker.session_id or "none")),
        fact("in flight", own(f"{worker.in_flight} of {worker.capacity}")),
        fact("last contact", own(instant_text(worker.last_contact_at_ms))),
    ]
    if worker.connected_at_ms is not None:
        lines.append(fact("connected", own(instant_text(worker.connected_at_ms))))
    if worker.last_failure is not None:
        when = "" if worker.last_failure_at_ms is None else instant_text(worker.last_failure_at_ms)
        lines.append(fact("last failure", foreign(worker.last_failure, "bad"), own(f"  {when}", "muted")))
    for name, software in (("sdk", worker.sdk), ("runtime", worker.runtime)):
        if software is not None:
            lines.append(fact(name, foreign(" ".join(str(part) for part in msgspec.structs.astuple(software)))))
    lines += [fact("function" if index == 0 else "", foreign(one)) for index, one in enumerate(worker.functions)]
    return lines


def function_lines(function: FunctionDocument) -> list[Line]:
    """All that is known of a function."""
    lines = [
        fact("function", Span(foreign(function.function).text, None, strong=True)),
        fact("application", foreign(function.application)),
        fact("timeout", own("none" if function.timeout_ms is None else format_ms(function.timeout_ms))),
        fact("manifest", foreign(function.manifest_generation)),
    ]
    lines += [fact("starts on", foreign(one.event_name), own("  trigger ", "muted"), foreign(one.trigger_id)) for one in function.triggers]
    lines += [fact("run by", foreign(one)) for one in function.workers]
    return lines if function.workers else [*lines, fact("run by", own("nobody now; start a worker of this application", "warn"))]


def server_lines(board: Board, url: str) -> list[Line]:
    """What the server is and which generations are live."""
    info: ServerInfo | None = board.server
    if info is None:
        return [fact("server", foreign(url))]
    counts = info.counts
    lines = [
        *(fact("listening" if index == 0 else "", foreign(address)) for index, address in enumerate(info.addresses)),
        fact("database", foreign(info.database.path), own("  gone with the server" if info.database.ephemeral else "", "warn")),
        fact(
            "version",
            foreign(f"{info.product_version}, protocol {info.protocol_version}"),
            own(f"  up since {clock_text(info.started_at_ms)}", "muted"),
        ),
        fact(
            "counts",
            own(f"{counts.events} events, {counts.runs} runs, {counts.moving} moving, {counts.unknown} Unknown, {counts.blocked} blocked"),
        ),
        fact(
            "lease",
            own(f"{format_ms(info.lease_ms)}, heartbeats {format_ms(info.heartbeat_ms)}, grace {format_ms(info.reconnect_grace_ms)}"),
        ),
    ]
    active = next((one for one in board.routing or () if one.active), None)
    if active is not None:
        lines.append(fact("routing", foreign(active.routing_generation)))
        lines += [
            fact("manifest", foreign(application), own("  "), foreign(generation, "muted"))
            for application, generation in active.applications.items()
        ]
    for release in (board.releases or ())[-5:]:
        live = len(release.instances)
        lines.append(
            fact(
                "release",
                foreign(release.application),
                own("  "),
                foreign(release.release_id),
                own(f"  {live} connected", "good" if live else "muted"),
            )
        )
    return lines


def allowed_lines(attempt: AttemptDocument) -> list[Line]:
    """The three commands, and for each that is forbidden, why."""
    lines: list[Line] = []
    for number, (command, said) in enumerate(COMMANDS.items(), 1):
        why = forbidden(attempt, command)
        tone = None if why is None else "muted"
        lines.append((own(f"{number} {said}", tone), own("" if why is None else "  refused now: ", "warn"), foreign(why or "", "warn")))
    return lines
